"""Where a command prints: results to stdout, progress and remarks to stderr, so that pipes stay clean.

Both are without colours and without redrawn lines when the stream is not a terminal.
"""

import contextlib
import functools
import sys
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

PIPE_WIDTH = 160  # columns of a table that no terminal limits


def _console(stderr: bool) -> "Console":
    from rich import console as rich_console

    class Console(rich_console.Console):
        def on_broken_pipe(self) -> None:
            raise  # the BrokenPipeError that rich is handling; its own way ends the process with 1

    console = Console(stderr=stderr, highlight=False, markup=False, emoji=False)
    if not console.is_terminal:
        console.width = PIPE_WIDTH
    return console


def stdout() -> "Console":
    """For results: ``stdout().print(table)``. Markup is off: a token such as ``[/b]`` stays text."""
    return _console(stderr=False)


@functools.cache
def stderr() -> "Console":
    """For remarks; one console for logs and progress, so that a log line does not tear the bar."""
    return _console(stderr=True)


def table(title: str, *columns: str) -> "Table":
    """An empty table in the form that all commands print; ``title`` may be empty."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    out = Table(title=title or None, box=SIMPLE_HEAD, title_justify="left", pad_edge=False)
    for column in columns:
        out.add_column(column, overflow="fold")
    return out


def write(text: str, end: str = "\n") -> None:
    """Plain text to stdout at once, for output that streams."""
    sys.stdout.write(text + end)
    sys.stdout.flush()


@contextlib.contextmanager
def progress(title: str, total: float | None = None, unit: str = "") -> Iterator[Callable[..., None]]:
    """A bar on stderr; yields ``advance(amount)``. Shown only on a terminal, and removed at the end.

    ``total`` is in units (None: unknown, a pulsing bar); the rate is units per second since the start. Where the total is of
    another kind, such as bytes of a file, ``advance(amount, units)`` counts both.
    """
    from rich.progress import BarColumn, Progress, ProgressColumn, Task, TextColumn, TimeElapsedColumn, TimeRemainingColumn
    from rich.text import Text

    class Rate(ProgressColumn):
        def render(self, task: Task) -> Text:
            elapsed = task.finished_time or task.elapsed
            units = task.fields["units"]
            return Text(f"{units / elapsed:,.0f} {unit}/s" if elapsed and units else "")

    console = stderr()
    columns = [
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        TextColumn("{task.percentage:>3.0f} %" if total else ""),
        *([Rate()] if unit else []),
        TimeElapsedColumn(),
        *([TimeRemainingColumn()] if total else []),
    ]
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bars:
        task = bars.add_task(title, total=total, units=0)

        def advance(amount: float, units: float | None = None) -> None:
            done = bars.tasks[0].fields["units"] + (amount if units is None else units)
            bars.update(task, advance=amount, units=done)

        yield advance
