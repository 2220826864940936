"""Environments: browsers, shells and games behind batched step servers.

    env = envs.make("games/sokoban")
    vector = envs.make_vec("miniwob/click-test", num_envs=8, batch_size=4)

Imports no model and no JAX.
"""

from envs.api import (
    Action,
    ActionSpec,
    Argument,
    Element,
    Env,
    EnvSpec,
    Invalid,
    LostError,
    Obs,
    StepResult,
    Task,
    VerifierError,
)
from envs.base import BaseEnv
from envs.digest import digest, session_seed
from envs.registry import FAMILIES, describe, make, names, oracle
from envs.vector import make_vec

__all__ = [
    "FAMILIES",
    "Action",
    "ActionSpec",
    "Argument",
    "BaseEnv",
    "Element",
    "Env",
    "EnvSpec",
    "Invalid",
    "LostError",
    "Obs",
    "StepResult",
    "Task",
    "VerifierError",
    "describe",
    "digest",
    "make",
    "make_vec",
    "names",
    "oracle",
    "session_seed",
]
