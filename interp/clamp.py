"""Clamps as a person writes them: ``L29/N1342=-30``, or in units of the neuron's own values, ``=3sd``, ``=max``.

`parse_clamp` reads the text, `resolve` turns units into numbers by `interp.calibration.natural`, and `metadata` keeps both.
"""

import dataclasses
import math
import re
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from interp.query import parse_neuron
from jaxllm.errors import UserError

if TYPE_CHECKING:
    from jaxllm.clamp import NeuronClamp
    from jaxllm.config import Config

UNITS = ("", "sd", "max", "min")
MEASURED = ("up", "product")  # sites whose natural values are known
FORMS = "write a number such as -30, or a value in the neuron's own units such as 3sd, -2.5sd, max, min or 2max"
MAX_VALUES = 1000  # in one dose curve

_NUMBER = r"[+-]?(?:[0-9]{1,20}(?:\.[0-9]{0,20})?|\.[0-9]{1,20})(?:[eE][+-]?[0-9]{1,3})?"
_VALUE = re.compile(rf"\s*(?P<number>{_NUMBER}|[+-])?\s*(?P<unit>[A-Za-z]*)\s*", re.ASCII)


class Natural(Protocol):
    """What a neuron does by itself on a text, one entry per neuron: `interp.calibration.Natural`."""

    @property
    def mean(self) -> Any: ...
    @property
    def std(self) -> Any: ...
    @property
    def min(self) -> Any: ...
    @property
    def max(self) -> Any: ...


@dataclasses.dataclass(frozen=True)
class Measured:
    """A `Natural` made of arrays [m] float64, NaN where nothing was measured."""

    mean: np.ndarray
    std: np.ndarray
    min: np.ndarray
    max: np.ndarray


@dataclasses.dataclass(frozen=True)
class Value:
    """A number with its unit, as written."""

    number: float
    unit: str = ""  # one of `UNITS`; "" is absolute

    def __str__(self) -> str:
        if self.unit in ("max", "min") and abs(self.number) == 1:
            return self.unit if self.number == 1 else f"-{self.unit}"
        return f"{self.number:.12g}{self.unit}"

    def absolute(self, natural: Natural | None, at: int, *, mode: str = "set") -> float:
        """The number that the model gets.

        ``3sd`` is three standard deviations above the neuron's mean, or, added to the natural value, three standard deviations.
        ``2max`` is twice its largest value, ``min`` its smallest. ``at`` is the neuron's entry in ``natural``.
        """
        if not self.unit:
            return self.number
        if natural is None:
            raise ValueError(f"{self} needs the neuron's natural values")
        if self.unit == "sd":
            return self.number * float(natural.std[at]) + (0.0 if mode == "add" else float(natural.mean[at]))
        return self.number * float((natural.max if self.unit == "max" else natural.min)[at])


@dataclasses.dataclass(frozen=True)
class Setting:
    """One clamp as written. Site, mode and positions are those of `jaxllm.clamp.NeuronClamp`."""

    layer: int
    neuron: int
    value: Value
    site: str = "up"
    mode: str = "set"
    positions: str | tuple[int, ...] = "all"
    exclude_special: bool = False
    threshold: float = 0.0

    def __str__(self) -> str:
        return f"L{self.layer}/N{self.neuron}={self.value}"


def parse_value(text: str) -> Value:
    """``-30``, ``3sd``, ``max`` or ``-2max``. Raises UserError for anything else, and for what is not finite."""
    match = _VALUE.fullmatch(text)
    number, unit = (match["number"], match["unit"].lower()) if match else (None, "?")
    unit = {"std": "sd"}.get(unit, unit)
    if unit not in UNITS or (number in (None, "+", "-") and unit not in ("max", "min")):
        raise UserError(f"{text!r} is not a value; {FORMS}")
    value = float(f"{number}1" if number in ("+", "-") else number or 1)
    if not math.isfinite(value):
        raise UserError(f"{text!r} is too large; values are finite numbers")
    return Value(value, unit)


def parse_clamp(text: str, **options: Any) -> Setting:
    """``L29/N1342=-30`` and the forms of `parse_value`; ``options`` are further fields of `Setting`. Raises UserError."""
    neuron, equals, value = text.partition("=")
    if not equals:
        raise UserError(f"{text!r} has no value; write neuron and value, such as L29/N1342=-30")
    layer, number = parse_neuron(neuron)
    try:
        setting = Setting(layer, number, parse_value(value), **options)
    except UserError as error:
        raise UserError(f"{text!r}: {error}") from None
    if setting.mode == "scale" and setting.value.unit:
        raise UserError(f"{text!r}: a scale is a factor without unit, such as L{layer}/N{number}=2")
    return setting


