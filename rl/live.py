"""A run as it goes: one screen in a terminal, one line an update anywhere else."""

import itertools
import math
import time
from collections import deque
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any, Self

from rich.console import Console, Group
from rich.live import Live
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

BARS = "▁▂▃▄▅▆▇█"
BARS_ASCII = "_.-~=+*#"  # for a terminal without Unicode
WIDTH = 56  # of the sparkline, in characters
ABSENT = "-"
RARE = ("eval/success_rate", "drift/match")
RECENT = 10  # updates from whose time the rest is estimated: the first ones compile


class View:
    """Shows what `rl.trainer.Trainer.run` yields. A context manager; nothing is drawn outside of it."""

    def __init__(
        self,
        console: Console,
        title: str,
        updates: int,
        *,
        optimum: float | None = None,
        clock: Callable[[], float] = time.monotonic,
    ):
        """
        Args:
          console: where to; a screen that is drawn anew if it is a terminal, else plain lines.
          title: of the screen.
          updates: of the whole run.
          optimum: the best mean reward that is possible, where that is known.
          clock: seconds.
        """
        self.console, self.title, self.updates, self.optimum = console, title, updates, optimum
        self.rewards: list[float] = []
        self._figures: dict[str, float] = {}
        self._rare: dict[str, tuple[float, int]] = {}  # figures that few updates have, and after how many the last was
        self._alarm = ""  # the last one
        self._said = "the first update is under way"
        self._clock = clock
        self._begin = self._last = clock()
        self._lasted: deque[float] = deque(maxlen=RECENT)  # seconds of the last updates
        self._live = Live(console=console, get_renderable=self.screen, refresh_per_second=2) if console.is_terminal else None

    def __enter__(self) -> Self:
        if self._live is not None:
            self._live.start(refresh=True)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._live is not None:
            self._live.stop()

    def say(self, text: str) -> None:
        """A remark: what was imitated, how far the critic got, where the run goes on."""
        self._said, self._last = text, self._clock()
        if self._live is None:
            self.console.print(Text(text), soft_wrap=True)

    def show(self, figures: Mapping[str, float]) -> None:
        """The figures of an update; ``update`` counts from 0. What is missing is left out."""
        now = self._clock()
        self._lasted.append(now - self._last)
        self._last = now
        self._figures = dict(figures)
        self._rare |= {name: (figures[name], int(figures["update"]) + 1) for name in RARE if name in figures}
        reward = figures.get("reward/outcome")
        if reward is not None and math.isfinite(reward):
            self.rewards.append(reward)
        found = alarm(figures)
        self._alarm = found or self._alarm
        if self._live is None:
            self.console.print(Text(line(figures, self.updates)), soft_wrap=True)
            if found:
                self.console.print(Text(f"WARNING  {found}", style="bold red"), soft_wrap=True)
        else:
            self._live.refresh()

    def screen(self) -> Panel:
        """What a terminal shows now: at most 17 lines of 78 columns."""
        figures = self._figures
        if not figures:
            return Panel(Text(f"{self._said}\n{_time(self._clock() - self._begin)}"), title=Text(self.title), width=78)

        def number(name: str) -> str:
            return number_of(figures.get(name))

        left = [
            ("reward", self._reward()),
            ("success", percent(figures.get("success_rate"))),
            ("success, evaluated", self._latest("eval/success_rate")),
            ("turns", number("turns")),
            ("tokens a turn", number("policy_tokens_per_turn")),
            ("entropy", number("entropy")),
            ("unreadable turns", percent(figures.get("parse_errors"))),
        ]
        if "drift/match" in self._rare:
            left.append(("words kept", self._latest("drift/match")))
        right = [
            ("KL of the update", number("ppo/kl_k3")),
            ("clipped above, below", _clipped(figures)),
            ("explained variance", number("critic/explained_variance")),
            ("value and reward", number("critic/value_reward_corr")),
            ("mismatch, mean", number("off/abs_dlogp_mean")),
            ("mismatch, 99 %", number("off/abs_dlogp_p99")),
            ("failed, tried again", _failures(figures)),
        ]
        grid = Table.grid(padding=(0, 2))
        for justify in ("left", "right", "left", "right"):
            grid.add_column(justify=justify, no_wrap=True)  # type: ignore[arg-type]
        for row in itertools.zip_longest(left, right, fillvalue=("", "")):
            grid.add_row(*(Text(cell) for pair in row for cell in pair))
        bars = BARS if "utf" in (self.console.encoding or "").lower() else BARS_ASCII
        spark = Text(f"{sparkline(self.rewards, WIDTH, bars)}  reward")
        parts: list[Any] = [Text(self._progress()), Text(""), spark, Text(""), grid, Text(""), Text("time  " + shares(figures))]
        if self._alarm:
            parts.append(Text(self._alarm, style="bold red"))
        return Panel(Group(*parts), title=Text(self.title), width=78)

    def _progress(self) -> str:
        done = int(self._figures["update"]) + 1
        each = sum(self._lasted) / len(self._lasted)
        left = f", about {_time(each * (self.updates - done))} left" if done < self.updates else ""
        return f"update {done} of {self.updates}, {_time(self._clock() - self._begin)}{left}"

    def _reward(self) -> str:
        text = number_of(self._figures.get("reward/outcome"))
        return text if self.optimum is None else f"{text} of {number_of(self.optimum)}"

    def _latest(self, name: str) -> str:
        if name not in self._rare:
            return ABSENT
        share, after = self._rare[name]
        return f"{percent(share)} after {after}"


