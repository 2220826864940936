"""The curves of runs: what is drawn where, and how runs are told apart."""

import json
import math
from pathlib import Path

import numpy as np
import pytest

from jaxllm.errors import UserError
from rl import plot
from rl.metrics import FILE


def write(folder: Path, rewards: list[float | None], env: str | None = "toy/hilo", **figures: float) -> Path:
    """A run whose updates earned these rewards, with other figures that stay."""
    folder.mkdir(parents=True)
    rows = [{"update": i, "reward/outcome": reward, "success_rate": reward, **figures} for i, reward in enumerate(rewards)]
    (folder / FILE).write_text("".join(json.dumps(row) + "\n" for row in rows))
    if env is not None:
        (folder / "config.json").write_text(json.dumps({"rollout": {"env": env}}))
    return folder


def labels(axis) -> list[str]:
    return [line.get_label() for line in axis.get_lines() if not line.get_label().startswith("_")]


def test_curves_are_the_figures_of_a_run(tmp_path: Path):
    run = write(tmp_path / "a", [0.0, 0.5, None, 0.75], **{"entropy": 1.5, "seconds/play": 3.0, "seconds/step": 1.0})
    figure = plot.draw([run])
    axes = {axis.get_title(): axis for axis in figure.axes}
    assert set(axes) == {title for title, *_ in plot.PANELS} | {"Time of an update"}
    curve = axes["Reward"].get_lines()[0]
    assert list(curve.get_xdata()) == [1, 2, 4]  # null is left out
    assert list(curve.get_ydata()) == [0.0, 0.5, 0.75]
    assert labels(axes["Reward"]) == ["a", "optimum 1"]
    assert list(axes["Entropy"].get_lines()[0].get_ydata()) == [1.5] * 4
    assert [text.get_text() for text in axes["Turns"].texts] == ["not recorded"]
    assert [bar.get_width() for bar in axes["Time of an update"].patches] == [3.0, 1.0]
    picture = plot.curves([run])
    assert picture.startswith(b"\x89PNG\r\n\x1a\n")
    assert len(picture) < 250_000


def test_runs_are_told_apart_without_colours(tmp_path: Path):
    runs = [write(tmp_path / f"{side}/run", [0.1, 0.2 + i / 10]) for i, side in enumerate("ab")]
    axis = plot.draw(runs).axes[0]
    assert labels(axis) == ["a/run", "b/run", "optimum 1"]
    a, b, _ = axis.get_lines()
    assert a.get_linestyle() != b.get_linestyle()
    assert a.get_color() != b.get_color()
    styles = plot._styles()
    assert len(set(styles)) == plot.MAX_RUNS == 24


def test_a_long_run_is_smoothed(tmp_path: Path):
    rewards = [float(i % 2) for i in range(200)]
    thin, thick, _ = plot.draw([write(tmp_path / "a", rewards)]).axes[0].get_lines()
    assert list(thin.get_ydata()) == rewards
    assert thick.get_ydata()[-1] == 0.5
    assert thick.get_linewidth() > thin.get_linewidth()


def test_moving_mean():
    np.testing.assert_allclose(plot.moving_mean(np.array([1.0, 3, 5, 7]), 2), [1, 2, 4, 6])
    np.testing.assert_allclose(plot.moving_mean(np.array([2.0, 4]), 10), [2, 3])


def test_evaluations_are_rings(tmp_path: Path):
    run = write(tmp_path / "a", [0.0, 1.0], **{"eval/success_rate": 0.25})
    ring = next(line for line in plot.draw([run]).axes[1].get_lines() if line.get_label() == "a, evaluated")
    assert (ring.get_linestyle(), list(ring.get_ydata())) == ("None", [0.25, 0.25])


@pytest.mark.parametrize(
    ("env", "best"),
    [
        ("toy/hilo", 1.0),
        ("toy/keys", 1.0),
        ("toy/nothing", None),
        ("gym/CartPole-v1", None),
        ("hilo", None),
        (7, None),
        (None, None),
    ],
)
def test_optimum_of_toys_alone(env, best: float | None):
    assert plot.optimum_of(env) == best


def test_no_optimum_without_a_configuration(tmp_path: Path):
    run = write(tmp_path / "a", [0.5], env=None)
    assert plot.optimum(run) is None
    assert labels(plot.draw([run]).axes[0]) == ["a"]
    (run / "config.json").write_text('["toy/hilo"]')
    assert plot.optimum(run) is None


@pytest.mark.parametrize(
    ("content", "reason"),
    [(None, "is this the folder of a run"), ("", "no update of this run is finished yet"), ("[]\n", "line 1: no figures")],
)
def test_what_cannot_be_drawn(tmp_path: Path, content: str | None, reason: str):
    if content is not None:
        (tmp_path / FILE).write_text(content)
    with pytest.raises(UserError, match=reason):
        plot.curves([tmp_path])


def test_no_runs_and_too_many(tmp_path: Path):
    for runs in ([], [tmp_path] * (plot.MAX_RUNS + 1)):
        with pytest.raises(UserError, match="between 1 and 24 runs"):
            plot.curves(runs)


def test_the_same_run_twice(tmp_path: Path):
    run = write(tmp_path / "a", [0.5, math.pi])
    assert labels(plot.draw([run, run]).axes[0])[:2] == ["1: a", "2: a"]
