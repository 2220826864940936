"""Supervised learning on recorded episodes: how most runs of reinforcement learning begin.

Episodes become tokens and masks as in a rollout, and lie packed in rows. What a step reads follows from the seed and the step
alone, so a run that was killed goes on to the numbers that it would have had.
"""

import dataclasses
import functools
import logging
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import Mesh

from jaxllm.config import Config
from jaxllm.errors import UserError
from jaxllm.params import Params
from rl import lora, losses, metrics, models, placement, policy
from rl.config import Algo, Optim
from rl.packing import NO_SEGMENT
from rl.sft_config import SftConfig
from rl.sft_data import load, same_data
from rl.state import Checkpoints, Counters, save_config
from rl.update import LEAN, MAX_SKIPPED, Setting, Step, TrainState, descend, optimiser, rate

log = logging.getLogger(__name__)

WAIT = 0.001  # seconds between looks at a step under way, so that Ctrl-C is heard meanwhile


@dataclasses.dataclass(frozen=True)
class How:
    """What is fixed while compiled functions run; hashable."""

    setting: Setting
    config: SftConfig

    @property
    def rate(self) -> optax.Schedule:
        """The learning rate by step."""
        config = self.config
        return rate(config.rate, config.warmup, max(config.steps - config.warmup, 1) if config.schedule == "cosine" else 0)

    @property
    def optimiser(self) -> optax.GradientTransformation:
        """See `rl.update.optimiser`."""
        return optimiser(self.rate, self.setting.optim)

    def logprobs(self, weights: Params, base: Params | None, ids: jax.Array, segments: jax.Array) -> jax.Array:
        """[B, T] log-probabilities under the weights that are trained, or under a model with the adapters that are."""
        model = self.setting.model(weights, base)
        return policy.logprobs(model, self.setting.cfg, ids, segments=segments, **self.setting.passes)[0]


@functools.partial(jax.jit, static_argnames=("how",), donate_argnames=("weights", "opt"), compiler_options=LEAN)
def step(
    how: How, weights: Params, opt: optax.OptState, base: Params | None, ids: jax.Array, mask: jax.Array, segments: jax.Array
) -> Step:
    """One step on rows [B, T]: the mean negative log-probability of all tokens of the mask, however the rows are cut."""

    def loss(weights: Params, part: Any) -> tuple[jax.Array, dict[str, jax.Array]]:
        ids, mask, segments, shares = part
        logp = how.logprobs(weights, base, ids, segments)
        total = -(shares * jnp.where(mask, logp, 0)).sum()
        return total, {"sft/loss": total}

    return descend(how.setting, how.optimiser, loss, weights, opt, (ids, mask, segments, losses.token_weights(mask)))


@functools.partial(jax.jit, static_argnames=("how",))
def surprise(how: How, weights: Params, base: Params | None, ids: jax.Array, mask: jax.Array, segments: jax.Array) -> jax.Array:
    """The negative log-probability of all tokens of the mask, summed."""
    return -jnp.where(mask, how.logprobs(weights, base, ids, segments), 0).sum()


class Done(NamedTuple):
    """Where a run stands, in one piece: Ctrl-C finds the whole of it or nothing."""

    weights: Params
    opt: optax.OptState
    step: int  # finished steps
    skipped: int  # of the last ones in a row
    metrics: dict[str, jax.Array]  # of the last step


