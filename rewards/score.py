"""From what a model wrote to its reward: parse, bring both sides into one frame, call the kernel.

scorer = Scorer(rewards.get("gui_g2"), dialect="qwen25", resize=PRESETS["qwen25"])
scored = scorer(texts, targets, size_wh=sizes)   # N texts, boxes [N, 4], [N, 2]
scored.parts.reward                              # float32 [N]
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from jaxllm import frames
from jaxllm.errors import UserError
from jaxllm.frames import Resize, convert
from rewards.parse import BOX, NOTHING, POINT, Parsed, parse
from rewards.parse_dialects import dialect_named


@dataclasses.dataclass(frozen=True, eq=False)
class Scored:
    """N answers and their rewards."""

    parsed: Parsed  # in the target's frame
    parts: Any  # the reward's NamedTuple of parts, each [N]


@dataclasses.dataclass(frozen=True, eq=False)
class Scorer:
    """A reward together with how its answers are read. Every frame is stated; nothing is guessed from the numbers."""

    reward: Any  # a `rewards.registry.Reward`
    dialect: str = "bracket"  # of `rewards.parse.DIALECTS`
    policy: str = "first"  # which of several answers in a text counts
    asked: str | None = None  # "box", "point" or "either"; None: what the dialect's prompts ask for
    frame: str | None = None  # of the model's numbers; None: the dialect's
    target_frame: str = "orig"  # of the targets, and of the reward
    resize: Resize | None = None  # how pictures were resized for the model, where a frame is "resized"

    def __post_init__(self) -> None:
        dialect_named(self.dialect)
        for frame in (self.answer_frame, self.target_frame):
            frames.check(frame)

    @property
    def answer_frame(self) -> str:
        """The frame of the numbers that the model writes."""
        return self.frame or dialect_named(self.dialect).frame

    def __call__(
        self,
        texts: Sequence[str | None] | pa.Array | pa.ChunkedArray,
        targets: Any,
        *,
        size_wh: Any = None,
        resized_wh: Any = None,
        **extra: Any,
    ) -> Scored:
        """Rewards N answers.

        Args:
          texts: [N] model outputs.
          targets: [N, 4] boxes in the target frame.
          size_wh: [N, 2] or [2], width and height of the pictures' files.
          resized_wh: [N, 2] or [2], width and height of what the model saw, if ``resize`` does not say.
          extra: what else the reward takes.

        Raises:
          UserError: a size or a way of resizing that the frames need is not given; targets of another shape.
        """
        return self.of(self.read(texts), targets, size_wh=size_wh, resized_wh=resized_wh, **extra)

    def read(self, texts: Sequence[str | None] | pa.Array | pa.ChunkedArray) -> Parsed:
        """What N texts say, in the frame of the model's numbers."""
        parsed = parse(texts, self.dialect, policy=self.policy, asked=self.asked)
        return dataclasses.replace(parsed, frame=self.answer_frame)

    def of(self, parsed: Parsed, targets: Any, *, size_wh: Any = None, resized_wh: Any = None, **extra: Any) -> Scored:
        """Rewards answers that are read already, in whatever frame they are; otherwise as a call."""
        targets = np.asarray(targets, np.float32)
        if targets.shape != (len(parsed), 4):
            raise UserError(f"targets must be [{len(parsed)}, 4], one box for each answer, not {list(targets.shape)}")
        if resized_wh is None and self.resize is not None and size_wh is not None:
            resized_wh = self.resize.sizes_wh(size_wh)
        parsed = moved(parsed, self.target_frame, size_wh=size_wh, resized_wh=resized_wh)
        far = frames.EXTENTS.get(self.target_frame)
        image_wh = {"orig": size_wh, "resized": resized_wh}.get(self.target_frame) if far is None else (far, far)
        if image_wh is not None:
            image_wh = np.broadcast_to(np.asarray(image_wh, np.float32), (len(parsed), 2))
        given = {"pred_point": parsed.point, "kind": parsed.kind, "image_wh": image_wh, "format_ok": parsed.format_ok}
        return Scored(parsed, self.reward(parsed.box, targets, **given, **extra))


def moved(parsed: Parsed, target: str, *, size_wh: Any = None, resized_wh: Any = None) -> Parsed:
    """Answers in another frame, converted in float64.

    Raises:
      UserError: the frames need the size of a picture that is not given.
    """
    if parsed.frame == target:
        return parsed
    for frame, size in (("orig", size_wh), ("resized", resized_wh)):
        if frame in (parsed.frame, target) and size is None:
            raise UserError(missing(parsed.frame, target, frame, sized=size_wh is not None))
    box, point = (
        convert(values.astype(np.float64), parsed.frame, target, size_wh=size_wh, resized_wh=resized_wh).astype(np.float32)
        for values in (parsed.box, parsed.point)
    )
    return dataclasses.replace(parsed, box=box, point=point, frame=target)


def missing(source: str, target: str, frame: str, *, sized: bool) -> str:
    """What to say when the size of the picture in ``frame`` is not known; ``sized``: that of its file is."""
    why = f"the answer is in the frame {source} ({frames.FRAMES[source]}), the target in {target}"
    if frame == "resized" and sized:
        return f"{why}: say how the pictures were resized, by a preset or by min_pixels and max_pixels"
    return f"{why}: give the pictures' width and height as image_wh, or set frame to {target} if both count the same"


def given(answers: Sequence[Sequence[float] | None], frame: str) -> Parsed:
    """Answers that are numbers already: points of two, boxes of four, None for nothing. They have no format to be judged."""
    kind = np.array([NOTHING if a is None else BOX if len(a) == 4 else POINT for a in answers], np.int8)
    box = np.full((len(answers), 4), np.nan, np.float32)
    for row, answer in enumerate(answers):
        if answer is not None:
            box[row] = answer if len(answer) == 4 else (*answer, *answer)
    point = (box[:, :2] + box[:, 2:]) * np.float32(0.5)
    return Parsed(kind, box, point, np.zeros(len(answers), bool), frames.check(frame))
