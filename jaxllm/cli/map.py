"""Commands on the map of neurons: build one, search it, look at one neuron."""

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tyro

if TYPE_CHECKING:
    from interp.atlas import Atlas
    from interp.query import Match, Neuron, Token
    from interp.ranking import Ranking

SHOWN_NEURONS = 20
SHOWN_TOKENS = 8


@dataclasses.dataclass(frozen=True)
class Map:
    """Map every neuron of a model: the words that each one stands for."""

    model: tyro.conf.Positional[str]
    """a folder of safetensors, a .gguf file, a Hugging Face id, or smollm2"""
    out: Path | None = None
    """folder of the map (default: maps/ and the model's name); an interrupted map is continued"""
    site: Literal["up", "gate", "down"] = "up"
    """decode rows of up_proj, rows of gate_proj, or columns of down_proj"""
    norm: Literal["rms", "final", "none"] = "rms"
    """scale each row, put it through the model's final norm, or leave it as it is"""
    top_k: int = 16
    """tokens to keep per pole, at most 1024"""
    layers: Annotated[str | None, tyro.conf.arg(metavar="FROM:TO")] = None
    """layers to map, TO excluded, such as 0:8 or 0:4,29 (default: all)"""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """element type of the matmul's operands; sums are always float32"""
    score: Literal["logit", "cosine"] = "logit"
    """rank tokens by logit, or by cosine, which ignores the length of the head's rows"""
    fold_input_norm: bool = False
    """multiply rows by the gain of the norm before the MLP"""
    control: bool = False
    """decode random rows with each layer's statistics as well, and count against them"""
    control_rows: Literal["gaussian", "permuted"] = "gaussian"
    """draw control rows with the layer's mean and covariance, or shuffle each coordinate"""
    mask_special: bool = False
    """leave special tokens out"""
    mask_untrained: bool = False
    """leave out tokens whose head row is unusually short or repeats another"""
    mask_bytes: bool = False
    """leave single-byte tokens out"""
    mask_nonfinite_head: bool = False
    """leave out tokens whose head row is not finite, instead of stopping"""

    def run(self) -> None:
        from interp import report
        from interp.run import Control, Settings, map_model
        from jaxllm import stages
        from jaxllm.cli import console
        from jaxllm.hub import resolve
        from jaxllm.load import open_checkpoint

        names = {field.name for field in dataclasses.fields(Settings)}
        settings = Settings(**{k: v for k, v in dataclasses.asdict(self).items() if k in names})
        control = Control(kind=self.control_rows) if self.control else None
        out = self.out or Path("maps") / (Path(self.model).name.removesuffix(".gguf") or "map")
        with stages.collect() as times:
            with stages.stage("fetch"):
                checkpoint = open_checkpoint(resolve(self.model))
            layers = None if self.layers is None else parse_layers(self.layers)
            with stages.stage("map"), _Bar() as bar:
                atlas = map_model(
                    checkpoint, out, settings, name=self.model, layers=layers, control=control, progress=bar.update
                )
            with stages.stage("report"):
                report.write(atlas, out / "report.html")
        _print_summary(atlas, bar.done, times)
        console.write(f"\nTime: {stages.split(times)}")
        console.write(f"Map: {out}")
        console.write(f"Report: {out / 'report.html'}")


@dataclasses.dataclass(frozen=True)
class Find:
    """Find the neurons that stand for a token or its group."""

    map: tyro.conf.Positional[Path]
    """folder of a map"""
    text: tyro.conf.Positional[str]
    """the token, such as " dog"; spellings that differ in leading space and case count too"""
    limit: int = 20
    """how many neurons to list"""
    pole: Literal["+", "-", "both"] = "both"
    """which direction of the neurons"""
    json: bool = False
    """print JSON"""
    csv: bool = False
    """print CSV"""

    def run(self) -> None:
        import json

        from interp import query
        from interp.atlas import Atlas
        from interp.tokens import parse_query
        from jaxllm.cli import console
        from jaxllm.errors import UserError

        if self.json and self.csv:
            raise UserError("--json and --csv exclude each other")
        if self.limit < 1:
            raise UserError(f"--limit must be at least 1, found {self.limit}")
        atlas = Atlas(self.map)
        wanted = parse_query(self.text, atlas.tokens.data, atlas.tokens.group)
        matches = query.find(atlas, wanted.ids, limit=self.limit, pole=None if self.pole == "both" else self.pole)
        if self.json:
            console.write(json.dumps({"query": query.as_json(wanted), "neurons": query.as_json(matches)}, indent=1))
        elif self.csv:
            _print_csv(matches)
        else:
            if wanted.note:
                console.write(wanted.note)
            shown = [atlas.tokens.display[i] for i in wanted.ids]
            console.write(f"{len(shown)} tokens: {'  '.join(shown)}")
            console.stdout().print(_matches_table(matches))
            console.write(f"Probabilities add the tokens of the group among the {atlas.top_k} that the map keeps per pole.")


