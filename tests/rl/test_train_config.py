"""The configuration of a run: what is refused and why, presets, and reading back what a run has written."""

import dataclasses
import json
import math
from pathlib import Path

import pytest

from envs import toys
from jaxllm import params
from jaxllm.errors import UserError
from rl import saved
from rl.config import PRESETS, RECIPES, TINY, TrainConfig, with_algorithm
from rl.losses import ESTIMATORS, REDUCTIONS


def changed(config: TrainConfig, **settings) -> TrainConfig:
    """With other settings, named as on the command line but for ``__`` in place of the dot."""
    sections: dict[str, dict] = {}
    top = {}
    for name, value in settings.items():
        section, _, field = name.rpartition("__")
        (sections.setdefault(section, {}) if section else top)[field] = value
    parts = {name: dataclasses.replace(getattr(config, name), **values) for name, values in sections.items()}
    return dataclasses.replace(config, **parts, **top)


SETTINGS = {"updates": 100, "rollout__groups": 16, "rollout__group_size": 8, "optim__mini_batches": 2, "algo__gamma": 1.0}
BASE = changed(PRESETS["toy-hilo"], **SETTINGS)


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"algo__gamma": 1.1}, "algo.gamma must be in [0, 1], found 1.1"),
        ({"algo__gamma": -0.1}, "algo.gamma must be in [0, 1], found -0.1"),
        ({"algo__lambda_critic": 1.5}, "algo.lambda_critic must be in [0, 1], found 1.5"),
        ({"algo__eps_low": 0.0}, "algo.eps_low must be in [0, 1], found 0.0"),
        ({"algo__eps_low": 1.5}, "algo.eps_low must be in [0, 1], found 1.5"),
        ({"algo__turn_gamma": 2.0}, "algo.turn_gamma must be in [0, 1], found 2.0"),
        ({"algo__lambda_policy": 1.01}, "algo.lambda_policy is adaptive, or in [0, 1]; found 1.01"),
        ({"algo__alpha": 0.0}, "algo.alpha and algo.eps_high must be positive"),
        ({"algo__eps_high": 0.0}, "algo.alpha and algo.eps_high must be positive"),
        ({"algo__dual_clip": 1.0}, "algo.dual_clip must be above 1, found 1.0: at 1 or less it clips every negative advantage"),
        ({"algo__denominator": 100.0}, "algo.denominator belongs to algo.reduction fixed_denominator, and that needs it"),
        ({"algo__reduction": "fixed_denominator"}, "algo.denominator belongs to algo.reduction fixed_denominator"),
        ({"algo__reduction": "fixed_denominator", "algo__denominator": 0.0}, "algo.denominator must be positive"),
        ({"algo__reduction": "mean"}, "algo.name, algo.reduction or algo.kl_estimator is unknown"),
        ({"algo__kl_estimator": "k4"}, "algo.name, algo.reduction or algo.kl_estimator is unknown"),
        (
            {"algo__name": "grpo", "rollout__group_size": 1},
            "algo.name grpo compares the episodes of a group: rollout.group_size",
        ),
        ({"algo__dynamic_sampling": True}, "algo.dynamic_sampling keeps groups of unequal outcomes; with a critic no group"),
        ({"algo__kl": -1.0}, "must be at least 0"),
        ({"algo__positive_nll": -0.1}, "must be at least 0"),
        ({"algo__overlong_limit": 100, "algo__overlong_buffer": 200}, "algo.overlong_buffer must be in (0, overlong_limit]"),
        ({"algo__format_weight": 1.0}, "could make a clean failure beat an untidy success"),
        ({"memory__turns": -1}, "memory.turns must be at least 0, found -1"),
        ({"memory__observations": 0}, "memory.observations must be at least 1, found 0"),
        ({"imitate__noise": 1.5}, "imitate.noise is a share, at most 1; found 1.5"),
        ({"optim__decay": -1}, "optim.decay must be at least 0, found -1"),
        ({"rollout__temperature": 0.0}, "rollout.temperature must be positive: a greedy sampler explores nothing"),
        ({"rollout__groups": 0}, "the sizes of rollout must be at least 1"),
        ({"rollout__max_tokens_per_turn": 0}, "the sizes of rollout must be at least 1"),
        ({"optim__mini_epochs": 0}, "optim.mini_epochs, mini_batches and micro_batches must be at least 1"),
        ({"optim__mini_batches": 3}, "optim.mini_batches 3 does not divide 16 groups, which stay whole"),
        ({"optim__micro_batches": 5}, "2 mini-batches of 5 micro-batches do not divide 128 episodes"),
        ({"optim__actor_lr": -1e-3}, "optim.actor_lr must be at least 0, found -0.001"),
        ({"optim__clip_norm": 0.0}, "optim.clip_norm must be positive"),
        ({"imitate__policy": "none"}, "imitate.steps needs imitate.policy: random or oracle"),
        ({"imitate__steps": 0}, "a model of random weights never writes an action: let it imitate first"),
        ({"optim__critic_lr": math.nan}, "optim.critic_lr is nan"),
        ({"rollout__seconds": math.inf}, "rollout.seconds is inf"),
    ],
)
def test_what_cannot_be_trained_is_refused_with_the_reason(settings: dict, reason: str):
    with pytest.raises(UserError) as found:
        changed(BASE, **settings)
    head, *problems = str(found.value).splitlines()
    assert head == "this configuration can't be trained:"
    assert any(problem.strip().startswith(reason) or reason in problem for problem in problems)


def test_all_reasons_come_at_once():
    with pytest.raises(UserError) as found:
        changed(BASE, algo__gamma=3.0, rollout__temperature=0.0, optim__mini_batches=7)
    assert len(str(found.value).splitlines()) == 4


