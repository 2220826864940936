"""Everything that a training run depends on, as typed values with presets; saved with the run.

Defaults that papers state name them; UI-TARS-2 (arXiv 2509.02544) publishes neither learning rates nor batch sizes nor clip
values, so nothing here claims to match it there.
"""

import dataclasses
import math
from typing import Any, Literal

from jaxllm.config import Config
from jaxllm.errors import UserError
from rl.bytes import END, VOCAB_SIZE
from rl.names import ESTIMATORS, REDUCTIONS

ALGORITHMS = ("ppo", "vapo", "grpo", "dapo", "dr_grpo", "rloo", "gspo", "gigpo")
WITH_CRITIC = ("ppo", "vapo")

TINY = Config(
    hidden_size=192,
    intermediate_size=768,
    num_hidden_layers=2,
    num_attention_heads=6,
    num_key_value_heads=6,
    head_dim=32,
    vocab_size=VOCAB_SIZE,
    max_position_embeddings=512,
    rope_theta=10000.0,
    tie_word_embeddings=True,
    eos_token_ids=(END,),
)
"""1.2 million parameters over a vocabulary of bytes, trained from random weights."""


@dataclasses.dataclass(frozen=True)
class Algo:
    """How rewards become gradients."""

    name: Literal["ppo", "vapo", "grpo", "dapo", "dr_grpo", "rloo", "gspo", "gigpo"] = "ppo"
    """the estimator of advantages, and what comes with it"""
    gamma: float = 1.0
    """discount of a token (VAPO: 1)"""
    lambda_policy: float | Literal["adaptive"] = "adaptive"
    """lambda of the advantages; adaptive is 1 - 1 / (alpha l) for l policy tokens (VAPO, UI-TARS-2)"""
    alpha: float = 0.05
    """of the adaptive lambda (VAPO: 0.05)"""
    lambda_critic: float = 1.0
    """lambda of the critic's targets (VC-PPO, VAPO: 1)"""
    bootstrap_truncated: bool = False
    """whether an episode that a limit of turns, tokens or time cut short is worth what the critic says of its last state; by
    default nothing follows, as its outcome was judged there"""
    value_pretrain: int = 50
    """most updates of the critic alone before the first of the policy (VC-PPO); 0 for none"""
    eps_low: float = 0.2
    """the ratio is clipped below 1 - this"""
    eps_high: float = 0.28
    """and above 1 + this (DAPO, VAPO: 0.28)"""
    dual_clip: float | None = None
    """a negative advantage costs at most this many times its size"""
    eps_v: float | None = None
    """clips the critic's change; none by default"""
    reduction: Literal["token_mean", "seq_mean_token_mean", "seq_mean_token_sum", "fixed_denominator"] = "token_mean"
    """how the losses of tokens add up (DAPO, VAPO: token_mean; GRPO: seq_mean_token_mean)"""
    denominator: float | None = None
    """of fixed_denominator (Dr.GRPO)"""
    whiten: bool = True
    """advantages of mean 0 and variance 1 over the batch; with a critic only"""
    ddof: Literal[0, 1] = 1
    """of the standard deviation of a group"""
    min_group_size: int = 2
    """a group of fewer episodes that did not fail is dropped"""
    mask_zero_var_groups: bool = False
    """whether groups of equal outcomes are left out of the loss, its denominator and the KL divergence; by default their tokens
    count, with advantages of 0"""
    omega: float = 1.0
    """weight of GiGPO's advantage within equal states"""
    turn_gamma: float = 0.95
    """discount of a turn in GiGPO's returns"""
    dynamic_sampling: bool = False
    """play on until enough groups have unequal outcomes (DAPO)"""
    max_resample_rounds: int = 10
    """of dynamic sampling; then the update takes what is there"""
    kl: float = 0.0
    """weight of the KL divergence from the starting policy, in the loss"""
    kl_estimator: Literal["k1", "k2", "k3"] = "k3"
    """of that divergence"""
    positive_nll: float = 0.0
    """weight of imitating solved episodes (VAPO: 0.1)"""
    overlong_limit: int = 0
    """policy tokens of an episode from which the soft penalty is -1 (DAPO); 0 for no penalty"""
    overlong_buffer: int = 0
    """tokens below the limit over which it falls"""
    format_weight: float = 0.0
    """weight of the share of turns that could not be read, as a penalty"""
    allow_reward_inversion: bool = False
    """whether penalties may be so large that a clean failure beats an untidy success"""
    importance_cap: float = 2.0
    """of the weight that corrects for the sampler's older weights (AReaL)"""
    mismatch_warn: float | None = None
    """mean |log p of the sampler - log p of the trainer| above which an update warns; by default that of `MISMATCH`"""
    mismatch_stop: float | None = None
    """and above which the run stops before it takes a step; by default never"""

    @property
    def critic(self) -> bool:
        """Whether the algorithm has one."""
        return self.name in WITH_CRITIC


