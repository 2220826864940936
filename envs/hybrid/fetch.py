"""Tasks whose material is downloaded from the page: figures for a form, lines of a log, an archive, a script, checksums."""

import hashlib
import io
import random
import tarfile

from envs.api import Action
from envs.hybrid.tasks import BEGIN, Plan, Problem, Sight, sent_text, upload, write
from envs.shell.tables import REGIONS
from envs.shell.tasks import NOUNS, PEOPLE, SIZES, WORDS, bash, finish, lines_of, names, prose


def totals(rng: random.Random, level: int) -> Problem:
    """Download a table, add up, fill in a form."""
    sums = dict.fromkeys(REGIONS, 0)
    rows = ["id,region,person,amount"]
    for i in range(4 * SIZES[level]):
        region, amount = REGIONS[i] if i < len(REGIONS) else rng.choice(REGIONS), rng.randint(-200, 2000)
        rows.append(f"{i + 1},{region},{rng.choice(PEOPLE)},{amount}")
        sums[region] += amount
    asked = rng.sample(REGIONS, 1 + level)

    def plan(sight: Sight) -> Plan:
        yield sight.click("get-sales.csv")
        yield bash("awk -F, 'NR > 1 { s[$2] += $4 } END { for (r in s) print r, s[r] }' /desk/sales.csv | LC_ALL=C sort")
        found = dict(line.split() for line in sight.output())
        for region in asked:
            yield sight.click(region)
            yield write(found[region])
        yield sight.click("send")
        yield finish()

    return Problem(
        "Download sales.csv from the page; it comes to /desk. Fill in the page's form: for each region that it asks for, the "
        "sum of the amounts of its sales. Send it.",
        "totals",
        {"file": "sales.csv", "regions": asked},
        {"sales.csv": lines_of(rows)},
        {},
        lambda seen: float(seen.sent == {region: str(sums[region]) for region in asked}),
        plan,
    )


def filter(rng: random.Random, level: int) -> Problem:
    """Download a log, keep the lines that are asked for, upload them."""
    service, near = rng.sample(NOUNS, 2)
    services = [service, f"{service}-worker", near]  # one's name begins as another's
    wanted = rng.choice(("ERROR", "WARN"))
    lines, expected = [], []
    for i in range(4 * SIZES[level]):
        rank, by = rng.choice(("INFO", "INFO", "WARN", "ERROR")), rng.choice(services)
        if i == 3:
            rank, by = wanted, service
        message = " ".join(rng.choice(WORDS) for _ in range(rng.randint(2, 5)))
        if rng.random() < 0.2:
            message = f"{wanted} {service} {message}"  # where a search of the whole line goes wrong
        lines.append(f"2026-01-{1 + i // 100:02d}T{i // 60 % 24:02d}:{i % 60:02d}:00Z {rank} {by} {message}")
        if (rank, by) == (wanted, service):
            expected.append(lines[-1])

    def plan(sight: Sight) -> Plan:
        yield sight.click("get-service.log")
        yield bash(f'awk \'$2 == "{wanted}" && $3 == "{service}"\' /desk/service.log | tee /desk/evidence.txt | tail -n 4')
        yield from upload(sight, "evidence.txt")
        yield finish()

    return Problem(
        "Download service.log from the page; it comes to /desk. Make a file of the lines that the page asks for, upload it "
        "there, and send it.",
        "filter",
        {"file": "service.log", "service": service, "level": wanted},
        {"service.log": lines_of(lines)},
        {},
        sent_text(expected),
        plan,
    )


def unpack(rng: random.Random, level: int) -> Problem:
    """Download an archive, look into its files, tick some of them in the page."""
    listed = names(rng, 2 + 4 * level, ".txt")
    approved = sorted(rng.sample(listed, rng.randint(2, len(listed) - 2)))
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w", format=tarfile.USTAR_FORMAT) as tar:
        for name in rng.sample(listed, len(listed)):
            other = rng.choice(("status: rejected", "status: approved later", "draft"))
            first = "status: approved" if name in approved else other
            later = ["status: approved"] if rng.random() < 0.3 else []
            data = lines_of([first, *prose(rng, 3), *later])
            info = tarfile.TarInfo(f"documents/{rng.choice('abc')}/{name}")
            info.size, info.mtime = len(data), BEGIN // 10**9
            tar.addfile(info, io.BytesIO(data))

    def plan(sight: Sight) -> Plan:
        yield sight.click("get-documents.tar")
        yield bash(
            "cd /desk && tar -xf documents.tar && find documents -type f | while read -r file; do "
            '[ "$(head -n 1 "$file")" = "status: approved" ] && basename "$file"; done | LC_ALL=C sort'
        )
        for name in sight.output():
            yield sight.click(name)
        yield sight.click("send")
        yield finish()

    return Problem(
        "Download documents.tar from the page; it comes to /desk. Unpack it, find out which of its documents are approved, "
        "tick exactly those in the page, and send the list.",
        "unpack",
        {"file": "documents.tar", "names": sorted(listed)},
        {"documents.tar": archive.getvalue()},
        {},
        lambda seen: float(seen.sent == approved),
        plan,
    )


