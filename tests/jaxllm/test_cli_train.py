"""The commands that train as a user meets them; a stand-in yields the figures, so that nothing is trained."""

import json
import logging
import sys
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import ClassVar

import pytest
from jax.sharding import Mesh

from jaxllm import cli
from jaxllm.cli import runtime
from jaxllm.errors import UserError
from rl.config import PRESETS, TrainConfig


class Trainer:
    """Finishes three updates, and is then told what else to do."""

    made: ClassVar[list[tuple[TrainConfig, Path]]] = []
    meshes: ClassVar[list[Mesh | None]] = []
    after: ClassVar[Callable[[], None]] = staticmethod(lambda: None)
    closed: ClassVar[int] = 0

    def __init__(self, config: TrainConfig, folder: Path, *, mesh: Mesh | None):
        self.made.append((config, folder))
        self.meshes.append(mesh)
        self.folder = folder

    def run(self, report: Callable[[str], None]) -> Iterator[dict[str, float]]:
        report("imitated random play")
        try:
            for update in range(3):
                yield {"update": update, "reward/outcome": update / 4, "success_rate": update / 4, "seconds/play": 1.0}
                (self.folder / "checkpoints" / str(update + 1)).mkdir(parents=True, exist_ok=True)
            Trainer.after()
        finally:
            Trainer.closed += 1


@pytest.fixture(autouse=True)
def fake(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    module = types.ModuleType("rl.trainer")
    module.Trainer = Trainer
    monkeypatch.setitem(sys.modules, "rl.trainer", module)
    monkeypatch.setattr(runtime, "prepare", lambda verbose: logging.getLogger())
    monkeypatch.setattr(runtime, "configure_jax", lambda verbose=False: None)
    monkeypatch.setattr(Trainer, "made", [])
    monkeypatch.setattr(Trainer, "meshes", [])
    monkeypatch.setattr(Trainer, "closed", 0)
    monkeypatch.chdir(tmp_path)


def test_a_preset_runs_and_shows_each_update(capsys: pytest.CaptureFixture[str]):
    assert cli.main(["train", "toy-keys", "--updates", "3"]) == 0
    out, err = capsys.readouterr()
    assert out.splitlines() == [
        "imitated random play",
        "update 1/3  reward 0.000  success 0.0%  1.0 s",
        "update 2/3  reward 0.250  success 25.0%  1.0 s",
        "update 3/3  reward 0.500  success 50.0%  1.0 s",
        "wrote runs/toy-keys, the model in runs/toy-keys/model; its curves: jaxllm plot runs/toy-keys",
    ]
    assert err == ""
    ((config, folder),) = Trainer.made
    assert folder == Path("runs/toy-keys")
    assert (config.rollout.env, config.updates) == ("toy/keys", 3)
    assert Trainer.closed == 1


def test_single_settings_change_alone():
    options = ["--algo.name", "grpo", "--algo.lambda-policy", "0.95", "--rollout.groups", "8", "--optim.actor-lr", "3e-4"]
    options += ["--algo.dual-clip", "3", "--algo.no-whiten", "--seed", "7", "--rollout.env", "gym/CartPole-v1", "--out", "here"]
    assert cli.main(["train", "toy-maze", *options]) == 0
    assert cli.main(["train", "toy-maze", "--algo.lambda-policy", "adaptive"]) == 0
    (config, folder), (plain, _) = Trainer.made
    assert folder == Path("here")
    assert (config.algo.name, config.algo.lambda_policy, config.algo.dual_clip, config.algo.whiten) == (
        "grpo",
        0.95,
        3.0,
        False,
    )
    assert (config.rollout.groups, config.rollout.env, config.optim.actor_lr, config.seed) == (8, "gym/CartPole-v1", 3e-4, 7)
    assert config.rollout.context == PRESETS["toy-maze"].rollout.context
    assert plain == PRESETS["toy-maze"]


def test_help_shows_every_setting_with_the_presets_value(capsys: pytest.CaptureFixture[str]):
    assert cli.main(["train", "toy-maze", "--help"]) == 0
    text = " ".join(capsys.readouterr().out.replace("│", " ").split())
    for section in ("algo", "rollout", "optim", "imitate"):
        for name in vars(getattr(PRESETS["toy-maze"], section)):
            option = name.replace("_", "-")
            assert f"--{section}.{option} " in text or f"--{section}.no-{option} " in text, name
    for name in ("--model", "--updates", "--seed", "--eval-every", "--eval-episodes", "--checkpoint-every", "--keep", "--out"):
        assert f"{name} " in text
    assert "--rollout.env STR name of the environment (default: toy/maze)" in text
    steps, own = PRESETS["toy-maze"].imitate.steps, PRESETS["toy-maze"].optim.actor_lr
    assert f"--imitate.steps INT optimiser steps (default: {steps})" in text
    assert f"--optim.actor-lr FLOAT of the policy (VAPO: 1e-6) (default: {own})" in text
    assert cli.main(["train", "--help"]) == 0
    assert "(default: toy/hilo)" in capsys.readouterr().out
    assert not Trainer.made


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["toy-mase"], 1, "jaxllm: 'toy-mase' is no preset, no folder of a run and no config.json; did you mean toy-maze?\n"),
        (["--updates", "3", "toy-hilo"], 1, "jaxllm: the preset comes first, as in: jaxllm train toy-hilo --updates 50"),
        (["toy-hilo", "--algo.gamma", "2"], 1, "jaxllm: this configuration can't be trained:\n  algo.gamma must be in [0, 1]"),
        (["toy-hilo", "--algo.gamma", "much"], 2, "much"),
        (["toy-hilo", "--algo.gama", "1"], 2, "--algo.gamma"),
        (["toy-hilo", "--algo.name", "ppo2"], 2, "ppo2"),
        ([], 2, "PRESET"),
    ],
)
def test_wrong_input_is_one_message(arguments: list[str], code: int, message: str, capsys: pytest.CaptureFixture[str]):
    assert cli.main(["train", *arguments]) == code
    out, err = capsys.readouterr()
    assert out == ""
    assert message in err
    assert "Traceback" not in err
    assert not Trainer.made


