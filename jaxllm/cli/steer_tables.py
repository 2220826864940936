"""What the commands clamp and sweep print."""

from typing import TYPE_CHECKING, Any

from jaxllm.cli import console

if TYPE_CHECKING:
    from interp.steer import Steered, Steering
    from interp.sweep import Dose, Sweep

SHOWN_POSITIONS = 12
SHOWN_TOKENS = 6


def clamp_tables(found: "Steering") -> list[Any]:
    """Both continuations, the next-token table, and what is known of each neuron."""
    from rich.table import Table

    clamps = ", ".join(_clamp_text(clamp) for clamp in found.clamps)
    texts = Table("plain", clamps, title=found.prompt, title_justify="left", expand=False, padding=(0, 1), show_lines=True)
    texts.add_row(_text(found.plain), _text(found.clamped))
    after = console.table(
        f"Next token; KL(plain || clamped) {found.kl:.3g} nats", "token", "p plain", "p clamped", "rank", "clamped"
    )
    for token in found.tokens:
        after.add_row(token.display, *(f"{p:.4f}" for p in token.p), *(f"{rank:,}" for rank in token.rank))
    parts = [texts, after]
    for neuron in found.neurons:
        parts += _neuron_tables(neuron)
    return parts


def _neuron_tables(neuron: "Steered") -> list[Any]:
    effect = neuron.effect
    about = console.table(f"{neuron.name}, site {neuron.site}", "", "")
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
    values = console.table(title, "position", "token", "silu(gate)", f"{neuron.site} plain", "clamped")
    for place in neuron.positions[max(0, last) :]:
        numbers = (f"{number:+.3f}" for number in (place.gate, place.natural, place.clamped))
        values.add_row(str(place.position), place.display, *numbers)
    return [about, values]


def _clamp_text(clamp: dict[str, Any]) -> str:
    unit = "" if clamp["unit"] == "absolute" else f" = {clamp['value']:.4g}"
    verb = "" if clamp["mode"] == "set" else f" ({clamp['mode']})"
    return f"{clamp['neuron_name']} {clamp['site']} = {clamp['written']}{unit}{verb}"


def sweep_tables(found: "Sweep") -> list[Any]:
    """The concept, the proposed signs, and a table for each site."""
    from interp.sweep_files import rows

    neuron, all_rows = found.neuron, rows(found)
    plain = all_rows[0]
    parts: list[Any] = []
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
        table = console.table(f"Value set at {site}", *columns)
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


def _shorten(text: str, width: int = 22) -> str:
    line = _text(text.replace("\n", "↵"))
    return line if len(line) <= width else line[: width - 1] + "…"


def _text(text: str) -> str:
    """Model output for a terminal: line breaks stay, other control characters are shown by their number."""
    return "".join(c if c == "\n" or c.isprintable() else f"⟨U+{ord(c):04X}⟩" for c in text)


def _join(tokens: list[str]) -> str:
    return "  ".join(tokens[:SHOWN_TOKENS])