class Sft:
    """A run in a folder. `run` yields the figures of each step; it goes on where a killed run stopped."""

    def __init__(self, config: SftConfig, recordings: Sequence[Path], folder: Path, *, mesh: Mesh | None = None):
        """
        Raises:
          UserError: as `rl.sft_data.load` and `rl.models.start`; a folder that holds a run of other settings or other episodes.
        """
        self.config, self.folder, self.mesh = config, folder, mesh
        parts = placement.rows(mesh) * config.micro_batches
        if config.batch % parts:
            raise UserError(f"batch {config.batch} can't be cut into {parts} equal parts, for micro-batches and devices")
        dtype = config.compute_dtype if config.lora_rank else "float32"  # weights that no step moves need no more
        self.begin = models.start(config.model, config.seed, mesh, dtype)
        cfg: Config = self.begin.cfg
        self.data = load(recordings, config, self.begin.codec, cfg.max_position_embeddings)
        save_config(folder, dataclasses.asdict(config))
        same_data(folder, self.data.facts)
        optim = Optim(
            weight_decay=config.weight_decay,
            clip_norm=config.clip_norm,
            micro_batches=config.micro_batches,
            compute_dtype=config.compute_dtype,
            remat=config.remat,
        )
        small = lora.Lora(config.lora_rank, config.lora_alpha) if config.lora_rank else None
        self.how = How(Setting(cfg, Algo(), optim, 1.0, mesh, small), config)
        weights, self.base = self.begin.params, None
        if small is not None:
            self.base, weights = weights, lora.init(jax.random.key(config.seed), cfg, small, stacked=True, mesh=mesh)
        opt = placement.put(self.how.optimiser.init(weights), cfg, mesh)
        self.done = Done(weights, opt, 0, 0, {})
        self.checkpoints = Checkpoints(folder, config.keep)
        self._written, self._saved = 0, -1
        self._writer: metrics.Writer | None = None
        self._begun = 0.0
        if self.checkpoints.latest is not None:
            state, counters = self.checkpoints.restore(self._state())
            self.done = Done(state.policy, state.policy_opt, counters.update, counters.skipped, {})
            self._written = self._saved = counters.update

    def run(self, report: Callable[[str], None] = log.info) -> Iterator[dict[str, float]]:
        """Trains to the end, and yields what is also written to the run's files."""
        report(self.told())
        if self.done.step:
            left = self.done.step < self.config.steps
            report(f"goes on after step {self.done.step}" if left else f"all is done after step {self.done.step}")
        self._writer = metrics.Writer(self.folder, resume_at=self.done.step)
        while self.done.step < self.config.steps:
            self._begun = time.perf_counter()
            self._step()
            figures = self._write()
            yield {"update": self.done.step - 1, **figures}
            if self._due(self.config.checkpoint_every):
                self.save()

    def told(self) -> str:
        """What is trained on, in a line."""
        facts, config = self.data.facts, self.config
        epochs = config.steps * config.batch / facts["rows"]
        left = facts["below_min_reward"] + facts["unreadable"]
        return (
            f"{facts['episodes']} episodes in {facts['rows']} rows, {facts['policy_tokens']:,} of {facts['tokens']:,} tokens "
            f"to imitate, {facts['held_out']} episodes held out, {left} left out: {config.steps} steps are {epochs:.1f} epochs"
        )

    def save(self) -> int:
        """Writes a checkpoint of the last finished step, unless there is one; returns the step that a run will go on after."""
        alive = not any(leaf.is_deleted() for leaf in jax.tree.leaves((self.done.weights, self.done.opt)))
        if alive and self.done.step > self._saved:
            self._write()
            self.checkpoints.save(self._state(), Counters(update=self.done.step, skipped=self.done.skipped))
            self._saved = self.done.step
        return max(self._saved, 0)

    def export(self, name: str = models.MODEL) -> list[Path]:
        """Writes the model as a Hugging Face folder within the run's, and the adapters beside it; returns the folders.

        What is there already stays: it was written whole.
        """
        adapted: dict[str, Any] = {"base": self.base, "small": self.how.setting.lora, "source": self.config.model}
        return models.export(self.folder, self.done.weights, self.begin.cfg, self.begin.text, name=name, **adapted)

    def close(self) -> None:
        """Closes the run's files."""
        if self._writer is not None:
            self._writer.close()
        self.checkpoints.close()

    def evaluate(self) -> float:
        """Mean negative log-probability of a token of the held-out episodes, in nats; NaN without any."""
        held, size, total = self.data.held_out, self.config.batch, 0.0
        for at in range(0, len(held.tokens), size):
            rows = np.arange(at, at + size)
            part = held.take(np.where(rows < len(held.tokens), rows, -1))
            arrays = (part.tokens, part.mask, part.segments)
            total += float(_wait(surprise(self.how, self.done.weights, self.base, *arrays)))
        return total / held.mask.sum() if held.mask.any() else float("nan")

    def rows(self, number: int) -> np.ndarray:
        """The rows of a step: an epoch is a permutation by the seed; -1 fills its last step up."""
        count, size = len(self.data.train.tokens), self.config.batch
        epoch, at = divmod(number, -(-count // size))
        order = np.random.default_rng([self.config.seed, epoch]).permutation(count)[at * size : (at + 1) * size]
        return np.concatenate([order, np.full(size - len(order), -1, order.dtype)])

    def _step(self) -> None:
        part = self.data.train.take(self.rows(self.done.step))
        arrays = (part.tokens, part.mask, part.segments)
        found = step(self.how, self.done.weights, self.done.opt, self.base, *arrays)
        about = {"sft/policy_tokens": part.mask.sum(), "sft/filled": (part.segments != NO_SEGMENT).mean()}
        self.done = Done(found.params, found.opt, self.done.step + 1, self.done.skipped, {**found.metrics, **about})

    def _write(self) -> dict[str, float]:
        """The figures of the last step, also to the run's files, once."""
        if self._written == self.done.step or self._writer is None:
            return {}
        _wait(self.done.metrics["sft/loss"])
        figures = {name if "/" in name else f"sft/{name}": float(value) for name, value in self.done.metrics.items()}
        skipped = self.done.skipped + 1 if figures["sft/skipped"] else 0
        figures["sft/lr"] = float(self.how.rate(self.done.step - 1))
        figures["seconds/step"] = time.perf_counter() - self._begun
        if self.data.held_out.mask.any() and self._due(self.config.eval_every):
            figures["eval/loss"] = self.evaluate()
            figures["seconds/eval"] = time.perf_counter() - self._begun - figures["seconds/step"]
        self.done, self._written = self.done._replace(skipped=skipped), self.done.step
        self._writer.write(self.done.step - 1, figures)
        if skipped >= MAX_SKIPPED:
            raise UserError(f"{MAX_SKIPPED} steps in a row had gradients that are not finite: the run stops; lower --lr")
        return figures

    def _due(self, every: int) -> bool:
        return self.done.step == self.config.steps or bool(every and self.done.step % every == 0)

    def _state(self) -> TrainState:
        return TrainState(policy=self.done.weights, critic=None, policy_opt=self.done.opt, critic_opt=(), reference=None)


def _wait(array: Any) -> Any:
    """The array once it is computed; meanwhile Python runs, and Ctrl-C is heard at once."""
    while not array.is_ready():
        time.sleep(WAIT)
    return array
