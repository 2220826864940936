"""The picture of runs that imitate, alone and beside others, and of what became of the neurons' words."""

import json
from pathlib import Path

from rl import plot
from rl.metrics import FILE


def write(folder: Path, *rows: dict) -> Path:
    folder.mkdir()
    (folder / FILE).write_text("".join(json.dumps({"update": i, **row}) + "\n" for i, row in enumerate(rows)))
    return folder


def imitation(folder: Path) -> Path:
    """A run of three steps; the last one was evaluated."""
    rows = [{"sft/loss": 3.0 - i, "sft/lr": 0.1, "sft/grad_norm": 2.0, "seconds/step": 1.0} for i in range(3)]
    rows[2] |= {"eval/loss": 1.5}
    return write(folder, *rows)


def titles(figure) -> list[str]:
    return [axis.get_title() for axis in figure.axes]


def lines(axis) -> list[list[float]]:
    return [list(line.get_ydata()) for line in axis.get_lines()]


def test_a_run_that_imitates_has_its_own_panels(tmp_path: Path):
    figure = plot.draw([imitation(tmp_path / "a")])
    assert titles(figure) == ["Loss", "Learning rate", "Gradient", "Time of an update"]
    loss, rate, gradient, _ = figure.axes
    assert lines(loss) == [[3.0, 2.0, 1.0], [1.5]]
    assert list(loss.get_lines()[1].get_xdata()) == [3]  # a ring where it was evaluated
    assert (lines(rate), lines(gradient)) == ([[0.1] * 3], [[2.0] * 3])
    assert {axis.get_xlabel() for axis in (loss, rate, gradient)} == {"step"}
    assert not [text for axis in figure.axes for text in axis.texts]  # nothing is missing
    (legend,) = figure.legends
    assert [text.get_text() for text in legend.get_texts()] == ["a", "a, evaluated"]


def test_beside_another_run_both_have_theirs(tmp_path: Path):
    other = write(tmp_path / "b", {"reward/outcome": 0.5, "success_rate": 0.5})
    figure = plot.draw([imitation(tmp_path / "a"), other])
    assert titles(figure) == [title for title, *_ in (*plot.PANELS, *plot.IMITATION)] + ["Time of an update"]
    axes = {axis.get_title(): axis for axis in figure.axes}
    assert lines(axes["Reward"]) == [[0.5]]
    assert lines(axes["Loss"]) == [[3.0, 2.0, 1.0], [1.5]]
    assert {text.get_text() for text in figure.legends[0].get_texts()} == {"a", "a, evaluated", "b"}
    colours = {title: axes[title].get_lines()[0].get_color() for title in ("Loss", "Reward")}
    assert colours["Loss"] != colours["Reward"]


def test_words_have_a_panel_where_they_are_told(tmp_path: Path):
    plain = write(tmp_path / "a", {"reward/outcome": 0.5})
    looked = write(tmp_path / "b", {"reward/outcome": 0.5}, {"reward/outcome": 0.5, "drift/match": 0.75})
    assert "Words kept" not in titles(plot.draw([plain]))
    axis = plot.draw([plain, looked]).axes[len(plot.PANELS)]
    assert axis.get_title() == "Words kept"
    assert lines(axis) == [[0.75]]


def test_many_runs_name_no_rings(tmp_path: Path):
    runs = [imitation(tmp_path / name) for name in "abcde"]
    assert [text.get_text() for text in plot.draw(runs).legends[0].get_texts()] == list("abcde")
