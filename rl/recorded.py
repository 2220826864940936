"""Recorded episodes (`jaxllm envs record`) as trajectories: what a policy would have read and written."""

import dataclasses
import json
from pathlib import Path
from typing import Any

from envs.api import EnvSpec, Invalid, Obs, StepResult
from envs.base import decode
from envs.record_folder import parts, read_part, read_run
from envs.registry import describe
from envs.replay import by_episode
from jaxllm.errors import UserError
from rl.codec import Codec
from rl.types import Stop, Trajectory, Turn


@dataclasses.dataclass(frozen=True)
class Recording:
    """The episodes of one folder, in order of their numbers, and how many were left out."""

    trajectories: list[Trajectory]  # `Trajectory.info` has the folder and the episode's number
    unreadable: int = 0  # with an answer that was no action, which has no words to imitate
    below: int = 0  # that earned less than was asked for


def read(folder: Path, codec: Codec, *, min_reward: float | None = None) -> Recording:
    """The episodes of a folder in the words of a codec, token by token as `rl.rollout` would have them.

    Log-probabilities are 0 and versions -1, as in `rl.rollout.scripted`. The prompt is the first observation, as the trainer's.

    Args:
      min_reward: episodes whose rewards sum to less are left out.
    Raises:
      UserError: no folder of episodes, a damaged file, observations that are no text, an environment that is unknown here or
        that the codec can't speak to.
    """
    run = read_run(folder)
    spec = describe(run.name, **run.options)
    found: list[Trajectory] = []
    unreadable = below = 0
    for part in parts(folder):
        for number, rows in by_episode(read_part(part).to_pylist()):
            where = f"{folder}, episode {number}"
            acted = [row for row in rows if row["action"] is not None]
            if [row["step"] for row in rows] != list(range(len(rows))) or rows[-1]["action"] is not None:
                raise UserError(f"{where}: its steps are not all there; record it again")
            try:
                actions = [decode(json.loads(row["action"])) for row in acted]
                infos = [json.loads(row["info"]) for row in acted]
            except (ValueError, TypeError, UserError) as error:
                raise UserError(f"{where}: damaged: {str(error)[:200]}; record it again") from None
            if not all(isinstance(info, dict) for info in infos):
                raise UserError(f"{where}: damaged: an info is no object; record it again")
            if min_reward is not None and sum(row["reward"] for row in acted) < min_reward:
                below += 1
            elif not actions or any(isinstance(action, Invalid) for action in actions):
                unreadable += 1
            else:
                found.append(_trajectory(rows, actions, infos, codec, spec, where))
    found.sort(key=lambda one: one.info["episode"])
    return Recording([dataclasses.replace(one, info={**one.info, "folder": str(folder)}) for one in found], unreadable, below)


def _trajectory(
    rows: list[dict[str, Any]], actions: list[Any], infos: list[dict[str, Any]], codec: Codec, spec: EnvSpec, where: str
) -> Trajectory:
    turns: list[Turn] = []
    context = codec.begin(_seen(rows[0], where), spec)
    for i, (action, info) in enumerate(zip(actions, infos, strict=True)):
        try:
            ids = tuple(codec.write(action, spec))
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise UserError(f"{where}, step {i}: {action} is no action of {spec.name}: {error}") from None
        row, after = rows[i], rows[i + 1]
        turns.append(
            Turn(
                tuple(context),
                ids,
                (0.0,) * len(ids),
                (-1,) * len(ids),
                reward=row["reward"],
                state=row["digest"],
                error=info.get("error"),
            )
        )
        if i + 1 < len(actions):
            result = StepResult(_seen(after, where), row["reward"], row["terminated"], row["truncated"], info)
            context = codec.observe(result, stopped=True)
    last = rows[len(actions) - 1]
    return Trajectory(
        tuple(turns),
        Stop.TERMINATED if last["terminated"] else Stop.MAX_TURNS,
        env=spec.name,
        seed=rows[0]["seed"],
        outcome=sum(turn.reward for turn in turns),
        success=bool(infos[-1].get("success")),
        info={"episode": rows[0]["episode"]},
    )


def _seen(row: dict[str, Any], where: str) -> Obs:
    """The observation of a row. Raises UserError where it is more than text, or less."""
    if row["image"] is not None:
        raise UserError(f"{where}, step {row['step']}: has a screenshot, which a model of text can't see; record a text task")
    if row["text"] is None:
        raise UserError(f"{where}, step {row['step']}: has no text, and nothing else can be read by a model of text")
    return Obs(text=row["text"], t_virtual=row["t_virtual"], step=row["step"])
