"""Tasks of changing files in place: rename, replace, configure, protect, pack, sort into folders."""

import io
import random
import tarfile

from envs.api import Action
from envs.shell.tasks import (
    MAX_ANSWER,
    NOUNS,
    PEOPLE,
    SIZES,
    WORDS,
    File,
    Problem,
    View,
    bash,
    finish,
    folders,
    lines_of,
    names,
    prose,
    same_files,
)


def rename(rng: random.Random, level: int) -> Problem:
    """Give files lower-case names with dashes. The reward is the part of them that is right."""
    files: dict[str, File] = {}
    expected: dict[str, bytes] = {}
    while len(files) < SIZES[level]:
        words = [rng.choice(WORDS).capitalize() for _ in range(rng.randint(2, 3))]
        stem, number = " ".join(words), rng.randint(1, 99)
        new = f"photos/{stem.lower().replace(' ', '-')}-{number}.jpg"
        if new not in expected:
            data = rng.randbytes(rng.randint(8, 60))
            files[f"photos/{stem} {number}.JPG"] = File(data)
            expected[new] = data
    note = lines_of(prose(rng, 3))

    def check(view: View) -> float:
        found = view.files("photos")
        if found is None or found.get("photos/READ ME.txt") != note or len(found) != len(expected) + 1:
            return 0.0
        return sum(found.get(path) == data for path, data in expected.items()) / len(expected)

    return Problem(
        "Rename every file in /desk/photos whose name ends in .JPG: letters in lower case, blanks become dashes, so that "
        '"Copper Bridge 7.JPG" becomes "copper-bridge-7.jpg". Leave other files as they are.',
        {**files, "photos/READ ME.txt": File(note)},
        check,
        (
            bash('cd /desk/photos && for f in *.JPG; do n=${f,,}; mv -- "$f" "${n// /-}"; done'),
            finish(),
        ),
    )


def replace(rng: random.Random, level: int) -> Problem:
    """Replace a word in a whole tree, but not within other words, nor in some files."""
    old, new = rng.sample(NOUNS, 2)
    places = [f"docs/{path}" for path in folders(rng, 2 + 2 * level)]
    files: dict[str, File] = {}
    expected: dict[str, bytes] = {}
    for name in names(rng, SIZES[level]):
        kind = rng.choice((".md", ".md", ".md", ".txt"))
        lines = prose(rng, rng.randint(2, 6))
        for i in range(len(lines)):
            if rng.random() < 0.6:
                lines[i] += f" The {rng.choice((old, old, old + 's', 'pre' + old, old.upper()))} and the {old}, of course."
        path = f"{rng.choice(places)}/{name}{kind}"
        if not files:
            path = path.removesuffix(kind) + ".md"
            lines.append(f"A {old}.")
        files[path] = File(lines_of(lines))
        changed = [_replaced(line, old, new) for line in lines] if path.endswith(".md") else lines
        expected[path] = lines_of(changed)
    return Problem(
        f"In all files below /desk/docs whose name ends in .md, replace the word {old} by {new}. Only the whole word in lower "
        f"case: leave {old}s, pre{old} and {old.upper()} as they are, and leave all other files alone.",
        files,
        same_files("docs", expected),
        (bash(f"find /desk/docs -name '*.md' -exec sed -i 's/\\b{old}\\b/{new}/g' {{}} +"), finish()),
    )


def _replaced(line: str, old: str, new: str) -> str:
    return " ".join(new + part[len(old) :] if part.rstrip(".,") == old else part for part in line.split(" "))


def config(rng: random.Random, level: int) -> Problem:
    """Change keys in one section of a configuration file."""
    keys = ("port", "timeout", "retries", "workers", "cache", "verbose", "level", "limit")
    sections = rng.sample(NOUNS, 3 + 2 * level)
    values = {section: {key: str(rng.randint(1, 9999)) for key in rng.sample(keys, 5)} for section in sections}
    comments = {section: f"; {rng.choice(WORDS)} {rng.choice(WORDS)}" for section in sections}

    def text() -> bytes:
        lines = ["# settings", ""]
        for section in sections:
            lines += [f"[{section}]", comments[section], *(f"{key} = {value}" for key, value in values[section].items()), ""]
        return lines_of(lines)

    before = text()
    wanted = {}
    for section in rng.sample(sections, level):
        key = rng.choice(list(values[section]))
        old = values[section][key]
        values[section][key] = wanted[section, key] = str(int(old) + rng.randint(1, 500))
    after = text()
    steps = tuple(
        bash(f"sed -i '/^\\[{section}\\]$/,/^\\[/ s/^{key} = .*/{key} = {value}/' /desk/app.ini")
        for (section, key), value in wanted.items()
    )
    orders = ", ".join(f"{key} to {value} in section {section}" for (section, key), value in wanted.items())
    return Problem(
        f"Edit /desk/app.ini: set {orders}. Leave everything else in the file as it is.",
        {"app.ini": File(before)},
        lambda view: float(view.data("app.ini") == after),
        (*steps, finish()),
    )


