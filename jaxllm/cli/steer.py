"""Commands on clamps: one prompt with and without, and dose curves with controls."""

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tyro

if TYPE_CHECKING:
    from interp.clamp import Value
    from interp.concept import Concept
    from interp.steer import Steered, Steering
    from interp.sweep import Dose
    from interp.sweep import Sweep as Result
    from jaxllm.load import Checkpoint

SHOWN_POSITIONS = 12
SHOWN_TOKENS = 6


@dataclasses.dataclass(frozen=True)
class Clamp:
    """Hold neurons at a value and compare what the model writes with and without.

    Shows both continuations, the next token before and after, and for each neuron what it reads, what it writes, and which sign
    raises its concept. Everything is greedy, so the same command prints the same.
    """

    model: tyro.conf.Positional[str]
    """a folder of safetensors, a .gguf file, a Hugging Face id, or smollm2"""
    prompt: tyro.conf.Positional[str]
    """the text to continue; with --chat, the user's message"""
    set: Annotated[tyro.conf.UseAppendAction[tuple[str, ...]], tyro.conf.arg(metavar="L29/N1342=-30")]
    """neuron and value: a number, or in the neuron's own units 3sd, max, min; repeat it for several"""
    site: Literal["up", "product", "gate_pre", "gate_act"] = "up"
    """what is held: the up-projection's output, its product with the gate, or the gate before or after SiLU"""
    mode: Literal["set", "add", "scale", "floor", "ceil", "set_if_active"] = "set"
    """what to do with the value"""
    threshold: float = 0.0
    """with --mode set_if_active: set the value only where the natural one is above this"""
    positions: str = "all"
    """all, prompt, generated, last (the prompt's last token), or positions of the prompt such as 0,3"""
    exclude_special: bool = False
    """leave special tokens alone"""
    token: str | None = None
    """the concept to follow, with its spellings (default: the top tokens of each neuron's up row)"""
    chat: bool = False
    """put the prompt into the checkpoint's chat template"""
    max_tokens: int = 48
    """stop after this many tokens, if no stop token came before"""
    dtype: Literal["float32", "bfloat16"] | None = None
    """element type of the weights (default: as stored; float32 for quantised models)"""
    json: bool = False
    """print JSON"""

    def run(self) -> None:
        import json

        from interp.clamp import parse_clamp, parse_positions
        from interp.query import as_json
        from interp.steer import steer
        from jaxllm.cli import console

        options = {
            "site": self.site,
            "mode": self.mode,
            "threshold": self.threshold,
            "positions": parse_positions(self.positions),
            "exclude_special": self.exclude_special,
        }
        settings = [parse_clamp(text, **options) for text in self.set]
        checkpoint = _open(self.model)
        found = steer(
            checkpoint,
            settings,
            self.prompt,
            chat=self.chat,
            token=self.token,
            max_tokens=self.max_tokens,
            params=lambda: _load(checkpoint, self.dtype),
        )
        if self.json:
            console.write(json.dumps(as_json(found), indent=1, ensure_ascii=False, allow_nan=False))
            return
        for part in _clamp_tables(found):
            console.stdout().print(part)
            console.write("")


