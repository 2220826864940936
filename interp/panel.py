"""The checks R1 to R6 of H. J. Davies, arXiv 2501.02688, on any model or pair of models, as one report.

    python -m interp.panel BASE [INSTRUCT] --out panel        # or: jaxllm panel BASE [INSTRUCT] --out panel

On Llama 3.1 8B and its Instruct the paper's value stands beside ours; on other models the numbers are new data, not a
reproduction.
"""

import dataclasses
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

from interp import concept as concepts
from interp import decode, prompts, query, sweep
from interp import head as heads
from interp.atlas import Atlas
from interp.compare import PAPER_NAME, PAPER_SHAPE, compare
from interp.concept import Concept
from interp.rows import read_layer
from interp.run import Control, Settings, directions, map_model
from interp.sweep import Dose, Sweep
from interp.tokens import parse_query
from interp.vocabulary import describe, prepare
from interp.written import written
from jaxllm.errors import UserError
from jaxllm.load import Checkpoint, load_params

CONCEPTS = {"R1": (" dog", " dogs"), "R2": (" California",)}  # words that count as one, each with its spellings
ANIMAL = "What is your favourite animal?"
PAPER = {
    "R1": "a clean “dog” neuron exists",
    "R2": "a “California” neuron exists",
    "R3": "clamping changes the concept's probability; no number known",
    "R4": "always dogs",
    "R5": "75.4 %",
    "R6": "under 15 minutes one by one; under 10 s batched; device unknown",
}
VALUES = tuple(float(v) for v in (-100, -50, -30, -10, 0, 10, 30, 50, 100))
LISTED = 10
NAIVE_ROWS = 64  # decoded one by one, from which the time of all is extrapolated


@dataclasses.dataclass(frozen=True)
class Options:
    """What a panel runs; the defaults are the panel, smaller ones are for a quick look."""

    values: tuple[float, ...] = VALUES
    controls: int = 4
    max_tokens: int = 24
    samples: int = 8  # sampled answers in R4, beside the greedy one
    layers: tuple[int, ...] | None = None  # to map; None is all
    seed: int = 0


@dataclasses.dataclass(frozen=True)
class Found:
    """R1 or R2: the neurons that stand for a word."""

    word: str  # the first word's token, visibly
    ids: tuple[int, ...]  # all words' tokens, with their spellings
    plus: tuple[query.Match, ...]  # best by the + pole, the view of the paper
    both: tuple[query.Match, ...]  # best by either pole; R3 and R4 clamp the first, as a neuron's sign is a free choice


@dataclasses.dataclass(frozen=True)
class Timing:
    """R6: seconds for the top tokens of all N neurons, k = 10, one pole, without compilation."""

    neurons: int
    naive: float  # one neuron a call, extrapolated from `NAIVE_ROWS`
    batched: float  # a layer a call, extrapolated from one layer
    device: str

    @property
    def ratio(self) -> float:
        return self.naive / self.batched


@dataclasses.dataclass(frozen=True, eq=False)
class Panel:
    """All results; a check that could not be run is None, with the reason in ``missing``."""

    models: tuple[str, ...]
    paper: bool  # whether these are the paper's models
    found: dict[str, Found]  # "R1", "R2"
    dose: dict[str, Sweep]  # "R3 dog", "R3 California", "R4"
    match: dict[str, Any] | None  # R5: norm -> `jaxllm.intervals.Rate`
    timing: Timing
    missing: dict[str, str]


def run(
    a: Checkpoint,
    b: Checkpoint | None,
    out: Path,
    *,
    names: Sequence[str] | None = None,
    options: Options = Options(),
    progress: Callable[[str], None] = lambda stage: None,
) -> Panel:
    """Runs the checks; maps go to ``out``/maps, and are continued if they are there already.

    Args:
      a: the base model.
      b: the tuned model; without it R4 uses ``a`` and R5 is left out.
      names: how the models are called in the report; their paths by default.
      progress: told what begins.
    Raises:
      UserError: a model that cannot be mapped or run, or an ``out`` that holds something else.
    """
    checkpoints = [c for c in (a, b) if c is not None]
    names = tuple(names or [str(c.path) for c in checkpoints])
    layers, missing = options.layers, {}
    progress("R1, R2: mapping " + names[0])
    atlas = map_model(a, out / "maps" / "a-rms", Settings(), name=names[0], layers=layers, control=Control())
    found = {check: _found(atlas, words) for check, words in CONCEPTS.items()}

    match: dict[str, Any] | None = None
    if b is None:
        missing["R5"] = "needs a second model"
    else:
        progress("R5: mapping both models at the norms rms and final")
        match = {}
        for norm in ("rms", "final"):
            pair = [
                map_model(c, out / "maps" / f"{side}-{norm}", Settings(norm=norm), name=name, layers=layers)  # type: ignore[arg-type]
                for side, c, name in zip("ab", checkpoints, names, strict=False)
            ]
            match[norm] = compare(pair[0], pair[1]).overall.match
        match["none"] = match["rms"]  # the same order of tokens, row by row

    dose: dict[str, Sweep] = {}
    texts = prompts.read(prompts.NEUTRAL).texts
    params = load_params(a)
    for check, known in found.items():
        if not known.both:
            missing[f"R3 {CONCEPTS[check][0].strip()}"] = f"no mapped neuron has {known.word} among its top tokens"
            continue
        progress(f"R3: clamping {_name(known.both[0])} for {known.word}")
        tokenizer = a.tokenizer()
        dose[f"R3 {CONCEPTS[check][0].strip()}"] = _sweep(
            a, params, prompts.encode(texts, tokenizer), known, options, samples=0
        )
    chat = b or a
    if chat.chat_template() is None:
        missing["R4"] = f"{names[-1]} has no chat template"
    elif not found["R1"].both:
        missing["R4"] = "R1 found no neuron"
    else:
        progress(f"R4: asking {names[-1]} for its favourite animal")
        weights = params if b is None else load_params(chat)
        ids = prompts.encode([ANIMAL], chat.tokenizer(), chat=True, template=chat.chat_template())
        dose["R4"] = _sweep(chat, weights, ids, found["R1"], options, samples=options.samples)
    progress("R6: timing one by one, and batched")
    return Panel(names, _are_the_papers(checkpoints, names), found, dose, match, _timing(a, atlas), missing)


