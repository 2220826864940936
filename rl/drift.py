"""Which concepts a run moves: the words of the policy's neurons, now and then, against those that they began with.

`interp.drift` reads the words; here they are kept over a restart, written to the run's folder and turned into figures.
"""

import io
import json
import zipfile
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from interp import drift
from interp.matching import Count
from interp.tokens import Masks, classify, group_tokens
from jaxllm.config import Config
from jaxllm.errors import UserError
from jaxllm.files import write_atomically
from jaxllm.params import Params
from jaxllm.tokenizer import Tokenizer
from rl import metrics

START, FILE = "drift-start.npz", "drift.jsonl"
NEURONS = 4096  # looked at, drawn over all layers; all of them in a model that has no more
COLUMNS = ("layer", "neuron", "ids", "margin")  # of `interp.drift.Labels`, as they are kept
LISTED = 20  # neurons and words in a line of the file


class Words:
    """The words of a run's neurons, in its folder: those of the beginning in `START`, a line for each measurement in `FILE`."""

    def __init__(self, folder: Path, cfg: Config, tokenizer: Tokenizer, mesh: Mesh | None = None):
        """
        Args:
          folder: of the run.
          tokenizer: of the model; what it has no token for is no word.
          mesh: where the policy lives.
        """
        self._folder, self._cfg, self._tokenizer, self._mesh = folder, cfg, tokenizer, mesh
        self._allowed = classify(tokenizer, cfg.vocab_size).allowed(Masks())
        self._groups = group_tokens(tokenizer, cfg.vocab_size).group
        self._start: drift.Labels | None = None

    def begin(self, policy: Params) -> None:
        """Reads the words that a run begins with, and keeps them with the neurons' rows for a restart."""
        found = drift.label(policy, self._cfg, sample=NEURONS, allowed=self._allowed, mesh=self._mesh)
        columns = {name: getattr(found, name) for name in COLUMNS}
        buffer = io.BytesIO()
        rows = np.concatenate([np.asarray(part) for part in found.rows])
        np.savez(buffer, rows=rows, batches=[len(part) for part in found.rows], **columns)
        write_atomically(self._folder / START, buffer.getvalue())
        metrics.cut(self._folder, 0, FILE)
        self._start = found

    def resume(self, update: int) -> None:
        """Goes on with the words that the run began with; lines from this update on are dropped.

        Raises UserError when they were not kept, or can't be read.
        """
        file = self._folder / START
        try:
            with np.load(file, allow_pickle=False) as kept:
                columns = {name: kept[name] for name in COLUMNS}
                rows, batches = kept["rows"], kept["batches"]
        except FileNotFoundError:
            raise UserError(f"{file}: missing, so that no drift can be told; go on with --drift-every 0") from None
        except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile) as error:
            raise UserError(f"{file}: can't be read ({error}); go on with --drift-every 0") from None
        if rows.shape != (len(columns["layer"]), self._cfg.hidden_size) or batches.sum() != len(rows):
            raise UserError(f"{file}: its rows are not those of this run's model; go on with --drift-every 0")
        metrics.cut(self._folder, update, FILE)
        parts = tuple(map(jnp.asarray, np.split(rows, np.cumsum(batches)[:-1])))
        self._start = drift.Labels(**columns, rows=parts, allowed=self._allowed, site="up", norm="rms")

    def measure(self, policy: Params, update: int) -> dict[str, float]:
        """How far the words are now, as figures ``drift/...``; the neurons and words that moved most go to `FILE`.

        Args:
          update: counted from 0, as in the run's other figures.
        """
        if self._start is None:
            raise ValueError("begin or resume comes first")
        found = drift.drift(self._start, policy, self._cfg, groups=self._groups, mesh=self._mesh)
        moved = found.moved
        neurons = [
            {
                "layer": int(moved.layer[i]),
                "neuron": int(moved.neuron[i]),
                "before": self._tokenizer.display(int(moved.old[i])),
                "after": self._tokenizer.display(int(moved.new[i])),
                "ids": [int(moved.old[i]), int(moved.new[i])],
                "margins": [float(moved.margin_before[i]), float(moved.margin_after[i])],
            }
            for i in range(min(len(moved.layer), LISTED))
        ]
        words = {name: list(map(self._word, of(LISTED))) for name, of in (("gained", found.gained), ("lost", found.lost))}
        row = {"update": update, "neurons": found.match.total, "changed": len(moved.layer), "moved": neurons, **words}
        with (self._folder / FILE).open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")
        return {f"drift/{name}": value for name, value in found.scalars().items()}

    def _word(self, word: Count) -> dict[str, Any]:
        return {"word": self._tokenizer.display(word.id), "id": word.id, "before": word.before, "after": word.after}
