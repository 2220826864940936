"""Environments by name: families, own classes, what is unknown or missing."""

import importlib
import subprocess
import sys
import textwrap

import pytest
import toys

import envs
from envs import registry
from envs.api import Env
from envs.base import BaseEnv
from jaxllm.errors import UserError


@pytest.fixture
def toy_family(monkeypatch):
    monkeypatch.setitem(registry.FAMILIES, "toys", ("toys", "environments of the tests"))


class Lacking:
    """A family that does not work here."""

    def missing(self) -> str:
        return "no browser: apt install chromium"


def test_a_family_of_its_own(toy_family):
    assert list(envs.names("toys/*")) == [f"toys/{name}" for name in toys.names()]
    assert list(envs.names("toys/c*")) == ["toys/count"]
    assert list(envs.names("toy?/count")) == ["toys/count"]
    assert envs.describe("toys/count") == toys.SPECS["count"]
    env = envs.make("toys/count", start=3)
    assert env.reset(seed=0).text.startswith("3 of")
    assert env.options == {"start": 3}


def test_an_oracle_solves_what_it_says_it_solves(toy_family):
    env, policy = envs.make("toys/count"), envs.oracle("toys/count", seed=2)
    obs = env.reset(seed=2)
    total = 0.0
    for _ in range(env.spec.max_steps):
        result = env.step(policy(env.state(), obs))
        obs, total = result.obs, total + result.reward
        if result.terminated:
            break
    assert total >= env.spec.success
    assert result.info["success"]
    assert envs.oracle("toys/arrays") is None


def test_a_class_of_a_module():
    env = envs.make("toys:Toy", name="arrays")
    assert isinstance(env, BaseEnv)
    assert envs.describe("toys:Toy").name == "toys/count"
    assert envs.oracle("toys:Toy") is None
    for name in ("toys:Nothing", "no_such_module:Toy", "toys:", ":Toy"):
        with pytest.raises(UserError, match=rf"{name}: .*module:Class"):
            envs.make(name)
    with pytest.raises(UserError, match=r"toys:Toy can't be made with the options \{'speed': 3\}: .*speed"):
        envs.describe("toys:Toy", speed=3)
    with pytest.raises(UserError, match="toys:names makes no environment"):
        envs.make("toys:names")


def test_a_module_in_the_current_folder(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry])
    (tmp_path / "lying_here.py").write_text("from toys import Toy\n")
    monkeypatch.chdir(tmp_path)
    assert envs.make("lying_here:Toy").spec.name == "toys/count"
    assert sys.path[-1] == str(tmp_path)


@pytest.mark.parametrize("name", ["", "games", "games/", "/sokoban", "nothing/here"])
def test_unknown_names(name: str):
    for function in (envs.make, envs.describe, envs.oracle):
        with pytest.raises(UserError):
            function(name)


def test_unknown_families_list_the_known_ones():
    with pytest.raises(UserError, match="there is no family 'atari'; there are ") as found:
        envs.make("atari/pong")
    assert {"miniwob", "gym"} <= set(str(found.value).split("there are ")[1].split(", "))


def test_wrong_options_are_named(toy_family):
    with pytest.raises(UserError, match="has the option start, not speed"):
        envs.make("toys/count", speed=2)


def test_what_is_missing_is_named_before_anything_is_made(monkeypatch):
    monkeypatch.setattr(registry, "family", lambda name: Lacking())
    with pytest.raises(UserError, match="miniwob/click-test can't be made here: no browser: apt install chromium"):
        envs.make("miniwob/click-test")


@pytest.mark.parametrize("prefix", registry.FAMILIES)
def test_every_family_keeps_the_contract(prefix: str):
    module = importlib.import_module(registry.FAMILIES[prefix][0])
    assert all(callable(getattr(module, function)) for function in ("names", "describe", "make", "oracle", "missing"))
    names = module.names()
    assert names == sorted(set(names))
    lack = module.missing()
    assert lack is None or len(lack) > 10
    if names:
        spec = envs.describe(f"{prefix}/{names[0]}")
        assert spec.name == f"{prefix}/{names[0]}"
        assert spec.actions
        assert ("oracle" in spec.supports) == (envs.oracle(spec.name) is not None)
    with pytest.raises(UserError):
        envs.describe(f"{prefix}/no such thing")


def test_importing_envs_needs_numpy_alone():
    script = """
        import sys
        import envs, envs.parse, envs.scoring, envs.registry
        heavy = {"jax", "zmq", "msgpack", "gymnasium", "miniwob", "envpool", "PIL", "websockets", "ray", "psutil", "selenium"}
        print(sorted(heavy & set(sys.modules)))
        assert isinstance(envs.api.Env, type)
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(script)], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_the_protocol_is_what_baseenv_has():
    wanted = {name for name in vars(Env) if not name.startswith("_") and callable(getattr(Env, name))}
    assert wanted == {"reset", "step", "save", "restore", "state", "close"}
    assert all(callable(getattr(BaseEnv, name)) for name in wanted)
