"""What an installation brings along, and what the lock pins."""

import re
import tomllib
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
LOCKS = {name: (ROOT / name).read_text() for name in ("requirements.lock", "requirements-dev.lock")}
# A user who only wants the map must not download these.
HEAVY = {"torch", "transformers", "tensorflow", "playwright", "selenium", "envpool", "miniwob", "jax-cuda13-plugin", "libtpu"}


def closure(requirements: list[str]) -> set[str]:
    """Every distribution that the requirements bring along, by the metadata of the installed ones."""
    seen: set[str] = set()
    todo = [(Requirement(text), "") for text in requirements]
    while todo:
        requirement, extra = todo.pop()
        if requirement.marker and not requirement.marker.evaluate({"extra": extra}):
            continue
        name = canonicalize_name(requirement.name)
        if name in seen:
            continue
        seen.add(name)
        needs = metadata.requires(name) or []
        todo += [(Requirement(text), one) for text in needs for one in ("", *requirement.extras)]
    return seen


def pins(lock: str) -> dict[str, str]:
    """Name -> version in a lock."""
    return {canonicalize_name(name): version for name, version in re.findall(r"^([\w.-]+)==(\S+) \\$", LOCKS[lock], re.M)}


def test_base_installation_is_small():
    brought = closure(PROJECT["project"]["dependencies"])
    assert {"jax", "flax", "pyarrow", "tokenizers"} <= brought
    assert not brought & HEAVY


@pytest.mark.parametrize("lock", LOCKS)
def test_lock_pins_everything_with_hashes_and_names_no_index(lock):
    entries = re.split(r"^(?=[\w.-]+==)", LOCKS[lock], flags=re.M)[1:]
    assert len(entries) == len(pins(lock)) > 40
    for entry in entries:
        assert re.search(r"--hash=sha256:[0-9a-f]{64}", entry), entry
    assert "://" not in LOCKS[lock]
    assert not re.search(r"^\s*(-i|-f|-e|--index-url|--extra-index-url|--find-links|--trusted-host)\b", LOCKS[lock], re.M)


@pytest.mark.parametrize(
    ("lock", "extras", "heavy"),
    [
        ("requirements.lock", (), set()),
        ("requirements-dev.lock", ("dev", "envs", "ray"), {"playwright", "envpool", "miniwob", "selenium"}),
    ],
)
def test_lock_satisfies_the_project(lock, extras, heavy):
    project = PROJECT["project"]
    wanted = project["dependencies"] + PROJECT["build-system"]["requires"]
    for extra in extras:
        wanted = wanted + project["optional-dependencies"][extra]
    for text in wanted:
        requirement = Requirement(text)
        assert pins(lock)[canonicalize_name(requirement.name)] in requirement.specifier, text
    assert closure(project["dependencies"]) - {"colorama"} <= pins(lock).keys()
    assert pins(lock).keys() & HEAVY == heavy


def test_locks_agree():
    base, dev = (pins(lock) for lock in LOCKS)
    assert base.items() <= dev.items()


def test_every_dependency_says_why():
    lines = (ROOT / "pyproject.toml").read_text().splitlines()
    start = lines.index("dependencies = [") + 1
    for line in lines[start : lines.index("]", start)]:
        assert "# " in line, f"no reason beside {line.strip()}"


def test_every_file_of_a_package_is_installed():
    patterns = ["*.py", *PROJECT["tool"]["setuptools"]["package-data"]["*"]]
    for package in ("jaxllm", "interp", "rewards", "rl", "envs"):
        files = [file for file in (ROOT / package).rglob("*") if file.is_file() and "__pycache__" not in file.parts]
        assert files
        assert [file for file in files if not any(file.match(pattern) for pattern in patterns)] == []
