"""One training run, from the first weights to the last: imitate, pretrain the critic, then play, score, step, publish.

This file is the whole iteration (specified in UI-TARS-2, arXiv 2509.02544, and the works that it builds on). It is synchronous:
what is trained was sampled by the weights that are trained. `Trainer._play` is where an asynchronous sampler plugs in; versions
of tokens, importance weights and the count of accepted episodes are kept for it already.
"""

import dataclasses
import functools
import logging
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

import envs
from envs.digest import session_seed
from envs.local import LocalVector
from envs.policies import noisy, random_policy
from jaxllm import params as trees
from jaxllm import sharding
from jaxllm.config import Config
from jaxllm.errors import UserError
from rl import critic, drift, groups, lora, losses, metrics, models, placement, tokens, update
from rl.config import MISMATCH, TrainConfig
from rl.engine import Engine
from rl.figures import of_update
from rl.rollout import Budget, Episode, rollout, scripted
from rl.saved import FILE as CONFIG_FILE
from rl.state import Checkpoints, Counters, save_config
from rl.types import Batch, Trajectory
from rl.update import MAX_SKIPPED, Setting, Targets, TrainState

log = logging.getLogger(__name__)

EVAL, IMITATE, WARM = "eval", "imitate", "warm"  # kinds of seeds, apart from those of training
PATIENCE, RISE = 20, 0.01  # value pretraining ends when held-out explained variance rose by less over so many updates


