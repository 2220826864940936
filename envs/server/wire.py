"""What goes over the wire: frames ``[header, buffer, ...]``, where the header is msgpack and the buffers are large arrays.

A header is a map with the version first: ``{v, kind, ...}``. Kinds that a client sends: ``hello`` (the token), ``request``,
``renew``, ``bye``. A request is ``{v, kind, req, deadline_ms, stream, items}``, an item ``[session, step, op, payload, slot]``;
its reply is ``{v, kind, req, items, arenas}``, an item ``[session, step, status, ms, result, buffers, slot, generation]``: one
reply in the order of the request, or, streamed, as many as it takes, in the order in which the items become ready. Payloads
and results are byte strings that hold msgpack of their own, so that the router passes them on unread. The `buffers` frames of
an item follow the header, item by item; an item whose result lies in shared memory, with its arrays, has a slot and an empty
result instead (`envs.server.arena`).

Everything is data: numbers, text, bytes, arrays with dtype and shape. Whatever has another form raises `WireError`.
"""

import math
import threading
from collections.abc import Mapping, Sequence
from typing import Any

import msgpack
import numpy as np

from envs.api import Action, ActionSpec, Argument, Element, EnvSpec, Invalid, Obs, Task

VERSION = 2
LIMIT = 64 << 20  # bytes of one message to the server, and of one observation
HARD_LIMIT = LIMIT + LIMIT // 4  # bytes of a frame from which on the peer is cut off without a word
INLINE = 64 << 10  # bytes from which on an array travels beside its result, so that it can be read in place
SHARED = 512  # bytes from which on a result goes through shared memory, where there is some: beyond, copies cost more
ALIGN = 64  # bytes, of arrays in shared memory

OPS = ("create", "describe", "reset", "step", "save", "restore", "state", "close", "ping", "stats")
STATUSES = ("OK", "PARSE_ERROR", "EPISODE_OVER", "TIMEOUT", "CRASHED", "LOST", "CAPACITY", "BAD_REQUEST", "STALE_STEP")
GONE = frozenset({"TIMEOUT", "CRASHED", "LOST"})  # statuses after which the session is no more


class WireError(ValueError):
    """A message that is not of this form."""


_local = threading.local()


def pack(value: Any) -> bytes:
    """Plain data as msgpack; numpy's numbers become Python's. Raises WireError for anything else, naming its type."""
    packer = getattr(_local, "packer", None)
    if packer is None:
        packer = _local.packer = msgpack.Packer(use_bin_type=True, unicode_errors="surrogatepass", default=_plain)
    try:
        return packer.pack(value)
    except (TypeError, ValueError, OverflowError) as error:
        packer.reset()
        raise WireError(f"this is not plain data: {error}") from error


def unpack(data: Any) -> Any:
    """What `pack` packed. Raises WireError; no part can be longer than the data themselves."""
    try:
        return msgpack.unpackb(data, raw=False, strict_map_key=False, unicode_errors="surrogatepass", ext_hook=_no_ext)
    except (ValueError, TypeError, RecursionError, msgpack.UnpackException) as error:
        raise WireError(f"not msgpack of this protocol: {type(error).__name__} {error}") from error


def header(data: Any) -> dict[str, Any]:
    """The header of a message. Raises WireError unless it is a map of this version with a kind."""
    value = unpack(data)
    if not isinstance(value, dict):
        raise WireError(f"a header is a map, not {type(value).__name__}")
    if value.get("v") != VERSION:
        raise WireError(f"version {value.get('v')!r} is not known here; this is version {VERSION}")
    if not isinstance(value.get("kind"), str):
        raise WireError("a header has a kind")
    return value


def _plain(value: Any) -> Any:
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, np.ndarray) and not value.dtype.hasobject:
        return value.tolist()
    raise TypeError(f"{type(value).__name__} {str(value)[:80]!r}")


def _no_ext(code: int, data: bytes) -> Any:
    raise ValueError(f"extension type {code}")


def pack_action(action: Action | Invalid) -> bytes:
    """The payload of op ``step``."""
    if isinstance(action, Invalid):
        return pack([None, action.error, action.message])
    if not isinstance(action, Action):
        raise WireError(f"an action is an envs.Action or envs.Invalid, not {type(action).__name__}")
    return pack([action.name, action.arguments if type(action.arguments) is dict else dict(action.arguments)])


def unpack_action(payload: bytes) -> Action | Invalid:
    """The action of a payload. Raises WireError."""
    value = unpack(payload)
    if type(value) is list:
        if len(value) == 2 and type(value[0]) is str and type(value[1]) is dict:
            return Action(value[0], value[1])
        if len(value) == 3 and value[0] is None and type(value[1]) is str and type(value[2]) is str:
            return Invalid(value[1], value[2])
    raise WireError("the payload of a step is an action: a name and arguments")


def pack_reset(task: Task | None, seed: int) -> bytes:
    """The payload of op ``reset``."""
    return pack([task and [task.id, task.instruction, dict(task.data)], int(seed)])