SCRIPT = """#!/bin/bash
# Prints the items that must be ordered, sorted, one on a line, and then their number.
limit=%d
tail -n +2 stock.csv | awk -F, -v limit="$limit" '$3 < limit { print $1 }' | LC_ALL=C sort > order.txt
cat order.txt
echo "total: $(wc -l < order.txt)"
"""
# What is right in the script, and what stands there instead.
MISTAKES = (
    ("tail -n +2", "tail -n +3"),
    ("awk -F,", "awk -F';'"),
    ("$3 < limit", "$2 < limit"),
    ("$3 < limit", "$3 > limit"),
    ("print $1", "print $3"),
    ("wc -l", "wc -c"),
    ("cat order.txt", "tail -n 1 order.txt"),
)


def repair(rng: random.Random, level: int) -> Problem:
    """Download a script with a mistake and its data, correct it, upload what it prints."""
    limit = rng.randint(15, 30)
    right, wrong = rng.choice(MISTAKES)
    items = [name.rsplit("-", 1)[0] for name in names(rng, SIZES[level])]
    items = [f"{item}-{i}" for i, item in enumerate(items)]
    rows, due = ["name,price,count"], []
    for i, item in enumerate(items):
        count = rng.randint(0, limit - 1) if i == 0 or rng.random() < 0.4 else rng.randint(limit, 90)  # the first is due
        count = limit if i == 1 else count
        count = rng.randint(0, limit - 1) if i == 2 else count
        rows.append(f"{item},{rng.randint(limit, 400)},{count}")
        due += [item] if count < limit else []
    expected = [*sorted(due), f"total: {len(due)}"]

    def plan(sight: Sight) -> Plan:
        yield sight.click("get-summary.sh")
        yield sight.click("get-stock.csv")
        edit = {"command": "str_replace", "path": "/desk/summary.sh", "old_str": wrong, "new_str": right}
        yield Action("str_replace_editor", edit)
        yield bash("cd /desk && bash summary.sh | tee result.txt | tail -n 4")
        yield from upload(sight, "/desk/result.txt")
        yield finish()

    return Problem(
        "Download summary.sh and stock.csv from the page; they come to /desk. The script has a mistake: correct it, run it, "
        "and upload a file with what it prints to the page. Send it.",
        "repair",
        {"script": "summary.sh", "file": "stock.csv", "limit": limit},
        {"summary.sh": (SCRIPT % limit).replace(right, wrong).encode(), "stock.csv": lines_of(rows)},
        {},
        sent_text(expected),
        plan,
    )


def checksums(rng: random.Random, level: int) -> Problem:
    """Download files, compare them with the sums in the page, report the damaged ones."""
    files = {name: lines_of(prose(rng, 20)) for name in names(rng, 2 + 2 * level, ".txt")}
    damaged = sorted(rng.sample(sorted(files), level))
    sums = {name: hashlib.sha256(data).hexdigest() for name, data in files.items()}
    for name in damaged:
        place = rng.randrange(len(files[name]) - 1)
        changed = bytes((files[name][place] ^ 1,))
        files[name] = files[name][:place] + changed + files[name][place + 1 :]

    def plan(sight: Sight) -> Plan:
        for name in sums:
            yield sight.click(f"get-{name}")
        listed = [(name, sight.all(id=f"sum-{name}")[0].text) for name in sums]
        lines = "".join(f"{value}  {name}\n" for name, value in listed)
        yield Action("str_replace_editor", {"command": "create", "path": "/desk/SHA256SUMS", "file_text": lines})
        yield bash("cd /desk && sha256sum --check SHA256SUMS 2>/dev/null | sed -n 's/: FAILED$//p'")
        for name in sight.output():
            yield sight.click(name)
        yield sight.click("send")
        yield finish()

    return Problem(
        "The page offers some files with their SHA-256 sums. Download all of them; they come to /desk. Tick those whose "
        "content does not have the sum that the page lists, and report them.",
        "checksums",
        {"files": [list(pair) for pair in sums.items()]},
        files,
        {},
        lambda seen: float(isinstance(seen.sent, list) and sorted(map(str, seen.sent)) == damaged),
        plan,
    )


KINDS = {function.__name__: function for function in (totals, filter, unpack, repair, checksums)}
