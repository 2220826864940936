"""Tasks of looking through files: find, count, compare."""

import hashlib
import random

from envs.shell.tasks import (
    SIZES,
    File,
    Problem,
    bash,
    code,
    finish,
    finish_with_output,
    folders,
    lines_of,
    names,
    prose,
    same_answer,
    same_files,
    same_lines,
)


def find(rng: random.Random, level: int) -> Problem:
    """Which file mentions a number?"""
    count = SIZES[level]
    wanted = code(rng)
    places = folders(rng, 3 + 3 * level)
    files = {}
    for name in names(rng, count, ".txt"):
        other = code(rng)
        while other == wanted:
            other = code(rng)
        text = [*prose(rng, rng.randint(2, 6)), f"Order {other} was delivered.", *prose(rng, rng.randint(1, 4))]
        files[f"{rng.choice(places)}/{name}"] = text
    path = rng.choice(sorted(files))
    files[path].insert(rng.randint(0, len(files[path])), f"Order {wanted} is still open.")
    near = [other for other in files if other != path]
    for other in rng.sample(near, len(near) // 4):  # look alikes
        files[other].append(f"Order {wanted[:-1]} is still open.")
    return Problem(
        f"Exactly one text file below /desk mentions the order {wanted}. Which one? Give its path, relative to /desk, as the "
        "content of finished.",
        {path: File(lines_of(text)) for path, text in files.items()},
        same_answer(path),
        (bash(f"cd /desk && grep -rlw -- '{wanted}' . | sed 's|^\\./||'"), finish_with_output),
    )


def count(rng: random.Random, level: int) -> Problem:
    """How many files of one type have more than so many lines?"""
    suffix, limit = rng.choice((".log", ".csv", ".md")), rng.randint(8, 20)
    places = folders(rng, 2 + 3 * level)
    files, found = {}, 0
    for name in names(rng, SIZES[level]):
        ending, size = rng.choice((suffix, suffix, ".txt", ".dat")), rng.randint(1, 30)
        if rng.random() < 0.15:
            size = limit
        files[f"{rng.choice(places)}/{name}{ending}"] = File(lines_of(prose(rng, size)))
        found += ending == suffix and size > limit
    return Problem(
        f"How many files below /desk whose name ends in {suffix} have more than {limit} lines? Give the number as the content "
        "of finished.",
        files,
        same_answer(str(found)),
        (
            bash(f"cd /desk && find . -name '*{suffix}' -exec awk 'END {{ print NR }}' {{}} \\; | awk '$1 > {limit}' | wc -l"),
            finish_with_output,
        ),
    )


def largest(rng: random.Random, level: int) -> Problem:
    """Which folder holds the most bytes?"""
    sides = ("north", "south", "east", "west", "upper", "lower", "inner", "outer")
    tops = [f"{side}-data" for side in rng.sample(sides, 3 + level)]
    files, sizes = {}, dict.fromkeys(tops, 0)
    for name in names(rng, SIZES[level], ".bin"):
        top = rng.choice(tops)
        data = rng.randbytes(rng.randint(1, 3000))
        files[f"{top}/{rng.choice(('', 'old/', 'new/', 'new/parts/'))}{name}"] = File(data)
        sizes[top] += len(data)
    best = max(tops, key=lambda top: sizes[top])
    files[f"{best}/last.bin"] = File(rng.randbytes(max(1, sorted(sizes.values())[-2] - sizes[best] + rng.randint(1, 50))))
    for top in tops:  # so that every folder is there
        files.setdefault(f"{top}/.keep", File(b""))
    return Problem(
        "Each folder directly in /desk holds files, in folders of its own too. In which one do the sizes of all files, in "
        "bytes, add up to the most? Give its name as the content of finished.",
        files,
        same_answer(best),
        (
            bash(
                "cd /desk && find . -type f -printf '%P %s\\n' | awk '{ split($1, p, \"/\"); s[p[1]] += $2 } "
                "END { for (t in s) print s[t], t }' | sort -n | tail -1 | cut -d' ' -f2"
            ),
            finish_with_output,
        ),
    )


def duplicates(rng: random.Random, level: int) -> Problem:
    """Delete all but one of the files with the same content."""
    places = folders(rng, 2 + 2 * level)
    originals = [lines_of(prose(rng, rng.randint(1, 5))) for _ in range(SIZES[level])]
    copies = [rng.choice(originals[: max(2, len(originals) // 3)]) for _ in range(max(3, len(originals) // 2))]
    paths = [f"{rng.choice(places)}/{name}" for name in names(rng, len(originals) + len(copies), ".txt")]
    contents = dict(zip(paths, [*originals, *copies], strict=True))
    kept: dict[bytes, str] = {}
    for path in sorted(contents):
        kept.setdefault(contents[path], path)
    expected = {path: data for data, path in kept.items()}
    return Problem(
        "Some files below /desk have the same content as another one. Of each group of files with the same content keep the "
        "one whose path comes first in byte order (LC_ALL=C) and delete the others. Leave all else as it is.",
        {path: File(data) for path, data in contents.items()},
        same_files("", expected),
        (
            bash(
                "cd /desk && find . -type f -printf '%P\\n' | LC_ALL=C sort | xargs -d '\\n' sha256sum | "
                "awk 'seen[$1]++ { print substr($0, 67) }' | xargs -r -d '\\n' rm --"
            ),
            finish(),
        ),
    )


def changes(rng: random.Random, level: int) -> Problem:
    """What was added, deleted and changed between two folders?"""
    old = {f"{rng.choice(('', 'src/', 'src/lib/', 'doc/'))}{name}": prose(rng, 4) for name in names(rng, SIZES[level], ".txt")}
    new = {path: list(text) for path, text in old.items()}
    paths = sorted(old)
    rng.shuffle(paths)
    few = max(1, len(paths) // 8)
    expected = []
    for path in paths[:few]:
        del new[path]
        expected.append(f"D {path}")
    for path in paths[few : 2 * few]:
        new[path][rng.randrange(4)] += " Really."
        expected.append(f"M {path}")
    for name in names(rng, few, ".new"):
        new[f"src/{name}"] = prose(rng, 2)
        expected.append(f"A src/{name}")
    files = {f"old/{path}": File(lines_of(text)) for path, text in old.items()}
    files |= {f"new/{path}": File(lines_of(text)) for path, text in new.items()}
    return Problem(
        "/desk/old and /desk/new are two versions of a project. Write /desk/changes.txt: one line for each file that was "
        "added, deleted or modified, with A, D or M, a blank, and its path relative to the version's folder. Sort the lines in "
        "byte order (LC_ALL=C).",
        files,
        same_lines("changes.txt", sorted(expected)),
        (
            bash(
                "cd /desk && (cd old && find . -type f -printf '%P\\n') | LC_ALL=C sort > /tmp/o; "
                "(cd new && find . -type f -printf '%P\\n') | LC_ALL=C sort > /tmp/n; export LC_ALL=C; "
                "{ comm -23 /tmp/o /tmp/n | sed 's/^/D /'; comm -13 /tmp/o /tmp/n | sed 's/^/A /'; "
                'comm -12 /tmp/o /tmp/n | while IFS= read -r p; do cmp -s "old/$p" "new/$p" || echo "M $p"; done; } '
                "| sort > changes.txt"
            ),
            finish(),
        ),
    )


def checksum(rng: random.Random, level: int) -> Problem:
    """Which files are not what their checksums say?"""
    files: dict[str, File] = {}
    sums, bad = [], []
    for name in names(rng, SIZES[level], ".dat"):
        data = rng.randbytes(rng.randint(20, 400))
        sums.append(f"{hashlib.sha256(data).hexdigest()}  {name}")
        if rng.random() < 0.2 or not files:
            at = rng.randrange(len(data))
            data = data[:at] + bytes([data[at] ^ (1 + rng.randrange(255))]) + data[at + 1 :]
            bad.append(name)
        files[f"parts/{name}"] = File(data)
    files["parts/SHA256SUMS"] = File(lines_of(sums))
    return Problem(
        "/desk/parts/SHA256SUMS lists the checksums of the files beside it. Some files were damaged. Write their names to "
        "/desk/damaged.txt, one a line, in byte order (LC_ALL=C).",
        files,
        same_lines("damaged.txt", sorted(bad)),
        (
            bash(
                "export LC_ALL=C; cd /desk/parts && sha256sum -c SHA256SUMS 2>/dev/null | "
                "sed -n 's/: FAILED$//p' | sort > ../damaged.txt"
            ),
            finish(),
        ),
    )


KINDS = {"find": find, "count": count, "largest": largest, "duplicates": duplicates, "changes": changes, "checksum": checksum}