MISMATCH = {"float32": 1e-4, "bfloat16": 0.05}
"""Nats a token by which rounding may set sampler and trainer apart, by the dtype of the passes (on the toys it is below 1e-6).
Beyond it something else is wrong: weights, caches, prompts or temperature are not the same."""

RECIPES: dict[str, dict[str, Any]] = {
    "ppo": {},
    "vapo": {"positive_nll": 0.1},
    "grpo": {"eps_high": 0.2, "reduction": "seq_mean_token_mean"},
    "dapo": {"dynamic_sampling": True},
    "dr_grpo": {"eps_high": 0.2, "reduction": "fixed_denominator", "denominator": 256.0},
    "rloo": {"eps_high": 0.2, "reduction": "seq_mean_token_sum"},
    "gspo": {"eps_low": 3e-4, "eps_high": 4e-4, "reduction": "seq_mean_token_mean"},
    "gigpo": {"eps_high": 0.2, "reduction": "seq_mean_token_mean"},
}
"""What an algorithm's paper has beside its estimator of advantages, where that differs from the defaults of `Algo`.

VAPO: arXiv 2504.05118, GRPO: 2402.03300, DAPO: 2503.14476, Dr. GRPO: 2503.20783, RLOO: 2402.14740, GSPO: 2507.18071, GiGPO:
2505.10978. The penalty for overlong answers of DAPO and the KL term of GRPO are left to the user: the first depends on the
task's lengths, and the second is gone from DAPO and Dr. GRPO.
"""


@dataclasses.dataclass(frozen=True)
class Rollout:
    """What is played for each update."""

    env: str = "toy/hilo"
    """name of the environment"""
    groups: int = 16
    """tasks (seeds) of an update"""
    group_size: int = 8
    """episodes of each"""
    slots: int = 64
    """episodes under way at one time"""
    temperature: float = 1.0
    """of the sampled distribution, and of the trainer's"""
    context: int = 64
    """most tokens of an episode, and the width of every batch"""
    max_turns: int = 16
    """of an episode"""
    max_tokens: int = 64
    """of an episode, sampled ones"""
    max_tokens_per_turn: int = 4
    """of an answer"""
    seconds: float = 600.0
    """of the wall clock, of an episode"""
    servers: bool = False
    """whether environments run in worker processes behind a step server; cheap ones run faster in the trainer's own"""
    max_failed_fraction: float = 0.2
    """of an update's episodes may fail for reasons of their environment; above it the run stops"""


@dataclasses.dataclass(frozen=True)
class Memory:
    """What a prompt keeps of the past (`rl.memory`). By default all: each prompt extends the last one, nothing is rewritten."""

    turns: int | None = None
    """newest answers that stay whole, with what they answered; of older ones a line is left"""
    observations: int | None = None
    """newest ones that stay, the one to be answered included; a mark stands for older ones (UI-TARS: 5 screenshots)"""
    tokens: int | None = None
    """of a prompt; while there are more, the oldest whole turn becomes a line"""
    line_tokens: int = 64
    """of a line at most"""

    @property
    def whole(self) -> bool:
        """Whether nothing is ever left out."""
        return self.turns is None and self.observations is None and self.tokens is None


