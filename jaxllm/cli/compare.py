"""The command that compares the maps of two models."""

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Any

import tyro

if TYPE_CHECKING:
    from interp.atlas import Atlas, Tokens
    from interp.compare import Comparison
    from jaxllm.intervals import Mean, Rate
    from jaxllm.load import Checkpoint


@dataclasses.dataclass(frozen=True)
class Compare:
    """Compare the maps of two models: which neurons kept their token, what moved others."""

    map_a: tyro.conf.Positional[Path]
    """folder of the first map, such as the base model's"""
    map_b: tyro.conf.Positional[Path]
    """folder of the second map, made with the same settings"""
    out: Path | None = None
    """folder for comparison.json, layers.csv, changed.csv and comparison.png"""
    model_a: str | None = None
    """where the first mapped model is now (default: where it was)"""
    model_b: str | None = None
    """where the second mapped model is now (default: where it was)"""
    weights: bool = True
    """read both models as well: cosine of the rows, distance of the distributions, and what moved the labels"""
    sample: int | None = None
    """neurons that are decoded with the parts of both models mixed (default: 8192)"""
    limit: int = 20
    """how many changed neurons to list"""
    json: bool = False
    """print JSON"""

    def run(self) -> None:
        import json

        from interp import compare_files
        from interp.atlas import Atlas
        from interp.compare import compare
        from jaxllm.cli import console
        from jaxllm.errors import UserError

        if self.limit < 0 or (self.sample is not None and self.sample < 1):
            raise UserError("--limit must be at least 0 and --sample at least 1")
        a, b = Atlas(self.map_a), Atlas(self.map_b)
        checkpoints, problem = self._checkpoints(a, b)
        comparison = compare(a, b, checkpoints=checkpoints, sample=self.sample)
        if self.json:
            console.write(json.dumps(compare_files.facts(comparison, a.tokens), indent=1, allow_nan=False))
        else:
            for part in _tables(comparison, a.tokens, self.limit):
                console.stdout().print(part)
        if problem:
            console.stderr().print(problem)
        if self.out is not None:
            for path in compare_files.write(comparison, a.tokens, self.out):
                (console.stderr().print if self.json else console.write)(f"Written: {path}")

    def _checkpoints(self, a: "Atlas", b: "Atlas") -> "tuple[tuple[Checkpoint, Checkpoint] | None, str | None]":
        """The two models, or why what needs them is left out. Raises UserError when a model that was named cannot be read."""
        from jaxllm.errors import UserError
        from jaxllm.hub import resolve
        from jaxllm.load import open_checkpoint

        if not self.weights:
            return None, None
        found = []
        for option, named, atlas in (("--model-a", self.model_a, a), ("--model-b", self.model_b, b)):
            model = atlas.meta["model"]
            place = named or (model["name"] if model["name"] == "smollm2" else model["path"])
            try:
                if named is None and place != "smollm2" and not Path(place).exists():
                    raise UserError(f"{place} is not there")
                found.append(open_checkpoint(resolve(place)))
            except UserError as error:
                if named is not None:
                    raise
                return None, (
                    "Left out, because they need the weights of both models: cosine of the rows, distance of the "
                    f"distributions, what moved the labels. The model of {atlas.path} cannot be read ({error}); "
                    f"give its place with {option}"
                )
        return (found[0], found[1]), None


COMMANDS: dict[str, type[Any]] = {"compare": Compare}


def _tables(comparison: "Comparison", tokens: "Tokens", limit: int) -> list[Any]:
    from jaxllm.cli import console

    overall, weights = comparison.overall, comparison.weights
    table = console.table(f"{comparison.names[0]} and {comparison.names[1]}", "", "value", "95 %", "rows")
    for label, rate in (
        ("same top token", overall.match),
        ("same but for leading space and case", overall.match_group),
        ("same, of rows beyond rounding error", overall.clear),
        ("same, of ambiguous rows", overall.ambiguous),
        ("same top token of the - pole", comparison.minus),
    ):
        table.add_row(label, *_rate(rate))
    table.add_row("by chance: from the frequencies of the labels", f"{overall.chance:.2%}", "", "")
    table.add_row("by chance: neurons shuffled", *_rate(overall.shuffled))
    table.add_row(f"shared among the top {comparison.k}", *_mean(overall.overlap))
    table.add_row(f"rank-biased overlap of the top {comparison.k}", *_mean(overall.rbo))
    if weights:
        table.add_row("cosine of the rows", *_mean(weights.row_cos))
        table.add_row("cosine of the rows, neurons that changed", *_mean(weights.row_cos_changed))
        table.add_row("cosine of the rows, neurons that did not", *_mean(weights.row_cos_kept))
        table.add_row("Jensen-Shannon distance of the distributions", *_mean(weights.js))
        for norm, rate in weights.norms.items():
            table.add_row(f"same top token of a sample, norm {norm}", *_rate(rate))
    out = [table, *_remarks(comparison), _layers(comparison), _margins(comparison)]
    if weights:
        out.append(_attribution(comparison))
    return [*out, _words(comparison, tokens), _changed(comparison, tokens, limit)]