@dataclasses.dataclass(frozen=True)
class Sweep:
    """Sweep a neuron's clamp over values, with controls: table, picture and CSV."""

    model: tyro.conf.Positional[str]
    """a folder of safetensors, a .gguf file, a Hugging Face id, or smollm2"""
    neuron: str
    """layer and number, such as L29/N1342"""
    token: str | None = None
    """the concept to follow, with its spellings (default: the top tokens of the neuron's up row)"""
    values: str = "-100:100:9"
    """first, last and how many; or values with commas; units sd, max and min as in clamp"""
    sites: str = "up"
    """up, product, or both with a comma"""
    prompts: str = "neutral-v1"
    """a file with a prompt a line, or a list that ships: neutral-v1, questions-v1"""
    chat: bool = False
    """put each prompt into the checkpoint's chat template"""
    controls: int = 4
    """random neurons of the layer with down columns of like length"""
    max_tokens: int = 16
    """of each continuation; 0 leaves continuations out"""
    samples: int = 0
    """continuations drawn at temperature 1 and top-p 0.95 for each prompt and value, beside the greedy one"""
    seed: int = 0
    """draws the random neurons and the samples"""
    out: Path | None = None
    """folder of the files (default: sweeps/ and the neuron)"""
    dtype: Literal["float32", "bfloat16"] | None = None
    """element type of the weights (default: as stored; float32 for quantised models)"""
    json: bool = False
    """print JSON"""

    def run(self) -> None:
        import json

        from interp import prompts, sweep_files
        from interp.clamp import check_neurons, parse_values
        from interp.query import parse_neuron
        from interp.sweep import rows_of
        from jaxllm.cli import console
        from jaxllm.errors import UserError

        at = parse_neuron(self.neuron)
        values = parse_values(self.values)
        sites = list(dict.fromkeys(site.strip() for site in self.sites.split(",")))
        for site in sites:
            if site not in ("up", "product"):
                raise UserError(f"--sites {self.sites!r}: write up, product, or up,product")
        for name, least in (("controls", 0), ("max_tokens", 0), ("samples", 0)):
            if getattr(self, name) < least:
                raise UserError(f"--{name.replace('_', '-')} must be at least {least}, found {getattr(self, name)}")
        if self.samples and not self.max_tokens:
            raise UserError("--samples needs --max-tokens above 0")
        listed = prompts.read(self.prompts)
        checkpoint = _open(self.model)
        check_neurons(checkpoint.config, [at])
        tokenizer = checkpoint.tokenizer()
        template = checkpoint.chat_template() if self.chat else None
        ids = prompts.encode(listed.texts, tokenizer, chat=self.chat, template=template)
        concept = _concept(self.token, checkpoint)
        out = self.out or Path("sweeps") / f"L{at[0]}-N{at[1]}"
        sweep_files.make_folder(out)
        params = _load(checkpoint, self.dtype)
        doses = _doses(params, checkpoint, at, values, sites)
        total = rows_of(len(ids), doses, self.controls, self.max_tokens, self.samples)
        with console.progress("sweeping", total, "rows") as advance:
            found = _sweep(self, params, checkpoint, ids, at, concept, doses, advance)
        about = {
            "model": self.model,
            "chat": self.chat,
            "prompts_from": listed.name,
            "prompts_sha256": listed.sha256,
            "seed": self.seed,
            "max_tokens": self.max_tokens,
            "samples": self.samples,
            "values": self.values,
        }
        files = sweep_files.write(found, listed.texts, tokenizer, out, about)
        if self.json:
            console.write(json.dumps(sweep_files.facts(found, tokenizer, about), indent=1, ensure_ascii=False))
            return
        for part in _sweep_tables(found):
            console.stdout().print(part)
        console.write("Files: " + ", ".join(map(str, files)))


COMMANDS: dict[str, type[Any]] = {"clamp": Clamp, "sweep": Sweep}


def _open(model: str) -> "Checkpoint":
    from jaxllm.hub import resolve
    from jaxllm.load import open_checkpoint

    return open_checkpoint(resolve(model))


def _load(checkpoint: "Checkpoint", dtype: str | None) -> Any:
    import jax.numpy as jnp

    from jaxllm.load import load_params

    return load_params(checkpoint, dtype=None if dtype is None else jnp.dtype(dtype))


