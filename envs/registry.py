"""Every environment by its name: ``family/name``, or ``module:Class`` for one of your own."""

import fnmatch
import importlib
import inspect
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, cast

from envs.api import Env, EnvSpec, Family, Policy
from jaxllm.errors import UserError

# Family -> its module (see `envs.api.Family`), and a line about it.
FAMILIES = {
    "miniwob": ("envs.miniwob", "130 web pages with a task each, in a real browser whose time stands still"),
    "page": ("envs.page", "any local page or URL prefix, with a verifier of your own"),
    "shell": ("envs.shell", "bash in a sandbox: tasks on files and text"),
    "hybrid": ("envs.hybrid", "a browser and a shell that share one folder"),
    "games": ("envs.games", "six puzzles with levels, as text or as a page in the browser"),
    "toy": ("envs.toys", "small tasks of several turns whose best score is known, for trainers"),
    "envpool": ("envs.envpool", "every environment of envpool that can be made here"),
    "gym": ("envs.gym", "any registered id of Gymnasium"),
    "openenv": ("envs.openenv", "an environment behind an OpenEnv server, by its address"),
}


def family(name: str) -> Family:
    """The module of a family. Raises UserError for an unknown one."""
    if name not in FAMILIES:
        raise UserError(f"there is no family {name!r}; there are {', '.join(FAMILIES)}")
    return cast(Family, importlib.import_module(FAMILIES[name][0]))


def make(name: str, /, **options: Any) -> Env:
    """Makes an environment.

    Args:
      name: ``family/name`` (see `names`), or ``module:factory`` where the factory returns an `Env`.
      options: of the family, plain JSON; see its `make`.

    Raises:
      UserError: an unknown name or option, or something that is not installed, with the remedy.
    """
    if ":" in name.split("/")[0]:
        return _own(name, options)
    module, rest = _split(name, options)
    if missing := module.missing():
        raise UserError(f"{name} can't be made here: {missing}")
    return module.make(rest, **options)


def describe(name: str, /, **options: Any) -> EnvSpec:
    """The spec of an environment, without starting it. Raises UserError for an unknown name."""
    if ":" in name.split("/")[0]:
        env = _own(name, options)
        env.close()
        return env.spec
    module, rest = _split(name, options)
    return module.describe(rest, **options)


def names(pattern: str = "*") -> Iterator[str]:
    """Names that match a shell pattern, family by family."""
    for prefix in FAMILIES:
        if fnmatch.fnmatchcase(prefix, pattern.split("/")[0]):
            yield from (name for rest in family(prefix).names() if fnmatch.fnmatchcase(name := f"{prefix}/{rest}", pattern))


def oracle(name: str, seed: int = 0) -> Policy | None:
    """A policy that solves an environment, for one episode, where its family has one."""
    if ":" in name.split("/")[0]:
        return None
    module, rest = _split(name, {})
    return module.oracle(rest, seed)


def _split(name: str, options: Mapping[str, Any]) -> tuple[Family, str]:
    if "name" in options:
        raise UserError(f"{name} has no option name")
    prefix, slash, rest = name.partition("/")
    if not slash or not rest:
        raise UserError(f"an environment is named family/name, as in games/sokoban, not {name!r}; see `jaxllm envs list`")
    return family(prefix), rest


def _own(name: str, options: Mapping[str, Any]) -> Env:
    """An environment of the user's own factory, whose module may lie in the current folder. What that raises is its affair."""
    module, _, attribute = name.partition(":")
    folder = str(Path.cwd())
    if folder not in sys.path and "" not in sys.path:
        sys.path.append(folder)  # at the end: it covers nothing
    try:
        factory = getattr(importlib.import_module(module), attribute)
        inspect.signature(factory).bind(**options)
    except (ImportError, AttributeError, ValueError) as error:
        remedy = "name it module:Class, with the module in this folder or on Python's path"
        raise UserError(f"{name}: {error}; {remedy}") from error
    except TypeError as error:
        raise UserError(f"{name} can't be made with the options {dict(options)}: {error}") from error
    env = factory(**options)
    if not isinstance(getattr(env, "spec", None), EnvSpec):
        raise UserError(f"{name} makes no environment: it has no spec (an envs.EnvSpec)")
    return env
