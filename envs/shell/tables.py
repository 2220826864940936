"""Tasks of working on records: reports, merges, joins, logs, JSON."""

import json
import random
import re

from envs.api import Action
from envs.shell.tasks import (
    NOUNS,
    PEOPLE,
    SIZES,
    WORDS,
    File,
    Problem,
    View,
    bash,
    finish,
    finish_with_output,
    lines_of,
    prose,
    same_answer,
    same_lines,
    sentence,
)

REGIONS = ("north", "south", "east", "west", "center")


def report(rng: random.Random, level: int) -> Problem:
    """Totals by region of a CSV file."""
    rows, totals, counts = ["id,region,person,amount"], dict.fromkeys(REGIONS, 0), dict.fromkeys(REGIONS, 0)
    for i in range(4 * SIZES[level]):
        region, amount = rng.choice(REGIONS), rng.randint(-200, 2000)
        rows.append(f"{i + 1},{region},{rng.choice(PEOPLE)},{amount}")
        totals[region] += amount
        counts[region] += 1
    expected = [f"{region},{counts[region]},{totals[region]}" for region in sorted(REGIONS) if counts[region]]
    return Problem(
        "/desk/sales.csv has the columns id, region, person and amount. Write /desk/report.csv: the header region,count,total, "
        "then a line for each region that occurs, with the number of its sales and the sum of their amounts, sorted by region.",
        {"sales.csv": File(lines_of(rows))},
        same_lines("report.csv", ["region,count,total", *expected]),
        (
            bash(
                "cd /desk && { echo region,count,total; tail -n +2 sales.csv | awk -F, '{ n[$2]++; s[$2] += $4 } "
                'END { for (r in n) print r "," n[r] "," s[r] }\' | LC_ALL=C sort; } > report.csv'
            ),
            finish(),
        ),
    )


def merge(rng: random.Random, level: int) -> Problem:
    """Merge lists, sort them, drop what occurs twice."""
    files: dict[str, File] = {}
    entries: set[str] = set()
    for i in range(1 + 2 * level):
        lines = [f"{rng.choice(WORDS)} {rng.choice(NOUNS)}" for _ in range(SIZES[level])]
        lines += rng.sample(sorted(entries), min(len(entries), 5))
        rng.shuffle(lines)
        entries |= set(lines)
        files[f"lists/{i + 1:02d}.txt"] = File(lines_of([line + rng.choice(("", "", " ", "\t")) for line in lines]))
    return Problem(
        "Merge the lines of all files in /desk/lists into /desk/all.txt: without blanks and tabs at the ends of lines, each "
        "line once, in byte order (LC_ALL=C).",
        files,
        lambda view: float(view.data("all.txt") == lines_of(sorted(entries))),
        (bash("cat /desk/lists/*.txt | sed 's/[[:blank:]]*$//' | LC_ALL=C sort -u > /desk/all.txt"), finish()),
    )


def log(rng: random.Random, level: int) -> Problem:
    """Which client got the most errors?"""
    clients = [f"10.{rng.randint(0, 9)}.{rng.randint(0, 99)}.{i}" for i in range(1, 4 + 3 * level)]
    paths = [f"/{noun}" for noun in rng.sample(NOUNS, 6)]
    counts = dict.fromkeys(clients, 0)
    lines = []

    def entry(client: str, status: int) -> None:
        at = f"[{rng.randint(1, 28):02d}/Mar/2024:{rng.randint(0, 23):02d}:{rng.randint(0, 59):02d}:{rng.randint(0, 59):02d}]"
        lines.append(f'{client} - - {at} "GET {rng.choice(paths)} HTTP/1.1" {status} {rng.randint(100, 9999)}')
        counts[client] += status >= 500

    for _ in range(8 * SIZES[level]):
        entry(rng.choice(clients), rng.choice((200, 200, 200, 301, 404, 404, 500, 503)))
    best = max(clients, key=lambda client: counts[client])
    for _ in range(1 + sum(counts[client] == counts[best] for client in clients)):
        entry(best, 500)
    rng.shuffle(lines)
    half = len(lines) // 2
    return Problem(
        "/desk/logs holds the logs of a web server. Which client (the address at the beginning of a line) got the most answers "
        "with a status from 500 to 599 (the number after the request), over all logs? Give its address as the content of "
        "finished.",
        {"logs/access.log": File(lines_of(lines[half:])), "logs/access.log.1": File(lines_of(lines[:half]))},
        same_answer(best),
        (
            bash("cat /desk/logs/* | awk '$8 ~ /^5[0-9][0-9]$/ { print $1 }' | sort | uniq -c | sort -n | sed -n '$s/.* //p'"),
            finish_with_output,
        ),
    )


