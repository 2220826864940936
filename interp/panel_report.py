"""The panel's report: `panel.md`, `panel.json` and a picture of every dose curve, each whole or not at all."""

import json
from pathlib import Path
from typing import Any

import numpy as np

from interp import sweep_plot
from interp.panel import ANIMAL, CONCEPTS, PAPER, Found, Panel
from interp.query import Match, as_json
from interp.sweep import Sweep, share
from interp.sweep_files import make_folder, rows
from jaxllm.files import write_atomically


def write(panel: Panel, out: Path) -> list[Path]:
    """Writes the report into ``out`` and returns the files, `panel.md` first. Raises UserError when ``out`` is no folder."""
    make_folder(out)
    contents: dict[str, bytes] = {
        "panel.md": markdown(panel).encode(),
        "panel.json": json.dumps(facts(panel), indent=1, ensure_ascii=False, allow_nan=False).encode(),
    }
    for check, dose in panel.dose.items():
        model = panel.models[-1 if check == "R4" else 0]
        title = f"{check}: L{dose.neuron.layer}/N{dose.neuron.neuron} of {model}, {dose.concept.name}"
        contents[_picture(check)] = sweep_plot.png(dose, title)
    for name, data in contents.items():
        write_atomically(out / name, data)
    return [out / name for name in contents]


def facts(panel: Panel) -> dict[str, Any]:
    """Everything as JSON values."""
    timing = panel.timing
    return as_json(
        {
            "models": list(panel.models),
            "paper_models": panel.paper,
            "paper": PAPER if panel.paper else None,
            "found": dict(panel.found),
            "dose": {
                check: {"signs": dose.signs, "natural": dict(dose.natural), "rows": rows(dose)}
                for check, dose in panel.dose.items()
            },
            "match": panel.match,
            "timing": {
                "neurons": timing.neurons,
                "naive_seconds": timing.naive,
                "batched_seconds": timing.batched,
                "ratio": timing.ratio,
                "device": timing.device,
            },
            "missing": panel.missing,
        }
    )


def markdown(panel: Panel) -> str:
    """The report, without a title."""
    kind = (
        "These are the paper's models."
        if panel.paper
        else ("New data: these are not the paper's models, so there is no value to compare with.")
    )
    lines = [f"Models: {', '.join(f'`{name}`' for name in panel.models)}. {kind}", "", *_summary(panel), ""]
    for check, found in panel.found.items():
        lines += [f"## {check}: neurons for {_code(found.word)}", "", *_found(found), ""]
    for check, dose in panel.dose.items():
        if check != "R4":
            lines += [f"## {check}", "", *_dose(dose), "", f"![{check}]({_picture(check)})", ""]
    if "R4" in panel.dose:
        lines += [f"## R4: “{ANIMAL}”", "", *_answers(panel.dose["R4"]), "", f"![R4]({_picture('R4')})", ""]
    return "\n".join(lines).rstrip() + "\n"


def _summary(panel: Panel) -> list[str]:
    columns = ["check", "ours", *(["paper"] if panel.paper else [])]
    table = ["| " + " | ".join(columns) + " |", "| " + " | ".join("---" for _ in columns) + " |"]
    for check, text in _results(panel).items():
        cells = [check, text, *([PAPER[check[:2]]] if panel.paper else [])]
        table.append("| " + " | ".join(cells) + " |")
    return table


def _results(panel: Panel) -> dict[str, str]:
    out: dict[str, str] = {}
    for check, found in panel.found.items():
        out[check] = _best(found)
    for words in CONCEPTS.values():
        check = f"R3 {words[0].strip()}"
        out[check] = _direction(panel.dose[check]) if check in panel.dose else _not_run(panel, check)
    out["R4"] = _always(panel.dose["R4"]) if "R4" in panel.dose else _not_run(panel, "R4")
    if panel.match is None:
        out["R5"] = _not_run(panel, "R5")
    else:
        out["R5"] = "; ".join(f"norm {n}: {r.share:.1%} ({r.low:.1%} to {r.high:.1%})" for n, r in panel.match.items())
    t = panel.timing
    out["R6"] = (
        f"{t.neurons:,} neurons one by one {t.naive:,.0f} s (extrapolated), batched {t.batched:,.1f} s: "
        f"{t.ratio:.0f} times as fast, on {t.device}"
    )
    return out


def _not_run(panel: Panel, check: str) -> str:
    return f"not run: {panel.missing.get(check, 'not asked for')}"


