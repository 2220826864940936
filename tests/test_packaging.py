"""What an installation brings along, and what the lock pins."""

import re
import tomllib
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
LOCK = (ROOT / "requirements.lock").read_text()
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


def pins() -> dict[str, str]:
    """Name -> version in the lock."""
    return {canonicalize_name(name): version for name, version in re.findall(r"^([\w.-]+)==(\S+) \\$", LOCK, re.M)}


def test_base_installation_is_small():
    brought = closure(PROJECT["project"]["dependencies"])
    assert {"jax", "flax", "pyarrow", "tokenizers"} <= brought
    assert not brought & HEAVY


def test_lock_pins_everything_with_hashes_and_names_no_index():
    entries = re.split(r"^(?=[\w.-]+==)", LOCK, flags=re.M)[1:]
    assert len(entries) == len(pins()) > 40
    for entry in entries:
        assert re.search(r"--hash=sha256:[0-9a-f]{64}", entry), entry
    assert "://" not in LOCK
    assert not re.search(r"^\s*(-i|-f|-e|--index-url|--extra-index-url|--find-links|--trusted-host)\b", LOCK, re.M)


def test_lock_satisfies_the_project():
    project = PROJECT["project"]
    wanted = project["dependencies"] + project["optional-dependencies"]["dev"] + PROJECT["build-system"]["requires"]
    for text in wanted:
        requirement = Requirement(text)
        assert pins()[canonicalize_name(requirement.name)] in requirement.specifier, text
    assert closure(project["dependencies"]) - {"colorama"} <= pins().keys()
    assert pins().keys() & HEAVY <= {"playwright"}  # which the tests need


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
