"""Frames and codecs of the step server."""

import contextlib

import msgpack
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from envs.api import Action, ActionSpec, Argument, Element, EnvSpec, Invalid, Obs, Task
from envs.server import wire

plain = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats(allow_nan=False) | st.text() | st.binary(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


@settings(max_examples=60)
@given(plain)
def test_plain_data_come_back_as_they_were(value):
    assert wire.unpack(wire.pack(value)) == value


def test_half_a_surrogate_survives():
    assert wire.unpack(wire.pack("a\ud800b")) == "a\ud800b"


def test_numpys_numbers_become_pythons():
    assert wire.unpack(wire.pack([np.float32(0.5), np.int64(3), np.bool_(True), np.arange(3)])) == [0.5, 3, True, [0, 1, 2]]


@pytest.mark.parametrize(
    "value",
    [object(), {1, 2}, lambda: None, 2**70, np.array([object()])],
    ids=["object", "set", "function", "long", "objects"],
)
def test_nothing_but_data_is_packed(value):
    with pytest.raises(wire.WireError, match="plain data"):
        wire.pack(value)
    assert wire.unpack(wire.pack([1])) == [1]  # the packer is whole again


@settings(max_examples=60)
@given(st.binary(max_size=200))
def test_any_bytes_are_data_or_an_error(data):
    with contextlib.suppress(wire.WireError):
        wire.unpack(data)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x91" * 5000,  # deeper than any data
        b"\xdd\xff\xff\xff\xff",  # four thousand million items announced, none there
        b"\xc6\xff\xff\xff\xff",
        msgpack.packb(msgpack.ExtType(5, b"pickle")),
    ],
    ids=["empty", "deep", "long list", "long bytes", "extension"],
)
def test_hostile_data_are_an_error_at_once(data):
    with pytest.raises(wire.WireError):
        wire.unpack(data)


@pytest.mark.parametrize(
    "head", [[], {}, {"v": 1, "kind": "request"}, {"v": wire.VERSION}, {"v": wire.VERSION, "kind": 3}], ids=str
)
def test_a_header_has_this_version_and_a_kind(head):
    with pytest.raises(wire.WireError):
        wire.header(wire.pack(head))


@settings(max_examples=60)
@given(st.text(), st.dictionaries(st.text(), plain, max_size=3))
def test_actions_come_back(name, arguments):
    assert wire.unpack_action(wire.pack_action(Action(name, arguments))) == Action(name, arguments)


def test_what_was_no_action_comes_back():
    assert wire.unpack_action(wire.pack_action(Invalid("no_action", "nothing"))) == Invalid("no_action", "nothing")


@pytest.mark.parametrize("value", [None, [], ["x"], ["x", []], [1, {}], [None, 1, ""], {"name": "x"}, ["x", {}, 1]], ids=str)
def test_other_forms_of_an_action_are_an_error(value):
    with pytest.raises(wire.WireError):
        wire.unpack_action(wire.pack(value))


def test_tasks_and_seeds_come_back():
    task = Task("t", "do it", {"n": [1, 2]})
    assert wire.unpack_reset(wire.pack_reset(task, 0)) == (task, 0)
    assert wire.unpack_reset(wire.pack_reset(None, 2**40)) == (None, 2**40)


@pytest.mark.parametrize("value", [None, [None], [None, "0"], [["t"], 0], [None, 1.5]], ids=str)
def test_other_forms_of_a_reset_are_an_error(value):
    with pytest.raises(wire.WireError):
        wire.unpack_reset(wire.pack(value))


def test_specs_come_back():
    spec = EnvSpec(
        "a/b", "about", (ActionSpec("x", (Argument("p", "choice", 1, False, (1, "2"), 0.0, 3.5),), "does"),), (640, 480),
        7, frozenset({"save", "oracle"}), 0.5, {"step": 5.0}, "heavy",
    )  # fmt: skip
    assert wire.unpack_spec(wire.unpack(wire.pack(wire.pack_spec(spec)))) == spec
    with pytest.raises(wire.WireError):
        wire.unpack_spec(["a"])


def roundtrip(obs: Obs, slot: bool = False) -> tuple[Obs, int]:
    buffers: list[np.ndarray] = []
    data = wire.unpack(wire.pack(wire.pack_obs(obs, buffers)))
    if not slot:
        return wire.unpack_obs(data, [buffer.tobytes() for buffer in buffers]), len(buffers)
    starts = wire.places([buffer.nbytes for buffer in buffers])
    memory = np.zeros(starts[-1], np.uint8)
    for start, buffer in zip(starts, buffers, strict=False):
        memory[start : start + buffer.nbytes] = np.frombuffer(buffer.tobytes(), np.uint8)
    return wire.unpack_obs(data, slot=memory), len(buffers)


@pytest.mark.parametrize("slot", [False, True], ids=["frames", "shared memory"])
def test_observations_come_back(slot):
    random = np.random.default_rng(0)
    arrays = {
        "small": random.normal(size=(3, 4)),
        "large": random.integers(0, 255, (200, 200, 3)).astype(np.uint8),
        "odd": random.normal(size=(20001,)).astype(np.float32),
        "turned": random.normal(size=(300, 200)).T,  # not contiguous
        "empty": np.zeros((0, 5)),
        "one": np.array(3),
    }
    elements = (Element(3, "button", "Go", (1.0, 2.0, 3.0, 4.5), {"focused": True}),)
    obs = Obs("text", b"\x89PNG" + bytes(70_000), elements, arrays, 1.5, 7)
    found, buffers = roundtrip(obs, slot)
    assert buffers == 4  # the picture and the arrays of 64 KiB and more
    assert (found.text, found.screenshot, found.t_virtual, found.step) == ("text", obs.screenshot, 1.5, 7)
    assert found.elements == elements
    for name, array in arrays.items():
        assert found.arrays[name].dtype == array.dtype
        np.testing.assert_array_equal(found.arrays[name], array)


def test_a_plain_observation_equals_one_made_by_the_constructor():
    found, buffers = roundtrip(Obs("x"))
    assert buffers == 0
    assert (found.text, found.screenshot, found.elements, dict(found.arrays), found.t_virtual, found.step) == (
        "x", None, (), {}, 0.0, 0
    )  # fmt: skip


@pytest.mark.parametrize(
    "array",
    [
        ["|O", [1], b"12345678", 0],
        ["<f8", [3], b"short", 0],
        ["nonsense", [1], b"1", 0],
        ["<f8", [1], 9, 0],
        ["<f8", [-5], b"", 0],
    ],
    ids=["objects", "too short", "no type", "no such buffer", "negative"],
)
def test_arrays_that_are_none_are_an_error(array):
    with pytest.raises(wire.WireError):
        wire.unpack_obs([None, None, (), {"x": array}, 0.0, 0])
