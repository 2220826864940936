"""The command that draws rewards over a screen."""

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro

if TYPE_CHECKING:
    from rewards.maps import Map, Screen

REWARDS = "gui_g2,binary_hit,se_gui,gui_g1"


@dataclasses.dataclass(frozen=True)
class RewardMap:
    """Draw what a prediction at each pixel would earn, for several rewards side by side.

    Predicted boxes have the target's size; terms for the form of the answer are left out. The whole screen is above, a close-up
    of the target below, with lines at 10, 25, 50, 75 and 90 % of each reward's best value.
    """

    target: Annotated[str, tyro.conf.arg(metavar="X1,Y1,X2,Y2")]
    """corners of the target in pixels, such as 100,100,200,150"""
    image: Annotated[str | None, tyro.conf.arg(metavar="WIDTHxHEIGHT")] = None
    """size of the screen in pixels, such as 1920x1080 (default: the screenshot's)"""
    screenshot: Path | None = None
    """PNG or JPEG of the screen, shown in grey below the colours"""
    rewards: str = REWARDS
    """names with commas, options behind colons, such as gui_g2,gui_g2:alpha=2,binary_hit"""
    out: Path = Path("reward-map.png")
    """the picture to write"""
    json: bool = False
    """print JSON"""

    def run(self) -> None:
        import json

        from jaxllm.cli import console
        from jaxllm.errors import UserError
        from rewards import maps

        asked = [name.strip() for name in self.rewards.split(",") if name.strip()]
        if not 1 <= len(asked) <= maps.MOST_PANELS:
            raise UserError(f"--rewards: name 1 to {maps.MOST_PANELS} rewards with commas, found {len(asked)}")
        chosen = [maps.from_text(text) for text in asked]
        size = None if self.image is None else parse_size(self.image)
        target = parse_target(self.target)
        if size is None and self.screenshot is None:
            raise UserError("give the size of the screen with --image, such as --image 1920x1080, or a --screenshot")
        picture = None if self.screenshot is None else maps.read_screenshot(self.screenshot, size)
        if size is None and picture is not None:
            size = (picture.shape[1], picture.shape[0])
        assert size is not None
        screen = maps.Screen(target, *size)
        found = [maps.reward_map(reward, screen, text) for reward, text in zip(chosen, asked, strict=True)]
        _write(self.out, maps.png(found, screen, picture))
        if self.json:
            console.write(json.dumps(_facts(found, screen), indent=1, allow_nan=False))
            console.stderr().print(f"Picture: {self.out}")
        else:
            console.stdout().print(_table(found))
            console.write(f"Picture: {self.out}")


COMMANDS: dict[str, type[Any]] = {"reward-map": RewardMap}


def parse_target(text: str) -> tuple[float, float, float, float]:
    """``100,100,200,150`` -> its four numbers. Raises UserError for anything else."""
    import re

    from jaxllm.errors import UserError

    number = r"\s*(-?[0-9]{1,9}(?:\.[0-9]{1,9})?)\s*"
    match = re.fullmatch(",".join([number] * 4), text)
    if match is None:
        raise UserError(f"--target {text!r}: write the four numbers x1,y1,x2,y2, such as 100,100,200,150")
    x1, y1, x2, y2 = map(float, match.groups())
    return x1, y1, x2, y2


def parse_size(text: str) -> tuple[int, int]:
    """``1920x1080`` -> (1920, 1080). Raises UserError for anything else."""
    import re

    from jaxllm.errors import UserError

    match = re.fullmatch(r"\s*([0-9]{1,6})\s*[xX×]\s*([0-9]{1,6})\s*", text)
    if match is None:
        raise UserError(f"--image {text!r}: write width and height, such as 1920x1080")
    return int(match[1]), int(match[2])


def _write(path: Path, picture: bytes) -> None:
    from jaxllm.errors import UserError

    if path.is_dir():
        raise UserError(f"--out {path} cannot be written: it is a folder; name a file such as {path / 'reward-map.png'}")
    partial = path.with_name(path.name + ".partial")
    try:
        partial.write_bytes(picture)
        partial.replace(path)
    except OSError as error:
        if partial.is_file():
            partial.unlink()
        raise UserError(f"--out {path} cannot be written: {error.strerror}; name a file in a folder that exists") from None


def _facts(found: "list[Map]", screen: "Screen") -> dict[str, Any]:
    rewards = [{"reward": one.title, "best": one.best, "signal_share": one.signal, "at": one.places} for one in found]
    return {"target": screen.target, "image": [screen.width, screen.height], "rewards": rewards}


def _table(found: "list[Map]") -> Any:
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    title = "Reward of a box of the target's size, by the place of its centre"
    table = Table(title=title, box=SIMPLE_HEAD, title_justify="left", pad_edge=False)
    for column in ("reward", *found[0].places, "signal on"):
        table.add_column(column, justify="left" if column == "reward" else "right", overflow="fold")
    for one in found:
        table.add_row(one.title, *(f"{value:.4g}" for value in one.places.values()), f"{one.signal:.2%}")
    table.caption = "signal on: share of the screen with at least 1 % of the best reward"
    table.caption_justify = "left"
    return table