def _clamp_tables(found: "Steering") -> list[Any]:
    from rich.table import Table

    clamps = ", ".join(_clamp_text(clamp) for clamp in found.clamps)
    texts = Table("plain", clamps, title=found.prompt, title_justify="left", expand=False, padding=(0, 1), show_lines=True)
    texts.add_row(_text(found.plain), _text(found.clamped))
    after = _table(f"Next token; KL(plain || clamped) {found.kl:.3g} nats", "token", "p plain", "p clamped", "rank", "clamped")
    for token in found.tokens:
        after.add_row(token.display, *(f"{p:.4f}" for p in token.p), *(f"{rank:,}" for rank in token.rank))
    parts = [texts, after]
    for neuron in found.neurons:
        parts += _neuron_tables(neuron)
    return parts


def _neuron_tables(neuron: "Steered") -> list[Any]:
    effect = neuron.effect
    about = _table(f"{neuron.name}, site {neuron.site}", "", "")
    about.add_row("up row reads +", _join(neuron.up))
    about.add_row("up row reads -", _join(neuron.up_opposite))
    about.add_row("down column writes +", _join(neuron.down))
    about.add_row("down column writes -", _join(neuron.down_opposite))
    about.add_row("cos(up, down)", f"{neuron.cosine:+.3f}")
    if neuron.natural is not None:
        about.add_row("natural values", "mean {mean:.3g}, sd {std:.3g}, {min:.3g} to {max:.3g}".format(**neuron.natural))
    if neuron.sign is not None:
        sign = "+" if neuron.sign.sign > 0 else "-"
        about.add_row("raises its concept", f"{sign} values ({neuron.sign.confidence}): {neuron.sign.reason}")
    p, logit, rank = effect.p, effect.logit, effect.rank
    about.add_row("concept", neuron.concept.name + (f" ({neuron.concept.note})" if neuron.concept.note else ""))
    about.add_row("", f"p {p[0]:.4g} -> {p[1]:.4g}, logit {logit[0]:.2f} -> {logit[1]:.2f}, rank {rank[0]:,} -> {rank[1]:,}")
    last = len(neuron.positions) - SHOWN_POSITIONS
    title = f"{neuron.name} at the prompt's " + (f"last {SHOWN_POSITIONS} tokens" if last > 0 else "tokens")
    values = _table(title, "position", "token", "silu(gate)", f"{neuron.site} plain", "clamped")
    for place in neuron.positions[max(0, last) :]:
        numbers = (f"{number:+.3f}" for number in (place.gate, place.natural, place.clamped))
        values.add_row(str(place.position), place.display, *numbers)
    return [about, values]


def _clamp_text(clamp: dict[str, Any]) -> str:
    unit = "" if clamp["unit"] == "absolute" else f" = {clamp['value']:.4g}"
    verb = "" if clamp["mode"] == "set" else f" ({clamp['mode']})"
    return f"{clamp['neuron_name']} {clamp['site']} = {clamp['written']}{unit}{verb}"


def _sweep(
    asked: Sweep, params: Any, checkpoint: "Checkpoint", ids: Any, at: tuple[int, int], concept: Any, doses: Any, advance: Any
) -> "Result":
    import numpy as np

    from interp.concept import of_ids
    from interp.sweep import sweep
    from interp.written import written

    cfg, tokenizer = checkpoint.config, checkpoint.tokenizer()
    allowed = np.arange(cfg.vocab_size) < tokenizer.size
    neuron = written(params, cfg, *at, concept=concept and concept.ids, allowed=allowed)
    return sweep(
        params,
        cfg,
        tokenizer,
        ids,
        neuron,
        concept or of_ids(neuron.concept, tokenizer),
        doses,
        controls=asked.controls,
        seed=asked.seed,
        max_tokens=asked.max_tokens,
        samples=asked.samples,
        stop_ids=checkpoint.stop_ids,
        progress=advance,
    )


def _concept(token: str | None, checkpoint: "Checkpoint") -> "Concept | None":
    from interp.concept import of_token

    return None if token is None else of_token(token, checkpoint.tokenizer(), checkpoint.config.vocab_size)


