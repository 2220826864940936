"""The command that imitates recorded episodes as a user meets it; and that no help waits for JAX."""

import logging
import subprocess
import sys
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar

import pytest

from jaxllm import cli
from jaxllm.cli import runtime
from jaxllm.errors import UserError
from rl.sft_config import SftConfig

NO_JAX = """
import sys
from jaxllm import cli
assert cli.main(sys.argv[1:]) == 0
assert "jax" not in sys.modules
"""


class Run:
    """Finishes three steps, and is then told what else to do."""

    made: ClassVar[list["Run"]] = []
    after: ClassVar[Callable[[], None]] = staticmethod(lambda: None)

    def __init__(self, config: SftConfig, recordings: tuple[Path, ...], folder: Path, *, mesh: Any = None):
        self.config, self.recordings, self.folder, self.mesh = config, recordings, folder, mesh
        self.done = types.SimpleNamespace(step=0)
        self.closed = self.saved = False
        self.made.append(self)

    def run(self, report: Callable[[str], None]) -> Iterator[dict[str, float]]:
        report("10 episodes in 3 rows")
        for step in range(3):
            self.done.step = step + 1
            yield {
                "update": step,
                "sft/loss": 3.0 - step,
                "sft/lr": 1e-3,
                "sft/policy_tokens": 100,
                "seconds/step": 0.5,
                **({"eval/loss": 1.25} if step == 2 else {}),
            }
        Run.after()

    def save(self) -> int:
        self.saved = True
        return self.done.step

    def export(self, name: str) -> list[Path]:
        return [self.folder / name]

    def close(self) -> None:
        self.closed = True


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    module = types.ModuleType("rl.sft")
    module.Sft, module.MODEL = Run, "model"
    monkeypatch.setitem(sys.modules, "rl.sft", module)
    monkeypatch.setattr("rl.sft", module, raising=False)
    monkeypatch.setattr(runtime, "prepare", lambda verbose: logging.getLogger())
    monkeypatch.setattr(Run, "made", [])
    monkeypatch.chdir(tmp_path)
    for name in ("hilo", "keys"):
        Path(name).mkdir()


@pytest.mark.usefixtures("fake")
def test_steps_are_shown_and_the_model_is_written(capsys: pytest.CaptureFixture[str]):
    assert (
        cli.main(["sft", "hilo", "keys", "--steps", "3", "--warmup", "1", "--min-reward", "1", "--schedule", "constant"]) == 0
    )
    out, err = capsys.readouterr()
    assert out.splitlines() == [
        "10 episodes in 3 rows",
        "step 1/3  loss 3.0000  rate 1.0e-03  200 policy tokens/s",
        "step 2/3  loss 2.0000  rate 1.0e-03  200 policy tokens/s",
        "step 3/3  loss 1.0000  held out 1.2500  rate 1.0e-03  200 policy tokens/s",
        "wrote runs/sft-hilo/model",
    ]
    assert err == ""
    (run,) = Run.made
    assert run.config == SftConfig(steps=3, warmup=1, min_reward=1.0, schedule="constant")
    assert run.recordings == (Path("hilo"), Path("keys"))
    assert run.closed
    assert not run.saved


@pytest.mark.usefixtures("fake")
def test_ctrl_c_saves_and_says_how_to_go_on(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    def interrupted() -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Run, "after", interrupted)
    assert cli.main(["sft", "hilo", "--out", "my run", "--steps", "9", "--warmup", "2", "--remat", "--lr", "0.001"]) == 130
    err = capsys.readouterr().err
    command = "jaxllm sft hilo --out 'my run' --steps 9 --lr 0.001 --warmup 2 --remat"
    assert err.startswith(f"This run goes on after step 3: {command}\n")
    (run,) = Run.made
    assert run.saved
    assert run.closed


@pytest.mark.usefixtures("fake")
def test_an_export_trains_nothing(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch):
    (Path("run") / "checkpoints").mkdir(parents=True)
    assert cli.main(["sft", "hilo", "--out", "run", "--export"]) == 1
    assert "run: has no checkpoint yet" in capsys.readouterr().err
    restored = Run.__init__

    def half(self: Run, *arguments: Any, **options: Any) -> None:
        restored(self, *arguments, **options)
        self.done.step = 50

    monkeypatch.setattr(Run, "__init__", half)
    assert cli.main(["sft", "hilo", "--out", "run", "--export"]) == 0
    assert capsys.readouterr().out == "wrote run/model-50\n"


def raising(error: BaseException) -> Callable[[], None]:
    def after() -> None:
        raise error

    return after


@pytest.mark.usefixtures("fake")
@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["nowhere"], 1, "jaxllm: nowhere: no such folder; name one that `jaxllm envs record` wrote\n"),
        (["hilo", "--steps", "0"], 1, "jaxllm: these settings can't be trained with:\n  steps must be at least 1, found 0"),
        (["hilo", "--export"], 1, "jaxllm: runs/sft-hilo: has no checkpoint yet"),
        ([], 1, "jaxllm: name a folder of episodes"),
        (["hilo", "--schedule", "stairs"], 2, "stairs"),
        (["hilo", "--mesh", "x=2"], 1, "jaxllm: "),
    ],
)
def test_wrong_input_is_one_message(arguments: list[str], code: int, message: str, capsys: pytest.CaptureFixture[str]):
    assert cli.main(["sft", *arguments]) == code
    out, err = capsys.readouterr()
    assert out == ""
    assert message in err
    assert "Traceback" not in err
    assert not Run.made


@pytest.mark.usefixtures("fake")
def test_a_run_that_stops_says_why(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    monkeypatch.setattr(Run, "after", raising(UserError("3 steps in a row had gradients that are not finite")))
    assert cli.main(["sft", "hilo"]) == 1
    assert capsys.readouterr().err == "jaxllm: 3 steps in a row had gradients that are not finite\n"
    assert Run.made[0].closed


@pytest.mark.parametrize("arguments", [["train", "--help"], ["sft", "--help"]])
def test_help_does_not_import_jax(arguments: list[str]):
    subprocess.run([sys.executable, "-c", NO_JAX, *arguments], check=True, stdout=subprocess.DEVNULL, timeout=120)