def transform(rng: random.Random, level: int) -> Problem:
    """Filter and reshape JSON."""
    limit = rng.randint(30, 50)
    people = []
    for i in range(SIZES[level]):
        people.append(
            {
                "id": i + 1,
                "name": {"first": rng.choice(PEOPLE), "last": rng.choice(NOUNS)},
                "age": rng.randint(18, 70),
                "tags": rng.sample(WORDS, rng.randint(0, 3)),
            }
        )
    people[0]["age"] = limit
    rng.shuffle(people)
    expected = [
        {"name": f"{person['name']['first']} {person['name']['last']}", "tags": sorted(person["tags"])}  # type: ignore[index, call-overload]
        for person in sorted(people, key=lambda person: int(str(person["id"])))
        if int(str(person["age"])) >= limit
    ]

    def check(view: View) -> float:
        try:
            return float(json.loads(view.text("adults.json") or "null") == expected)
        except (ValueError, RecursionError):
            return 0.0

    program = f"""import json
people = [p for p in json.load(open("/desk/people.json")) if p["age"] >= {limit}]
people.sort(key=lambda p: p["id"])
json.dump([dict(name=p["name"]["first"] + " " + p["name"]["last"], tags=sorted(p["tags"])) for p in people],
          open("/desk/adults.json", "w"))"""
    return Problem(
        f"/desk/people.json is a list of objects. Write /desk/adults.json: a list of one object for each person whose age is "
        f'at least {limit}, in the order of their ids, with "name" (first name, a blank, last name) and "tags" (sorted).',
        {"people.json": File(json.dumps(people, indent=1).encode())},
        check,
        (Action("JupyterCI", {"code": program, "timeout": 30.0}), finish()),
    )


def extract(rng: random.Random, level: int) -> Problem:
    """Pull all mail addresses out of text."""
    files: dict[str, list[str]] = {}
    found: set[str] = set()
    for i in range(SIZES[level]):
        lines = prose(rng, rng.randint(3, 8))
        for _ in range(rng.randint(0, 3)):
            address = f"{rng.choice(PEOPLE)}.{rng.choice(NOUNS)}@{rng.choice(WORDS)}.example"
            found.add(address)
            shown = rng.choice((address, f"<{address}>", f"({address})", f"{address},"))
            lines.insert(rng.randrange(len(lines)), f"{rng.choice(WORDS).capitalize()} {shown} {sentence(rng).lower()}")
        if rng.random() < 0.3:
            lines.append(f"Meet {rng.choice(PEOPLE)} @ {rng.choice(NOUNS)} or {rng.choice(WORDS)}@home")
        files[f"mail/{i + 1:03d}.txt"] = lines
    if not found:
        files["mail/001.txt"].append("Write to alice.anchor@paper.example")
        found.add("alice.anchor@paper.example")
    assert found == {hit for lines in files.values() for line in lines for hit in re.findall(r"[a-z.]+@[a-z]+\.example", line)}
    return Problem(
        "The texts in /desk/mail contain mail addresses that end in .example. Write them to /desk/addresses.txt: each once, "
        "one a line, in byte order (LC_ALL=C).",
        {path: File(lines_of(lines)) for path, lines in files.items()},
        same_lines("addresses.txt", sorted(found)),
        (bash("cd /desk && grep -rhoE '[a-z.]+@[a-z]+\\.example' mail | LC_ALL=C sort -u > addresses.txt"), finish()),
    )


def join(rng: random.Random, level: int) -> Problem:
    """Join two tables on a number."""
    ids = rng.sample(range(100, 1000), 2 * SIZES[level])
    left, right = ids[: len(ids) * 3 // 4], ids[len(ids) // 4 :]
    persons = {i: rng.choice(PEOPLE) for i in left}
    cities = {i: rng.choice(NOUNS) for i in right}
    rng.shuffle(left)
    rng.shuffle(right)
    both = sorted(set(left) & set(right))
    return Problem(
        "/desk/persons.tsv and /desk/cities.tsv have two columns with a tab between: a number, and a name or a city. Write "
        "/desk/joined.tsv: number, name and city, with tabs between, for the numbers that are in both files, sorted by number.",
        {
            "persons.tsv": File(lines_of([f"{i}\t{persons[i]}" for i in left])),
            "cities.tsv": File(lines_of([f"{i}\t{cities[i]}" for i in right])),
        },
        same_lines("joined.tsv", [f"{i}\t{persons[i]}\t{cities[i]}" for i in both]),
        (
            bash("cd /desk && export LC_ALL=C; sort persons.tsv > /tmp/p; sort cities.tsv > /tmp/c"),
            bash("join -t $'\\t' /tmp/p /tmp/c > /desk/joined.tsv"),
            finish(),
        ),
    )


KINDS = {"extract": extract, "join": join, "log": log, "merge": merge, "report": report, "transform": transform}