@dataclasses.dataclass(frozen=True)
class Show:
    """Show one neuron: both poles, its statistics, and its nearest neighbours."""

    map: tyro.conf.Positional[Path]
    """folder of a map"""
    neuron: tyro.conf.Positional[str]
    """layer and number, such as L12/N345"""
    model: str | None = None
    """where the mapped model is now, for the neighbours (default: where it was)"""
    json: bool = False
    """print JSON"""

    def run(self) -> None:
        import json

        from interp import query
        from interp.atlas import Atlas
        from jaxllm.cli import console
        from jaxllm.errors import UserError
        from jaxllm.hub import resolve
        from jaxllm.load import open_checkpoint

        atlas = Atlas(self.map)
        layer, number = query.parse_neuron(self.neuron)
        neuron = query.show(atlas, layer, number)
        near, problem = None, None
        try:
            checkpoint = open_checkpoint(resolve(self.model or atlas.meta["model"]["path"]))
            near = query.neighbours(atlas, checkpoint, layer, number, pole=neuron.better_pole)
        except UserError as error:
            if self.model is not None:
                raise
            problem = f"No neighbours: the model that was mapped cannot be read ({error}). Give its place with --model"
        if self.json:
            facts = {"neuron": query.as_json(neuron), "neighbours": query.as_json(near), "problem": problem}
            console.write(json.dumps(facts, indent=1))
            return
        for part in _neuron_tables(neuron):
            console.stdout().print(part)
        if near is not None:
            table = console.table("Nearest neighbours", "neuron", "cosine", f"top tokens along the {neuron.better_pole} pole")
            for other in near:
                table.add_row(f"L{other.layer}/N{other.neuron}", f"{other.cosine:+.3f}", _label(other.tokens))
            console.stdout().print(table)
        if problem:
            console.stderr().print(problem)


COMMANDS: dict[str, type[Any]] = {"map": Map, "find": Find, "show": Show}


def parse_layers(text: str) -> list[int]:
    """``0:4,29`` -> [0, 1, 2, 3, 29]. Raises UserError for anything else."""
    import re

    from jaxllm.errors import UserError

    chosen: list[int] = []
    for part in text.split(","):
        match = re.fullmatch(r"\s*([0-9]{1,5})(?::([0-9]{1,5}))?\s*", part)
        if match is None or (match[2] and int(match[2]) <= int(match[1])):
            raise UserError(f"--layers {text!r}: write FROM:TO with FROM below TO, or single layers, such as 0:8 or 0:4,29")
        chosen += range(int(match[1]), int(match[2] or int(match[1]) + 1))
    return chosen


class _Bar:
    """Progress of a map on the terminal; the total is known from the first report on."""

    def __init__(self) -> None:
        import contextlib

        self._stack = contextlib.ExitStack()
        self._advance: Any = None
        self.done = 0  # rows decoded

    def __enter__(self) -> "_Bar":
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    def update(self, progress: Any) -> None:
        from jaxllm.cli import console

        if self._advance is None:
            self._advance = self._stack.enter_context(console.progress("mapping", progress.total, "neurons"))
        self._advance(progress.done - self.done)
        self.done = progress.done


def _print_summary(atlas: "Atlas", decoded: int, times: dict[str, float]) -> None:
    from interp import stats
    from interp.atlas import FLAGS
    from interp.ranking import RANKINGS, rank
    from jaxllm.cli import console

    rankings = {name: rank(atlas, name) for name in RANKINGS}
    for ranking in rankings.values():
        console.stdout().print(_ranking_table(atlas, ranking))
    if atlas.has_control:
        console.stdout().print(_layers_table(atlas, rankings["specialisation"]))
    meta = atlas.meta
    shares = ", ".join(f"{kind} {share:.1%}" for kind, share in stats.class_shares(atlas).items())
    console.write(f"Top tokens by class: {shares}. {stats.coverage(atlas):.1%} of the vocabulary labels a neuron.")
    flagged = {name: sum(record[name] for record in meta["layers"].values()) for name in FLAGS}
    console.write("Flagged neurons: " + ", ".join(f"{name} {count:,}" for name, count in flagged.items()) + ".")
    if meta["tokens"]["top_k_requested"] > atlas.top_k:
        console.write(f"Only {atlas.top_k} ids are allowed, so only {atlas.top_k} are kept per pole.")
    settings, same = meta["settings"], meta["agreement"]
    console.write(
        f"Site {settings['site']}, norm {settings['norm']}, {settings['dtype']}; the top token equals that of a float32 decode "
        f"for {same['top1']:.2%} of {same['rows']:,} sampled rows."
        if same["rows"]
        else "No row of the sample has a label."
    )
    if not decoded:
        console.write("Every layer was there already; nothing was decoded.")
        return
    seconds = times["map"]
    flops = 2 * decoded * meta["model"]["width"] * meta["model"]["vocabulary"] / seconds
    peak = stats.matmul_peak(settings["dtype"])
    console.write(
        f"{decoded:,} rows in {seconds:.1f} s: {decoded / seconds:,.0f} neurons/s, {flops / 1e9:,.0f} GFLOP/s, "
        f"{flops / peak:.2f} of the matmul peak ({peak / 1e9:,.0f} GFLOP/s at 2048³)"
    )


