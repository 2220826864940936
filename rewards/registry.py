"""Every reward by its name.

reward = get("gui_g2", alpha=0.5, phi=1.0)
reward(pred_box, gt_box, format_ok=ok).reward
names()
"""

import dataclasses
import difflib
import inspect
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from jaxllm.errors import UserError
from rewards import gaussian, geometry
from rewards.gaussian import GuiG2Options
from rewards.namespace import array_namespace, require_number
from rewards.peers import actions, controls, experimental, groups, hits, paths, relative

SHARED = ("pred_point", "kind", "image_wh", "format_ok")
"""Arrays that every reward takes by name, whether it uses them or not."""
EXPERIMENTAL = "experimental/"


@dataclasses.dataclass(frozen=True)
class SigmaOptions:
    """Settings of `sigma_multiple`."""

    k: float = 1.0
    """standard deviation per side; the ablation has 0.1, 0.3, 0.5, 0.7, 0.9, 2, 3, 5 and 10"""

    def __post_init__(self) -> None:
        require_number("k", self.k, 0, above=True)


@dataclasses.dataclass(frozen=True)
class FixedSigmaOptions:
    """Settings of `fixed_sigma`."""

    sigma: float | tuple[float, float] = 50.0
    """standard deviation in pixels, per axis or one for both; the paper does not say which it took"""

    def __post_init__(self) -> None:
        GuiG2Options(sigma=self.sigma)


def _sigma_multiple(*boxes: Any, options: SigmaOptions, **inputs: Any) -> gaussian.GuiG2:
    """GUI-G² with a standard deviation of k sides (ablation, arXiv 2507.15846)."""
    return gaussian.gui_g2(*boxes, **inputs, options=GuiG2Options(alpha=options.k))


def _fixed_sigma(*boxes: Any, options: FixedSigmaOptions, **inputs: Any) -> gaussian.GuiG2:
    """GUI-G² with a standard deviation in pixels, the same for every target (ablation, arXiv 2507.15846)."""
    return gaussian.gui_g2(*boxes, **inputs, options=GuiG2Options(sigma=options.sigma))


@dataclasses.dataclass(frozen=True)
class Entry:
    """What the registry knows of a reward."""

    function: Callable[..., Any]
    options: type
    parts: type
    preset: Mapping[str, Any] = dataclasses.field(default_factory=dict)  # options that the name stands for
    grouped: bool = False  # looks at several rows together, along the last leading axis
    summary: str = ""  # where the function's own first line does not say it


