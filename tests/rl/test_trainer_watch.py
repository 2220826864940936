"""What a run tells of itself: its neurons' words, whether sampler and trainer agree, what the critic learns alone."""

import dataclasses
import io
import shutil
import types
from collections.abc import Iterator
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import small_run
from rich.console import Console

from interp.drift import drift as drift_of
from jaxllm import params, sharding
from jaxllm.errors import UserError
from rl import drift, live, losses, metrics, models, placement, trainer, update
from rl.bytes import VOCAB_SIZE, byte_tokenizer
from rl.config import Optim, TrainConfig

APART = ("off/abs_dlogp_mean", "off/abs_dlogp_max")
SETTINGS = {
    "updates": 3,
    "drift_every": 1,
    "algo": dataclasses.replace(small_run.CONFIG.algo, kl=0.0),
    "optim": Optim(actor_lr=3e-3, critic_lr=3e-3, warmup=3),
    "imitate": dataclasses.replace(small_run.CONFIG.imitate, steps=40),
}


@pytest.fixture(scope="module", autouse=True)
def small() -> Iterator[None]:
    """The tiny model is small meanwhile."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(models, "TINY", small_run.CFG)
        yield


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> trainer.Trainer:
    """A run that looked at its neurons after each of three updates; every checkpoint is there."""
    run = small_run.make(tmp_path_factory.mktemp("whole"), **SETTINGS)
    small_run.train(run)
    return run


def begun(whole: trainer.Trainer, folder: Path, update: int = 1) -> Path:
    """The folder of a run that was killed on its way from this checkpoint to the next."""
    shutil.copytree(whole.folder, folder, dirs_exist_ok=True)
    for i in range(update + 1, SETTINGS["updates"] + 1):
        shutil.rmtree(folder / "checkpoints" / str(i))
    return folder


# Words of neurons.


def tree(seed: int) -> params.Params:
    return params.init(jax.random.key(seed), small_run.CFG, stacked=True)


@pytest.fixture(scope="module")
def pair() -> tuple[params.Params, params.Params]:
    """A policy, and what became of it: one neuron turned over, all others as they were."""
    before = tree(0)
    up = before["layers"]["mlp"]["up_proj"]["weight"]
    mlp = before["layers"]["mlp"] | {"up_proj": {"weight": up.at[1, 5].multiply(-1)}}
    return before, before | {"layers": before["layers"] | {"mlp": mlp}}


def words(folder: Path) -> drift.Words:
    return drift.Words(folder, small_run.CFG, byte_tokenizer())


def test_the_neuron_that_moved_is_told_with_its_words(pair, tmp_path: Path):
    before, after = pair
    told = words(tmp_path)
    told.begin(before)
    assert told.measure(before, 0)["drift/match"] == 1
    figures = told.measure(after, 1)
    neurons = small_run.CFG.intermediate_size
    assert figures["drift/match"] == 1 - 1 / (2 * neurons)
    assert (figures["drift/match/layer_00"], figures["drift/match/layer_01"]) == (1, 1 - 1 / neurons)
    assert figures["drift/moved"] == 1
    first, second = metrics.read(tmp_path, drift.FILE)
    assert (first["changed"], first["moved"]) == (0, [])
    assert (second["update"], second["neurons"], second["changed"]) == (1, 2 * neurons, 1)
    (one,) = second["moved"]
    assert (one["layer"], one["neuron"]) == (1, 5)
    # By hand: the top byte of the row, and of the row turned over; ids that no token has are no words.
    row = np.asarray(before["layers"]["mlp"]["up_proj"]["weight"][1, 5])
    logits = np.asarray(before["embed_tokens"]["weight"]) @ row
    ids = [int(np.argmax(logits[:258])), int(np.argmin(logits[:258]))]
    assert one["ids"] == ids
    assert [one["before"], one["after"]] == [byte_tokenizer().display(i) for i in ids]
    assert [word["id"] for word in second["gained"]] == ids[1:]
    assert [word["id"] for word in second["lost"]] == ids[:1]


def test_what_no_token_has_is_no_word(pair, tmp_path: Path):
    before, _ = pair
    head = before["embed_tokens"]["weight"]
    loud = before | {"embed_tokens": {"weight": head.at[258:].multiply(100)}}
    assert drift_of(before, loud, small_run.CFG).match.share < 0.5  # rows of the head that nothing spells would win
    told = words(tmp_path)
    told.begin(before)
    assert told.measure(loud, 0)["drift/match"] == 1
    assert head.shape[0] == VOCAB_SIZE > 258


def test_the_beginning_is_kept_over_a_restart(pair, tmp_path: Path):
    before, after = pair
    told = words(tmp_path)
    told.begin(before)
    figures = [told.measure(tree, i) for i, tree in enumerate((before, after, before))]
    lines = list(metrics.read(tmp_path, drift.FILE))
    again = words(tmp_path)
    again.resume(1)
    assert list(metrics.read(tmp_path, drift.FILE)) == lines[:1]
    assert [again.measure(after, 1), again.measure(before, 2)] == figures[1:]
    assert list(metrics.read(tmp_path, drift.FILE)) == lines
    again.begin(after)  # a run that begins anew has another beginning, and no lines yet
    assert not list(metrics.read(tmp_path, drift.FILE))


def test_a_run_goes_on_with_its_words_on_other_devices(pair, tmp_path: Path):
    before, after = pair
    told = words(tmp_path)
    told.begin(before)
    mesh = sharding.make_mesh(2, 2, 2)
    spread = drift.Words(tmp_path, small_run.CFG, byte_tokenizer(), mesh)
    spread.resume(0)
    figures = spread.measure(placement.put(after, small_run.CFG, mesh), 0)
    assert figures == pytest.approx(told.measure(after, 1))
    assert figures["drift/moved"] == 1


def narrow(data: bytes, file: Path) -> None:
    with np.load(file) as kept:
        parts = dict(kept)
    np.savez(file, **{name: part[:, :-1] if name == "rows" else part for name, part in parts.items()})


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (lambda data, file: file.unlink(), "missing"),
        (lambda data, file: file.write_bytes(data[: len(data) // 2]), "can't be read"),
        (lambda data, file: file.write_bytes(b""), "can't be read"),
        (lambda data, file: np.savez(file, layer=np.array([{}])), "can't be read"),
        (narrow, "its rows are not those of this run's model"),
    ],
)
def test_a_beginning_that_is_lost_or_damaged_is_one_message(pair, tmp_path: Path, damage, reason: str):
    words(tmp_path).begin(pair[0])
    file = tmp_path / drift.START
    damage(file.read_bytes(), file)
    with pytest.raises(UserError, match=reason) as found:
        words(tmp_path).resume(0)
    assert str(found.value).endswith("go on with --drift-every 0")


def test_a_run_tells_its_drift_and_goes_on_with_it(whole, tmp_path: Path):
    rows, lines = list(metrics.read(whole.folder)), list(metrics.read(whole.folder, drift.FILE))
    assert [line["update"] for line in lines] == [0, 1, 2]
    assert [line["changed"] for line in lines] == [row["drift/moved"] for row in rows]
    assert rows[2]["drift/match"] < 1  # otherwise there is nothing to be equal
    assert rows[0]["drift/row_cos"] > rows[2]["drift/row_cos"]
    run = small_run.make(begun(whole, tmp_path), **SETTINGS)
    small_run.train(run)
    assert list(map(small_run.timeless, metrics.read(tmp_path))) == list(map(small_run.timeless, rows))
    assert list(metrics.read(tmp_path, drift.FILE)) == lines


def test_a_beginning_that_follows_the_run_would_be_seen(whole, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    run = small_run.make(begun(whole, tmp_path), **SETTINGS)
    monkeypatch.setattr(run.words, "resume", lambda update: run.words.begin(run.state.policy))
    last, expected = small_run.train(run)[-1], list(metrics.read(whole.folder))[-1]
    assert last["ppo/loss"] == expected["ppo/loss"]
    assert last["drift/row_cos"] > expected["drift/row_cos"]


def test_looking_changes_nothing_and_not_looking_leaves_nothing(whole, tmp_path: Path):
    begun(whole, tmp_path)
    for name in (drift.START, drift.FILE):
        (tmp_path / name).unlink()
    run = small_run.make(tmp_path, **SETTINGS | {"drift_every": 0})
    figures = small_run.train(run)
    assert not [name for one in figures for name in one if name.startswith("drift/")]
    assert not list(tmp_path.glob("drift*"))
    for (name, a), (_, b) in zip(small_run.leaves(run), small_run.leaves(whole), strict=True):
        np.testing.assert_array_equal(a, b, err_msg=name)
    # What a run has not kept from its beginning can't be had later.
    late = small_run.make(tmp_path, **SETTINGS | {"updates": 4})
    with pytest.raises(UserError, match="missing, so that no drift can be told"):
        small_run.train(late)


def test_a_screen_and_a_line_show_the_last_look():
    view = live.View(Console(file=io.StringIO(), force_terminal=True, width=80, color_system=None), "run", 9)
    view.show({"update": 0})
    assert "words kept" not in shown(view)  # a run that does not look
    view.show({"update": 1, "drift/match": 0.9375})
    view.show({"update": 2})
    assert "93.8% after 2" in shown(view)
    assert "words kept 93.8%" in live.line({"update": 1, "drift/match": 0.9375}, 9)


def shown(view: live.View) -> str:
    with view.console.capture() as found:
        view.console.print(view.screen())
    return found.get()


# Sampler and trainer.


def corrupt(run: trainer.Trainer) -> None:
    """Changes one number in the sampler's copy of the weights: of the embedding of the byte that ends a line."""
    table = run.engine._params["embed_tokens"]["weight"]
    run.engine._params = run.engine._params | {"embed_tokens": {"weight": table.at[10, 0].add(1.0)}}


