"""The bookkeeping that all environments have in common: steps, limits, refused actions, the end, and saves by replay."""

import abc
import contextlib
import dataclasses
import json
import math
import time
from collections.abc import Iterator, Mapping
from typing import Any

from envs.actions import check
from envs.api import Action, Env, EnvSpec, Invalid, LostError, Obs, StepResult, Task, VerifierError
from envs.digest import digest
from jaxllm.errors import UserError

MAX_FAILURES = 3  # actions refused in a row, after which an episode is truncated
SAVE_VERSION = 1


class BaseEnv(Env):
    """An environment of which a family writes `_reset`, `_act` and `_state`, and `close` if there is something to free.

    `finished` and `call_user` end the episode through `_finish`. Saving is by replay: a save holds the task, the seed, the
    actions and the digest that must come out.
    """

    def __init__(self, spec: EnvSpec, options: Mapping[str, Any] | None = None):
        self.spec = spec
        self.options = dict(options or {})  # what `envs.make` was given, so that a save can name it
        self._begun = False  # whether there is an episode
        self._over = True
        self._task: Task | None = None
        self._seed = 0
        self._steps = 0
        self._failures = 0  # actions refused in a row
        self._stuck = 0  # repetitions of the last action that changed nothing
        self._return = 0.0
        self._log: list[Action | Invalid] = []
        self._last = Obs()

    # What a family writes.

    @abc.abstractmethod
    def _reset(self, task: Task | None, seed: int) -> Obs:
        """Sets the episode up; returns the first observation (its `step` is filled in by the caller)."""

    @abc.abstractmethod
    def _act(self, action: Action) -> StepResult:
        """Does one valid action. `truncated` by the step limit, `obs.step` and ``effect`` are filled in by the caller."""

    @abc.abstractmethod
    def _state(self) -> dict[str, Any]:
        """The verifier's view, without the count of steps."""

    def _observe(self) -> Obs:
        """The present observation, for a step that changed nothing."""
        return self._last

    def _check(self, action: Action) -> Action | Invalid:
        """The action as `_act` takes it, or why it is refused. By default the check against the spec alone."""
        return check(action, self.spec)

    def _finish(self, action: Action) -> StepResult:
        """The agent declared the end by `finished` or `call_user`. By default that earns nothing."""
        return StepResult(self._observe(), 0.0, True, False, {})

    def close(self) -> None:
        """Nothing to free by default."""

    # What everybody calls.

    def reset(self, task: Task | None = None, seed: int = 0) -> Obs:
        """See `Env.reset`."""
        self._begin(task, int(seed))
        self._last = self._stamped(self._reset(task, self._seed))
        self._digest = digest(self._state())
        self._begun, self._over = True, False
        return self._last

    def step(self, action: Action | Invalid) -> StepResult:
        """See `Env.step`. `info` also holds ``stuck_steps``, repetitions that changed nothing, and ``latency`` in seconds."""
        if self._over:
            return StepResult(self._last, 0.0, False, False, {"error": "episode_over", "message": "reset first"})
        begun = time.perf_counter()
        checked = action if isinstance(action, Invalid) else self._check(action)
        self._log.append(checked)
        self._steps += 1
        self._over = True  # if what follows raises, nobody knows where the episode stands
        result = self._do(checked)
        if not math.isfinite(result.reward):
            raise ValueError(f"{self.spec.name}: a reward of {result.reward}")
        before, self._digest = self._digest, digest(self._state())
        effect = "unchanged" if self._digest == before else "changed"
        self._stuck = self._stuck + 1 if effect == "unchanged" and len(self._log) > 1 and self._log[-2] == checked else 0
        info = {"effect": effect, "stuck_steps": self._stuck, **result.info}
        terminated, truncated = bool(result.terminated), bool(result.truncated)
        if not terminated and self._failures >= MAX_FAILURES:
            truncated, info["status"] = True, "FAILED_TASK"
        elif not terminated and self._steps >= self.spec.max_steps:
            truncated, info["status"] = True, info.get("status", "MAX_STEPS")
        self._return += float(result.reward)
        self._over = terminated or truncated
        if self._over:
            info.setdefault("success", self._return >= self.spec.success)
        info["latency"] = time.perf_counter() - begun
        self._last = self._stamped(result.obs)
        return StepResult(self._last, float(result.reward), terminated, truncated, info)

    def _do(self, action: Action | Invalid) -> StepResult:
        if isinstance(action, Invalid):
            self._failures += 1
            return StepResult(self._observe(), 0.0, False, False, {"error": action.error, "message": action.message})
        self._failures = 0
        if action.name in ("finished", "call_user"):
            return self._finish(action)
        if action.name == "type" and action.arguments.get("content") == "":
            return StepResult(self._observe(), 0.0, False, False, {"empty_type": True})
        return self._act(action)

    def state(self) -> dict[str, Any]:
        """See `Env.state`."""
        return {**self._state(), "step": self._steps}

    def save(self) -> bytes:
        """See `Env.save`."""
        if "save" not in self.spec.supports:
            raise UserError(f"{self.spec.name} can't be saved")
        if not self._begun:
            raise UserError(f"{self.spec.name}: there is nothing to save before the first reset")
        task = self._task and {"id": self._task.id, "instruction": self._task.instruction, "data": dict(self._task.data)}
        blob = {
            "version": SAVE_VERSION,
            "name": self.spec.name,
            "options": self.options,
            "task": task,
            "seed": self._seed,
            "actions": [encode(action) for action in self._log],
            "digest": digest(self.state()),
        }
        try:
            return json.dumps(blob, sort_keys=True, allow_nan=False).encode()
        except (TypeError, ValueError) as error:
            raise UserError(f"{self.spec.name} can't be saved: its task or options are no plain JSON ({error})") from error

    def restore(self, blob: bytes) -> Obs:
        """See `Env.restore`."""
        saved = read_save(blob)
        options = json.loads(json.dumps(self.options, default=repr))
        if (saved["version"], saved["name"], saved["options"]) != (SAVE_VERSION, self.spec.name, options):
            raise UserError(
                f"a save of {saved['name']} (version {saved['version']}, options {saved['options']}) can't be restored "
                f"in {self.spec.name} (version {SAVE_VERSION}, options {options})"
            )
        self._resume(saved)
        if (found := digest(self.state())) != saved["digest"]:
            self._over = True
            replay = f"going on after {len(saved['actions'])} actions"
            raise LostError(f"{self.spec.name}: {replay} gives {found[:12]}, saved was {saved['digest'][:12]}")
        return self._last

    def _resume(self, saved: Mapping[str, Any]) -> None:
        """Brings the episode to where it was saved; by replay, where a family does not keep more in its saves."""
        self.reset(saved["task"] and Task(**saved["task"]), saved["seed"])
        for action in saved["actions"]:
            self.step(decode(action))

    def _begin(self, task: Task | None, seed: int) -> None:
        self._task, self._seed = task, seed
        self._begun, self._over = False, True
        self._steps = self._failures = self._stuck = 0
        self._return = 0.0
        self._log = []
        self._last = Obs()

    def _stamped(self, obs: Obs) -> Obs:
        return dataclasses.replace(obs, step=self._steps)