_ENTRIES: dict[str, Entry] = {
    "gui_g2": Entry(gaussian.gui_g2, GuiG2Options, gaussian.GuiG2, summary="Point + coverage (GUI-G², arXiv 2507.15846)."),
    "point_only": Entry(gaussian.gui_g2, GuiG2Options, gaussian.GuiG2, {"gamma": 0.0}, summary="GUI-G²'s point term alone."),
    "coverage_only": Entry(gaussian.gui_g2, GuiG2Options, gaussian.GuiG2, {"nu": 0.0}, summary="GUI-G²'s coverage term alone."),
    "inside_gaussian": Entry(
        gaussian.gui_g2, GuiG2Options, gaussian.GuiG2, {"inside": True}, summary="GUI-G², 0 where the centre is outside."
    ),
    "sigma_multiple": Entry(_sigma_multiple, SigmaOptions, gaussian.GuiG2),
    "fixed_sigma": Entry(_fixed_sigma, FixedSigmaOptions, gaussian.GuiG2),
    "binary_hit": Entry(hits.binary_hit, hits.HitOptions, hits.Hit),
    "binary_point": Entry(hits.binary_hit, hits.HitOptions, hits.Hit, summary="`binary_hit` by the name of GUI-G²'s ablation."),
    "iou": Entry(hits.iou_reward, hits.NoOptions, hits.Overlap),
    "binary_iou": Entry(hits.binary_iou, hits.OverlapOptions, hits.Overlap),
    "binary_point_plus_iou": Entry(hits.binary_point_plus_iou, hits.OverlapOptions, hits.HitOverlap),
    "euclid_exp": Entry(hits.euclid_exp, hits.DistanceOptions, hits.Distance),
    "gta1_click": Entry(hits.gta1_click, hits.ClickOptions, hits.Click),
    "ui_r1": Entry(actions.ui_r1, actions.UiR1Options, actions.UiR1),
    "ui_r1_length": Entry(actions.ui_r1_length, actions.UiR1LengthOptions, actions.UiR1Length, grouped=True),
    "gui_r1": Entry(actions.gui_r1, actions.GuiR1Options, actions.GuiR1),
    "se_gui": Entry(relative.se_gui, relative.SeGuiOptions, relative.SeGui),
    "gui_g1": Entry(relative.gui_g1, relative.GuiG1Options, relative.GuiG1),
    "aepo_aer": Entry(groups.aepo_aer, groups.AdaptiveExplorationOptions, groups.AdaptiveExploration),
    "rcpo_voting": Entry(groups.rcpo_voting, groups.VotingOptions, groups.Voting, grouped=True),
    "gui_aif": Entry(groups.gui_aif, groups.AnchoringOptions, groups.Anchoring, grouped=True),
    "cursor_trajectory": Entry(paths.cursor_trajectory, paths.CursorTrajectoryOptions, paths.CursorTrajectory),
    "spotlight_mix": Entry(paths.spotlight_mix, paths.SpotlightMixOptions, paths.SpotlightMix),
    "random_uniform": Entry(controls.random_uniform, hits.NoOptions, controls.Random),
    "random_binary": Entry(controls.random_binary, hits.NoOptions, controls.Random),
    f"{EXPERIMENTAL}infigui_r1": Entry(experimental.infigui_r1, experimental.InfiGuiR1Options, experimental.InfiGuiR1),
    f"{EXPERIMENTAL}lpo": Entry(experimental.lpo, experimental.LpoOptions, experimental.Lpo),
    f"{EXPERIMENTAL}hyperclick": Entry(experimental.hyperclick, experimental.HyperClickOptions, experimental.HyperClick),
    f"{EXPERIMENTAL}gui_arp": Entry(experimental.gui_arp, experimental.GuiArpOptions, experimental.GuiArp),
}


@dataclasses.dataclass(frozen=True)
class Reward:
    """A reward with its settings, to be called with arrays; hashable, so that `jax.jit` may hold it."""

    name: str
    options: Any
    """frozen dataclass, one field per setting"""

    @property
    def parts(self) -> tuple[str, ...]:
        """Names of what a call returns."""
        return _ENTRIES[self.name].parts._fields  # type: ignore[attr-defined, no-any-return]

    @property
    def summary(self) -> str:
        """One line: what it is and where it comes from."""
        entry = _ENTRIES[self.name]
        return entry.summary or (inspect.getdoc(entry.function) or "").split("\n")[0]

    @property
    def arrays(self) -> tuple[str, ...]:
        """Names of the arrays of its own that a call may need beside `SHARED`."""
        return tuple(_own(self.name))

    @property
    def required(self) -> tuple[str, ...]:
        """Those of them that a call cannot do without."""
        return tuple(name for name, default in _own(self.name).items() if default is inspect.Parameter.empty)

    @property
    def grouped(self) -> bool:
        """Whether rows are rewarded together, as a group along the last leading axis."""
        return _ENTRIES[self.name].grouped

    def __call__(self, pred_box: Any, gt_box: Any = None, *, target_mask: Any = None, **arrays: Any) -> Any:
        """The parts of every row.

        Args:
          pred_box: [..., 4], or None. Boxes and points may carry their frame as `jaxllm.frames.Framed`.
          gt_box: [..., 4]; with ``target_mask`` [..., K, 4], several targets, of which the one with the largest reward counts.
          target_mask: [..., K] bool, False for padding.
          arrays: `SHARED` ones, see `rewards.gaussian.gui_g2`, and those in `arrays`.
        Returns:
          A NamedTuple of `parts`, each [...].
        Raises:
          UserError: an array is missing or unknown, frames differ, or shapes do not fit.
        """
        entry = _ENTRIES[self.name]
        unknown = sorted(arrays.keys() - {*SHARED, *self.arrays})
        missing = sorted(name for name in self.required if arrays.get(name) is None)
        if unknown or missing:
            takes = ", ".join((*SHARED, *self.arrays))
            wrong = f"needs {', '.join(missing)}" if missing else f"has no use for {', '.join(unknown)}"
            raise UserError(f"{self.name} {wrong}; beside the boxes and target_mask it takes {takes}")
        pred_box, gt_box, arrays["pred_point"] = geometry.unframed(
            pred_box=pred_box, gt_box=gt_box, pred_point=arrays.get("pred_point")
        )
        given = {name: array for name, array in arrays.items() if array is not None}
        if target_mask is not None and entry.grouped:
            raise UserError(f"{self.name} rewards a group and has no targets to choose from; leave target_mask out")
        with np.errstate(all="ignore"):  # infinite coordinates are data, not accidents
            if target_mask is None:
                return entry.function(pred_box, gt_box, **given, options=self.options)
            return _best_target(self, pred_box, gt_box, target_mask, given)


