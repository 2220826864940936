"""The command that imitates recorded episodes."""

import dataclasses
import shlex
from pathlib import Path
from typing import Annotated, Any

import tyro

LINES = 20  # of steps, where no terminal shows a bar


def _settings() -> Any:
    from rl.sft_config import SftConfig

    return SftConfig


@dataclasses.dataclass(frozen=True)
class Sft:
    """Teach a model to imitate recorded episodes, as a start for `jaxllm train`.

    The folder of the run gets config.json, data.json, metrics.jsonl, TensorBoard's events, checkpoints, and at the end the
    trained model as a Hugging Face folder. The same command goes on where a killed run stopped.
    """

    recordings: tyro.conf.Positional[tuple[Path, ...]]
    """folders that `jaxllm envs record` wrote"""
    out: Path | None = None
    """folder of the run (default: runs/sft- and the name of the first recording)"""
    export: bool = False
    """train nothing: write the model of the last checkpoint, beside those that are there"""
    mesh: str | None = None
    """devices to train on, as data=2,fsdp=2,tensor=2 (default: one). A run may go on with another number of them"""
    config: Annotated[Any, tyro.conf.arg(name="", constructor_factory=_settings)] = None

    @classmethod
    def defaults(cls, arguments: list[str]) -> "Sft":
        """What the options are where they are not given."""
        return cls(recordings=tyro.MISSING, config=_settings()())

    def run(self) -> None:
        from envs.files import only_writer
        from jaxllm.cli import console
        from jaxllm.cli.envs import find_own_modules
        from jaxllm.errors import UserError
        from jaxllm.sharding import read_mesh
        from rl import sft
        from rl.models import MODEL

        if not self.recordings:
            raise UserError("name a folder of episodes, such as `jaxllm envs record toy/hilo --out hilo` writes")
        find_own_modules()
        folder = self.out or Path("runs") / f"sft-{self.recordings[0].resolve().name}"
        mesh = None if self.mesh is None else read_mesh(self.mesh)
        for recording in self.recordings:
            if not recording.is_dir():
                raise UserError(f"{recording}: no such folder; name one that `jaxllm envs record` wrote")
        if self.export and not (folder / "checkpoints").is_dir():
            raise UserError(f"{folder}: has no checkpoint yet; name the --out of a run that has")
        with only_writer(folder):
            imitation = sft.Sft(self.config, self.recordings, folder, mesh=mesh)
            try:
                if not self.export:
                    self._train(imitation)
                step = imitation.done.step
                if self.export and not step:
                    raise UserError(f"{folder}: has no checkpoint yet; let it train first")
                names = imitation.export(MODEL if step == self.config.steps else f"{MODEL}-{step}")
            finally:
                imitation.close()
        for name in names:
            console.write(f"wrote {name}")

    def _train(self, imitation: Any) -> None:
        """Shows each step; keeps what is there on Ctrl-C."""
        from jaxllm.cli import console

        steps = self.config.steps
        every = max(steps // LINES, 1)
        try:
            with console.progress("Imitating", total=steps, unit="policy tokens") as advance:
                advance(imitation.done.step, 0)
                for figures in imitation.run(console.write):
                    done = int(figures["update"]) + 1
                    advance(1, figures["sft/policy_tokens"])
                    if done in (1, steps) or done % every == 0 or "eval/loss" in figures:
                        console.write(line(figures, steps))
        except KeyboardInterrupt:
            done = imitation.save()
            found = f"after step {done}" if done else "from the beginning: no step was finished"
            console.stderr().print(f"This run goes on {found}: jaxllm sft {self._again(imitation.folder)}", soft_wrap=True)
            raise

    def _again(self, folder: Path) -> str:
        """The arguments that go on with this run."""
        usual = _settings()()
        words = [*map(str, self.recordings), "--out", str(folder), *(["--mesh", self.mesh] if self.mesh else [])]
        for field in dataclasses.fields(usual):
            value = getattr(self.config, field.name)
            if value != getattr(usual, field.name):
                words += [f"--{field.name.replace('_', '-')}", *([] if value is True else [str(value)])]
        return shlex.join(words)


def line(figures: dict[str, float], steps: int) -> str:
    """A step in one line."""
    held_out = f"  held out {figures['eval/loss']:.4f}" if "eval/loss" in figures else ""
    rate = figures["sft/policy_tokens"] / figures["seconds/step"]
    parts = (f"step {int(figures['update']) + 1}/{steps}", f"loss {figures['sft/loss']:.4f}{held_out}")
    return "  ".join((*parts, f"rate {figures['sft/lr']:.1e}", f"{rate:,.0f} policy tokens/s"))


COMMANDS: dict[str, type[Any]] = {"sft": Sft}