class Trainer:
    """A run in a folder. `run` yields the figures of each update as it ends; it goes on where a killed run stopped."""

    def __init__(self, config: TrainConfig, folder: Path, *, mesh: Mesh | None = None):
        """
        Raises:
          UserError: a folder that holds another run, or a model that no run has made; an environment or a model that can't be
            made.
        """
        self.config, self.folder, self.mesh = config, folder, mesh
        for place in (folder / models.MODEL, folder / models.ADAPTER):
            if place.exists() and not (folder / CONFIG_FILE).exists():  # else it is of an earlier end of this run
                raise UserError(f"{place}: is there already, where the run would leave what it has made; choose another folder")
        small = lora.Lora(config.lora.rank, config.lora.alpha) if config.lora.rank else None
        begin = models.start(config.model, config.seed, mesh, config.optim.compute_dtype if small else "float32")
        save_config(folder, dataclasses.asdict(config))  # not before: a model that is none leaves nothing behind
        self.cfg, self.codec, self._text = begin.cfg, begin.codec, begin.text
        play = config.rollout
        self.setting = Setting(self.cfg, config.algo, config.optim, play.temperature, mesh, small)
        weights, base, self._served = begin.params, None, None
        if small:
            base, weights = weights, lora.init(jax.random.key(config.seed), self.cfg, small, stacked=True)
            self._served = _unstacked(self.setting, base)  # the sampler's copy, beside which adapters are published
        self.state = _fresh(config, self.cfg, weights, mesh, base)
        self.counters = Counters()
        self.budget = Budget(play.max_turns, play.max_tokens, play.max_tokens_per_turn, play.seconds)
        slots = min(play.slots, play.groups * play.group_size)
        if play.servers:
            self.environments: Any = envs.make_vec(play.env, slots, seed=config.seed)
        else:
            self.environments = LocalVector(functools.partial(envs.make, play.env), slots, seed=config.seed)
        options: dict[str, Any] = {"context": play.context, "temperature": play.temperature, "seed": config.seed, "mesh": mesh}
        self.engine = Engine(self._published(), self.cfg, slots=slots, **options)
        self.checkpoints = Checkpoints(folder, config.keep)
        self.words = drift.Words(folder, self.cfg, begin.tokenizer, mesh) if config.drift_every else None

    def run(self, report: Callable[[str], None] = log.info) -> Iterator[dict[str, float]]:
        """Trains to the end, and yields what is also written to the run's files."""
        if self.checkpoints.latest is not None:
            self.state, self.counters = self.checkpoints.restore(self.state)
            done = self.counters.update
            left = done < self.config.updates
            report(f"goes on after update {done}" if left else f"all is done after update {done}: more --updates go on")
            if self.counters.version:  # else the engine has these weights already
                self._send()
            if self.words:
                self.words.resume(done)
        else:
            self._imitate(report)
            if self.words:
                self.words.begin(self.model)
        writer = metrics.Writer(self.folder, resume_at=self.counters.update)
        try:
            if self.config.algo.critic and not self.counters.warm:
                self._pretrain_critic(report)
            if self.checkpoints.latest is None and self.config.checkpoint_every:
                self.checkpoints.save(self.state, self.counters)
            while self.counters.update < self.config.updates:
                figures = self.iterate()
                writer.write(self.counters.update - 1, figures)
                yield {"update": self.counters.update - 1, **figures}
                last = self.counters.update == self.config.updates
                for name in (models.MODEL, models.ADAPTER) if last else ():
                    shutil.rmtree(self.folder / name, ignore_errors=True)  # of an earlier end: gone before this end can be seen
                if last or self._due(self.config.checkpoint_every):
                    self.checkpoints.save(self.state, self.counters)
            self._export()
        finally:
            writer.close()
            self.checkpoints.close()
            self.environments.close()

    def iterate(self) -> dict[str, float]:
        """One update: play, score, aim, step, publish."""
        clock = _Clock()
        trajectories, group_of = self._collect()
        clock.lap("play")
        batch, anchors = self._batch(trajectories, group_of)
        scores = update.score(self.setting, self.state, jnp.asarray(batch.tokens))
        shaping, figures = self._shaping(trajectories)
        aims, aimed = update.targets(self.setting, batch, scores, anchors, shaping)
        figures["off/alarm"] = float(self._alarm(aimed))
        judged = {"values": aims.values, "returns": aims.returns} if self.config.algo.critic else {}
        figures |= aimed
        figures |= of_update(batch, scores[1], [one.env for one in trajectories], self.engine.version, **judged)
        clock.lap("score")
        steps: list[dict[str, Any]] = []
        for rows in self._mini_batches(batch):
            steps += self._step(batch, aims, rows)
        figures |= {name: float(np.mean([step[name] for step in steps if name in step])) for step in steps for name in step}
        self._watch(steps)
        clock.lap("step")
        self.counters = dataclasses.replace(
            self.counters, update=self.counters.update + 1, accepted=self.counters.accepted + len(trajectories)
        )
        self._publish()
        if self._due(self.config.eval_every):
            figures |= {f"eval/{name}": value for name, value in self.evaluate().items()}
            clock.lap("eval")
        if self.words and self._due(self.config.drift_every):
            figures |= self.words.measure(self.model, self.counters.update - 1)
            clock.lap("drift")
        return {**self._figures, **figures, **clock.shares()}

    def evaluate(self) -> dict[str, float]:
        """Success and outcome on tasks that training never sees; changes no counter, weight or seed of training."""
        count = self.config.eval_episodes
        episodes = [Episode(-1 - i, self._seed(EVAL, i)) for i in range(count)]
        found = metrics.of_episodes([one for _, one in self._play(episodes)])
        return {name: found[name] for name in ("reward/outcome", "success_rate", "turns") if name in found}

    @property
    def model(self) -> trees.Params:
        """The policy whole, stacked; adapters are in its weights."""
        return models.merged(self.state.policy, self.state.base, self.setting.lora)

    def _export(self) -> None:
        """Writes the policy for other commands, unless it is there."""
        adapted: dict[str, Any] = {"base": self.state.base, "small": self.setting.lora, "source": self.config.model}
        models.export(self.folder, self.state.policy, self.cfg, self._text, **adapted)

    def _due(self, every: int) -> bool:
        """Whether what is done each so many updates, and after the last one, is done after this one; 0 for never."""
        return every > 0 and (self.counters.update % every == 0 or self.counters.update == self.config.updates)

    # Playing.

    def _play(self, episodes: list[Episode]) -> list[tuple[Episode, Trajectory]]:
        """All of these episodes, in the order of their numbers, whatever the order in which they end."""
        states = self.config.algo.name == "gigpo"
        found = rollout(
            self.engine, self.environments, episodes, self.codec, self.budget, memory=self.config.memory, states=states
        )
        return sorted(found, key=lambda pair: pair[0].number)

    def _new_groups(self, count: int, kind: str = "train") -> list[Episode]:
        size = self.config.rollout.group_size
        episodes: list[Episode] = []
        for group in range(self.counters.groups, self.counters.groups + count):
            seed = self._seed(kind, group)
            numbers = range(self.counters.episodes + len(episodes), self.counters.episodes + len(episodes) + size)
            episodes += [Episode(number, seed, group) for number in numbers]
        self.counters = dataclasses.replace(
            self.counters, groups=self.counters.groups + count, episodes=self.counters.episodes + len(episodes)
        )
        return episodes

    def _collect(self) -> tuple[list[Trajectory], list[int]]:
        """The trajectories of an update and their groups, numbered from 0."""
        play, algo = self.config.rollout, self.config.algo
        kept: list[tuple[Episode, Trajectory]] = []
        seen: list[Trajectory] = []
        for _ in range(algo.max_resample_rounds if algo.dynamic_sampling else 1):
            have = len({episode.group for episode, _ in kept})
            fresh = self._play(self._new_groups(play.groups - have))
            seen += [one for _, one in fresh]
            alive = [pair for pair in fresh if not pair[1].stop.failed]
            if algo.dynamic_sampling:
                outcomes: dict[int, list[float]] = {}
                for episode, one in alive:
                    outcomes.setdefault(episode.group, []).append(one.outcome)
                uneven = {group for group, scores in outcomes.items() if max(scores) - min(scores) > groups.EQUAL}
                alive = [pair for pair in alive if pair[0].group in uneven]
            kept += alive
            if len({episode.group for episode, _ in kept}) >= play.groups:
                break
        self._figures = metrics.of_episodes(seen)
        if self._figures["env/failed_frac"] > play.max_failed_fraction:
            reasons = {one.info.get("message", one.stop.value) for one in seen if one.stop.failed}
            raise UserError(f"{self._figures['env/failed_frac']:.0%} of the episodes failed: {'; '.join(sorted(reasons)[:3])}")
        if not kept:
            raise UserError("no group of this update had unequal outcomes: the tasks are all solved, or all too hard")
        numbers = {group: i for i, group in enumerate(dict.fromkeys(episode.group for episode, _ in kept))}
        return [one for _, one in kept], [numbers[episode.group] for episode, _ in kept]

    def _batch(self, trajectories: list[Trajectory], group_of: list[int]) -> tuple[Batch, np.ndarray | None]:
        play, optim = self.config.rollout, self.config.optim
        segments = sum(1 + sum(turn.rewritten for turn in one.turns[1:]) for one in trajectories)
        rows = max(play.groups * play.group_size, segments)
        multiple = optim.mini_batches * optim.micro_batches * placement.rows(self.mesh)
        batch = tokens.make_batch(
            trajectories, group_of, multiple=multiple, num_rows=-(-rows // multiple) * multiple, buckets=(play.context,)
        )
        if self.config.algo.name != "gigpo":
            return batch, None
        width = max(len(one.turns) for one in trajectories)
        keys = [[turn.state for turn in one.turns] for one in trajectories]
        return batch, groups.anchor_ids(keys, group_of, tokens.bucket(width))

    def _shaping(self, trajectories: list[Trajectory]) -> tuple[np.ndarray | None, dict[str, float]]:
        """Rewards beside the outcome, by trajectory, and their means."""
        algo = self.config.algo
        parts = {}
        if algo.format_weight:
            wrong = [sum(turn.error is not None for turn in one.turns) / max(len(one.turns), 1) for one in trajectories]
            parts["reward/fmt"] = -algo.format_weight * np.array(wrong)
        if algo.overlong_limit:
            lengths = jnp.array([one.policy_tokens for one in trajectories])
            parts["reward/len"] = np.asarray(losses.overlong_penalty(lengths, algo.overlong_limit, algo.overlong_buffer))
        total = sum(parts.values(), np.zeros(len(trajectories))) if parts else None
        return total, {name: float(part.mean()) for name, part in parts.items()}

    # Stepping.

    def _alarm(self, figures: dict[str, float]) -> bool:
        """Whether sampler and trainer are farther apart than by rounding. Raises UserError where that is to end the run."""
        algo, apart = self.config.algo, figures["off/abs_dlogp_mean"]
        if algo.mismatch_stop is not None and not apart <= algo.mismatch_stop:
            raise UserError(
                f"sampler and trainer are {apart:.3g} nats a token apart ({figures['off/abs_dlogp_max']:.3g} at most), beyond "
                f"algo.mismatch_stop {algo.mismatch_stop:g}: the run stops before a step. Do both have the same weights, "
                f"prompts and temperature? A run may go on with another --algo.mismatch-stop"
            )
        limit = MISMATCH[self.config.optim.compute_dtype] if algo.mismatch_warn is None else algo.mismatch_warn
        return not apart <= limit  # NaN is an alarm

    def _mini_batches(self, batch: Batch) -> Iterator[np.ndarray]:
        """Rows of each optimiser step: whole groups, in an order that the seed and the update give; -1 for inert rows."""
        optim = self.config.optim
        groups_there = np.unique(batch.group_id[batch.group_id >= 0])
        for epoch in range(optim.mini_epochs):
            rng = np.random.default_rng([self.config.seed, self.counters.update, epoch])
            parts = np.array_split(rng.permutation(groups_there), optim.mini_batches)
            size = max(batch.tokens.shape[0] // optim.mini_batches, *(np.isin(batch.group_id, part).sum() for part in parts))
            size = -(-int(size) // optim.micro_batches) * optim.micro_batches
            for part in parts:
                rows = np.flatnonzero(np.isin(batch.group_id, part))
                yield np.concatenate([rows, np.full(size - len(rows), -1)]).astype(int)

    def _step(self, batch: Batch, aims: Targets, rows: np.ndarray, *, critic_only: bool = False) -> list[dict[str, Any]]:
        """A step of the critic and one of the policy on some rows."""
        real = rows >= 0
        picked = jax.tree.map(lambda leaf: leaf[np.maximum(rows, 0)], aims)
        picked = dataclasses.replace(picked, mask=picked.mask & real[:, None], solved=picked.solved & real)
        ids = jnp.asarray(batch.tokens[np.maximum(rows, 0)])
        found: dict[str, Any] = {}
        state = self.state
        if state.critic is not None:
            shared = None if "trunk" in state.critic else state.policy
            step = update.critic_step(self.setting, state.critic, state.critic_opt, ids, picked, shared, state.base)
            state = dataclasses.replace(state, critic=step.params, critic_opt=step.opt)
            found |= step.metrics
        if not critic_only:
            _, order = np.unique(np.where(real, batch.traj_id[np.maximum(rows, 0)], -1), return_inverse=True)
            step = update.policy_step(self.setting, state.policy, state.policy_opt, ids, jnp.asarray(order), picked, state.base)
            state = dataclasses.replace(state, policy=step.params, policy_opt=step.opt)
            found |= step.metrics
        self.state = state
        return [{name: float(value) for name, value in found.items()}]

    def _watch(self, steps: list[dict[str, Any]]) -> None:
        for step in steps:
            bad = step.get("ppo/skipped") or step.get("critic/skipped")
            self.counters = dataclasses.replace(self.counters, skipped=self.counters.skipped + 1 if bad else 0)
            if self.counters.skipped >= MAX_SKIPPED:
                raise UserError(f"{MAX_SKIPPED} steps in a row had gradients that are not finite: the run stops")

    def _published(self) -> trees.Params:
        small = self.setting.lora
        policy = _unstacked(self.setting, self.state.policy, adapters=small is not None)
        return policy if self._served is None or small is None else lora.beside(self._served, policy, small)

    def _publish(self) -> None:
        self.counters = dataclasses.replace(self.counters, version=self.counters.version + 1)
        self._send()

    def _send(self) -> None:
        self.engine.publish(self._published(), self.counters.version)

    def _seed(self, kind: str, number: int) -> int:
        return session_seed(self.config.seed, f"{kind} {self.config.rollout.env}", number)

    # Before the first update.

    def _imitate(self, report: Callable[[str], None]) -> None:
        """Supervised learning on scripted episodes: the format, and what such a policy does."""
        how = self.config.imitate
        if not how.steps:
            return
        env = envs.make(self.config.rollout.env)
        played = []
        for i in range(how.episodes):
            seed = self._seed(IMITATE, i)
            policy = random_policy(env.spec, seed) if how.policy == "random" else envs.oracle(self.config.rollout.env, seed)
            if policy is None:
                raise UserError(f"{self.config.rollout.env} has no oracle to imitate")
            played.append(scripted(env, noisy(policy, env.spec, how.noise, seed), self.codec, Episode(i, seed)))
        env.close()
        batch = tokens.make_batch(played, [0] * len(played))
        optim = dataclasses.replace(
            self.config.optim, actor_lr=how.lr, warmup=10, decay=max(how.steps - 10, 1), micro_batches=1
        )
        setting = dataclasses.replace(self.setting, optim=optim)
        opt = placement.put(update.optimiser(how.lr, optim).init(self.state.policy), self.cfg, self.mesh)
        weights, rng, loss = self.state.policy, np.random.default_rng(self.config.seed), float("nan")
        for _ in range(how.steps):
            rows = rng.choice(len(played), how.batch)
            ids, mask = jnp.asarray(batch.tokens[rows]), jnp.asarray(batch.mask[rows])
            weights, opt, found = update.imitation_step(setting, weights, opt, ids, mask, self.state.base)
            loss = found["sft/loss"]
        report(f"imitated {how.policy} play for {how.steps} steps: loss {float(loss):.3f} nats a token")
        self.state = _fresh(self.config, self.cfg, weights, self.mesh, self.state.base)
        self._publish()

    def _pretrain_critic(self, report: Callable[[str], None]) -> None:
        """The critic alone, on returns of the frozen policy, until its held-out explained variance has flattened (VC-PPO).

        Its weights stay; its optimiser begins anew, moments and count of steps, so that its rate rises with the policy's.
        """
        smoothed, history = 0.0, []
        for i in range(self.config.algo.value_pretrain):
            trajectories = [
                one for _, one in self._play(self._new_groups(self.config.rollout.groups, WARM)) if not one.stop.failed
            ]
            batch, _ = self._batch(trajectories, [0] * len(trajectories))
            alone: Any = np.where(np.asarray(batch.traj_id) < 0, -1, np.arange(len(batch.traj_id)))
            batch = dataclasses.replace(batch, group_id=alone)
            scores = update.score(self.setting, self.state, jnp.asarray(batch.tokens))
            aims, _ = update.targets(self.setting, batch, scores)
            # These episodes are new to the critic: what it explains of them, it explains of held-out ones.
            found, _ = losses.explained_variance(aims.values, aims.returns, aims.mask)
            smoothed = 0.9 * smoothed + 0.1 * float(found)
            history.append(smoothed)
            for rows in self._mini_batches(batch):
                self._step(batch, aims, rows, critic_only=True)
            if i >= PATIENCE and history[-1] - history[-1 - PATIENCE] < RISE:
                break
        report(f"pretrained the critic for {len(history)} updates: it explains {smoothed:.2f} of the returns' variance")
        opt = update.optimiser(self.config.optim.critic_lr, self.config.optim).init(self.state.critic)
        self.state = dataclasses.replace(self.state, critic_opt=placement.put(opt, self.cfg, self.mesh))
        self.counters = dataclasses.replace(self.counters, warm=True)


class _Clock:
    """Shares of wall time."""

    def __init__(self) -> None:
        self._at = time.perf_counter()
        self._laps: dict[str, float] = {}

    def lap(self, name: str) -> None:
        now = time.perf_counter()
        self._laps[f"seconds/{name}"] = now - self._at
        self._at = now

    def shares(self) -> dict[str, float]:
        return self._laps


@functools.partial(jax.jit, static_argnames=("setting", "adapters"))
def _unstacked(setting: Setting, policy: trees.Params, adapters: bool = False) -> trees.Params:
    """A copy of weights, or of adapters, for the sampler, which shares no memory with what the next step moves."""
    tree, cfg, mesh = trees.unstack(jax.tree.map(jnp.copy, setting.compute(policy))), setting.cfg, setting.mesh
    if mesh is None:
        return tree
    small = setting.lora if adapters else None
    places = sharding.shardings(cfg, mesh) if small is None else lora.shardings(cfg, small, mesh)
    return jax.lax.with_sharding_constraint(tree, places)


def _fresh(config: TrainConfig, cfg: Config, weights: trees.Params, mesh: Mesh | None, base: trees.Params | None) -> TrainState:
    judge = critic.init(cfg, trunk=jax.tree.map(jnp.copy, weights)) if config.algo.critic else None
    state = TrainState(
        policy=weights,
        critic=judge,
        policy_opt=update.optimiser(config.optim.actor_lr, config.optim).init(weights),
        critic_opt=update.optimiser(config.optim.critic_lr, config.optim).init(judge) if judge else (),
        reference=jax.tree.map(jnp.copy, weights) if config.algo.kl else None,
        base=base,
    )
    return placement.put(state, cfg, mesh)
