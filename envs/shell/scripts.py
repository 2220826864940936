"""Tasks of repairing a script, which is then run on inputs that the agent has not seen."""

import dataclasses
import random
from collections.abc import Callable, Sequence

from envs.api import Action
from envs.shell.tasks import WORDS, File, Problem, View, bash, finish, lines_of

INPUTS = 4  # files that a repaired script is run on


@dataclasses.dataclass(frozen=True)
class Script:
    """A script that reads the file whose name it is given."""

    about: str  # what it prints
    text: str
    mistakes: tuple[tuple[str, str], ...]  # (right, wrong): each alone makes it print something else on the inputs
    numbers: bool  # whether a line is a number, or words
    expected: Callable[[Sequence[str]], list[str]]


def _loop(*body: str) -> str:
    return "\n".join(["#!/bin/bash", *body, ""])


SCRIPTS = (
    Script(
        "the sum of the numbers above 0 in the file, one number a line",
        _loop(
            "total=0",
            "while read -r n; do",
            '  if [ "$n" -gt 0 ]; then',
            "    total=$((total + n))",
            "  fi",
            'done < "$1"',
            'echo "$total"',
        ),
        (("-gt", "-lt"), ("total + n", "total + 1"), ("total=0", "total=1")),
        True,
        lambda lines: [str(sum(max(0, int(line)) for line in lines))],
    ),
    Script(
        "the largest number in the file, one number a line",
        _loop(
            'best=$(head -n 1 "$1")',
            "while read -r n; do",
            '  if [ "$n" -gt "$best" ]; then',
            "    best=$n",
            "  fi",
            'done < "$1"',
            'echo "$best"',
        ),
        (('best=$(head -n 1 "$1")', "best=0"), ("-gt", "-lt"), ("best=$n", "best=n")),
        True,
        lambda lines: [str(max(int(line) for line in lines))],
    ),
    Script(
        "how many lines of the file have more than 20 characters",
        _loop(
            "count=0",
            "while IFS= read -r line; do",
            '  if [ "${#line}" -gt 20 ]; then',
            "    count=$((count + 1))",
            "  fi",
            'done < "$1"',
            'echo "$count"',
        ),
        (("${#line}", "$line"), ("count + 1", "count + 2"), ("-gt", "-ge")),
        False,
        lambda lines: [str(sum(len(line) > 20 for line in lines))],
    ),
    Script(
        "each line of the file with its words in reverse order, one blank between them",
        _loop(
            "while IFS= read -r line; do",
            '  out=""',
            "  for word in $line; do",
            '    out="$word $out"',
            "  done",
            '  echo "${out% }"',
            'done < "$1"',
        ),
        (('out="$word $out"', 'out="$out $word"'), ('out=""', ":"), ("${out% }", "${out%% *}")),
        False,
        lambda lines: [" ".join(reversed(line.split())) for line in lines],
    ),
    Script(
        "the lines of the file in their order, each once, where it comes first, and unchanged",
        _loop(
            "declare -A seen",
            "while IFS= read -r line; do",
            '  if [ -z "${seen[x$line]}" ]; then',
            '    echo "$line"',
            '    seen["x$line"]=1',
            "  fi",
            'done < "$1"',
        ),
        (("-z", "-n"), ('echo "$line"', "echo $line"), ('seen["x$line"]=1', 'seen["x$line"]=')),
        False,
        lambda lines: list(dict.fromkeys(lines)),
    ),
)


def inputs(rng: random.Random, script: Script) -> list[list[str]]:
    """Files on which every mistake shows: the first has the edge cases, among them negative numbers only."""
    found = []
    for i in range(INPUTS):
        if script.numbers:
            lines = [str(rng.randint(-99, -2)) for _ in range(5)]
            lines += [str(n) for n in rng.sample(range(2, 500), rng.randint(4, 9))] if i else []
            rng.shuffle(lines)
        else:
            lines = [" ".join(rng.choice(WORDS) for _ in range(rng.randint(3, 6))) for _ in range(rng.randint(3, 8))]
            lines += ["x" * 10 + " " + "y" * 9, "two  blanks  here", lines[0]]
        found.append(lines)
    return found


def script(rng: random.Random, level: int) -> Problem:
    """Repair a script with as many mistakes as the level."""
    chosen = rng.choice(SCRIPTS)
    broken, steps = chosen.text, []
    for right, wrong in rng.sample(chosen.mistakes, level):
        line = next(line for line in broken.split("\n") if right in line)
        changed = line.replace(right, wrong, 1)
        broken = broken.replace(right, wrong, 1)
        steps.append((line, changed))
    files = inputs(rng, chosen)
    example = inputs(rng, chosen)[1]
    expected = [chosen.expected(lines) for lines in files]
    mistakes = "a mistake" if level == 1 else f"{level} mistakes"

    def check(view: View) -> float:
        text = view.data("tool.sh")
        printed = view.trial(text, [lines_of(lines) for lines in files]) if text else None
        return float(printed is not None and [_lines(out) for out in printed] == expected)

    return Problem(
        f"/desk/tool.sh is called with the name of a file, as in `bash tool.sh example.txt`. It should print {chosen.about}. "
        f"But it has {mistakes}. Repair it. For /desk/example.txt it should print what is in /desk/expected.txt.",
        {
            "tool.sh": File(broken.encode(), 0o755),
            "example.txt": File(lines_of(example)),
            "expected.txt": File(lines_of(chosen.expected(example))),
        },
        check,
        (
            *(
                Action(
                    "str_replace_editor",
                    {"command": "str_replace", "path": "/desk/tool.sh", "old_str": changed, "new_str": line},
                )
                for line, changed in reversed(steps)
            ),
            bash("cd /desk && bash tool.sh example.txt | diff - expected.txt"),
            finish(),
        ),
    )


def _lines(text: str) -> list[str]:
    return text.rstrip("\n").split("\n")


KINDS = {"script": script}