def line(figures: Mapping[str, float], updates: int) -> str:
    """One update in one line; figures that it lacks are left out."""
    found = [f"update {int(figures['update']) + 1}/{updates}"]
    for label, name, form in (
        ("reward", "reward/outcome", number_of),
        ("success", "success_rate", percent),
        ("evaluated", "eval/success_rate", percent),
        ("turns", "turns", number_of),
        ("tokens/turn", "policy_tokens_per_turn", number_of),
        ("entropy", "entropy", number_of),
        ("KL", "ppo/kl_k3", number_of),
        ("explained", "critic/explained_variance", number_of),
        ("mismatch", "off/abs_dlogp_mean", number_of),
        ("failed", "env/failed_frac", percent),
        ("words kept", "drift/match", percent),
    ):
        if name in figures:
            found.append(f"{label} {form(figures[name])}")
    seconds = sum(value for name, value in figures.items() if name.startswith("seconds/"))
    return "  ".join([*found, f"{seconds:.1f} s"])


def alarm(figures: Mapping[str, float]) -> str:
    """What is wrong with an update whose sampler and trainer are too far apart; empty where nothing is."""
    if not figures.get("off/alarm"):
        return ""
    mean, most = (number_of(figures.get(f"off/abs_dlogp_{name}")) for name in ("mean", "max"))
    return f"update {int(figures['update']) + 1}: sampler and trainer {mean} nats a token apart, at most {most}"


def sparkline(values: list[float], width: int = WIDTH, bars: str = BARS) -> str:
    """The values from the lowest bar to the highest in at most ``width`` characters; more values are averaged by parts."""
    if not values:
        return ""
    if len(values) > width:
        edges = [i * len(values) // width for i in range(width + 1)]
        values = [sum(values[a:b]) / (b - a) for a, b in itertools.pairwise(edges)]
    low, high = min(values), max(values)
    steps = len(bars) - 1
    return "".join(bars[round((value - low) / (high - low) * steps) if high > low else 0] for value in values)


def shares(figures: Mapping[str, float]) -> str:
    """How an update's seconds were spent, in the order of the figures, and their sum."""
    parts = {name.removeprefix("seconds/"): value for name, value in figures.items() if name.startswith("seconds/")}
    total = sum(parts.values())
    if not total > 0:
        return ABSENT
    return ", ".join(f"{name} {value / total:.0%}" for name, value in parts.items()) + f" of {total:.1f} s"


def number_of(value: float | None) -> str:
    """Three digits; a dash for what is missing or not a number."""
    if value is None or not math.isfinite(value):
        return ABSENT
    return f"{value:.1e}" if 0 < abs(value) < 1e-3 else f"{value:.3f}" if abs(value) < 100 else f"{value:,.0f}"


def percent(value: float | None) -> str:
    """A share in per cent."""
    return ABSENT if value is None or not math.isfinite(value) else f"{value:.1%}"


def _clipped(figures: Mapping[str, float]) -> str:
    return f"{percent(figures.get('ppo/clip_high_frac'))}, {percent(figures.get('ppo/clip_low_frac'))}"


def _failures(figures: Mapping[str, float]) -> str:
    return f"{percent(figures.get('env/failed_frac'))}, {figures.get('env/retries', 0):.0f}"


def _time(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"