def standing(whole: trainer.Trainer, folder: Path, **settings) -> trainer.Trainer:
    """A trainer that stands after the first update of the whole run."""
    run = small_run.make(begun(whole, folder), **SETTINGS | {"drift_every": 0} | settings)
    run.state, run.counters = run.checkpoints.restore(run.state)
    run._send()
    return run


def test_one_wrong_number_in_the_sampler_raises_the_alarm_in_that_update(whole, tmp_path: Path):
    assert [row["off/alarm"] for row in metrics.read(whole.folder)] == [0.0] * 3
    assert max(row["off/ratio_max"] for row in metrics.read(whole.folder)) < 1 + 1e-4
    run = standing(whole, tmp_path)
    corrupt(run)
    figures = run.iterate()
    assert figures["off/alarm"] == 1
    assert figures["off/abs_dlogp_mean"] > 1e-3
    assert figures["off/ratio_min"] < 0.99
    assert figures["off/ratio_max"] > 1.01
    assert figures["off/kl_k3"] > 0
    assert run.iterate()["off/alarm"] == 0  # the update has published the right weights


def limited(config: TrainConfig, **limits: float) -> TrainConfig:
    return dataclasses.replace(config, algo=dataclasses.replace(config.algo, **limits))


def test_thresholds_are_settings(whole, tmp_path: Path):
    run = standing(whole, tmp_path)
    plain = run.config
    corrupt(run)
    before = jax.device_get((run.state.policy, run.state.critic))
    run.config = limited(plain, mismatch_stop=1e-3)
    with pytest.raises(
        UserError, match=r"nats a token apart .* beyond algo\.mismatch_stop 0\.001: the run stops before a step"
    ):
        run.iterate()
    jax.tree.map(np.testing.assert_array_equal, jax.device_get((run.state.policy, run.state.critic)), before)
    run.config = limited(plain, mismatch_warn=99.0)
    assert run.iterate()["off/alarm"] == 0
    run.config = limited(plain, mismatch_warn=0.0)
    assert run.iterate()["off/alarm"] == 1  # rounding
    small_run.make(tmp_path, **SETTINGS | {"algo": limited(plain, mismatch_stop=9.0).algo})  # may differ when a run goes on


