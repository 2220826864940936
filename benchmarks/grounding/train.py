"""Warm starts, GRPO under one reward, and evaluation."""

import dataclasses
import functools
import math
import time
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

import rewards
from rewards.geometry import hit, iou

from . import policy, scenes

GROUP, PROMPTS, BATCH = 8, 32, 64
SAMPLES = 8  # per prompt of the evaluation
EVALUATED = 128  # scenes at a time
# Seeds of scenes: ranges that never meet.
WARM, REINFORCE, HELD_OUT = 1_000_000, 10_000_000, 5_000_000
SCREEN = np.array([scenes.WIDTH, scenes.HEIGHT], np.float32)
CLASSES = tuple(scenes.SIZES)


@dataclasses.dataclass(frozen=True)
class Contender:
    """A reward that training is tried with."""

    reward: str  # name in the registry
    options: tuple[tuple[str, Any], ...] = ()
    scale: str = "std"  # of the group's advantages


ALPHAS = (0.1, 0.3, 0.7, 0.9, 2.0, 3.0, 5.0, 10.0)  # beside 0.5, those of the paper's ablation
CONTENDERS: dict[str, Contender] = {
    "point + coverage": Contender("gui_g2"),
    "point": Contender("point_only"),
    "coverage": Contender("coverage_only"),
    "inside Gaussian": Contender("inside_gaussian"),
    "binary point": Contender("binary_point"),
    "binary IoU": Contender("binary_iou"),
    "both binaries": Contender("binary_point_plus_iou"),
    "IoU": Contender("iou"),
    "distance": Contender("euclid_exp", (("k", 0.1),)),  # 128 units are a tenth of a screen's pixels
    "SE-GUI": Contender("se_gui"),
    "GUI-G1": Contender("gui_g1", scale="none"),
    "GUI-RCPO (no labels)": Contender("rcpo_voting"),
    "random": Contender("random_uniform"),
    **{f"alpha {alpha:g}": Contender("gui_g2", (("alpha", alpha),)) for alpha in ALPHAS},
}


@dataclasses.dataclass(frozen=True)
class Start:
    """A policy that reinforcement begins with."""

    about: str
    shift: float  # units by which labels are moved to the lower right in a last phase of tuning
    learning_rate: float  # of the reinforcement


STARTS = {
    "shifted": Start("localises, off by 5 units in x and y, as after a wrong resize", 5.0, 2e-4),
    "weak": Start("warm start cut short: often looks in the wrong place", 0.0, 3e-4),
    "warm": Start("localises, with symmetric noise", 0.0, 3e-4),
    "far": Start("localises, off by 9 units in x and y", 9.0, 2e-4),
}


@dataclasses.dataclass(frozen=True)
class WarmStart:
    """Length of the supervised phases."""

    steps: int = 1400
    weak: int = 600  # step whose parameters are the weak start
    shifting: int = 140
    learning_rate: float = 1.5e-3
    shifting_rate: float = 5e-4


def warm_starts(
    seed: int, settings: WarmStart, names: tuple[str, ...] = tuple(STARTS), report: Callable[[int, float], None] | None = None
) -> dict[str, policy.Params]:
    """The named `STARTS` from one random initialisation, by supervised learning on noisy boxes."""
    rng = np.random.default_rng(seed)
    params = policy.init(seed)
    found = {}
    schedule = optax.warmup_cosine_decay_schedule(0, settings.learning_rate, 50, settings.steps)
    optimiser = optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(schedule))
    state = optimiser.init(params)
    step = _supervised(optimiser)
    for i in range(settings.steps):
        batch = scenes.make(WARM + 100_000 * seed + i, BATCH)
        params, state, loss = step(params, state, batch, noisy(batch.box, rng), batch.instruction)
        if i + 1 == settings.weak:
            found["weak"] = params
        if report is not None and i % 50 == 0:
            report(i, float(loss))
    found["warm"] = params
    found.setdefault("weak", params)
    for name in names:
        if STARTS[name].shift:
            found[name] = _shifted(params, seed, STARTS[name].shift, settings, rng)
    return {name: found[name] for name in names}