def save(folder: Path, **changes) -> Path:
    from rl.state import save_config

    data = json.loads(json.dumps(vars(PRESETS["toy-hilo"]), default=vars)) | changes
    save_config(folder, data)
    return folder


def test_a_former_run_goes_on_in_its_own_folder():
    save(Path("old/run"), updates=3)
    assert cli.main(["train", "old/run"]) == 0
    assert cli.main(["train", "old/run/config.json"]) == 0
    assert [(config.updates, folder) for config, folder in Trainer.made] == [(3, Path("old/run"))] * 2


def test_a_file_of_settings_begins_a_run_of_its_name():
    save(Path("old"), updates=5)
    Path("old/config.json").rename("mine.json")
    assert cli.main(["train", "mine.json", "--seed", "2"]) == 0
    ((config, folder),) = Trainer.made
    assert (config.updates, config.seed, folder) == (5, 2, Path("runs/mine"))


def test_a_folder_of_another_run_is_refused(capsys: pytest.CaptureFixture[str]):
    save(Path("runs/toy-hilo"))
    assert cli.main(["train", "toy-hilo", "--updates", "7", "--seed", "9"]) == 1
    err = capsys.readouterr().err
    assert err == (
        "jaxllm: runs/toy-hilo holds a run with other settings; choose another --out, or remove it:\n"
        f"  seed is {PRESETS['toy-hilo'].seed} there, not 9\n"
    )
    assert not Trainer.made
    assert cli.main(["train", "runs/toy-hilo", "--updates", "700", "--eval-every", "0", "--checkpoint-every", "1"]) == 0
    assert [config.updates for config, _ in Trainer.made] == [700]  # it may last longer, and be watched in another way


def test_devices_are_named_by_their_mesh(capsys: pytest.CaptureFixture[str]):
    assert cli.main(["train", "toy-hilo"]) == 0
    assert cli.main(["train", "toy-hilo", "--mesh", "data=2,tensor=4"]) == 0
    none, mesh = Trainer.meshes
    assert none is None
    assert mesh is not None
    assert dict(mesh.shape) == {"data": 2, "fsdp": 1, "tensor": 4}
    for wrong in ("model=2", "data", "data=2,data=2", "data=-1", "2,2"):
        assert cli.main(["train", "toy-hilo", "--mesh", wrong]) == 1
        assert f"jaxllm: {wrong!r} is no mesh" in capsys.readouterr().err
    assert cli.main(["train", "toy-hilo", "--mesh", "data=16"]) == 1
    assert "needs 16 devices; there are 8" in capsys.readouterr().err


def raising(error: type[BaseException], text: str) -> Callable[[], None]:
    def after() -> None:
        raise error(text)

    return after


def test_ctrl_c_says_how_to_go_on(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    monkeypatch.setattr(Trainer, "after", raising(KeyboardInterrupt, ""))
    assert cli.main(["train", "toy-hilo", "--out", "my run"]) == 130
    err = capsys.readouterr().err
    assert err.startswith("This run goes on after update 3, its last checkpoint: jaxllm train 'my run'\n")
    assert err.endswith("jaxllm: interrupted\n")
    assert Trainer.closed == 1


def test_ctrl_c_before_the_first_checkpoint(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    def interrupted(self: Trainer, report: Callable[[str], None]) -> Iterator[dict[str, float]]:
        yield {"update": 0}
        raise KeyboardInterrupt

    monkeypatch.setattr(Trainer, "run", interrupted)
    assert cli.main(["train", "toy-hilo", "--out", "toy-hilo"]) == 130
    line = capsys.readouterr().err.splitlines()[0]
    assert line == "This run goes on from the beginning: it has no checkpoint yet: jaxllm train ./toy-hilo"


def test_a_run_that_cannot_go_on_says_why(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    monkeypatch.setattr(Trainer, "after", raising(UserError, "30% of the episodes failed: no browser"))
    assert cli.main(["train", "toy-hilo"]) == 1
    assert capsys.readouterr().err == "jaxllm: 30% of the episodes failed: no browser\n"
    assert Trainer.closed == 1


def figures(folder: Path) -> Path:
    folder.mkdir(parents=True)
    rows = [{"update": i, "reward/outcome": i / 4, "seconds/play": 1.0} for i in range(4)]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


def test_plot_writes_a_picture(capsys: pytest.CaptureFixture[str]):
    a, b = figures(Path("runs/a")), figures(Path("runs/b"))
    assert cli.main(["plot", str(a)]) == 0
    assert cli.main(["plot", str(a), str(b), "--out", "pictures/both.png"]) == 0
    assert capsys.readouterr() == ("wrote runs/a/curves.png\nwrote pictures/both.png\n", "")
    for file in (a / "curves.png", Path("pictures/both.png")):
        assert file.read_bytes().startswith(b"\x89PNG")


def test_plot_without_figures_is_one_message(capsys: pytest.CaptureFixture[str]):
    Path("empty").mkdir()
    assert cli.main(["plot", "empty"]) == 1
    err = capsys.readouterr().err
    assert err == "jaxllm: empty/metrics.jsonl: cannot be read: No such file or directory; is this the folder of a run?\n"
    assert not list(Path().rglob("*.png"))