def _doses(params: Any, checkpoint: "Checkpoint", at: tuple[int, int], values: "list[Value]", sites: list[str]) -> Any:
    """Site -> doses; values with units are turned into numbers by the calibration text."""
    from interp.calibration import natural
    from interp.sweep import Dose

    doses = {}
    for site in sites:
        measured = None
        if any(value.unit for value in values):
            measured = natural(params, checkpoint.config, checkpoint.tokenizer(), [at], site)
        doses[site] = [Dose(value.absolute(measured, 0), str(value)) for value in values]
    return doses


def _sweep_tables(found: "Result") -> list[Any]:
    from interp.sweep_files import rows

    neuron, all_rows = found.neuron, rows(found)
    plain, parts = all_rows[0], []
    parts.append(
        f"L{neuron.layer}/N{neuron.neuron}: concept {found.concept.name}; without a clamp p {plain['p_mean']:.4g}"
        + ("" if plain["fluency"] is None else f", in {plain['share_greedy']:.0%} of texts, fluency {plain['fluency']:.2f}")
    )
    for site, sign in found.signs.items():
        where = f"Raised at {site} by {'+' if sign.sign > 0 else '-'} values ({sign.confidence})"
        parts.append(f"{where}: {sign.reason}")
    for site in found.doses:
        columns = ["value", "p", "median rank", "KL", "other pole p", "second best p", "random p, median", "highest"]
        if found.plain.greedy:
            columns += ["in texts", *(["in samples"] if found.plain.sampled else []), "fluency", "first continuation"]
        table = _table(f"Value set at {site}", *columns)
        (own,) = found.curve(site)
        by_kind = {kind: [r for r in all_rows if (r["site"], r["kind"]) == (site, kind)] for kind in _kinds()}
        random = [[r["p_mean"] for r in by_kind["random"] if r["at"] == dose.value] for dose in found.doses[site]]
        for i, (dose, row) in enumerate(zip(found.doses[site], by_kind["neuron"], strict=True)):
            cells = [_dose(dose), f"{row['p_mean']:.4g}", f"{row['rank_median']:,.0f}", f"{row['kl_mean']:.3g}"]
            for kind in ("other pole", "second best"):
                cells.append(f"{by_kind[kind][i]['p_mean']:.4g}" if by_kind[kind] else "")
            middle = sorted(random[i])[len(random[i]) // 2] if random[i] else None
            cells += ["", ""] if middle is None else [f"{middle:.4g}", f"{max(random[i]):.4g}"]
            if own.greedy:
                cells.append(f"{row['share_greedy']:.0%}")
                if own.sampled:
                    cells.append(f"{row['share_sampled']:.0%}")
                cells += [f"{row['fluency']:.2f}", _shorten(own.greedy[i][0].text)]
            table.add_row(*cells)
        parts.append(table)
    controls = found.curve(next(iter(found.doses)), "second best")
    if controls:
        parts.append(f"Second best: L{controls[0].layer}/N{controls[0].neuron}. Fluency: nats per token, plain model.")
    return parts


def _kinds() -> tuple[str, ...]:
    from interp.sweep import KINDS

    return KINDS


def _dose(dose: "Dose") -> str:
    number = f"{dose.value:+.4g}"
    try:
        same = float(dose.written) == dose.value
    except ValueError:
        same = False
    return number if same else f"{number} ({dose.written})"


def _shorten(text: str, width: int = 40) -> str:
    line = _text(text.replace("\n", "↵"))
    return line if len(line) <= width else line[: width - 1] + "…"


def _text(text: str) -> str:
    """Model output for a terminal: line breaks stay, other control characters are shown by their number."""
    return "".join(c if c == "\n" or c.isprintable() else f"⟨U+{ord(c):04X}⟩" for c in text)


def _join(tokens: list[str]) -> str:
    return "  ".join(tokens[:SHOWN_TOKENS])


def _table(title: str, *columns: str) -> Any:
    from jaxllm.cli.map import _table as table

    return table(title, *columns)