@dataclasses.dataclass(frozen=True)
class Optim:
    """How weights move."""

    actor_lr: float = 1e-6
    """of the policy (VAPO: 1e-6)"""
    critic_lr: float = 2e-6
    """of the critic (VAPO: 2e-6)"""
    warmup: int = 10
    """optimiser steps over which both rise from 0"""
    decay: int = 0
    """optimiser steps after that over which both fall to a tenth, along a cosine; 0 for none"""
    weight_decay: float = 0.1
    """of AdamW"""
    clip_norm: float = 1.0
    """of the whole gradient"""
    mini_epochs: int = 1
    """passes over an update's episodes"""
    mini_batches: int = 1
    """optimiser steps of a pass"""
    micro_batches: int = 1
    """parts whose gradients are added up in an optimiser step, to save memory"""
    compute_dtype: Literal["float32", "bfloat16"] = "float32"
    """of the forward and backward pass; weights and moments are float32"""
    remat: bool = False
    """recompute each layer in the backward pass: a layer's input stays in memory in place of all that it computes"""


@dataclasses.dataclass(frozen=True)
class Imitate:
    """Supervised learning before RL: on episodes of a policy that knows the format and not much else."""

    policy: Literal["none", "random", "oracle"] = "none"
    """who plays them"""
    noise: float = 0.0
    """share of its moves that are random instead"""
    episodes: int = 512
    """how many"""
    steps: int = 0
    """optimiser steps"""
    batch: int = 64
    """episodes of a step"""
    lr: float = 1e-3
    """learning rate"""


@dataclasses.dataclass(frozen=True)
class Adapters:
    """Low-rank adapters (`rl.lora`): the weights of the model stand still, in the dtype of the passes, and need no moments."""

    rank: int = 0
    """train adapters of this rank beside every linear layer, and nothing else; 0 trains all weights"""
    alpha: float = 32.0
    """an adapter's product is scaled by alpha / rank"""


@dataclasses.dataclass(frozen=True)
class TrainConfig:
    """A training run."""

    model: str = "tiny"
    """a checkpoint as for `jaxllm info`, or tiny: 1.2 M parameters over bytes, from random weights"""
    updates: int = 100
    """of the policy"""
    seed: int = 0
    """of everything that is drawn"""
    eval_every: int = 10
    """updates between evaluations; 0 for none"""
    eval_episodes: int = 64
    """of an evaluation, with seeds that training never sees"""
    drift_every: int = 0
    """updates between looks at which words the policy's neurons stand for (`interp.drift`); 0 for none"""
    checkpoint_every: int = 25
    """updates between checkpoints; 0 for the last one only"""
    keep: int = 2
    """checkpoints that stay"""
    algo: Algo = dataclasses.field(default_factory=Algo)
    rollout: Rollout = dataclasses.field(default_factory=Rollout)
    memory: Memory = dataclasses.field(default_factory=Memory)
    optim: Optim = dataclasses.field(default_factory=Optim)
    imitate: Imitate = dataclasses.field(default_factory=Imitate)
    lora: Adapters = dataclasses.field(default_factory=Adapters)

    def __post_init__(self) -> None:
        problems = list(_problems(self))
        if problems:
            raise UserError("this configuration can't be trained:\n" + "\n".join(f"  {problem}" for problem in problems))


