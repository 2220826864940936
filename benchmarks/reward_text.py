"""The text side of `reward_throughput.py`: how many answers a second are parsed, and rewarded from their text.

Beside it what published readers do: a pattern compiled once and searched text by text, and a reward computed row by row.
"""

import functools
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa

TARGETS = {"bracket": 1.5, "qwen25": 1.5, "text_to_reward": 1.0}  # million texts a second
LOOP_ROWS = 100_000  # of the published style, which takes the same time for every row
FORMS = {
    "bracket": "[%d, %d, %d, %d]",
    "qwen25": '```json\n[\n\t{"bbox_2d": [%d, %d, %d, %d], "label": "the save button"}\n]\n```',
    "in prose": "The button that saves the file is at [%d, %d, %d, %d].",
    "thought": "<think>It is the disk near the top.</think>\n<answer>[%d, %d, %d, %d]</answer>",
}
# The usual pattern of four numbers in brackets, which takes quadratic time on a long run of digits.
PATTERN = re.compile(r"\[\s*(-?\d*\.?\d+),\s*(-?\d*\.?\d+),\s*(-?\d*\.?\d+),\s*(-?\d*\.?\d+)\s*\]")
WHOLE = re.compile(r"\[\s*\d+\s*,\s*\d+\s*,\s*\d+\s*,\s*\d+\s*\]")

Seconds = Callable[[dict[str, Callable[[], Any]], int], dict[str, float]]
ByRow = Callable[[np.ndarray, np.ndarray], Any]


def answers(N: int, form: str, seed: int = 0) -> tuple[list[str], np.ndarray]:
    """N texts with a box each, and the boxes, int [N, 4]; one text in a hundred says nothing."""
    rng = np.random.default_rng(seed)
    corner = rng.integers(0, 1800, (N, 2))
    boxes = np.concatenate([corner, corner + rng.integers(8, 200, (N, 2))], -1)
    texts = [FORMS[form] % tuple(box) for box in boxes.tolist()]
    texts[::100] = ["I do not see it."] * len(texts[::100])
    return texts, boxes


def published_parse(texts: list[str]) -> tuple[np.ndarray, np.ndarray]:
    """Boxes [N, 4] and formats [N] by a pattern searched text by text."""
    boxes, formats = np.full((len(texts), 4), np.nan, np.float32), np.zeros(len(texts), bool)
    for i, text in enumerate(texts):
        match = PATTERN.search(text)
        if match:
            boxes[i] = [float(number) for number in match.groups()]
        formats[i] = WHOLE.fullmatch(text) is not None
    return boxes, formats


def parse(sizes: list[int], rounds: int, seconds: Seconds) -> dict[str, Any]:
    """Texts to boxes."""
    from rewards.parse import parse

    print("parse: million texts a second")
    result: dict[str, Any] = {}
    for form in FORMS:
        dialect = "qwen25" if form == "qwen25" else "bracket"
        cells, rates = [], {}
        for N in sizes:
            texts, boxes = answers(N, form)
            column = pa.array(texts)
            parsed = parse(texts, dialect)
            said = np.arange(N) % 100 != 0
            assert (parsed.kind == 2 * said).all()
            assert (parsed.box[said] == boxes[said]).all()
            few = texts[:LOOP_ROWS]
            sides: dict[str, Callable[[], Any]] = {
                "list": functools.partial(parse, texts, dialect),
                "column": functools.partial(parse, column, dialect),
                "loop": functools.partial(published_parse, few),
            }
            medians = seconds(sides, rounds)
            rates = {name: (len(few) if name == "loop" else N) / median / 1e6 for name, median in medians.items()}
            cells.append(f"{N:>10,} {rates['list']:6.2f} {rates['column']:6.2f} {rates['loop']:6.2f}")
        print(f"  {form:10}" + "  ".join(cells))
        result[form] = {name: round(rate, 3) for name, rate in rates.items()}
    print("  three rates each: a list of str, a column of Arrow, a compiled pattern in a loop")
    result["targets"] = {form: TARGETS[form] for form in ("bracket", "qwen25")}
    result["met"] = {form: result[form]["list"] >= TARGETS[form] for form in ("bracket", "qwen25")}
    return result


def _published(texts: list[str], targets: np.ndarray, by_row: ByRow) -> Any:
    boxes, _ = published_parse(texts)
    read = np.isfinite(boxes[:, 0])
    return by_row(boxes[read], targets[read])


def text_to_reward(sizes: list[int], rounds: int, seconds: Seconds, by_row: ByRow) -> dict[str, Any]:
    """Texts to all parts of the reward, with the way from resized pixels to those of the file."""
    import rewards
    from jaxllm.frames import PRESETS
    from rewards.score import Scorer

    print("text to reward: million samples a second")
    result: dict[str, Any] = {}
    for dialect in ("bracket", "qwen25"):
        plain = Scorer(rewards.get("gui_g2"), dialect, frame="orig")
        resized = Scorer(rewards.get("gui_g2"), dialect, resize=PRESETS["qwen25"])
        cells, rates = [], {}
        for N in sizes:
            texts, boxes = answers(N, dialect)
            targets, size = (boxes + 3).astype(np.float32), np.tile([1920, 1080], (N, 1))
            few = texts[: LOOP_ROWS // 10]
            sides: dict[str, Callable[[], Any]] = {
                "same frame": functools.partial(plain, texts, targets),
                "resized": functools.partial(resized, texts, targets, size_wh=size),
                "published": functools.partial(_published, few, targets[: len(few)], by_row),
            }
            medians = seconds(sides, rounds)
            rates = {name: (len(few) if name == "published" else N) / median / 1e6 for name, median in medians.items()}
            cells.append(f"{N:>10,} " + " ".join(f"{rate:6.3g}" for rate in rates.values()))
        print(f"  {dialect:10}" + "  ".join(cells))
        result[dialect] = {name: round(rate, 3) for name, rate in rates.items()}
    print("  three rates each: answers in the target's frame, answers in resized pixels, the published style")
    result["target"] = TARGETS["text_to_reward"]
    result["met"] = {dialect: result[dialect]["same frame"] >= TARGETS["text_to_reward"] for dialect in ("bracket", "qwen25")}
    return result
