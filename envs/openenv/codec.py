"""OpenEnv's messages and ours: observations and action schemas as JSON, there and back.

An OpenEnv action is an object of fields; ours over OpenEnv has the fields ``name`` and ``arguments``. Our own servers add the
environment's whole spec to the schema (`SPEC`), and arrays, screenshots and step counts to the observation; `MARK` in the
metadata says so.
"""

import base64
import binascii
import json
import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from envs.api import ActionSpec, Argument, Box, Element, EnvSpec, Obs

MARK = "jaxllm-envs/1"  # value of metadata["protocol"] in what our own gateway sends
SPEC = "x-jaxllm-spec"  # key of an action schema that holds `envs.server.wire.pack_spec`
LARGEST = 64 << 20  # bytes of one message

CODES = (
    "INVALID_JSON",
    "UNKNOWN_TYPE",
    "VALIDATION_ERROR",
    "EXECUTION_ERROR",
    "CAPACITY_REACHED",
    "FACTORY_ERROR",
    "SESSION_ERROR",
)


class MessageError(Exception):
    """A message that is not of OpenEnv's form."""


# Observations.


def observation(obs: Obs, metadata: Mapping[str, Any]) -> dict[str, Any]:
    """An observation as JSON: binary parts in base64."""
    return {
        "text": obs.text,
        "screenshot": None if obs.screenshot is None else base64.b64encode(obs.screenshot).decode(),
        "elements": [
            {"id": e.id, "role": e.role, "text": e.text, "box": list(e.box), "attributes": dict(e.attributes)}
            for e in obs.elements
        ],
        "arrays": {
            name: {
                "dtype": array.dtype.str,
                "shape": list(array.shape),
                "data": base64.b64encode(np.ascontiguousarray(array).tobytes()).decode(),
            }
            for name, array in obs.arrays.items()
        },
        "t_virtual": obs.t_virtual,
        "step": obs.step,
        "metadata": dict(metadata),
    }


def read_observation(data: Mapping[str, Any], own: bool) -> Obs:
    """The observation in a server's JSON; that of another server's as text. Raises MessageError."""
    if not own:
        return Obs(text=_as_text({key: value for key, value in data.items() if key != "metadata"}))
    try:
        shot = data["screenshot"]
        return Obs(
            text=data["text"],
            screenshot=None if shot is None else base64.b64decode(shot, validate=True),
            elements=tuple(Element(e["id"], e["role"], e["text"], _box(e["box"]), e["attributes"]) for e in data["elements"]),
            arrays={name: _array(part) for name, part in data["arrays"].items()},
            t_virtual=float(data["t_virtual"]),
            step=int(data["step"]),
        )
    except (KeyError, TypeError, ValueError, binascii.Error) as error:
        raise MessageError(f"an observation is not of the form {MARK}: {type(error).__name__} {error}") from error


def _box(values: Any) -> Box:
    x1, y1, x2, y2 = map(float, values)
    return x1, y1, x2, y2


def _array(part: Mapping[str, Any]) -> np.ndarray:
    kind = np.dtype(part["dtype"])
    if kind.hasobject:
        raise ValueError(f"an array of {kind}")
    return np.frombuffer(base64.b64decode(part["data"], validate=True), kind).reshape([int(size) for size in part["shape"]])


def _as_text(fields: Mapping[str, Any]) -> str:
    """What a reader sees of another server's observation: its one text, or all fields as JSON."""
    if len(fields) == 1:
        (value,) = fields.values()
        if isinstance(value, str):
            return value
    return json.dumps(fields, indent=1, ensure_ascii=False)


