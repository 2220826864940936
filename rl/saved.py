"""The configuration of a run by name: a preset, or what a former run has written; and who may write a run.

Reading fails closed.
"""

import contextlib
import dataclasses
import difflib
import math
import types
import typing
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any, Literal, TypeVar

from jaxllm.config import read_json
from jaxllm.errors import UserError
from jaxllm.files import held
from rl.config import PRESETS, TrainConfig

FILE = "config.json"
FREE = (
    *("updates", "eval_every", "eval_episodes", "drift_every", "checkpoint_every", "keep"),
    *("algo.mismatch_warn", "algo.mismatch_stop"),
)
"""Settings that a run may go on with otherwise: no number of training depends on them."""
Section = TypeVar("Section")


def configuration(name: str | Path) -> TrainConfig:
    """The configuration that ``name`` stands for.

    Args:
      name: a preset, the folder of a run, or a file of JSON as a run writes it.

    Raises:
      UserError: none of these; a key that is missing or unknown, a value of another type, an invalid combination.
    """
    preset = PRESETS.get(str(name))
    if preset is not None:
        return preset
    file = saved_file(name)
    if file is None:
        close = difflib.get_close_matches(str(name), PRESETS, n=1)
        hint = f"did you mean {close[0]}?" if close else f"the presets are {', '.join(PRESETS)}"
        raise UserError(f"{str(name)!r} is no preset, no folder of a run and no config.json; {hint}")
    return from_dict(TrainConfig, read_json(file), str(file))


def saved_file(name: str | Path) -> Path | None:
    """The file of a saved configuration: ``name`` itself, or config.json in a folder of that name; None for a preset."""
    path = Path(name)
    if str(name) in PRESETS:
        return None
    if path.is_dir():
        path = path / FILE
    return path if path.is_file() else None


@contextlib.contextmanager
def only_writer(folder: Path, config: TrainConfig) -> Iterator[None]:
    """Keeps the folder of a run, made if absent, for one process; the operating system frees that of one that dies.

    Raises UserError when another process trains there, when the run in it has other settings, or when it can't be a folder.
    """
    with held(folder, "the folder of a run", "another process trains there"):
        if (folder / FILE).is_file() and (apart := differences(asdict(configuration(folder)), asdict(config))):
            remedy = "choose another --out, or remove it"
            raise UserError(f"{folder} holds a run with other settings; {remedy}:\n" + "\n".join(f"  {one}" for one in apart))
        yield


def differences(there: dict[str, Any], wanted: dict[str, Any]) -> list[str]:
    """Each setting in which a run that goes on must not differ and does, as on the command line, with both values."""
    a, b = _flat(there), _flat(wanted)
    names = [name for name in {**a, **b} if name not in FREE]
    return [f"{name} is {a.get(name)} there, not {b.get(name)}" for name in names if a.get(name) != b.get(name)]


def _flat(values: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in values.items():
        key = f"{prefix}{name}"
        found |= _flat(value, f"{key}.") if isinstance(value, dict) else {key: value}
    return found


def from_dict(kind: type[Section], values: Any, where: str) -> Section:
    """A dataclass of typed settings from plain values, as `dataclasses.asdict` writes them; nothing may be missing.

    Raises:
      UserError: says where (``where`` and the key), what was found and what is expected.
    """
    hints = typing.get_type_hints(kind)
    if not isinstance(values, dict):
        raise UserError(f"{where}: expected an object with {', '.join(hints)}, found {_shown(values)}")
    unknown, missing = sorted(set(values) - set(hints)), sorted(set(hints) - set(values))
    if unknown or missing:
        parts = [f"{word} {', '.join(names)}" for word, names in (("unknown:", unknown), ("missing:", missing)) if names]
        raise UserError(f"{where}: settings {'; '.join(parts)}. Was it written by another version?")
    found: dict[str, Any] = {}
    for name, hint in hints.items():
        at = f"{where}: {name}"
        if dataclasses.is_dataclass(hint):
            found[name] = from_dict(typing.cast(type, hint), values[name], at)
        elif _fits(values[name], hint):
            found[name] = values[name]
        else:
            raise UserError(f"{at}: expected {_expected(hint)}, found {_shown(values[name])}")
    return kind(**found)


def _fits(value: Any, hint: Any) -> bool:
    origin = typing.get_origin(hint)
    if origin in (typing.Union, types.UnionType):
        return any(_fits(value, part) for part in typing.get_args(hint))
    if origin is Literal:
        return any(type(value) is type(choice) and value == choice for choice in typing.get_args(hint))
    if hint is float:
        return type(value) in (int, float) and math.isfinite(value)
    return type(value) is hint  # True is no whole number


def _expected(hint: Any) -> str:
    origin = typing.get_origin(hint)
    if origin in (typing.Union, types.UnionType):
        return " or ".join(_expected(part) for part in typing.get_args(hint))
    if origin is Literal:
        return " or ".join(map(str, typing.get_args(hint)))
    names = {int: "a whole number", float: "a number", bool: "true or false", str: "text", type(None): "null"}
    return names[hint]


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