@pytest.mark.parametrize(
    "settings",
    [
        {"algo__reduction": "fixed_denominator", "algo__denominator": 64.0},
        {"algo__name": "dapo", "algo__dynamic_sampling": True},
        {"algo__format_weight": 0.5},
        {"rollout__group_size": 1},  # with a critic an episode needs no others
        {"model": "smollm2", "imitate__steps": 0, "imitate__policy": "none"},
    ],
)
def test_what_can_be_trained_is_not_refused(settings: dict):
    changed(BASE, **settings)


def test_presets_are_toys_of_a_tiny_model():
    assert {"toy-hilo", "toy-keys", "toy-maze"} <= set(PRESETS)
    for name in ("toy-hilo", "toy-keys", "toy-maze"):
        config = PRESETS[name]
        assert config.rollout.env == name.replace("-", "/")
        assert config.rollout.env.removeprefix("toy/") in toys.names()
        assert config.rollout.context <= TINY.max_position_embeddings
    assert 1.0e6 < params.count(TINY) < 3.0e6


def test_choices_are_those_of_the_losses():
    hints = {field.name: field.type for field in dataclasses.fields(BASE.algo)}
    assert set(hints["reduction"].__args__) == set(REDUCTIONS)
    assert set(hints["kl_estimator"].__args__) == set(ESTIMATORS)


@pytest.mark.parametrize("name", [*PRESETS, "other"])
def test_a_configuration_survives_its_file(name: str, tmp_path: Path):
    settings = {"algo__lambda_policy": 0.95, "algo__dual_clip": 3.0, "optim__actor_lr": 1e-7, "seed": 3}
    config = PRESETS.get(name) or changed(BASE, **settings)
    file = tmp_path / "config.json"
    file.write_text(json.dumps(dataclasses.asdict(config)))
    assert saved.configuration(file) == config
    assert saved.configuration(str(tmp_path)) == config  # the folder of a run


def test_a_preset_by_name():
    assert saved.configuration("toy-maze") is PRESETS["toy-maze"]
    with pytest.raises(UserError, match=r"'toy-mase' is no preset.*did you mean toy-maze\?"):
        saved.configuration("toy-mase")
    with pytest.raises(UserError, match="the presets are toy-hilo, toy-keys"):
        saved.configuration("x")


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda data: data.pop("seed"), r"config\.json: settings missing: seed"),
        (lambda data: data["algo"].pop("kl"), r"config\.json: algo: settings missing: kl"),
        (lambda data: data["algo"].update(klx=1), r"config\.json: algo: settings unknown: klx"),
        (lambda data: data.update(updates="3"), r"config\.json: updates: expected a whole number, found '3'"),
        (lambda data: data.update(updates=True), r"updates: expected a whole number, found True"),
        (lambda data: data.update(updates=2.0), r"updates: expected a whole number, found 2\.0"),
        (lambda data: data.update(algo=[]), r"config\.json: algo: expected an object with name, gamma"),
        (lambda data: data["algo"].update(gamma=math.nan), r"algo: gamma: expected a number, found nan"),
        (lambda data: data["algo"].update(whiten=1), r"algo: whiten: expected true or false, found 1"),
        (lambda data: data["algo"].update(ddof=2), r"algo: ddof: expected 0 or 1, found 2"),
        (lambda data: data["algo"].update(ddof=True), r"algo: ddof: expected 0 or 1, found True"),
        (
            lambda data: data["algo"].update(lambda_policy="x" * 99),
            r"lambda_policy: expected a number or adaptive, found 'x{55}",
        ),
        (lambda data: data["algo"].update(dual_clip="3"), r"dual_clip: expected a number or null, found '3'"),
        (lambda data: data["algo"].update(gamma=7), r"this configuration can't be trained"),
    ],
)
def test_a_file_that_was_changed_is_refused(change, reason: str, tmp_path: Path):
    data = dataclasses.asdict(BASE)
    change(data)
    file = tmp_path / "config.json"
    file.write_text(json.dumps(data))
    with pytest.raises(UserError, match=reason):
        saved.configuration(file)


def test_a_file_that_is_no_configuration(tmp_path: Path):
    file = tmp_path / "config.json"
    for content in ("[]", "{", "[" * 100_000, " " * ((1 << 20) + 1)):
        file.write_text(content)
        with pytest.raises(UserError, match=r"config\.json"):
            saved.configuration(file)


def test_one_process_trains_in_a_folder(tmp_path: Path):
    run = tmp_path / "a" / "run"
    with (
        saved.only_writer(run, BASE),
        pytest.raises(UserError, match="another process trains there"),
        saved.only_writer(run, BASE),
    ):
        pass
    with saved.only_writer(run, BASE):
        pass


def test_another_configuration_names_what_differs(tmp_path: Path):
    (tmp_path / "config.json").write_text(json.dumps(dataclasses.asdict(BASE)))
    with saved.only_writer(tmp_path, BASE):
        pass
    other = changed(BASE, seed=7, algo__gamma=0.5, updates=7)  # how long it lasts may change
    with pytest.raises(UserError) as found, saved.only_writer(tmp_path, other):
        pass
    assert str(found.value).splitlines()[1:] == [f"  seed is {BASE.seed} there, not 7", "  algo.gamma is 1.0 there, not 0.5"]


def test_a_file_is_no_folder_of_a_run(tmp_path: Path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="cannot be the folder of a run"), saved.only_writer(tmp_path / "file" / "run", BASE):
        pass


@pytest.mark.parametrize("name", sorted(RECIPES))
def test_a_recipe_leaves_nothing_of_another(name):
    plain = PRESETS["toy-keys"]
    for before in RECIPES:
        assert with_algorithm(with_algorithm(plain, before), name) == with_algorithm(plain, name)
