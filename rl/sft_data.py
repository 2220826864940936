"""The episodes of a run of supervised learning: read, split, packed, and known again when the run goes on."""

import dataclasses
import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from envs.digest import session_seed
from jaxllm.config import read_json
from jaxllm.errors import UserError
from jaxllm.files import write_atomically
from rl import recorded, tokens
from rl.codec import Codec
from rl.packing import NO_SEGMENT, Packed, pack
from rl.sft_config import SftConfig
from rl.types import Trajectory

DATA_FILE = "data.json"


@dataclasses.dataclass(frozen=True)
class Data:
    """Episodes, packed."""

    train: Packed
    held_out: Packed
    facts: dict[str, Any]  # what is told and saved of them; ``digest`` stands for every token and mask


def load(folders: Sequence[Path], config: SftConfig, codec: Codec, longest: int) -> Data:
    """The episodes of some folders (`jaxllm envs record`), split by task: a seed is trained or held out, wherever it occurs.

    Args:
      longest: most tokens of an episode, the model's positions.
    Raises:
      UserError: as `rl.recorded.read`; no episode that passes, one that is too long, or nothing left to train.
    """
    found = [recorded.read(folder, codec, min_reward=config.min_reward) for folder in folders]
    episodes = [one for recording in found for one in recording.trajectories]
    below, unreadable = (sum(getattr(recording, name) for recording in found) for name in ("below", "unreadable"))
    if not episodes:
        names = ", ".join(map(str, folders))
        if not below + unreadable:
            raise UserError(f"{names}: no episodes yet; record some with `jaxllm envs record`")
        raise UserError(
            f"{names}: no episode is left: {below} earned less than {config.min_reward}, {unreadable} have no answer that can "
            "be imitated; lower --min-reward, or record others"
        )
    held = _held_out(episodes, config)
    train, held_out = (
        _packed([one for one in episodes if (_task(one) in held) is out], config.width, longest) for out in (False, True)
    )
    if not train.mask.any():
        raise UserError(f"all {len(episodes)} episodes are held out; lower --holdout, or record more")
    digest = hashlib.sha256()
    for packed in (train, held_out):
        for leaf in (packed.tokens, packed.mask, packed.segments):
            digest.update(f"{leaf.dtype.str} {leaf.shape} ".encode() + leaf.tobytes())
    facts = {
        "recordings": [str(folder) for folder in folders],
        "episodes": len(train.places),
        "held_out": len(held_out.places),
        "below_min_reward": below,
        "unreadable": unreadable,
        "rows": len(train.tokens),
        "tokens": int((train.segments != NO_SEGMENT).sum()),
        "policy_tokens": int(train.mask.sum()),
        "digest": digest.hexdigest(),
    }
    return Data(train, held_out, facts)


def _task(one: Trajectory) -> tuple[str, int]:
    return one.env, one.seed


def _held_out(episodes: Sequence[Trajectory], config: SftConfig) -> set[tuple[str, int]]:
    """The tasks that are not trained: those whose draws are smallest, so that more episodes keep most of them."""
    tasks = sorted({_task(one) for one in episodes}, key=lambda task: (session_seed(config.seed, *task), task))
    count = round(config.holdout * len(tasks))
    if config.holdout and len(tasks) > 1:
        count = max(count, 1)
    return set(tasks[:count])


def _packed(episodes: Sequence[Trajectory], width: int, longest: int) -> Packed:
    rows = []
    for one in episodes:
        for row in tokens.rows(one):
            if len(row.tokens) > min(width, longest):
                remedy = "raise --width" if len(row.tokens) <= longest else f"the model has {longest} positions"
                where = f"{one.info['folder']}, episode {one.info['episode']}"
                raise UserError(f"{where}: has {len(row.tokens)} tokens, and a row {width}; {remedy}")
            rows.append(row)
    return pack(rows, width)


def same_data(folder: Path, facts: dict[str, Any]) -> None:
    """Notes the episodes beside a run. Raises UserError if it began with others."""
    file = folder / DATA_FILE
    there = read_json(file) if file.exists() else facts
    if not isinstance(there, dict) or there.get("digest") != facts["digest"]:
        raise UserError(f"{folder} holds a run on other episodes than these; choose another --out, or remove it")
    if there is facts:
        write_atomically(file, (json.dumps(facts, indent=2) + "\n").encode())