def alarm_of(config: TrainConfig, apart: float) -> bool:
    return trainer.Trainer._alarm(types.SimpleNamespace(config=config), dict.fromkeys(APART, apart))


def test_what_is_no_number_is_an_alarm():
    assert alarm_of(small_run.CONFIG, float("nan"))
    with pytest.raises(UserError, match="nan nats a token apart"):
        alarm_of(limited(small_run.CONFIG, mismatch_stop=1.0), float("nan"))


def test_rounding_of_bfloat16_is_no_alarm():
    half = dataclasses.replace(small_run.CONFIG.optim, compute_dtype="bfloat16")
    assert alarm_of(small_run.CONFIG, 0.01)
    assert not alarm_of(dataclasses.replace(small_run.CONFIG, optim=half), 0.01)


def test_an_alarm_stays_on_the_screen_and_is_a_line_elsewhere():
    wrong = {"update": 36, "off/alarm": 1.0, "off/abs_dlogp_mean": 0.312, "off/abs_dlogp_max": 4.213}
    said = "update 37: sampler and trainer 0.312 nats a token apart, at most 4.213"
    view = live.View(Console(file=io.StringIO(), force_terminal=True, width=80, color_system=None), "run", 99)
    view.show(wrong | {"drift/match": 1.0})
    view.show({"update": 37, "off/alarm": 0.0})
    assert said in shown(view)
    assert len(shown(view).splitlines()) == 17
    out = io.StringIO()
    with live.View(Console(file=out, width=160), "run", 99) as view:
        view.show(wrong)
        view.show({"update": 37, "off/alarm": 0.0})
    first, second, third = out.getvalue().splitlines()
    assert first.startswith("update 37/99")
    assert second == f"WARNING  {said}"
    assert third.startswith("update 38/99")