def get(name: str, **options: Any) -> Reward:
    """The reward of that name. Raises UserError for an unknown name or option, listing those that exist."""
    entry = _entry(name)
    fields = {field.name for field in dataclasses.fields(entry.options)}
    if unknown := sorted(options.keys() - fields):
        known = ", ".join(sorted(fields)) or "none"
        raise UserError(f"{name} has no option {', '.join(unknown)}; its options are: {known}")
    return Reward(name, entry.options(**{**entry.preset, **options}))


def names() -> list[str]:
    """All names, sorted."""
    return sorted(_ENTRIES)


def _entry(name: str) -> Entry:
    if name not in _ENTRIES:
        near = difflib.get_close_matches(name, [*_ENTRIES, *(n.removeprefix(EXPERIMENTAL) for n in _ENTRIES)], 1)
        hint = f"; did you mean {next(n for n in _ENTRIES if n.endswith(near[0]))}" if near else ""
        raise UserError(f"there is no reward {name!r}{hint}; known are: {', '.join(names())}")
    return _ENTRIES[name]


def _own(name: str) -> dict[str, Any]:
    parameters = inspect.signature(_ENTRIES[name].function).parameters.values()
    keywords = [p for p in parameters if p.kind is inspect.Parameter.KEYWORD_ONLY and p.name not in ("options", *SHARED)]
    return {p.name: p.default for p in keywords}


def _best_target(reward: Reward, pred_box: Any, gt_box: Any, target_mask: Any, arrays: dict[str, Any]) -> Any:
    """Every part at the target with the largest reward; a row without targets is invalid."""
    xp = array_namespace(pred_box, gt_box, target_mask, *arrays.values())
    mask = xp.asarray(target_mask).astype(bool)
    # Rows gain an axis of length 1 where their targets have K; the last axes of points, boxes and sequences stay behind it.
    inner = {"pred_point": 1, "image_wh": 1, "scale": 1, "candidates": 2, "candidate_mask": 1, "positions": 2}
    inner |= {"position_mask": 1, "crops": 2, "crop_mask": 1}
    spread = {}
    for name, array in arrays.items():
        array = array if name == "key" else xp.asarray(array)
        spread[name] = (
            array if name == "key" or array.ndim <= inner.get(name, 0) else xp.expand_dims(array, -1 - inner.get(name, 0))
        )
    box = None if pred_box is None else xp.expand_dims(xp.asarray(pred_box), -2)
    parts = _ENTRIES[reward.name].function(box, gt_box, **spread, options=reward.options)
    mask = xp.broadcast_to(mask, parts.reward.shape)
    best = xp.where(mask, parts.reward, -xp.inf).argmax(-1)[..., None]
    some = mask.any(-1)

    def choose(name: str, part: Any) -> Any:
        chosen = xp.take_along_axis(xp.broadcast_to(part, mask.shape), best, -1)[..., 0]
        nothing = -xp.inf if name.startswith("log_") else np.zeros((), chosen.dtype)
        return xp.where(some, chosen, nothing)

    return type(parts)(*(choose(name, part) for name, part in zip(parts._fields, parts, strict=True)))