def _problems(config: TrainConfig) -> Any:
    """Every invalid combination, with the reason."""
    algo, play, optim = config.algo, config.rollout, config.optim
    for name in ("algo", "rollout", "optim", "imitate", "lora"):
        section = getattr(config, name)
        for field in dataclasses.fields(section):
            value = getattr(section, field.name)
            if isinstance(value, float) and not math.isfinite(value):
                yield f"{name}.{field.name} is {value}"
    if algo.name not in ALGORITHMS or algo.reduction not in REDUCTIONS or algo.kl_estimator not in ESTIMATORS:
        yield "algo.name, algo.reduction or algo.kl_estimator is unknown"
    for name, low, high in (("gamma", 0, 1), ("lambda_critic", 0, 1), ("eps_low", 1e-9, 1), ("turn_gamma", 0, 1)):
        if not low <= getattr(algo, name) <= high:
            yield f"algo.{name} must be in [{low:.0f}, {high}], found {getattr(algo, name)}"
    if algo.lambda_policy != "adaptive" and not 0 <= algo.lambda_policy <= 1:
        yield f"algo.lambda_policy is adaptive, or in [0, 1]; found {algo.lambda_policy}"
    if algo.alpha <= 0 or algo.eps_high <= 0:
        yield "algo.alpha and algo.eps_high must be positive"
    if algo.dual_clip is not None and algo.dual_clip <= 1:
        yield f"algo.dual_clip must be above 1, found {algo.dual_clip}: at 1 or less it clips every negative advantage"
    if (algo.reduction == "fixed_denominator") != (algo.denominator is not None):
        yield "algo.denominator belongs to algo.reduction fixed_denominator, and that needs it"
    if not algo.critic and play.group_size < 2:
        yield f"algo.name {algo.name} compares the episodes of a group: rollout.group_size must be at least 2"
    if algo.bootstrap_truncated and not algo.critic:
        yield f"algo.bootstrap_truncated asks a critic, and algo.name {algo.name} has none"
    for name in ("dynamic_sampling", "mask_zero_var_groups"):
        if getattr(algo, name) and algo.critic:
            yield f"algo.{name} keeps groups of unequal outcomes; with a critic no group is needed"
    for where, name, least in (
        ("algo", "positive_nll", 0), ("algo", "kl", 0), ("algo", "format_weight", 0), ("algo", "omega", 0),
        ("algo", "mismatch_warn", 0), ("algo", "mismatch_stop", 0),
        ("algo", "value_pretrain", 0), ("algo", "max_resample_rounds", 1), ("algo", "min_group_size", 1),
        ("optim", "warmup", 0), ("optim", "decay", 0), ("optim", "weight_decay", 0),
        ("optim", "actor_lr", 0), ("optim", "critic_lr", 0), ("imitate", "noise", 0), ("imitate", "episodes", 1),
        ("imitate", "steps", 0), ("imitate", "batch", 1), ("imitate", "lr", 0), ("lora", "rank", 0),
        ("rollout", "max_failed_fraction", 0), ("memory", "turns", 0), ("memory", "observations", 1), ("memory", "tokens", 1),
        ("memory", "line_tokens", 1), ("", "seed", 0), ("", "updates", 0), ("", "keep", 1),
        ("", "eval_every", 0), ("", "eval_episodes", 1), ("", "drift_every", 0), ("", "checkpoint_every", 0),
    ):  # fmt: skip
        value = getattr(getattr(config, where) if where else config, name)
        if value is not None and value < least:
            yield f"{where + '.' if where else ''}{name} must be at least {least}, found {value}"
    if (
        algo.importance_cap <= 0
        or (algo.eps_v is not None and algo.eps_v <= 0)
        or (algo.denominator is not None and algo.denominator <= 0)
    ):
        yield "algo.importance_cap, algo.eps_v and algo.denominator must be positive"
    if play.seconds <= 0 or play.max_failed_fraction > 1:
        yield "rollout.seconds must be positive, and rollout.max_failed_fraction at most 1"
    if not algo.critic and algo.min_group_size > play.group_size:
        yield f"algo.min_group_size {algo.min_group_size} drops every group of {play.group_size} episodes"
    if config.model == "tiny" and play.context > TINY.max_position_embeddings:
        yield f"rollout.context {play.context} exceeds the model's {TINY.max_position_embeddings} positions"
    if algo.overlong_limit and not 0 < algo.overlong_buffer <= algo.overlong_limit:
        yield "algo.overlong_buffer must be in (0, overlong_limit]"
    if algo.format_weight + bool(algo.overlong_limit) >= 1 and not algo.allow_reward_inversion:
        yield (
            "algo.format_weight and the overlong penalty of up to 1 could make a clean failure beat an untidy success; "
            "algo.allow_reward_inversion permits it"
        )
    if play.temperature <= 0:
        yield "rollout.temperature must be positive: a greedy sampler explores nothing and has no log-probabilities"
    if min(play.groups, play.group_size, play.slots, play.max_turns, play.max_tokens, play.max_tokens_per_turn) < 1:
        yield "the sizes of rollout must be at least 1"
    episodes = play.groups * play.group_size
    if min(optim.mini_epochs, optim.mini_batches, optim.micro_batches) < 1:
        yield "optim.mini_epochs, mini_batches and micro_batches must be at least 1"
    elif play.groups % optim.mini_batches:
        yield f"optim.mini_batches {optim.mini_batches} does not divide {play.groups} groups, which stay whole"
    elif episodes % (optim.mini_batches * optim.micro_batches):
        yield f"{optim.mini_batches} mini-batches of {optim.micro_batches} micro-batches do not divide {episodes} episodes"
    if optim.clip_norm <= 0:
        yield "optim.clip_norm must be positive"
    if config.imitate.noise > 1:
        yield f"imitate.noise is a share, at most 1; found {config.imitate.noise}"
    if config.imitate.steps and config.imitate.policy == "none":
        yield "imitate.steps needs imitate.policy: random or oracle"
    if config.lora.alpha <= 0:
        yield "lora.alpha must be positive"
    if config.model == "tiny" and config.lora.rank:
        yield "lora.rank adapts a model that has learnt something; tiny begins with random weights"
    if config.model == "tiny" and not config.imitate.steps:
        yield "a model of random weights never writes an action: let it imitate first (imitate.policy, imitate.steps)"


