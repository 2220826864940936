"""The split of a command's time."""

import time

import jax
import jax.numpy as jnp
import pytest

from jaxllm import stages


def test_each_second_belongs_to_one_stage():
    with stages.collect() as times:
        start = time.perf_counter()
        with stages.stage("sleep"):
            time.sleep(0.05)
        with stages.stage("work"):
            jax.jit(lambda x: jnp.sin(x) * 3.5)(jnp.arange(7.0)).block_until_ready()
        whole = time.perf_counter() - start
    assert set(times) == {"sleep", "work", "compile"}
    assert times["sleep"] >= 0.05
    assert times["compile"] > 0
    assert sum(times.values()) == pytest.approx(whole, abs=0.02)


def test_inner_stage_is_taken_off_the_outer():
    with stages.collect() as times, stages.stage("outer"):
        time.sleep(0.02)
        with stages.stage("inner"):
            time.sleep(0.2)
    assert list(times) == ["inner", "outer"]
    assert times["inner"] >= 0.2
    assert 0.02 <= times["outer"] < 0.1


def test_stage_without_collector_and_after_it_counts_nowhere():
    with stages.stage("alone"):
        pass
    with stages.collect() as times:
        pass
    with stages.stage("late"):
        jax.jit(lambda x: x * 2.5)(jnp.arange(5.0))
    assert times == {}


def test_stage_counts_also_when_it_fails():
    with stages.collect() as times, pytest.raises(OSError, match="disk"), stages.stage("write"):
        raise OSError("disk")
    assert times.keys() == {"write"}


def test_split_reads_in_order():
    assert stages.split({"fetch": 3.14, "map": 40}) == "fetch 3.1 s, map 40.0 s"
