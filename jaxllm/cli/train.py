"""Commands that train: reinforcement learning over many turns, and the curves of runs."""

import dataclasses
import itertools
import shlex
from pathlib import Path
from typing import Annotated, Any

import tyro

from jaxllm.cli import merge, sft

FIRST = "toy-hilo"  # whose settings `jaxllm train --help` shows


def _settings() -> Any:
    from rl.config import TrainConfig

    return TrainConfig


@dataclasses.dataclass(frozen=True)
class Train:
    """Train an agent over many turns by reinforcement learning, and show how it goes.

    PRESET comes first; options after it change single settings. The folder of the run gets config.json, metrics.jsonl,
    TensorBoard's events, checkpoints, and at its end the model. The same command goes on where a killed run stopped. The
    defaults below are those of the preset, or of toy-hilo where none is named: `jaxllm train toy-maze --help` shows others.
    """

    preset: tyro.conf.Positional[str]
    """toy-hilo, toy-keys, toy-maze, the folder of a former run, or its config.json"""
    out: Path | None = None
    """folder of the run (default: runs/ and the preset's name; a former run's own folder)"""
    mesh: str | None = None
    """devices to train on, as data=2,fsdp=2,tensor=2 (default: one). A run may go on with another number of them"""
    config: Annotated[Any, tyro.conf.arg(name="", constructor_factory=_settings)] = None

    @classmethod
    def defaults(cls, arguments: list[str]) -> "Train":
        """What the options are where they are not given: the settings of the preset that the command line begins with.

        Raises UserError if it begins with something else.
        """
        from jaxllm.errors import UserError
        from rl.config import PRESETS, RECIPES, with_algorithm
        from rl.saved import configuration

        named = bool(arguments) and not arguments[0].startswith("-")
        if arguments and not named and not {"-h", "--help"} & set(arguments):
            raise UserError(f"the preset comes first, as in: jaxllm train {FIRST} --updates 50; there are {', '.join(PRESETS)}")
        config = configuration(arguments[0] if named else FIRST)
        chosen = _value(arguments, "--algo.name")
        return cls(preset=tyro.MISSING, config=with_algorithm(config, chosen) if chosen in RECIPES else config)

    def run(self) -> None:
        from contextlib import closing

        from jaxllm.cli import console
        from jaxllm.sharding import read_mesh
        from rl.live import View
        from rl.models import MODEL
        from rl.plot import optimum_of
        from rl.saved import only_writer
        from rl.trainer import Trainer

        folder = self.out or _folder(self.preset)
        mesh = None if self.mesh is None else read_mesh(self.mesh)
        with only_writer(folder, self.config):
            trainer = Trainer(self.config, folder, mesh=mesh)
            title = f"{folder}: {self.config.rollout.env} by {self.config.algo.name}"
            view = View(console.stdout(), title, self.config.updates, optimum=optimum_of(self.config.rollout.env))
            try:
                updates: Any = trainer.run(view.say)
                with view, closing(updates):
                    for figures in updates:
                        view.show(figures)
            except KeyboardInterrupt:
                console.stderr().print(_left(folder), soft_wrap=True)
                raise
        console.write(f"wrote {folder}, the model in {folder / MODEL}; its curves: jaxllm plot {shlex.quote(str(folder))}")


@dataclasses.dataclass(frozen=True)
class Plot:
    """Draw the curves of training runs as a picture, over each other."""

    runs: tyro.conf.Positional[tuple[Path, ...]]
    """folders of runs"""
    out: Path | None = None
    """the PNG to be written (default: curves.png in the folder of the run, or here for several)"""

    def run(self) -> None:
        from jaxllm.cli import console
        from jaxllm.files import write_atomically
        from rl.plot import curves

        out = self.out or (self.runs[0] / "curves.png" if len(self.runs) == 1 else Path("curves.png"))
        picture = curves(self.runs)
        out.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(out, picture)
        console.write(f"wrote {out}")


def _value(arguments: list[str], option: str) -> str | None:
    """What a command line says for an option; the last counts."""
    found = None
    for argument, following in itertools.pairwise([*arguments, ""]):
        name, given, value = argument.partition("=")
        if name == option:
            found = value if given else following
    return found


def _folder(preset: str) -> Path:
    """Where a run goes that names no folder."""
    from rl.saved import FILE, saved_file

    file = saved_file(preset)
    if file is None:
        return Path("runs") / preset
    return file.parent if file.name == FILE else Path("runs") / file.stem


def _left(folder: Path) -> str:
    """What an interrupted run leaves behind, and how it goes on."""
    from rl.config import PRESETS

    place = folder / "checkpoints"
    done = [int(path.name) for path in place.iterdir() if path.name.isdigit()] if place.is_dir() else []
    found = f"after update {max(done)}, its last checkpoint" if done else "from the beginning: it has no checkpoint yet"
    name = f"./{folder}" if str(folder) in PRESETS else str(folder)
    return f"This run goes on {found}: jaxllm train {shlex.quote(name)}"


COMMANDS: dict[str, type[Any]] = {"train": Train, **sft.COMMANDS, "plot": Plot, **merge.COMMANDS}