def _found(atlas: Atlas, words: Sequence[str]) -> Found:
    wanted = [parse_query(word, atlas.tokens.data, atlas.tokens.group).ids for word in words]
    ids = tuple(dict.fromkeys(i for some in wanted for i in some))
    plus, both = (query.find(atlas, ids, limit=LISTED, pole=pole) for pole in ("+", None))
    return Found(atlas.tokens.display[ids[0]], ids, tuple(plus), tuple(both))


def _sweep(
    checkpoint: Checkpoint, params: Any, ids: Sequence[Sequence[int]], known: Found, options: Options, *, samples: int
) -> Sweep:
    cfg, tokenizer = checkpoint.config, checkpoint.tokenizer()
    concept: Concept = concepts.of_ids(known.ids, tokenizer, name=known.word)
    best = known.both[0]
    allowed = np.arange(cfg.vocab_size) < tokenizer.size
    neuron = written(params, cfg, best.layer, best.neuron, concept=concept.ids, allowed=allowed)
    doses = {"up": [Dose(value, f"{value:g}") for value in options.values]}
    return sweep.sweep(
        params,
        cfg,
        tokenizer,
        ids,
        neuron,
        concept,
        doses,
        controls=options.controls,
        seed=options.seed,
        max_tokens=options.max_tokens,
        samples=samples,
        stop_ids=checkpoint.stop_ids,
    )


def _timing(checkpoint: Checkpoint, atlas: Atlas) -> Timing:
    """Both ways through the same kernel, on the same device, after a first call."""
    settings = Settings()
    head = heads.read_head(checkpoint)
    vocabulary = prepare(head, describe(checkpoint, head, settings.masks).tokens)
    layer = atlas.layers[-1]
    rows = directions(checkpoint, head, settings, read_layer(checkpoint, layer, "up").rows, layer)
    seconds = []
    for pieces in ([rows], [rows[i : i + 1] for i in range(min(NAIVE_ROWS, len(rows)))]):
        jax.block_until_ready(decode.top(pieces[0], vocabulary, k=LISTED))
        begun = time.perf_counter()
        for piece in pieces:
            jax.block_until_ready(decode.top(piece, vocabulary, k=LISTED))
        seconds.append((time.perf_counter() - begun) / sum(map(len, pieces)))
    N = checkpoint.config.num_hidden_layers * checkpoint.config.intermediate_size
    return Timing(N, seconds[1] * N, seconds[0] * N, jax.devices()[0].device_kind)


def _are_the_papers(checkpoints: Sequence[Checkpoint], names: Sequence[str]) -> bool:
    """Whether every model is Llama 3.1 8B or its Instruct, by shape and name."""
    for checkpoint, name in zip(checkpoints, names, strict=True):
        cfg = checkpoint.config
        shape = {
            "layers": cfg.num_hidden_layers,
            "neurons": cfg.intermediate_size,
            "width": cfg.hidden_size,
            "vocabulary": cfg.vocab_size,
        }
        if shape != PAPER_SHAPE or not PAPER_NAME.fullmatch(name.rstrip("/").rpartition("/")[2]):
            return False
    return True


def _name(match: query.Match) -> str:
    return f"L{match.layer}/N{match.neuron}"


def main(argv: Sequence[str] | None = None) -> None:
    """The command line of ``python -m interp.panel``."""
    import argparse
    import logging
    import sys

    from interp import panel_report
    from jaxllm.hub import resolve
    from jaxllm.load import open_checkpoint

    parser = argparse.ArgumentParser(prog="python -m interp.panel", description="R1 to R6 for a model or a pair of models.")
    parser.add_argument("models", nargs="+", metavar="MODEL", help="the base model, and the tuned one if there is one")
    parser.add_argument("--out", type=Path, default=Path("panel"), help="folder of report, pictures and maps")
    arguments = parser.parse_args(argv)
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    try:
        if len(arguments.models) > 2:
            raise UserError("give one model or two")
        pair = [open_checkpoint(resolve(model)) for model in arguments.models]
        result = run(pair[0], pair[1] if len(pair) > 1 else None, arguments.out, names=arguments.models, progress=_log)
        files = panel_report.write(result, arguments.out)
    except UserError as error:
        sys.exit(f"panel: {error}")
    sys.stdout.write(files[0].read_text(encoding="utf-8"))


def _log(stage: str) -> None:
    import logging

    logging.getLogger(__name__).info(stage)


if __name__ == "__main__":
    main()
