"""The command on natural activations: what a neuron does on a text."""

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import tyro

if TYPE_CHECKING:
    from interp.acts import Activations, NeuronActivations
    from interp.tally import Place
    from jaxllm.tokenizer import Tokenizer

BAR = 40  # characters of the longest bar


@dataclasses.dataclass(frozen=True)
class Acts:
    """See which values of a neuron occur in a text, and on which tokens.

    Ctrl-C ends the search and shows what was found so far.
    """

    model: tyro.conf.Positional[str]
    """a folder of safetensors, a .gguf file, a Hugging Face id, or smollm2"""
    neuron: tyro.conf.UseAppendAction[tuple[str, ...]]
    """layer and number, such as L28/N605; repeat it for several neurons"""
    text: Path | None = None
    """a UTF-8 file of any size (default: the prose on which clamps are calibrated)"""
    site: Literal["up", "gate_pre", "product"] = "up"
    """output of the up projection, of the gate projection, or what enters the down projection"""
    top: int = 20
    """contexts to list at each end"""
    window: int = 256
    """tokens that the model sees at once"""
    dtype: Literal["float32", "bfloat16"] | None = None
    """element type of the weights (default: as stored; float32 for quantised models)"""
    json: bool = False
    """print JSON"""
    csv: Path | None = None
    """also write the contexts to this file, as CSV"""

    def run(self) -> None:
        import json

        import jax.numpy as jnp

        from interp import acts, calibration, contexts
        from interp.query import as_json, parse_neuron
        from interp.windows import read, shape_for
        from jaxllm.cli import console
        from jaxllm.errors import UserError
        from jaxllm.hub import resolve
        from jaxllm.load import load_params, open_checkpoint

        if self.csv is not None and not self.csv.absolute().parent.is_dir():
            raise UserError(f"--csv {self.csv}: there is no folder {self.csv.parent}; make it first")
        neurons = list(dict.fromkeys(map(parse_neuron, self.neuron)))
        shape = shape_for(self.window)
        if self.text is not None and not self.text.is_fifo():
            next(read(self.text))  # a mistake here should not wait for the model
        checkpoint = open_checkpoint(resolve(self.model))
        acts.check(checkpoint.config, neurons, self.site)
        tokenizer = checkpoint.tokenizer()
        prose = calibration.calibration_text()
        size = len(prose.encode()) if self.text is None else _size(self.text)
        params = load_params(checkpoint, dtype=None if self.dtype is None else jnp.dtype(self.dtype))
        with console.progress("reading", size, "tokens") as advance:
            done = acts.Progress(0, 0)

            def update(progress: acts.Progress) -> None:
                nonlocal done
                advance(progress.size - done.size, progress.tokens - done.tokens)
                done = progress

            found = acts.activations(
                params,
                checkpoint.config,
                tokenizer,
                neurons,
                self.text or [prose],
                site=self.site,
                top=self.top,
                shape=shape,
                progress=update,
            )
        if self.csv is not None:
            _write_csv(self.csv, found, tokenizer)
        if self.json:
            console.write(json.dumps(as_json(contexts.facts(found, tokenizer)), indent=1))
        else:
            for neuron in found.neurons:
                _print(neuron, found, tokenizer)
        if not found.complete:
            console.stderr().print(f"Stopped after {found.tokens:,} tokens ({found.size:,} bytes); the rest was not read.")
            raise KeyboardInterrupt


COMMANDS: dict[str, type[Any]] = {"acts": Acts}


def _size(path: Path) -> int | None:
    """Bytes of a regular file; None for what has no size, and for what is not there, which the reader reports."""
    return path.stat().st_size if path.is_file() else None


def _print(neuron: "NeuronActivations", found: "Activations", tokenizer: "Tokenizer") -> None:
    from interp.contexts import statistics
    from jaxllm.cli import console

    out = console.stdout()
    name = f"L{neuron.layer}/N{neuron.neuron}"
    console.write(f"{name}, {found.site}: {neuron.count:,} tokens")
    console.write("  ".join(f"{key} {value:.4g}" for key, value in statistics(neuron).items()))
    if neuron.nonfinite:
        console.write(f"{neuron.nonfinite:,} values are NaN or infinite and are left out.")
    out.print(_histogram_table(neuron))
    out.print(_tails_table(neuron))
    for title, places in (("Most positive", neuron.highest), ("Most negative", neuron.lowest)):
        out.print(_contexts_table(f"{title} values of {name}", places, tokenizer))


def _histogram_table(neuron: "NeuronActivations") -> Any:
    import math

    from jaxllm.cli import console

    found = neuron.histogram()
    table = console.table("Values (bars: logarithm of the count)", "from", "to", "tokens", "")
    counts = found.counts.tolist()
    tallest = math.log1p(max(counts, default=1))
    for low, high, count in zip(found.edges[:-1], found.edges[1:], counts, strict=True):
        table.add_row(f"{low:.3g}", f"{high:.3g}", f"{count:,}", "█" * round(BAR * math.log1p(count) / tallest))
    return table


def _tails_table(neuron: "NeuronActivations") -> Any:
    from jaxllm.cli import console

    table = console.table("Tokens beyond", "sd", "at least", "share", "below", "share")
    tails = neuron.tails()
    for high, low in zip(tails[: len(tails) // 2], tails[len(tails) // 2 :], strict=True):
        table.add_row(str(high.sigmas), f"{high.value:.3g}", f"{high.share:.3%}", f"{low.value:.3g}", f"{low.share:.3%}")
    return table


def _contexts_table(title: str, places: "tuple[Place, ...]", tokenizer: "Tokenizer") -> Any:
    from rich.text import Text

    from interp.contexts import parts
    from jaxllm.cli import console

    table = console.table(title, "value", "line", "context")
    for place in places:
        before, token, after = parts(place, tokenizer)
        table.add_row(f"{place.value:+.3f}", f"{place.line:,}", Text.assemble(before, (f"«{token}»", "bold reverse"), after))
    return table


def _write_csv(path: Path, found: "Activations", tokenizer: "Tokenizer") -> None:
    import csv
    import io

    from interp.contexts import context as described
    from jaxllm.files import write_atomically

    columns = ["value", "token_index", "line", "token_id", "before", "token", "after"]
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["layer", "neuron", "site", "end", "rank", *columns])
    for neuron in found.neurons:
        for end, places in (("+", neuron.highest), ("-", neuron.lowest)):
            for rank, place in enumerate(places, 1):
                context = described(place, tokenizer)
                values = [context[column] for column in columns]
                writer.writerow([neuron.layer, neuron.neuron, found.site, end, rank, *values])
    write_atomically(path, text.getvalue().encode())
