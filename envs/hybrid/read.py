"""Tasks whose answer is read in the page and done with files: settings from a table, names of pictures."""

import random

from envs.api import Action, Json
from envs.hybrid.tasks import Plan, Problem, Sight
from envs.shell.tasks import ADJECTIVES, NOUNS, WORDS, File, bash, finish

ENVIRONMENTS = ("development", "staging", "production")
SHOWN = 4  # pictures of the gallery at a time
HUES = ("#e07a5f", "#3d8361", "#457b9d", "#b56576", "#e9c46a", "#6d597a")


def settings(rng: random.Random, level: int) -> Problem:
    """Read a table in the page, write a configuration file."""
    keys = rng.sample([f"{a}_{b}" for a in WORDS[:30] for b in ("limit", "path", "mode", "host")], 1 + 4 * level)
    tables: dict[str, list[list[str]]] = {}
    for name in ENVIRONMENTS:
        rows = [[key, _value(rng, key), rng.choice(("in use", "in use", "retired"))] for key in keys]
        rows[0][2], rows[1][2] = "in use", "retired"
        tables[name] = rng.sample(rows, len(rows))
    asked = rng.choice(ENVIRONMENTS[1:])  # the first is shown at once
    expected = sorted(f"{key} = {value}" for key, value, status in tables[asked] if status == "in use")

    def plan(sight: Sight) -> Plan:
        yield sight.click(f"tab-{asked}")
        cells = [cell.text for cell in sight.all(role="cell")]
        rows = [cells[i : i + 3] for i in range(0, len(cells), 3)]
        text = "".join(sorted(f"{key} = {value}\n" for key, value, status in rows if status == "in use"))
        yield Action("str_replace_editor", {"command": "create", "path": "/desk/app/settings.ini", "file_text": text})
        yield finish()

    return Problem(
        f"The page lists the settings of three environments. Write those of {asked} that are in use to /desk/app/settings.ini: "
        "one on a line, as `name = value`, sorted by name. Leave retired ones out.",
        "settings",
        {"order": list(ENVIRONMENTS), "tables": tables},
        {},
        {},
        lambda seen: float(seen.lines("app/settings.ini") == expected),
        plan,
    )


def captions(rng: random.Random, level: int) -> Problem:
    """Rename pictures as the page calls them."""
    count = SHOWN * level - 1
    titles = rng.sample([f"{adjective} {noun}" for adjective in ADJECTIVES for noun in NOUNS], count)
    numbers = sorted(rng.sample(range(100, 1000), count))
    pictures = {f"img-{number}.svg": _picture(rng, number) for number in numbers}
    captions = dict(zip(pictures, (title.title() for title in titles), strict=True))
    expected = {f"photos/{_file_name(captions[name])}": data for name, data in pictures.items()}
    shown: list[Json] = [[name, captions[name]] for name in rng.sample(sorted(pictures), count)]

    def plan(sight: Sight) -> Plan:
        moves: list[str] = []
        while True:
            found = (sight.all(class_=part) for part in ("name", "caption"))
            moves += [f"mv -v {name.text} {_file_name(caption.text)}" for name, caption in zip(*found, strict=True)]
            if len(moves) == count:
                break
            yield sight.click("next")
        yield bash("cd /desk/photos && " + " && ".join(moves))
        yield finish()

    return Problem(
        "The page shows the pictures of /desk/photos with their captions. Rename each file by its caption, in lower case with "
        "hyphens for blanks, as in calm-harbor.svg. Change nothing else.",
        "captions",
        {"pictures": shown},
        pictures,
        {f"photos/{name}": File(data) for name, data in pictures.items()},
        lambda seen: float(seen.files("photos") == expected),
        plan,
    )


def _value(rng: random.Random, key: str) -> str:
    if key.endswith("limit"):
        return str(rng.randint(1, 5000))
    if key.endswith("path"):
        return f"/srv/{rng.choice(NOUNS)}/{rng.choice(NOUNS)}"
    return f"{rng.choice(ADJECTIVES)}-{rng.choice(NOUNS)}"


def _file_name(caption: str) -> str:
    return caption.lower().replace(" ", "-") + ".svg"


def _picture(rng: random.Random, number: int) -> bytes:
    """A landscape with a sun; the number makes each one different."""
    sky, hill, near = rng.sample(HUES, 3)
    peak, low = rng.randint(20, 140), rng.randint(70, 110)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 160 150"><title>{number}</title>'
        f'<rect width="160" height="150" fill="{sky}"/><circle cx="{rng.randint(20, 140)}" cy="{rng.randint(20, 50)}" r="14" '
        f'fill="#fff3c4"/><path d="M0 150L{peak} {rng.randint(40, 80)}L160 150z" fill="{hill}"/>'
        f'<path d="M0 150V{low}Q80 {rng.randint(60, 150)} 160 {low + 10}V150z" fill="{near}"/></svg>\n'
    ).encode()


KINDS = {function.__name__: function for function in (settings, captions)}