@contextlib.contextmanager
def judging(name: str) -> Iterator[None]:
    """Around the verifier of an environment: what goes wrong in it is raised as VerifierError, but for UserError."""
    try:
        yield
    except (UserError, VerifierError):
        raise
    except Exception as error:
        raise VerifierError(f"{name}: its verifier raised {type(error).__name__}: {error}") from error


def read_save(blob: bytes) -> dict[str, Any]:
    """What a save of `BaseEnv` holds, checked in form. Raises UserError for anything else."""
    kinds: dict[str, Any] = {"version": int, "name": str, "options": dict, "task": dict | None, "seed": int}
    kinds |= {"actions": list, "digest": str}
    try:
        saved = json.loads(blob)
    except (ValueError, RecursionError, TypeError) as error:
        raise UserError(f"this is no save of an environment ({type(error).__name__})") from error
    if not isinstance(saved, dict) or not all(isinstance(saved.get(key), kind) for key, kind in kinds.items()):
        raise UserError(f"this is no save of an environment: it needs {', '.join(kinds)}")
    task = saved["task"]
    if task is not None and (task.keys() != {"id", "instruction", "data"} or not isinstance(task["data"], dict)):
        raise UserError("this is no save of an environment: its task needs id, instruction and data")
    return saved


def encode(action: Action | Invalid) -> dict[str, Any]:
    """An action as JSON."""
    if isinstance(action, Invalid):
        return {"error": action.error, "message": action.message}
    return {"name": action.name, "arguments": dict(action.arguments)}


def decode(data: Mapping[str, Any]) -> Action | Invalid:
    """An action from JSON, checked only in form: `envs.actions.check` does the rest. Raises UserError for another form."""
    if isinstance(data, Mapping):
        if isinstance(data.get("error"), str):
            return Invalid(data["error"], str(data.get("message", "")))
        if isinstance(data.get("name"), str) and isinstance(data.get("arguments", {}), Mapping):
            return Action(data["name"], dict(data.get("arguments", {})))
    raise UserError(f"an action is an object with a name and arguments, not {str(data)[:80]!r}")