def read_result(message: Any) -> tuple[dict[str, Any], float | None, bool, bool, dict[str, Any]]:
    """Observation, reward (None where the server has none), terminated, truncated and metadata of an observation message.

    There is one ``done``: it means terminated unless the metadata say ``truncated``. Metadata lie in the observation (OpenEnv
    0.10), beside it, or nowhere (0.3). Raises MessageError.
    """
    data = message.get("data") if isinstance(message, dict) else None
    if not isinstance(data, dict) or message.get("type") != "observation" or not isinstance(data.get("observation"), dict):
        raise MessageError(f"not an observation of OpenEnv: {json.dumps(message)[:200]}")
    seen = data["observation"]
    metadata = seen.get("metadata") or data.get("metadata") or {}
    if not isinstance(metadata, dict):
        raise MessageError(f"metadata are an object, not {str(metadata)[:80]}")
    reward = data.get("reward")
    if reward is not None:
        if not isinstance(reward, int | float) or not math.isfinite(reward):
            raise MessageError(f"a reward is a finite number, not {str(reward)[:80]}")
        reward = float(reward)
    done = data.get("done", False)
    if not isinstance(done, bool):
        raise MessageError(f"done is true or false, not {str(done)[:80]}")
    truncated = done and metadata.get("truncated") is True
    return seen, reward, done and not truncated, truncated, metadata


# Actions.


def action_schema(spec: EnvSpec) -> dict[str, Any]:
    """The JSON schema of our actions as OpenEnv's action."""
    from envs.server.wire import pack_spec

    return {
        "title": "Action",
        "type": "object",
        "properties": {
            "name": {"type": "string", "enum": [action.name for action in spec.actions]},
            "arguments": {"type": "object", "default": {}},
            "metadata": {"type": "object", "default": {}},
        },
        "required": ["name"],
        "additionalProperties": False,
        SPEC: pack_spec(spec),
    }


OBSERVATION_SCHEMA = {
    "title": "Observation",
    "type": "object",
    "properties": {
        "text": {"type": ["string", "null"]},
        "screenshot": {"type": ["string", "null"], "description": "a PNG or JPEG file in base64"},
        "elements": {"type": "array", "items": {"type": "object"}},
        "arrays": {"type": "object", "description": "name -> dtype, shape and data in base64, in C order"},
        "t_virtual": {"type": "number", "description": "seconds of the environment's own clock"},
        "step": {"type": "integer", "minimum": 0},
        "done": {"type": "boolean", "default": False},
        "reward": {"type": ["number", "null"], "default": None},
        "metadata": {"type": "object"},
    },
}
STATE_SCHEMA = {
    "title": "State",
    "type": "object",
    "properties": {
        "episode_id": {"type": ["string", "null"]},
        "step_count": {"type": "integer", "minimum": 0},
        "state": {"type": "object"},
    },
    "additionalProperties": True,
}


def own_spec(schema: Any) -> EnvSpec | None:
    """The spec that our own server adds to its schema; None from another server. Raises MessageError."""
    from envs.server.wire import WireError, unpack_spec

    if not isinstance(schema, dict) or SPEC not in schema:
        return None
    try:
        return unpack_spec(schema[SPEC])
    except WireError as error:
        raise MessageError(str(error)) from error


def foreign_actions(schema: Any) -> tuple[ActionSpec, ...]:
    """The one action ``act`` of another server: its arguments are the fields of the action's schema."""
    properties = schema.get("properties") if isinstance(schema, dict) else None
    if not isinstance(properties, dict):
        return (ActionSpec("act", (Argument("action", "json"),), "the action as the server takes it"),)
    required = schema.get("required") if isinstance(schema.get("required"), list) else []
    arguments = tuple(
        _argument(name, part if isinstance(part, dict) else {}, name in required)
        for name, part in properties.items()
        if name != "metadata" or name in required
    )
    return (ActionSpec("act", arguments, str(schema.get("description") or schema.get("title") or "")[:200]),)


def _argument(name: str, part: dict[str, Any], required: bool) -> Argument:
    options = part.get("anyOf")
    if isinstance(options, list):  # Optional[...] of pydantic
        others = [option for option in options if isinstance(option, dict) and option.get("type") != "null"]
        part = {**others[0], **part} if len(others) == 1 else {}
    default = part.get("default")
    choices = part.get("enum")
    if isinstance(choices, list) and choices:
        return Argument(name, "choice", default, required, tuple(choices))
    if part.get("type") == "boolean":
        return Argument(name, "choice", default, required, (True, False))
    kind = {"integer": "int", "number": "float", "string": "text"}.get(str(part.get("type")), "json")
    low, high = (part.get(key) if isinstance(part.get(key), int | float) else None for key in ("minimum", "maximum"))
    return Argument(name, kind, default, required, low=low, high=high)
