"""The view of a run: one screen in a terminal, plain lines elsewhere."""

import io
import math

import pytest
from rich.console import Console

from rl.live import BARS, BARS_ASCII, View, line, number_of, percent, shares, sparkline

FIGURES = {
    "update": 36,
    "reward/outcome": 0.7125,
    "success_rate": 0.6953,
    "eval/success_rate": 0.6406,
    "turns": 3.21,
    "policy_tokens_per_turn": 2.05,
    "entropy": 1.234,
    "ppo/kl_k3": 0.00042,
    "ppo/clip_high_frac": 0.013,
    "ppo/clip_low_frac": 0.007,
    "critic/explained_variance": 0.561,
    "critic/value_reward_corr": 0.789,
    "off/abs_dlogp_mean": 2.5e-6,
    "off/abs_dlogp_p99": 3.1e-5,
    "env/failed_frac": 0.0625,
    "env/retries": 3.0,
    "parse_errors": 0.021,
    "seconds/play": 3.0,
    "seconds/score": 0.25,
    "seconds/step": 1.75,
}


def terminal(**options) -> Console:
    return Console(file=io.StringIO(), force_terminal=True, width=80, height=24, color_system=None, **options)


def screen(view: View) -> str:
    with view.console.capture() as found:
        view.console.print(view.screen())
    return found.get()


def test_a_screen_shows_the_run():
    view = View(terminal(), "runs/toy-hilo", 100, optimum=1.0)
    view.show({**FIGURES, "update": 35, "reward/outcome": 0.5})
    view.show(FIGURES)
    text = screen(view)
    for piece in (
        "runs/toy-hilo",
        "update 37 of 100",
        "0.713 of 1.000",
        "69.5%",
        "64.1% after 37",
        "3.210",
        "2.050",
        "1.234",
        "4.2e-04",
        "1.3%, 0.7%",
        "0.561",
        "0.789",
        "2.5e-06",
        "3.1e-05",
        "6.2%, 3",
        "2.1%",
        "play 60%, score 5%, step 35% of 5.0 s",
        "▁█  reward",
    ):
        assert piece in text, piece
    lines = text.splitlines()
    assert len(lines) <= 24
    assert max(map(len, lines)) <= 80


def test_the_rest_is_estimated_from_the_last_updates():
    now = 0.0
    view = View(terminal(), "run", 100, clock=lambda: now)
    now = 500.0
    view.say("imitated random play")  # what comes before the updates is no part of them
    for update in range(12):
        now += 300.0 if update == 0 else 4.0  # the first one compiles
        view.show({"update": update})
    assert "update 12 of 100, 14:04, about 5:52 left" in screen(view)  # 500 + 300 + 11 * 4 s; 88 * 4 s
    now += 3600
    view.show({"update": 99})
    assert "update 100 of 100, 1:14:04 " in screen(view)


def test_a_screen_before_the_first_update_shows_what_is_done():
    view = View(terminal(), "run", 10)
    assert "the first update is under way" in screen(view)
    view.say("imitated random play for 100 steps")
    assert "imitated random play for 100 steps" in screen(view)


def test_an_evaluation_stays_until_the_next():
    view = View(terminal(), "run", 100)
    view.show(FIGURES)
    view.show({"update": 37, "reward/outcome": 0.1})
    text = screen(view)
    assert "64.1% after 37" in text
    assert "explained variance" in text  # what an update lacks is a dash
    assert "0.561" not in text


def test_a_screen_without_unicode():
    console = terminal()
    console._encoding = "ascii"
    view = View(Console(file=io.TextIOWrapper(io.BytesIO(), "ascii"), force_terminal=True, width=80), "run", 5)
    view.show({"update": 0, "reward/outcome": 0.0})
    view.show({"update": 1, "reward/outcome": 1.0})
    assert "_#  reward" in screen(view)


def test_plain_lines_where_no_terminal_is():
    out = io.StringIO()
    with View(Console(file=out, width=160), "run", 100) as view:
        view.say("goes on after update 36")
        view.show(FIGURES)
        view.show({"update": 37, "success_rate": 1.0, "seconds/play": 2.0})
    assert out.getvalue().splitlines() == [
        "goes on after update 36",
        "update 37/100  reward 0.713  success 69.5%  evaluated 64.1%  turns 3.210  tokens/turn 2.050  entropy 1.234"
        "  KL 4.2e-04  explained 0.561  mismatch 2.5e-06  failed 6.2%  5.0 s",
        "update 38/100  success 100.0%  2.0 s",
    ]


def test_a_terminal_is_drawn_anew():
    console = terminal()
    with View(console, "run", 100) as view:
        view.show(FIGURES)
    text = console.file.getvalue()
    assert "\x1b[" in text  # moves the cursor
    assert "update 37/100" not in text  # no plain lines


@pytest.mark.parametrize(
    ("values", "bars"),
    [([], ""), ([0.5], "▁"), ([1, 1], "▁▁"), ([0, 1], "▁█"), ([0, 3.5, 7], "▁▅█"), ([0, 0, 1, 1, 2, 2, 3, 3], "▁▃▆█")],
)
def test_sparkline(values: list[float], bars: str):
    assert sparkline(values, width=4) == bars


def test_a_long_sparkline_keeps_every_value():
    assert len(sparkline([float(i) for i in range(1000)], width=56)) == 56
    assert sparkline([0.0] * 999 + [1.0], width=10)[-1] == BARS[-1]
    assert len(BARS) == len(BARS_ASCII)


@pytest.mark.parametrize(
    ("value", "text"),
    [(None, "-"), (math.nan, "-"), (math.inf, "-"), (0.0, "0.000"), (-0.5, "-0.500"), (0.0005, "5.0e-04"), (12345.0, "12,345")],
)
def test_numbers(value: float | None, text: str):
    assert number_of(value) == text


def test_shares_and_missing_figures():
    assert percent(None) == percent(math.nan) == "-"
    assert shares({"turns": 3.0}) == "-"
    assert shares({"seconds/play": 1.0, "seconds/step": 3.0}) == "play 25%, step 75% of 4.0 s"
    assert line({"update": 0}, 5) == "update 1/5  0.0 s"
