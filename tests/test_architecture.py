"""Which way imports may point, read from the source of every module."""

import ast
import itertools
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

# Package -> the first-party packages that it may know.
ARROWS = {
    "jaxllm": set(),
    "interp": {"jaxllm"},
    "rewards": {"jaxllm"},
    "envs": {"jaxllm"},
    "rl": {"jaxllm", "interp", "rewards", "envs"},
}
FIRST_PARTY = {*ARROWS, "benchmarks", "tests"}
# Packages that never import a model: all that they may use of jaxllm.
MODEL_FREE = {
    "rewards": {"jaxllm.errors", "jaxllm.frames", "jaxllm.intervals", "jaxllm.simd"},
    "envs": {"jaxllm.errors", "jaxllm.files", "jaxllm.frames"},
}
# What the command line may import when its modules are loaded, so that `jaxllm --help` stays fast.
CLI_AT_IMPORT = {"jaxllm.cli", "jaxllm.errors", "tyro"}
# Package -> the extras of pyproject.toml that it may import from, beside the base dependencies.
EXTRAS = {"envs": ("envs", "ray")}
# Import name -> name of the distribution that brings it, where they differ.
DISTRIBUTIONS = {"orbax": "orbax-checkpoint", "jaxlib": "jax", "zmq": "pyzmq", "PIL": "pillow"}


def imports(source: str, module: str) -> Iterator[tuple[str, bool]]:
    """Every imported dotted name, and whether it is imported as soon as the module is loaded."""
    package = module.split(".")

    def walk(node: ast.AST, at_import: bool) -> Iterator[tuple[str, bool]]:
        if isinstance(node, ast.Import):
            yield from ((alias.name, at_import) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = ".".join(package[: len(package) - node.level]) + "." if node.level else ""
            origin = (base + (node.module or "")).rstrip(".")
            # `from jaxllm import load` names the module jaxllm.load.
            yield from ((f"{origin}.{alias.name}" if "." not in origin else origin, at_import) for alias in node.names)
        elif isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            for child in node.orelse:
                yield from walk(child, at_import)
        else:
            inside = at_import and not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
            for child in ast.iter_child_nodes(node):
                yield from walk(child, inside)

    return walk(ast.parse(source), True)


def violations(module: str, source: str, declared: frozenset[str]) -> list[str]:
    """What a module imports against the rules, as sentences; ``declared`` are the import names that it may use."""
    package = module.split(".")[0]
    in_cli = module.startswith("jaxllm.cli")
    found = []
    for name, at_import in imports(source, module):
        top = name.split(".")[0]
        if in_cli:
            allowed_early = top in sys.stdlib_module_names or any(
                (name + ".").startswith(early + ".") for early in CLI_AT_IMPORT
            )
            if at_import and not allowed_early:
                found.append(f"{module} imports {name} when it is loaded; a command imports inside run")
            if top in ("benchmarks", "tests"):
                found.append(f"{module} knows {name}")
        elif top in FIRST_PARTY:
            if top != package and top not in ARROWS[package]:
                found.append(f"{module} knows {name}")
            elif f"{name}.".startswith("jaxllm.cli."):
                found.append(f"{module} knows the command line")
            elif top == "jaxllm" and package in MODEL_FREE and not any(name.startswith(free) for free in MODEL_FREE[package]):
                found.append(f"{module} knows the model through {name}")
        if top not in FIRST_PARTY and top not in sys.stdlib_module_names and top not in declared:
            found.append(f"{module} imports {top}, which pyproject.toml does not declare as a base dependency")
    return found


def declared(package: str) -> frozenset[str]:
    """Import names of the base dependencies, and of the extras that belong to a package."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = (project["optional-dependencies"][extra] for extra in EXTRAS.get(package, ()))
    entries = itertools.chain(project["dependencies"], *extras)
    names = {entry.split(">")[0].split("[")[0].strip() for entry in entries}
    return frozenset({module for module, name in DISTRIBUTIONS.items() if name in names} | names)


def modules() -> list[tuple[str, Path]]:
    """Every module of the product: dotted name and file."""
    files = [file for package in ARROWS for file in sorted((ROOT / package).rglob("*.py"))]
    return [(".".join(file.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"), file) for file in files]


@pytest.mark.parametrize(("module", "file"), modules(), ids=[name for name, _ in modules()])
def test_imports_point_the_right_way(module: str, file: Path):
    assert violations(module, file.read_text(encoding="utf-8"), declared(module.split(".")[0])) == []


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("jaxllm.model", "import interp"),
        ("jaxllm.model", "from interp.decode import decode"),
        ("jaxllm.model", "def f():\n    from rl import losses"),
        ("interp.run", "from rewards import geometry"),
        ("interp.run", "from jaxllm.cli import console"),
        ("rewards.maps", "import interp.find"),
        ("rewards.maps", "from jaxllm import model"),
        ("rewards.parse", "import torch"),
        ("rewards.adapters.trl", "def f():\n    from jaxllm.generate import stream"),
        ("envs.api", "from jaxllm import intervals"),
        ("envs.api", "from jaxllm.generate import stream"),
        ("rl.trainer", "from benchmarks import common"),
        ("interp.decode", "from ..tests import reference"),
        ("interp.decode", "import torch"),
        ("interp.decode", "try:\n    import transformers\nexcept ImportError:\n    pass"),
        ("jaxllm.cli.map", "import jax"),
        ("jaxllm.cli.map", "from jaxllm import hub"),
        ("jaxllm.cli.map", "from interp import find"),
        ("jaxllm.cli.map", "class Map:\n    import numpy"),
        ("jaxllm.cli.map", "def run(self):\n    import torch"),
    ],
)
def test_wrong_arrows_are_seen(module: str, source: str):
    assert len(violations(module, source, frozenset({"jax", "numpy", "tyro"}))) == 1


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("interp.run", "from jaxllm import load\nimport numpy"),
        ("rl.trainer", "from interp import find\nfrom envs.api import Step\nfrom jaxllm.model import forward"),
        ("rewards.maps", "from jaxllm.errors import UserError"),
        ("rewards.score", "from jaxllm.frames import convert\nfrom jaxllm import intervals"),
        ("envs.actions", "from jaxllm.frames import smart_resize"),
        ("jaxllm.cli.map", "import tyro\nfrom jaxllm.cli import console\ndef run(self):\n    from interp import find"),
        ("jaxllm.cli.console", "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from rich.console import Console"),
        ("jaxllm.model", "from . import rope"),
    ],
)
def test_right_arrows_pass(module: str, source: str):
    assert violations(module, source, frozenset({"jax", "numpy", "tyro"})) == []