def parse_values(text: str) -> list[Value]:
    """``-100:100:9`` (first, last, how many) or ``-100,-30,0,3sd``. Raises UserError."""
    if ":" not in text:
        return [parse_value(part) for part in text.split(",")]
    parts = text.split(":")
    if len(parts) != 3 or not re.fullmatch(r"\s*[0-9]{1,6}\s*", parts[2], re.ASCII):
        raise UserError(f"{text!r}: write FIRST:LAST:COUNT, such as -100:100:9, or values with commas")
    first, last, count = parse_value(parts[0]), parse_value(parts[1]), int(parts[2])
    if first.unit != last.unit:
        raise UserError(f"{text!r}: first and last value need the same unit")
    if not 2 <= count <= MAX_VALUES:
        raise UserError(f"{text!r}: the count must be from 2 to {MAX_VALUES}, found {count}")
    step = (last.number - first.number) / (count - 1)
    return [Value(round(first.number + i * step, 12), first.unit) for i in range(count)]


def parse_positions(text: str) -> str | tuple[int, ...]:
    """``all``, ``prompt``, ``generated``, ``last``, or positions of the prompt such as ``0,3,4``. Raises UserError."""
    if text in ("all", "prompt", "generated", "last"):
        return text
    if re.fullmatch(r"\s*[0-9]{1,7}\s*(,\s*[0-9]{1,7}\s*)*", text, re.ASCII):
        return tuple(int(part) for part in text.split(","))
    raise UserError(f"positions {text!r}: write all, prompt, generated, last, or positions of the prompt such as 0,3,4")


def check_neurons(cfg: "Config", neurons: Sequence[tuple[int, int]]) -> None:
    """Raises UserError for a neuron that the model does not have."""
    L, F = cfg.num_hidden_layers, cfg.intermediate_size
    for layer, neuron in neurons:
        if not (0 <= layer < L and 0 <= neuron < F):
            raise UserError(f"L{layer}/N{neuron}: the model has layers 0 to {L - 1} and neurons 0 to {F - 1}")


def measure(settings: Sequence[Setting], natural: Callable[[Sequence[tuple[int, int]], str], Natural]) -> "Measured":
    """The natural values of each setting's neuron at its site, in the order of the settings.

    Args:
      settings: as parsed.
      natural: (neurons, site) -> their values; called once per site, for the sites in `MEASURED`. The others get NaN.
    """
    columns = np.full((4, len(settings)), np.nan)
    for site in dict.fromkeys(setting.site for setting in settings if setting.site in MEASURED):
        at = [i for i, setting in enumerate(settings) if setting.site == site]
        found = natural([(settings[i].layer, settings[i].neuron) for i in at], site)
        columns[:, at] = [np.asarray(getattr(found, name), np.float64) for name in ("mean", "std", "min", "max")]
    return Measured(*columns)


def resolve(settings: Sequence[Setting], natural: Natural | None = None) -> "list[NeuronClamp]":
    """The clamps that the model takes, in the order given.

    Args:
      settings: as parsed.
      natural: an entry per setting, as of `measure`; not needed when all values are absolute.
    Raises:
      UserError: a unit at a site whose natural values are not measured.
    """
    from jaxllm.clamp import NeuronClamp

    clamps = []
    for i, setting in enumerate(settings):
        if setting.value.unit and setting.site not in MEASURED:
            raise UserError(
                f"{setting}: site {setting.site} takes plain numbers; units are measured at {' and '.join(MEASURED)}"
            )
        fields = {f.name: getattr(setting, f.name) for f in dataclasses.fields(setting) if f.name != "value"}
        clamps.append(NeuronClamp(value=setting.value.absolute(natural, i, mode=setting.mode), **fields))
    return clamps


def metadata(settings: Sequence[Setting], clamps: "Sequence[NeuronClamp]") -> list[dict[str, Any]]:
    """What a file or an answer says of its clamps: each as written, with its unit, and as the number that was set."""
    return [
        {
            **dataclasses.asdict(clamp),
            "neuron_name": f"L{clamp.layer}/N{clamp.neuron}",
            "written": str(setting.value),
            "unit": setting.value.unit or "absolute",
        }
        for setting, clamp in zip(settings, clamps, strict=True)
    ]


def standing(value: float, natural: Natural, at: int) -> float:
    """How many standard deviations a value lies above the neuron's mean; NaN for a neuron that never moves."""
    spread = float(natural.std[at])
    return (value - float(natural.mean[at])) / spread if spread > 0 else math.nan