def permissions(rng: random.Random, level: int) -> Problem:
    """Set permissions by type of file. The reward is the part of those to change that is right."""
    rules = {".sh": 0o755, ".key": 0o600, ".txt": 0o644}
    files: dict[str, File] = {}
    wanted: dict[str, int] = {}
    places = folders(rng, 1 + 2 * level)
    for name in names(rng, SIZES[level]):
        suffix = rng.choice(list(rules))
        path = f"{rng.choice(places)}/{name}{suffix}"
        mode = rng.choice([mode for mode in (0o644, 0o600, 0o755, 0o666, 0o640) if mode != rules[suffix]])
        if rng.random() < 0.25 and wanted:
            mode = rules[suffix]
        else:
            wanted[path] = rules[suffix]
        files[path] = File(lines_of(prose(rng, 1)), mode)

    def check(view: View) -> float:
        found = view.files()
        if found != {path: file.data for path, file in files.items()}:
            return 0.0
        modes = view.modes()
        if any(modes.get(path) != file.mode for path, file in files.items() if path not in wanted):
            return 0.0
        return sum(modes.get(path) == mode for path, mode in wanted.items()) / len(wanted)

    return Problem(
        "Set the permissions of all files below /desk: 755 for names that end in .sh, 600 for .key, 644 for .txt.",
        files,
        check,
        (
            bash("cd /desk && find . -name '*.sh' -exec chmod 755 {} +"),
            bash("cd /desk && find . -name '*.key' -exec chmod 600 {} +; find . -name '*.txt' -exec chmod 644 {} +"),
            finish(),
        ),
    )


def archive(rng: random.Random, level: int) -> Problem:
    """Pack some files into an archive and delete them."""
    places = folders(rng, 1 + 2 * level)
    files = {}
    for name in names(rng, SIZES[level]):
        files[f"logs/{rng.choice(places)}/{name}{rng.choice(('.log', '.log', '.txt'))}"] = File(lines_of(prose(rng, 2)))
    files[f"logs/{names(rng, 1)[0]}.log"] = File(lines_of(prose(rng, 2)))
    packed = {path.removeprefix("logs/"): file.data for path, file in files.items() if path.endswith(".log")}
    left = {path: file.data for path, file in files.items() if not path.endswith(".log")}

    def check(view: View) -> float:
        data = view.data("logs.tar.gz")
        return float(data is not None and _unpacked(data) == packed and view.files("logs") == left)

    return Problem(
        "Pack all files below /desk/logs whose name ends in .log into /desk/logs.tar.gz, a gzip-compressed tar archive with "
        "paths relative to /desk/logs, and then delete them. Leave the other files.",
        files,
        check,
        (
            bash("cd /desk/logs && find . -name '*.log' -printf '%P\\n' > /tmp/list && tar czf ../logs.tar.gz -T /tmp/list"),
            bash("cd /desk/logs && tar tzf ../logs.tar.gz | xargs -d '\\n' rm --"),
            finish(),
        ),
    )


def _unpacked(data: bytes) -> dict[str, bytes] | None:
    """The files of an archive, without a leading ./; None if it is none, or unpacks to too much."""
    found: dict[str, bytes] = {}
    total = 0
    try:
        with tarfile.open(fileobj=io.BytesIO(data), mode="r|gz") as archive:
            for member in archive:
                total += 512 + member.size
                if total > 16 * MAX_ANSWER:
                    return None
                stream = archive.extractfile(member) if member.isreg() else None
                if stream:
                    found[member.name.removeprefix("./")] = stream.read()
                elif not member.isdir():
                    return None
    except (tarfile.TarError, OSError, EOFError, ValueError):
        return None
    return found