def unpack_reset(payload: bytes) -> tuple[Task | None, int]:
    """Task and seed of a payload. Raises WireError."""
    match unpack(payload):
        case [None, int(seed)]:
            return None, seed
        case [[str(id), str(instruction), dict(data)], int(seed)]:
            return Task(id, instruction, data), seed
    raise WireError("the payload of a reset is a task, or none, and a seed")


def pack_spec(spec: EnvSpec) -> list[Any]:
    """An environment's spec as plain data."""
    actions = [
        [
            action.name,
            [[a.name, a.kind, a.default, a.required, a.choices, a.low, a.high, a.shape] for a in action.arguments],
            action.about,
        ]
        for action in spec.actions
    ]
    return [
        spec.name, spec.about, actions, spec.screen_wh, spec.max_steps, sorted(spec.supports),
        spec.success, dict(spec.deadlines), spec.weight,
    ]  # fmt: skip


def unpack_spec(data: Any) -> EnvSpec:
    """The spec of `pack_spec`. Raises WireError."""
    try:
        name, about, actions, screen_wh, max_steps, supports, success, deadlines, weight = data
        return EnvSpec(
            name,
            about,
            tuple(
                ActionSpec(
                    action,
                    tuple(Argument(n, k, d, r, tuple(c), low, high, tuple(shape)) for n, k, d, r, c, low, high, shape in args),
                    about,
                )
                for action, args, about in actions
            ),
            screen_wh and (screen_wh[0], screen_wh[1]),
            max_steps,
            frozenset(supports),
            success,
            dict(deadlines),
            weight,
        )
    except (TypeError, ValueError, IndexError) as error:
        raise WireError(f"not a spec: {error}") from error


def pack_obs(obs: Obs, buffers: list[np.ndarray]) -> list[Any]:
    """An observation as plain data. Arrays and screenshots of `INLINE` bytes and more are added to `buffers`.

    In their stead stand their index there, and the byte at which they begin when all buffers lie in one slot (`places`).
    """
    elements = [[e.id, e.role, e.text, e.box, e.attributes] for e in obs.elements] if obs.elements else ()
    shot: Any = obs.screenshot
    if shot is not None and len(shot) >= INLINE:
        buffers.append(np.frombuffer(shot, np.uint8))
        shot = [len(buffers) - 1, _start(buffers), len(shot)]
    if not obs.arrays:
        return [obs.text, shot, elements, None, obs.t_virtual, obs.step]
    arrays = {}
    for name, array in obs.arrays.items():
        if array.nbytes >= INLINE:
            buffers.append(np.ascontiguousarray(array))
            arrays[name] = [array.dtype.str, array.shape, len(buffers) - 1, _start(buffers)]
        else:
            arrays[name] = [array.dtype.str, array.shape, array.tobytes(), 0]
    return [obs.text, shot, elements, arrays, obs.t_virtual, obs.step]


def _start(buffers: Sequence[np.ndarray]) -> int:
    return places([buffer.nbytes for buffer in buffers])[-2]


def unpack_obs(data: Sequence[Any], buffers: Sequence[Any] = (), slot: np.ndarray | None = None) -> Obs:
    """The observation of `pack_obs`, whose buffers came as frames, or lie in a slot. Its arrays can't be written to.

    Raises WireError.
    """
    try:
        text, shot, elements, arrays, t_virtual, step = data
        if type(shot) is list:
            index, start, size = shot
            shot = bytes(buffers[index]) if slot is None else slot[start : start + size].tobytes()
        if elements:
            elements = tuple(Element(id, role, text, tuple(box), attributes) for id, role, text, box, attributes in elements)
        if arrays:
            arrays = {
                name: _array(dtype, shape, where, start, buffers, slot) for name, (dtype, shape, where, start) in arrays.items()
            }
        return Obs(text, shot, elements or (), arrays, t_virtual, step)
    except (TypeError, ValueError, IndexError, AttributeError) as error:
        raise WireError(f"not an observation: {error}") from error


def _array(
    dtype: str, shape: Sequence[int], where: bytes | int, start: int, buffers: Sequence[Any], slot: np.ndarray | None
) -> np.ndarray:
    kind = np.dtype(dtype)
    if kind.hasobject or (shape and min(shape) < 0):
        raise WireError(f"an array of {dtype} {shape}")
    if isinstance(where, bytes):
        return np.frombuffer(where, kind).reshape(shape)
    if slot is None:
        return np.frombuffer(buffers[where], kind).reshape(shape)
    return slot[start : start + math.prod(shape) * kind.itemsize].view(kind).reshape(shape)


def places(sizes: Sequence[int]) -> list[int]:
    """Where buffers of these sizes begin in a slot of shared memory, and where the last ends."""
    starts = [0]
    for size in sizes:
        starts.append(starts[-1] + -(-size // ALIGN) * ALIGN)
    return starts


def refusal(status: str, message: str, error: str | None = None, **info: Any) -> bytes:
    """The result of an item that has no observation: why."""
    return pack([None, 0.0, False, status in GONE, {"error": error or status.lower(), "message": message, **info}, None])


def message(kind: str, fields: Mapping[str, Any]) -> bytes:
    """A header."""
    return pack({"v": VERSION, "kind": kind, **fields})