def _remarks(comparison: "Comparison") -> list[str]:
    overall, settings = comparison.overall, comparison.settings
    left_out = f"{overall.degenerate:,} zero, {overall.nonfinite:,} not finite, {overall.unmatched:,} without a common token"
    lines = [f"Site {settings['site']}, norm {settings['norm']}, {settings['dtype']}, + pole. Rows left out: {left_out}."]
    if any(comparison.masked):
        lines.append(f"Tokens that only one vocabulary has were masked: {comparison.masked[0]:,} and {comparison.masked[1]:,}.")
    if comparison.paper is not None:
        away = 100 * (overall.match.share - comparison.paper)
        lines.append(
            f"The paper (arXiv 2501.02688) reports {comparison.paper:.1%} for these models; this is {overall.match.share:.2%}, "
            f"{away:+.2f} points away."
        )
    return lines


def _layers(comparison: "Comparison") -> Any:
    from jaxllm.cli import console

    cosines = [f"{m.value:.6f}" for m in comparison.weights.row_cos_by_layer] if comparison.weights else []
    columns = ["same", "95 %", "but for spelling", "ambiguous", "left out", "chance", "overlap", "rbo"]
    table = console.table("By layer", "layer", *columns, *["cosine"] * bool(cosines))
    for i, a in enumerate(comparison.by_layer):
        left_out = a.degenerate + a.nonfinite + a.unmatched
        first = [str(a.layer), *_rate(a.match)[:2], f"{a.match_group.share:.2%}", f"{a.ambiguous.total:,}", f"{left_out:,}"]
        table.add_row(*first, f"{a.chance:.2%}", f"{a.overlap.value:.3f}", f"{a.rbo.value:.3f}", *cosines[i : i + 1])
    return table


def _margins(comparison: "Comparison") -> Any:
    from jaxllm.cli import console

    table = console.table("By the first map's margin, in tenths", "logits above the second token", "same", "95 %", "rows")
    for part in comparison.deciles:
        table.add_row(f"{part.low:.3g} to {part.high:.3g}", *_rate(part.match))
    return table


def _attribution(comparison: "Comparison") -> Any:
    from jaxllm.cli import console

    assert comparison.weights is not None
    table = console.table(
        f"What changes the top token, of {comparison.weights.parts[0].alone.total:,} neurons drawn at random",
        *("part", "changed by it alone", "95 %", "changed by the others", "95 %", "share of the change"),
    )
    for part in comparison.weights.parts:
        note = " (has no effect under this norm)" if part.part == "gain" and comparison.settings["norm"] != "final" else ""
        table.add_row(part.part + note, *_rate(part.alone)[:2], *_rate(part.without)[:2], f"{part.shapley:.1%}")
    return table


def _words(comparison: "Comparison", tokens: "Tokens", count: int = 10) -> Any:
    from jaxllm.cli import console

    table = console.table("Words that label more neurons, and fewer", "gained", "before", "after", "lost", "before", "after")
    gained = [word for word in comparison.labels[:count] if word.after > word.before]
    lost = [word for word in comparison.labels[: -count - 1 : -1] if word.after < word.before]
    for i in range(max(len(gained), len(lost))):
        cells = []
        for words in (gained, lost):
            word = words[i] if i < len(words) else None
            cells += [tokens.display[word.id], str(word.before), str(word.after)] if word else [""] * 3
        table.add_row(*cells)
    return table


def _changed(comparison: "Comparison", tokens: "Tokens", limit: int) -> Any:
    from interp.compare_files import changed_rows
    from jaxllm.cli import console

    total = len(comparison.changed.layer)
    title = f"Changed neurons: {total:,}, by the margin that they had" + (f"; the first {limit}" if total > limit else "")
    table = console.table(
        title, "neuron", "old token", "new token", "margin", "new margin", "old token's place now", "moved by"
    )
    for row in changed_rows(comparison, tokens, limit):
        place = "not stored" if row["old_place"] < 0 else str(row["old_place"] + 1)
        words = row["old"]["display"], row["new"]["display"]
        margins = f"{row['margin_a']:.3f}", f"{row['margin_b']:.3f}"
        table.add_row(f"L{row['layer']}/N{row['neuron']}", *words, *margins, place, row["cause"] or "")
    return table


def _rate(rate: "Rate") -> tuple[str, str, str]:
    if not rate.total:
        return "", "", "0"
    return f"{rate.share:.2%}", f"{rate.low:.2%} to {rate.high:.2%}", f"{rate.total:,}"


def _mean(mean: "Mean") -> tuple[str, str, str]:
    if not mean.count:
        return "", "", "0"
    return f"{mean.value:.6f}", f"{mean.low:.6f} to {mean.high:.6f}", f"{mean.count:,}"
