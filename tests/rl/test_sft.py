"""Supervised learning on recorded episodes: exact losses, and runs that go on to the same numbers (F1, F3)."""

import dataclasses
import json
import os
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from envs.record import record
from envs.record_folder import Run
from jaxllm import params, sharding
from jaxllm.config import Config
from jaxllm.errors import UserError
from jaxllm.save import save_params
from rl import lora, metrics, models, policy, recorded, sft, tokens
from rl.bytes import VOCAB_SIZE, byte_tokenizer
from rl.codec import PlainCodec
from rl.models import TokenizerFiles
from rl.packing import NO_SEGMENT
from rl.sft import Sft
from rl.sft_config import SftConfig
from rl.sft_data import load

CFG = Config(
    hidden_size=16,
    intermediate_size=32,
    num_hidden_layers=2,
    num_attention_heads=2,
    num_key_value_heads=2,
    head_dim=8,
    vocab_size=VOCAB_SIZE,
    max_position_embeddings=64,
    rope_theta=10000.0,
    tie_word_embeddings=True,
    eos_token_ids=(257,),
)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a recording ("hilo") and a model ("small")."""
    folder = tmp_path_factory.mktemp("sft")
    record(Run("toy/hilo", "oracle"), 24, folder / "hilo")
    save_params(params.init(jax.random.key(0), CFG), CFG, folder / "small", like=TokenizerFiles(byte_tokenizer()))
    return folder


@pytest.fixture(scope="module")
def config(place: Path) -> SftConfig:
    """Six steps of two rows; three steps are an epoch."""
    return SftConfig(
        model=str(place / "small"),
        width=64,
        batch=2,
        steps=6,
        lr=1e-2,
        warmup=2,
        holdout=0.2,
        eval_every=3,
        checkpoint_every=2,
    )


def figures(folder: Path) -> list[dict[str, float]]:
    """What a run wrote, without times."""
    return [{name: row[name] for name in row if not name.startswith("seconds/")} for row in metrics.read(folder)]


def trained(config: SftConfig, place: Path, folder: Path, steps: int = 100, **options) -> Sft:
    """A run after some steps, as a kill would leave it: nothing is saved beyond the checkpoints that were due."""
    run = Sft(config, [place / "hilo"], folder, **options)
    for _ in zip(range(steps), run.run(lambda _: None), strict=False):
        pass
    run.close()
    return run


@pytest.fixture(scope="module")
def whole(place: Path, config: SftConfig, tmp_path_factory: pytest.TempPathFactory) -> Sft:
    """An uninterrupted run."""
    return trained(config, place, tmp_path_factory.mktemp("runs") / "whole")


def test_a_run_learns_and_writes_its_figures(whole: Sft):
    rows = figures(whole.folder)
    assert [row["update"] for row in rows] == list(range(6))
    assert rows[-1]["sft/loss"] < rows[0]["sft/loss"] - 1
    assert [row["update"] for row in rows if "eval/loss" in row] == [2, 5]
    assert rows[5]["eval/loss"] < rows[2]["eval/loss"]
    assert rows[0]["sft/loss"] == pytest.approx(np.log(VOCAB_SIZE), abs=0.2)  # random weights know nothing
    # Two steps of warm-up, then a cosine down to a tenth over the other four.
    expected = [0.005, 0.01, *(0.01 * (0.1 + 0.9 * (1 + np.cos(np.pi * k / 4)) / 2) for k in range(4))]
    np.testing.assert_allclose([row["sft/lr"] for row in rows], expected, rtol=1e-5)


def test_a_run_goes_on_to_the_same_numbers(whole: Sft, config: SftConfig, place: Path, tmp_path: Path):
    trained(config, place, tmp_path / "run", steps=4)  # stops while the third checkpoint is due: step 2 is the last
    assert len(figures(tmp_path / "run")) == 4
    again = Sft(config, [place / "hilo"], tmp_path / "run")
    assert again.done.step == 2
    assert max(float(jnp.abs(leaf).max()) for leaf in jax.tree.leaves(again.done.opt)) > 0
    said: list[str] = []
    assert [row["update"] for row in again.run(said.append)] == [2, 3, 4, 5]
    assert said[1] == "goes on after step 2"
    again.close()
    assert figures(tmp_path / "run") == figures(whole.folder)
    for a, b in zip(jax.tree.leaves(again.done.weights), jax.tree.leaves(whole.done.weights), strict=True):
        np.testing.assert_array_equal(a, b)
    assert sorted(path.name for path in (tmp_path / "run" / "checkpoints").iterdir() if path.name.isdigit()) == ["4", "6"]


def test_an_order_that_forgets_the_step_is_noticed(
    whole: Sft, config: SftConfig, place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    rows, seen = Sft.rows, iter(range(100))
    monkeypatch.setattr(Sft, "rows", lambda self, number: rows(self, next(seen)))  # counts from 0 after a restart
    trained(config, place, tmp_path / "run", steps=3)
    seen = iter(range(100))
    trained(config, place, tmp_path / "run")
    assert figures(tmp_path / "run") != figures(whole.folder)


def command(config: SftConfig, place: Path, folder: Path) -> list[str]:
    """The command line of a run."""
    words = [str(place / "hilo"), "--out", str(folder)]
    for field in dataclasses.fields(config):
        if getattr(config, field.name) not in (None, False):
            words += [f"--{field.name.replace('_', '-')}", str(getattr(config, field.name))]
    return words


def test_kill_9_loses_nothing(whole: Sft, config: SftConfig, place: Path, tmp_path: Path):
    code = "from jaxllm.cli import main; main()"
    process = subprocess.Popen(
        [sys.executable, "-c", code, "sft", *command(config, place, tmp_path / "run")],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "JAX_NUM_CPU_DEVICES": "8"},
    )
    with process:
        assert process.stdout is not None
        for line in process.stdout:
            if line.startswith("step 3/6"):
                process.kill()
    assert process.returncode == -9
    again = trained(config, place, tmp_path / "run")
    found, expected = figures(tmp_path / "run"), figures(whole.folder)
    assert [row.keys() for row in found] == [row.keys() for row in expected]
    for row, other in zip(found, expected, strict=True):
        assert row == pytest.approx(other, rel=1e-6, abs=1e-6)
    assert again.export() == [tmp_path / "run" / "model"]


@pytest.mark.parametrize("where", ["in a step", "while it is measured"])
def test_ctrl_c_keeps_what_was_done(
    where: str, whole: Sft, config: SftConfig, place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    run = Sft(config, [place / "hilo"], tmp_path / "run")
    waited, wait = iter(range(100)), sft._wait

    def interrupted(array):
        if next(waited) == {"in a step": 2, "while it is measured": 3}[where]:
            raise KeyboardInterrupt
        return wait(array)

    monkeypatch.setattr(sft, "_wait", interrupted)
    with pytest.raises(KeyboardInterrupt):
        list(run.run(lambda _: None))
    assert run.save() == 3
    run.close()
    trained(config, place, tmp_path / "run")
    assert figures(tmp_path / "run") == figures(whole.folder)


def test_ctrl_c_within_the_hand_over_goes_back_to_a_checkpoint(config: SftConfig, place: Path, tmp_path: Path):
    run = trained(config, place, tmp_path / "run", steps=4)
    for leaf in jax.tree.leaves(run.done.weights):
        leaf.delete()  # as a step does with what it was given
    assert run.save() == 2


def test_the_loss_is_the_mean_over_answers_however_rows_are_cut(whole: Sft, config: SftConfig, place: Path, tmp_path: Path):
    start = models.start(config.model)
    found = recorded.read(place / "hilo", start.codec).trajectories
    data = load([place / "hilo"], dataclasses.replace(config, holdout=0.0), start.codec, 64)
    packed = data.train
    assert packed.mask.sum() == sum(one.policy_tokens for one in found)
    # Independently: each episode in a row of its own, the mean over all tokens that were answered.
    batch = tokens.make_batch(found, [0] * len(found))
    logp = jax.jit(policy.logprobs, static_argnums=1)(start.params, CFG, batch.tokens)[0]
    expected = -np.asarray(logp)[np.asarray(batch.mask)].mean()
    steps = []
    for micro in (1, 2):
        rows = np.arange(len(packed.tokens) + len(packed.tokens) % 2 + 2)  # with at least one row that is empty
        part = packed.take(np.where(rows < len(packed.tokens), rows, -1))
        assert part.mask.sum() == packed.mask.sum()
        setting = dataclasses.replace(
            whole.how.setting, optim=dataclasses.replace(whole.how.setting.optim, micro_batches=micro)
        )
        how = dataclasses.replace(whole.how, setting=setting)
        weights = jax.tree.map(jnp.copy, start.params)
        steps.append(sft.step(how, weights, how.optimiser.init(weights), None, part.tokens, part.mask, part.segments))
        np.testing.assert_allclose(steps[-1].metrics["sft/loss"], expected, rtol=1e-5)
    for a, b in zip(jax.tree.leaves(steps[0].params), jax.tree.leaves(steps[1].params), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-5)


def test_an_epoch_takes_every_row_once(whole: Sft):
    count, size = len(whole.data.train.tokens), whole.config.batch
    each = -(-count // size)
    epochs = [np.concatenate([whole.rows(epoch * each + i) for i in range(each)]) for epoch in range(2)]
    for rows in epochs:
        assert sorted(rows[rows >= 0].tolist()) == list(range(count))
    assert epochs[0].tolist() != epochs[1].tolist()


def test_tasks_are_trained_or_held_out_in_every_recording(config: SftConfig, place: Path, tmp_path: Path):
    record(Run("toy/hilo", "random"), 30, tmp_path / "random")  # the same seeds, and six more
    codec = PlainCodec(byte_tokenizer())
    data = load([place / "hilo", tmp_path / "random"], config, codec, 64)
    assert (data.facts["episodes"], data.facts["held_out"]) == (54 - data.facts["held_out"], data.facts["held_out"])
    held = {Run("toy/hilo", "").episode_seed(i) for i in range(30)} - _seeds(data, codec, place, tmp_path)
    assert len(held) == 6  # a fifth of the tasks


def _seeds(data, codec, place, tmp_path) -> set[int]:
    """The seeds of what is trained, by looking each episode up among the packed rows."""
    rows = {
        tuple(data.train.tokens[at][data.train.segments[at] == data.train.segments[at, start]].tolist())
        for at, start in data.train.places
    }
    held = {
        tuple(data.held_out.tokens[at][data.held_out.segments[at] == data.held_out.segments[at, start]].tolist())
        for at, start in data.held_out.places
    }
    found = set()
    for folder in (place / "hilo", tmp_path / "random"):
        for one in recorded.read(folder, codec).trajectories:
            (row,) = tokens.rows(one)
            assert tuple(row.tokens) in rows | held
            if tuple(row.tokens) in rows - held:
                found.add(one.seed)
    return found


def test_adapters_alone_are_trained_and_exported(config: SftConfig, place: Path, tmp_path: Path):
    small = dataclasses.replace(config, lora_rank=2, compute_dtype="bfloat16", remat=True, steps=4, eval_every=0)
    run = trained(small, place, tmp_path / "run")
    rows = figures(tmp_path / "run")
    assert [row["update"] for row in rows if "eval/loss" in row] == [3]
    assert rows[3]["eval/loss"] < np.log(VOCAB_SIZE)
    assert {leaf.dtype for leaf in jax.tree.leaves(run.done.weights)} == {jnp.dtype("float32")}
    before = models.start(config.model).params
    jax.tree.map(np.testing.assert_array_equal, run.base, jax.tree.map(lambda leaf: leaf.astype("bfloat16"), before))
    model, adapter = run.export()
    adapters, sizes = lora.load_peft(adapter, CFG)
    assert sizes == run.how.setting.lora
    np.testing.assert_array_equal(
        adapters["layers"][1]["mlp"]["up_proj"]["lora_b"], run.done.weights["layers"]["mlp"]["up_proj"]["lora_b"][1]
    )
    merged = lora.merge(run.base, run.done.weights, run.how.setting.lora)
    after = models.start(str(model), dtype="bfloat16").params
    jax.tree.map(np.testing.assert_array_equal, after, merged)


def test_a_trained_model_is_a_start(whole: Sft):
    (folder,) = whole.export()
    start = models.start(str(folder))
    assert start.cfg == CFG
    assert isinstance(start.codec, PlainCodec)  # since its vocabulary is that of bytes
    jax.tree.map(np.testing.assert_array_equal, start.params, whole.done.weights)
    assert whole.export() == [folder]  # what is there stays


def test_two_devices_give_the_same(whole: Sft, config: SftConfig, place: Path, tmp_path: Path):
    run = trained(config, place, tmp_path / "run", steps=2, mesh=sharding.make_mesh(data=2))
    for row, other in zip(figures(run.folder), figures(whole.folder)[:2], strict=True):
        assert row == pytest.approx(other, rel=1e-4, abs=1e-5)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"min_reward": 2.0}, "no episode is left: 24 earned less than 2.0, 0 have no answer"),
        ({"width": 8}, r"episode \d+: has \d+ tokens, and a row 8; raise --width"),
        ({"batch": 3, "micro_batches": 3}, None),
        ({"model": "nowhere/at/all"}, "nowhere/at/all"),
    ],
)
def test_what_cannot_be_trained_is_told(change: dict, message: str | None, config: SftConfig, place: Path, tmp_path: Path):
    other = dataclasses.replace(config, **change)
    if message is None:
        with pytest.raises(UserError, match="batch 3 can't be cut into 6 equal parts"):
            Sft(other, [place / "hilo"], tmp_path / "run", mesh=sharding.make_mesh(data=2))
        return
    with pytest.raises(UserError, match=message):
        Sft(other, [place / "hilo"], tmp_path / "run")
    assert not (tmp_path / "run").exists()  # so that the next try may have other settings


def test_an_episode_beyond_the_models_positions_is_told(config: SftConfig, place: Path):
    with pytest.raises(UserError, match="the model has 16 positions"):
        load([place / "hilo"], config, PlainCodec(byte_tokenizer()), 16)


def test_a_run_goes_on_with_its_settings_and_episodes_only(whole: Sft, config: SftConfig, place: Path, tmp_path: Path):
    with pytest.raises(UserError, match=r"lr is 0\.01 there, not 0\.02"):
        Sft(dataclasses.replace(config, lr=0.02), [place / "hilo"], whole.folder)
    record(Run("toy/hilo", "random"), 24, tmp_path / "random")
    with pytest.raises(UserError, match="holds a run on other episodes"):
        Sft(config, [tmp_path / "random"], whole.folder)
    facts = json.loads((whole.folder / "data.json").read_text())
    assert facts["policy_tokens"] == whole.data.train.mask.sum()
    assert facts["tokens"] == (whole.data.train.segments != NO_SEGMENT).sum()


def test_steps_that_are_not_finite_end_the_run(config: SftConfig, place: Path, tmp_path: Path, monkeypatch):
    real = sft.step

    def broken(*arguments):
        found = real(*arguments)
        return found._replace(metrics={**found.metrics, "skipped": jnp.array(True)})

    monkeypatch.setattr(sft, "step", broken)
    with pytest.raises(UserError, match="3 steps in a row had gradients that are not finite"):
        trained(config, place, tmp_path / "run")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"steps": 0}, "steps must be at least 1, found 0"),
        ({"lr": -1.0}, "lr must be positive"),
        ({"lr": float("nan")}, "lr is nan"),
        ({"holdout": 1.0}, "holdout must be at least 0 and below 1"),
        ({"micro_batches": 3}, "micro_batches 3 does not divide 8 rows"),
        ({"warmup": 300}, "warmup 300 is longer than the 200 steps"),
        ({"lora_rank": 4}, "tiny begins with random weights"),
    ],
)
def test_settings_that_make_no_sense_are_refused(change: dict, message: str):
    with pytest.raises(UserError, match=message):
        SftConfig(**change)


def test_the_rate_follows_the_model():
    assert SftConfig().rate == 1e-3
    assert SftConfig(model="smollm2").rate == 1e-5
    assert SftConfig(model="smollm2", lora_rank=8).rate == 2e-4
    assert SftConfig(lr=3e-4).rate == 3e-4
