"""Checkpoints of a run: weights, moments and counters, whole or not at all."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import jax
import orbax.checkpoint as ocp

from jaxllm.config import read_json
from jaxllm.errors import UserError
from rl.saved import FILE as CONFIG_FILE
from rl.saved import differences
from rl.update import TrainState


@dataclasses.dataclass(frozen=True)
class Counters:
    """Where a run stands; all else that is random follows from the seed and these."""

    update: int = 0  # finished updates of the policy
    version: int = 0  # of the weights that the sampler has
    episodes: int = 0  # numbers given out so far
    groups: int = 0  # tasks drawn so far
    accepted: int = 0  # trajectories that were trained
    warm: bool = False  # whether value pretraining is done
    skipped: int = 0  # steps in a row, up to now, that were not finite


class Checkpoints:
    """The checkpoints of one run, in its folder ``checkpoints``."""

    def __init__(self, folder: Path, keep: int = 2):
        options = ocp.CheckpointManagerOptions(max_to_keep=keep, create=True, enable_async_checkpointing=False)
        self._manager = ocp.CheckpointManager((folder / "checkpoints").resolve(), options=options)

    @property
    def latest(self) -> int | None:
        """Update of the newest checkpoint that is whole."""
        return self._manager.latest_step()

    def save(self, state: TrainState, counters: Counters) -> None:
        """Writes a checkpoint beside the older ones, then removes what is too many."""
        items = ocp.args.Composite(
            state=ocp.args.StandardSave(dataclasses.replace(state, base=None)),  # type: ignore[call-arg]
            counters=ocp.args.JsonSave(dataclasses.asdict(counters)),  # type: ignore[call-arg]
        )
        self._manager.save(counters.update, args=items, force=True)
        self._manager.wait_until_finished()

    def restore(self, like: TrainState) -> tuple[TrainState, Counters]:
        """The newest checkpoint, in the shapes and placements of ``like``, whose base it keeps.

        Raises UserError if there is none, or if it is damaged or of another configuration.
        """
        step = self.latest
        if step is None:
            raise UserError("there is no checkpoint to go on from")
        abstract = jax.tree.map(ocp.utils.to_shape_dtype_struct, dataclasses.replace(like, base=None))
        items = ocp.args.Composite(
            state=ocp.args.StandardRestore(abstract),  # type: ignore[call-arg]
            counters=ocp.args.JsonRestore(),
        )
        try:
            found = self._manager.restore(step, args=items)
        except (ValueError, KeyError, OSError, json.JSONDecodeError) as error:
            raise UserError(f"the checkpoint of update {step} can't be restored: {str(error)[:500]}") from error
        return dataclasses.replace(found["state"], base=like.base), Counters(**found["counters"])

    def close(self) -> None:
        """Waits for what is being written."""
        self._manager.close()


def save_config(folder: Path, config: dict[str, Any]) -> None:
    """Writes the configuration beside the run. Raises UserError if a run is there whose numbers follow from another one."""
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / CONFIG_FILE
    text = json.dumps(config, indent=2, sort_keys=True) + "\n"
    there = read_json(file) if file.exists() else config
    if not isinstance(there, dict):
        raise UserError(f"{file}: no settings of a run")
    if apart := differences(there, config):
        head = f"{folder} holds a run with other settings; choose another folder, or remove it:"
        raise UserError("\n".join([head, *(f"  {one}" for one in apart)]))
    partial = folder / f".{CONFIG_FILE}.partial"
    partial.write_text(text, encoding="utf-8")
    partial.replace(file)