def unpack(rng: random.Random, level: int) -> Problem:
    """Take one file out of an archive, perhaps out of archives within it."""
    wanted = f"{names(rng, 1)[0]}.txt"
    text = lines_of(prose(rng, 3))
    data, path = text, wanted
    for depth in range(level):
        members = {f"{rng.choice(NOUNS)}/{name}.txt": lines_of(prose(rng, 2)) for name in names(rng, SIZES[level] // 2)}
        members[f"{rng.choice(NOUNS)}/{path}"] = data
        data, path = _packed(members), f"part-{depth}.tar"
    inner = "" if level == 1 else " (perhaps inside another archive in it)"
    return Problem(
        f"/desk/bundle.tar contains a file named {wanted}, in some folder{inner}. Put it at /desk/{wanted}. Nothing else may "
        "be left in /desk but it and the archive.",
        {"bundle.tar": File(data)},
        same_files("", {"bundle.tar": data, wanted: text}),
        (
            bash("mkdir /tmp/x && tar xf /desk/bundle.tar -C /tmp/x"),
            *(bash("cd /tmp/x && for a in $(find . -name '*.tar'); do tar xf $a && rm $a; done") for _ in range(level - 1)),
            bash(f'cp "$(find /tmp/x -name {wanted})" /desk/'),
            finish(),
        ),
    )


def _packed(members: dict[str, bytes]) -> bytes:
    """An archive that is the same on any host."""
    plain = io.BytesIO()
    with tarfile.open(fileobj=plain, mode="w", format=tarfile.USTAR_FORMAT) as archive:
        for name in sorted(members):
            info = tarfile.TarInfo(name)
            info.size, info.mode = len(members[name]), 0o644
            archive.addfile(info, io.BytesIO(members[name]))
    return plain.getvalue()


def sort(rng: random.Random, level: int) -> Problem:
    """Sort files into folders by the date in their names. The reward is the part of them that is right."""
    files, expected = {}, {}
    for name in names(rng, SIZES[level], ".txt"):
        year, month, day = rng.randint(2019, 2024), rng.randint(1, 12), rng.randint(1, 28)
        data = lines_of([f"by {rng.choice(PEOPLE)}", *prose(rng, 1)])
        path = f"{year}-{month:02d}-{day:02d}_{name}"
        files[f"inbox/{path}"] = File(data)
        expected[f"sorted/{year}/{month:02d}/{path}"] = data

    def check(view: View) -> float:
        found = view.files()
        if found is None or len(found) != len(expected):
            return 0.0
        return sum(found.get(path) == data for path, data in expected.items()) / len(expected)

    return Problem(
        "The names of the files in /desk/inbox begin with a date, as in 2021-03-09_note.txt. Move each file, with its name, to "
        "/desk/sorted/YEAR/MONTH/, as in /desk/sorted/2021/03/.",
        files,
        check,
        (
            bash('cd /desk/inbox && for f in *; do d=../sorted/${f:0:4}/${f:5:2}; mkdir -p $d && mv "$f" $d/; done'),
            finish(),
        ),
    )


def edit(rng: random.Random, level: int) -> Problem:
    """Rewrite one paragraph of a long text, by the editor."""
    lines = prose(rng, 4 * SIZES[level])
    at = rng.randrange(len(lines))
    person, other = rng.sample(PEOPLE, 2)
    old = f"The meeting with {person.capitalize()} takes place on day {rng.randint(10, 99)}."
    new = f"The meeting with {other.capitalize()} takes place on day {rng.randint(100, 199)}."
    lines.insert(at, old)
    after = [*lines[:at], new, "Please be on time.", *lines[at + 1 :]]
    return Problem(
        f'In /desk/minutes.txt replace the line "{old}" by "{new}" and put the line "Please be on time." after it. Leave the '
        "rest as it is.",
        {"minutes.txt": File(lines_of(lines))},
        lambda view: float(view.data("minutes.txt") == lines_of(after)),
        (
            Action("str_replace_editor", {"command": "view", "path": "/desk/minutes.txt"}),
            Action(
                "str_replace_editor", {"command": "str_replace", "path": "/desk/minutes.txt", "old_str": old, "new_str": new}
            ),
            Action(
                "str_replace_editor",
                {"command": "insert", "path": "/desk/minutes.txt", "insert_line": at + 1, "new_str": "Please be on time."},
            ),
            finish(),
        ),
    )


KINDS = {
    "archive": archive,
    "config": config,
    "edit": edit,
    "permissions": permissions,
    "rename": rename,
    "replace": replace,
    "sort": sort,
    "unpack": unpack,
}