def with_algorithm(config: TrainConfig, name: str) -> TrainConfig:
    """The same run by another algorithm, with what belongs to that by `RECIPES`; the rest of `Algo` stays.

    A run by this algorithm already stays as it is, whatever was changed of its recipe.
    """
    if name == config.algo.name:
        return config
    plain = Algo()
    undone = {field: getattr(plain, field) for recipe in RECIPES.values() for field in recipe}
    algo: Any = {**undone, **RECIPES.get(name, {}), "name": name}
    return dataclasses.replace(config, algo=dataclasses.replace(config.algo, **algo))


# Episodes of eight sampled tokens: by the published alpha of 0.05 the adaptive lambda would be 0 up to twenty.
_TOY = TrainConfig(
    updates=40,
    algo=Algo(alpha=1.0, value_pretrain=5),
    rollout=Rollout(groups=32, group_size=4, context=24),
    optim=Optim(actor_lr=2.5e-4, critic_lr=5e-4, warmup=5, decay=155, weight_decay=0.0, mini_batches=4),
    imitate=Imitate(policy="oracle", noise=0.6, episodes=1024, steps=60, batch=64),
)


def _toy(name: str, noise: float, context: int, updates: int) -> TrainConfig:
    rollout = dataclasses.replace(_TOY.rollout, env=name, context=context)
    imitate = dataclasses.replace(_TOY.imitate, noise=noise)
    # The learning rate falls until the last update.
    optim = dataclasses.replace(_TOY.optim, decay=updates * _TOY.optim.mini_batches - _TOY.optim.warmup)
    return dataclasses.replace(_TOY, updates=updates, rollout=rollout, optim=optim, imitate=imitate)


PRESETS: dict[str, TrainConfig] = {
    "toy-hilo": _TOY,
    "toy-keys": _toy("toy/keys", 0.6, 24, 40),
    "toy-maze": _toy("toy/maze", 0.8, 96, 100),
}
"""Settings of runs on the toys, by name."""