# The critic alone.


def same(a, b) -> bool:
    return all(np.array_equal(x, y) for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True))


@pytest.mark.parametrize("alone", [True, False])
def test_pretraining_moves_the_critic_alone(alone: bool, whole, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    run = standing(whole, tmp_path)
    before = jax.device_get(run.state)
    assert any(leaf.any() for leaf in jax.tree.leaves(before.policy_opt))  # moments and a count that could be lost
    if not alone:
        monkeypatch.setattr(run, "_step", lambda *arguments, critic_only: trainer.Trainer._step(run, *arguments))
    run._pretrain_critic(lambda _: None)
    after = jax.device_get(run.state)
    assert same((before.policy, before.policy_opt), (after.policy, after.policy_opt)) == alone
    assert not same(before.critic["trunk"], after.critic["trunk"])
    assert not same(before.critic["head"], after.critic["head"])
    assert not any(leaf.any() for leaf in jax.tree.leaves(after.critic_opt))
    assert (run.counters.update, run.counters.version) == (1, whole.counters.version - 2)


def test_the_critic_explains_more_and_more_of_what_it_can_know(whole, tmp_path: Path):
    run = standing(whole, tmp_path)
    batch, _ = run._batch(*run._collect())
    ids, mask = np.asarray(batch.tokens), np.asarray(batch.mask)
    known = (np.roll(ids, 1, axis=1) == ord("\n")).astype(np.float32)  # whether the token before ended a line
    assert 0.1 < known[mask].mean() < 0.9

    def explained() -> float:
        scores = update.score(run.setting, run.state, jnp.asarray(ids))
        aims, _ = update.targets(run.setting, batch, scores)
        nonlocal goal
        goal = dataclasses.replace(aims, returns=jnp.where(aims.mask, known, 0))
        return float(losses.explained_variance(goal.values, goal.returns, goal.mask)[0])

    goal = None
    found = [explained()]
    for _ in range(3):
        for _ in range(10):
            run._step(batch, goal, np.arange(len(ids)), critic_only=True)
        found.append(explained())
    assert found == sorted(found)
    assert found[0] < 0.3 < 0.8 < found[-1]