def _best(found: Found) -> str:
    if not found.both:
        return f"no mapped neuron has {_code(found.word)} among its top tokens"
    best = found.both[0]
    tokens = "  ".join(_code(token.display) for token in best.tokens[:5])
    plus = f"; + poles alone: {_name(found.plus[0])}, p {found.plus[0].probability:.3f}" if found.plus else ""
    return f"{_name(best)}, p {best.probability:.3f}, {best.pole} pole: {tokens}{plus}"


def _direction(dose: Sweep) -> str:
    (own,) = dose.curve("up")
    mean, plain = own.p.mean(1), float(dose.plain.p.mean())
    values = [d.value for d in dose.doses["up"]]
    top, low = int(mean.argmax()), int(mean.argmin())
    random = [float(curve.p.mean(1).max()) for curve in dose.curve("up", "random")]
    control = f"; random neurons at most {max(random):.2g}" if random else ""
    return (
        f"L{own.layer}/N{own.neuron}: {plain:.2g} plain, highest {mean[top]:.2g} at {values[top]:g}, "
        f"lowest {mean[low]:.2g} at {values[low]:g}{control}"
    )


def _always(dose: Sweep) -> str:
    (own,) = dose.curve("up")
    best = max(range(len(own.greedy)), key=lambda i: _all_share(own, i))
    value = dose.doses["up"][best].value
    plain = share([*dose.plain.greedy[0], *(dose.plain.sampled[0] if dose.plain.sampled else ())])
    if not _all_share(own, best):
        return f"no value makes an answer name it; {plain:.0%} without a clamp"
    greedy = "so does the greedy one" if own.greedy[best][0].occurs else "the greedy one does not"
    return f"{_all_share(own, best):.0%} of answers name it at {value:g}, the best value, {greedy}; {plain:.0%} without a clamp"


def _all_share(curve: Any, i: int) -> float:
    return share([*curve.greedy[i], *(curve.sampled[i] if curve.sampled else ())])


def _found(found: Found) -> list[str]:
    lines = ["| by | neuron | pole | p | top tokens |", "| --- | --- | --- | --- | --- |"]
    for title, matches in (("+ pole", found.plus), ("either pole", found.both)):
        for match in matches[:5]:
            tokens = "  ".join(_code(token.display) for token in match.tokens)
            lines.append(f"| {title} | {_name(match)} | {match.pole} | {match.probability:.3f} | {tokens} |")
    return lines


def _dose(dose: Sweep) -> list[str]:
    (own,) = dose.curve("up")
    random = np.array([curve.p.mean(1) for curve in dose.curve("up", "random")])
    lines = ["| value | p | random neurons, highest p | in texts | fluency |", "| --- | --- | --- | --- | --- |"]
    for i, row in enumerate([r for r in rows(dose) if r["kind"] == "neuron"]):
        highest = f"{random[:, i].max():.2g}" if len(random) else ""
        texts = f"{row['share_greedy']:.0%} | {row['fluency']:.2f}" if own.greedy else " | "
        lines.append(f"| {_value(row)} | {row['p_mean']:.2g} | {highest} | {texts} |")
    sign = dose.signs["up"]
    return [f"Raised by {'+' if sign.sign > 0 else '-'} values ({sign.confidence}): {sign.reason}.", "", *lines]


def _answers(dose: Sweep) -> list[str]:
    (own,) = dose.curve("up")
    lines = ["| value | greedy answer | greedy | sampled | fluency |", "| --- | --- | --- | --- | --- |"]
    plain = rows(dose)[0]
    cells = [("none", dose.plain.greedy[0][0].text, plain)]
    found = [row for row in rows(dose) if row["kind"] == "neuron"]
    cells += [(_value(row), own.greedy[i][0].text, row) for i, row in enumerate(found)]
    for value, text, row in cells:
        sampled = "" if row["share_sampled"] is None else f"{row['share_sampled']:.0%}"
        lines.append(f"| {value} | {_code(text.strip())} | {row['share_greedy']:.0%} | {sampled} | {row['fluency']:.2f} |")
    return lines


def _value(row: dict[str, Any]) -> str:
    return f"{row['at']:.3g} (natural)" if row["written"] == "natural" else str(row["written"])


def _code(text: str) -> str:
    """Model output inside a Markdown table: one line, and nothing of it is markup."""
    line = " ".join(text.split()) or " "
    visible = "".join(c if c.isprintable() else f"⟨U+{ord(c):04X}⟩" for c in line)
    return "`" + visible.replace("`", "ˋ").replace("|", "¦") + "`"


def _name(match: Match) -> str:
    return f"L{match.layer}/N{match.neuron}"


def _picture(check: str) -> str:
    return check.lower().replace(" ", "-") + ".png"
