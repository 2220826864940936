"""Environments side by side in this very process: for those that take microseconds, where a server would only cost."""

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from envs.api import Action, Env, EnvSpec, Invalid, LostError, Obs, StepResult, Task
from envs.digest import session_seed
from envs.vector import Batch
from jaxllm.errors import UserError


class LocalVector:
    """The part of `envs.vector.Vector` that a rollout uses. An exception in one environment is its own: status CRASHED."""

    def __init__(self, make: Callable[[], Env], num_envs: int, *, seed: int = 0):
        """
        Args:
          make: one environment, as in ``functools.partial(envs.make, "toy/hilo")``; called again for one that crashed.
          seed: of episodes that are started without a seed.
        """
        self.num_envs = self.batch_size = num_envs
        self._make, self._seed = make, seed
        self._envs = [make() for _ in range(num_envs)]
        self._episodes = [0] * num_envs
        self._ready: deque[tuple[int, StepResult, str]] = deque()

    @property
    def specs(self) -> list[EnvSpec]:
        """What is known of each environment."""
        return [env.spec for env in self._envs]

    def send_reset(
        self, ids: Sequence[int], *, seeds: Sequence[int] | None = None, tasks: Sequence[Task | None] | None = None
    ) -> None:
        """Starts episodes; `recv` has their first observations."""
        for k, i in enumerate(ids):
            seed = session_seed(self._seed, f"local {i}", self._episodes[i]) if seeds is None else seeds[k]
            self._episodes[i] += 1
            self._do(i, lambda env, k=k, seed=seed: _first(env.reset(None if tasks is None else tasks[k], seed), seed))

    def send(self, actions: Sequence[Action | Invalid], ids: Sequence[int]) -> None:
        """Does actions; `recv` has what they led to."""
        for action, i in zip(actions, ids, strict=True):
            self._do(i, lambda env, action=action: env.step(action))

    def recv(self, min_items: int | None = None, timeout: float | None = None) -> Batch:
        """All results that are there. Raises UserError if there is none."""
        if not self._ready:
            raise UserError("nothing is on its way: send actions, or a reset, first")
        rows, self._ready = list(self._ready), deque()
        results = [result for _, result, _ in rows]
        return Batch(
            np.array([i for i, *_ in rows]),
            [result.obs for result in results],
            np.array([result.reward for result in results]),
            np.array([result.terminated for result in results]),
            np.array([result.truncated for result in results]),
            [dict(result.info) for result in results],
            [status for *_, status in rows],
        )

    def state(self, ids: Sequence[int]) -> list[dict[str, Any] | None]:
        """The verifiers' views."""
        return [self._envs[i].state() for i in ids]

    def close(self) -> None:
        """Closes every environment."""
        for env in self._envs:
            env.close()

    def _do(self, i: int, what: Any) -> None:
        try:
            result, status = what(self._envs[i]), "OK"
        except (Exception, LostError) as error:  # an environment may raise anything
            code = str(getattr(error, "code", "crashed"))
            result = StepResult(Obs(), 0.0, False, True, {"error": code, "message": f"{type(error).__name__}: {error}"})
            status = "CRASHED"
            self._envs[i].close()
            self._envs[i] = self._make()
        self._ready.append((i, result, status))


def _first(obs: Obs, seed: int) -> StepResult:
    return StepResult(obs, 0.0, False, False, {"seed": seed})