def _ranking_table(atlas: "Atlas", ranking: "Ranking") -> Any:
    from interp.query import POLES, pole_tokens
    from interp.ranking import RANKINGS
    from jaxllm.cli import console

    table = console.table(
        f"Best by {ranking.name}: {RANKINGS[ranking.name]}", "neuron", "pole", "p", "coherence", "sigmas", "top tokens"
    )
    for position, neuron, pole in ranking.top(SHOWN_NEURONS):
        p, coherence, sigmas = (float(atlas.column(c)[position, neuron, pole]) for c in ("p1", "coherence", "zmax_sigma"))
        label = _label(pole_tokens(atlas, position, neuron, pole))
        where = f"L{atlas.layers[position]}/N{neuron}"
        table.add_row(where, POLES[pole], f"{p:.3f}", f"{coherence:.2f}", f"{sigmas:.1f}", label)
    return table


def _layers_table(atlas: "Atlas", ranking: "Ranking") -> Any:
    from interp.stats import layer_counts
    from jaxllm.cli import console

    title = "Neurons above the control: a pole scores higher than 99 % of the random rows of its layer"
    table = console.table(title, "layer", "neurons", "share", "by chance", "sigmas and coherence", "by chance", "")
    counts = layer_counts(atlas, ranking)
    widest = max(max(c.above_control for c in counts), 1)
    for c in counts:
        first = (f"{c.above_control:,}", f"{c.above_control / c.neurons:.1%}", f"{c.above_control_by_chance:.1%}")
        second = (f"{c.specialised:,}", f"{c.specialised_by_chance:.1%}")
        table.add_row(str(c.layer), *first, *second, "█" * round(30 * c.above_control / widest))
    return table


def _matches_table(matches: "list[Match]") -> Any:
    from jaxllm.cli import console

    table = console.table("", "neuron", "pole", "p", "place", "top tokens")
    for m in matches:
        table.add_row(f"L{m.layer}/N{m.neuron}", m.pole, f"{m.probability:.4f}", str(m.place + 1), _label(m.tokens))
    return table


def _print_csv(matches: "list[Match]") -> None:
    import csv
    import sys

    writer = csv.writer(sys.stdout, lineterminator="\n")
    writer.writerow(["layer", "neuron", "pole", "probability", "place", "token_ids", "tokens"])
    for m in matches:
        ids, shown = " ".join(str(t.id) for t in m.tokens), " ".join(t.display for t in m.tokens)
        writer.writerow([m.layer, m.neuron, m.pole, f"{m.probability:.9g}", m.place + 1, ids, shown])


def _neuron_tables(neuron: "Neuron") -> list[Any]:
    from jaxllm.cli import console

    places = ", ".join(f"{place:,} by {name}" for name, place in neuron.places.items())
    heading = f"L{neuron.layer}/N{neuron.neuron}: place {places}; better pole {neuron.better_pole}"
    tokens = console.table("", "+", "p", "-", "p")
    plus, minus = (pole.tokens for pole in neuron.poles)
    for a, b in zip(plus, minus, strict=True):
        tokens.add_row(a.display, f"{a.probability:.4f}", b.display, f"{b.probability:.4f}")
    statistics = console.table("Statistics", "", "+", "in layer", "in control", "-", "in layer", "in control")
    for name, first in neuron.poles[0].statistics.items():
        cells = [cell for s in (first, neuron.poles[1].statistics[name]) for cell in _standing(s)]
        statistics.add_row(name, *cells)
    for name, standing in neuron.statistics.items():
        statistics.add_row(name, *_standing(standing))
    flags = [f"{pole.pole}: {', '.join(pole.flags)}" for pole in neuron.poles if pole.flags]
    return [heading, tokens, statistics, *(["Flags " + "; ".join(flags)] if flags else [])]


def _standing(standing: Any) -> tuple[str, str, str]:
    control = "" if standing.control is None else f"{standing.control:.1f} %"
    return f"{standing.value:.4g}", f"{standing.percentile:.1f} %", control


def _label(tokens: "tuple[Token, ...]") -> str:
    return "  ".join(token.display for token in tokens[:SHOWN_TOKENS]) or "(no label)"