def noisy(boxes: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Labels [S, 4] as of a careless annotator: centres off by 3 units, logarithms of sides by 0.25 (standard deviations)."""
    centre, sides = (boxes[:, :2] + boxes[:, 2:]) / 2, boxes[:, 2:] - boxes[:, :2]
    centre = centre + rng.normal(0, 3, centre.shape)
    half = sides * np.exp(rng.normal(0, 0.25, sides.shape)) / 2
    return np.concatenate([centre - half, centre + half], 1).astype(np.float32)


def _shifted(params: policy.Params, seed: int, shift: float, settings: WarmStart, rng: np.random.Generator) -> policy.Params:
    optimiser = optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(settings.shifting_rate))
    state, step = optimiser.init(params), _supervised(optimiser)
    for i in range(settings.shifting):
        batch = scenes.make(WARM + 100_000 * seed + 50_000 + 1_000 * int(shift) + i, BATCH)
        params, state, _ = step(params, state, batch, noisy(batch.box + shift, rng), batch.instruction)
    return params


def _supervised(optimiser: Any) -> Any:
    def loss_of(params: policy.Params, batch: scenes.Scenes, boxes: Any, instruction: Any) -> Any:
        seen = policy.look(params, scenes.draw(batch), instruction)
        return -policy.logprobs(params, seen, policy.to_tokens(boxes)[:, None]).sum(-1).mean()

    @jax.jit
    def step(params: policy.Params, state: Any, batch: scenes.Scenes, boxes: Any, instruction: Any) -> Any:
        loss, gradient = jax.value_and_grad(loss_of)(params, batch, boxes, instruction)
        update, state = optimiser.update(gradient, state, params)
        return optax.apply_updates(params, update), state, loss

    return step


def optimiser(learning_rate: Any) -> Any:
    """Of the reinforcement: Adam behind a clip of the gradient's norm at 1."""
    return optax.chain(optax.clip_by_global_norm(1.0), optax.scale_by_adam(), optax.scale(-1), optax.scale(learning_rate))


@functools.cache
def _branches() -> list[Callable[[Any], tuple[Any, Any]]]:
    """For each contender: (boxes [B, G, 4], targets [B, 1, 4], key) -> rewards and advantages [B, G]."""

    def branch(contender: Contender) -> Callable[[Any], tuple[Any, Any]]:
        reward = rewards.get(contender.reward, **dict(contender.options))

        def run(operands: Any) -> tuple[Any, Any]:
            boxes, targets, key = operands
            own = {"key": key} if "key" in reward.required else {}
            found = reward(boxes, targets, image_wh=jnp.asarray(SCREEN), **own).reward.astype(jnp.float32)
            return found, rewards.group_advantages(found, scale=contender.scale)

        return run

    return [branch(contender) for contender in CONTENDERS.values()]


@jax.jit
def grpo_step(params: policy.Params, state: Any, key: Any, batch: scenes.Scenes, ask: Any, which: Any, rate: Any) -> Any:
    """One step on policy, without KL or clipping of ratios: one pass forward and one back for every prompt.

    Args:
      ask: instruction [B, 2] and target box [B, 4].
      which: place of the reward in `CONTENDERS`; one program serves them all.
      rate: learning rate.
    Returns:
      Parameters, state of `optimiser`, and a dict of scalars: mean reward, share of groups whose rewards differ, patch entropy.
    """
    instruction, target = ask
    sample_key, reward_key = jax.random.split(key)

    def loss_of(params: policy.Params) -> Any:
        seen = policy.look(params, scenes.draw(batch), instruction)
        tokens = jax.lax.stop_gradient(policy.sample(sample_key, params, seen, GROUP))
        boxes = policy.to_boxes(tokens).astype(jnp.float32)
        found, advantages = jax.lax.switch(which, _branches(), (boxes, target[:, None], reward_key))
        log_p = policy.logprobs(params, seen, tokens).mean(-1)
        facts = {
            "reward": found.mean(),
            "signal": (found.max(-1) > found.min(-1)).mean(),
            "entropy": policy.entropy(seen).mean(),
        }
        return -(jax.lax.stop_gradient(advantages) * log_p).mean(), facts

    gradient, facts = jax.grad(loss_of, has_aux=True)(params)
    update, state = optimiser(rate).update(gradient, state, params)
    return optax.apply_updates(params, update), state, facts


def reinforce(params: policy.Params, name: str, seed: int, steps: int, rate: float) -> Iterator[tuple[int, policy.Params, Any]]:
    """Trains under the reward of that name; yields step, parameters and facts after every step."""
    which = jnp.int32(list(CONTENDERS).index(name))
    state = optimiser(rate).init(params)
    rate = jnp.float32(rate)
    for i in range(steps):
        # Prompts and keys depend on the seed alone: every reward meets the same.
        batch = scenes.make(REINFORCE + 10_000 * seed + i, PROMPTS)
        key = jax.random.fold_in(jax.random.key(seed), i)
        params, state, facts = grpo_step(params, state, key, batch, (batch.instruction, batch.box), which, rate)
        yield i + 1, params, facts


@jax.jit
def _judge(params: policy.Params, key: Any, batch: scenes.Scenes, instruction: Any, box: Any) -> Any:
    seen = policy.look(params, scenes.draw(batch), instruction)
    answers = policy.to_boxes(policy.greedy(params, seen)[:, None]).astype(jnp.float32)
    drawn = policy.to_boxes(policy.sample(key, params, seen, SAMPLES)).astype(jnp.float32)

    def hits(boxes: Any) -> Any:
        return hit(jnp, (boxes[..., :2] + boxes[..., 2:]) / 2, box[:, None])

    patch_ok = (policy.to_tokens(answers)[..., 0] == policy.to_tokens(box)[:, None, 0])[:, 0]
    return hits(answers)[:, 0], hits(drawn).mean(-1), iou(jnp, answers, box[:, None])[:, 0], patch_ok


def evaluate(params: policy.Params, count: int) -> dict[str, Any]:
    """On ``count`` held-out scenes, a multiple of 128, the same for every call.

    Returns:
      ``total`` by size class, and by size class and for "all": ``greedy`` and ``sampled`` hit rates and mean ``iou`` of the
      greedy answer, each in 0..1.
    """
    parts, classes = [], []
    for i in range(math.ceil(count / EVALUATED)):
        batch = scenes.make(HELD_OUT + i, EVALUATED)
        parts.append(jax.tree.map(np.asarray, _judge(params, jax.random.key(i), batch, batch.instruction, batch.box)))
        classes.append(batch.size_class)
    greedy, sampled, overlap, _ = (np.concatenate(part) for part in zip(*parts, strict=True))
    size = np.concatenate(classes)
    found: dict[str, Any] = {"total": {name: int((size == i).sum()) for i, name in enumerate(CLASSES)}}
    for name in ("all", *CLASSES):
        rows = slice(None) if name == "all" else size == CLASSES.index(name)
        found[name] = {"greedy": greedy[rows].mean(), "sampled": sampled[rows].mean(), "iou": overlap[rows].mean()}
        found[name] = {key: round(float(value), 5) for key, value in found[name].items()}
    return found


def run(
    params: policy.Params, start: str, name: str, seed: int, steps: int, every: int, counts: tuple[int, int]
) -> dict[str, Any]:
    """One training under one reward: learning curve and end.

    Args:
      every: steps between evaluations of the curve.
      counts: held-out scenes of the curve, and of the end.
    """
    begun = time.perf_counter()
    curve, facts = [], []
    for step, params, found in reinforce(params, name, seed, steps, STARTS[start].learning_rate):  # noqa: B020
        facts.append(found)
        if step % every == 0 or step == steps:
            means = {key: round(float(np.mean([f[key] for f in facts])), 5) for key in found}
            facts = []
            curve.append({"step": step, **means, **evaluate(params, counts[0])})
    end = evaluate(params, counts[1])
    return {"curve": curve, "end": end, "seconds": round(time.perf_counter() - begun, 2)}
