"""Commands on environments: what there is, what one of them takes, and what works on this machine."""

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Any

import tyro

if TYPE_CHECKING:
    from envs.api import EnvSpec

MOST_DESCRIBED = 300  # names of a list whose specs are shown
# How a family is named whose environments the user names.
OPEN_FAMILIES = {"page": "page/PATH", "gym": "gym/ID", "openenv": "openenv/ADDRESS"}


@dataclasses.dataclass(frozen=True)
class List:
    """List the families of environments, or the environments that match a pattern.

    A pattern has the wildcards of a shell, as in "miniwob/click-*"; a word without a slash finds all names that contain it.
    """

    pattern: tyro.conf.Positional[str | None] = None
    """such as miniwob, "games/*" or click; "*" for all (default: the families)"""
    json: bool = False
    """print JSON"""

    def run(self) -> None:
        import json

        from jaxllm.cli import console

        rows = families() if self.pattern is None else described(matching(self.pattern))
        if self.json:
            console.write(json.dumps(rows, indent=1, allow_nan=False))
        elif self.pattern is None:
            table = console.table("", "family", "environments", "", "missing")
            for row in rows:
                table.add_row(row["family"], row["count"], row["about"], row["missing"] or "")
            console.stdout().print(table)
            console.write('`jaxllm envs list games` lists a family, `jaxllm envs list "*"` all.')
        else:
            table = console.table("", "name", "about", "screen", "steps", "supports")
            for row in rows:
                screen = "x".join(map(str, row["screen_wh"])) if row.get("screen_wh") else ""
                facts = (row["about"], screen, str(row["max_steps"]), " ".join(row["supports"])) if "about" in row else ()
                table.add_row(row["name"], *facts)
            console.stdout().print(table)
            if len(rows) > MOST_DESCRIBED:
                console.stderr().print(
                    f"{len(rows):,} names; what they are is shown for up to {MOST_DESCRIBED}: narrow the pattern"
                )


@dataclasses.dataclass(frozen=True)
class Show:
    """Show what an environment is about, the actions that it takes, and its limits."""

    name: tyro.conf.Positional[str]
    """family/name as `jaxllm envs list` gives it, or module:Class of your own"""
    option: tyro.conf.UseAppendAction[tuple[str, ...]] = ()
    """option of the environment, such as level=3; repeat it for several"""
    json: bool = False
    """print JSON"""

    def run(self) -> None:
        import json

        import envs
        from envs.policies import signature
        from jaxllm.cli import console

        find_own_modules()
        spec = envs.describe(self.name, **options(self.option))
        facts = _facts(spec)
        facts["actions"] = [{"call": signature(action), "about": action.about} for action in spec.actions]
        if self.json:
            console.write(json.dumps(facts, indent=1, allow_nan=False))
            return
        console.write(f"{spec.name}: {spec.about}")
        table = console.table("", "", "value")
        width, height = spec.screen_wh or (0, 0)
        table.add_row("screen", f"{width} x {height} pixels" if spec.screen_wh else "none: text or arrays")
        table.add_row("steps of an episode", f"at most {spec.max_steps}")
        table.add_row("solved from a reward of", f"{spec.success:g}")
        table.add_row("supports", ", ".join(facts["supports"]) or "nothing more")
        table.add_row("deadlines in seconds", ", ".join(f"{name} {limit:g}" for name, limit in facts["deadlines"].items()))
        table.add_row("processes", "shares a worker with others" if spec.weight == "light" else "a worker of its own")
        console.stdout().print(table)
        actions = console.table("", "action", "what it does")
        for action in facts["actions"]:
            actions.add_row(action["call"], action["about"])
        console.stdout().print(actions)


@dataclasses.dataclass(frozen=True)
class Doctor:
    """Say which environments work on this machine, how well, and what to install.

    A look takes some seconds: the browser, the sandbox and each library are tried in processes of their own.
    """

    json: bool = False
    """print JSON"""

    def run(self) -> None:
        import json

        from envs import doctor
        from jaxllm.cli import console

        with console.progress("Looking", total=len(doctor.CHECKS)) as advance:
            found = doctor.examine(lambda: advance(1))
        if self.json:
            console.write(json.dumps([dataclasses.asdict(one) for one in found], indent=1))
            return
        table = console.table("", "", "state", "found", "remedy")
        for one in found:
            table.add_row(one.name, one.state, one.detail, one.remedy)
        console.stdout().print(table)


COMMANDS: dict[str, type[Any]] = {"envs list": List, "envs show": Show, "envs doctor": Doctor}


def families() -> list[dict[str, Any]]:
    """What `jaxllm envs list` shows without a pattern: a row for each family."""
    from envs.registry import FAMILIES, family
    from jaxllm.errors import UserError

    rows = []
    for name, (_, about) in FAMILIES.items():
        try:
            module = family(name)
            missing = module.missing()
            count = OPEN_FAMILIES.get(name) or str(len(module.names()))
        except UserError as error:
            missing, count = str(error), ""
        rows.append({"family": name, "count": count, "about": about, "missing": missing})
    return rows


def described(names: list[str]) -> list[dict[str, Any]]:
    """A row for each name: with its facts where there are at most `MOST_DESCRIBED`, since some families take their time."""
    import envs

    return [_facts(envs.describe(name)) if len(names) <= MOST_DESCRIBED else {"name": name} for name in names]


def matching(pattern: str) -> list[str]:
    """All names that match. Raises UserError for none, with names that are near."""
    import difflib

    import envs
    from jaxllm.errors import UserError

    if pattern in OPEN_FAMILIES:
        raise UserError(f"any environment can be named here: {OPEN_FAMILIES[pattern]}; see docs/environments.md")
    if pattern in envs.FAMILIES:
        pattern = f"{pattern}/*"
    elif "/" not in pattern:
        pattern = f"*/*{pattern}*"
    if found := list(envs.names(pattern)):
        return found
    head, _, rest = pattern.partition("/")
    there = envs.names(f"{head}/*" if head in envs.FAMILIES else "*/*")
    near = difflib.get_close_matches(rest.strip("*"), [name.partition("/")[2] for name in there], n=3)
    hint = f"did you mean {', '.join(near)}?" if near else "see `jaxllm envs list`"
    raise UserError(f"no environment matches {pattern!r}; {hint}")


def find_own_modules() -> None:
    """Lets names such as mine:Class mean modules of the current folder: a console script does not look there by itself."""
    import sys

    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.append(here)


def options(given: tuple[str, ...]) -> dict[str, Any]:
    """Options as typed by a person: JSON where it is JSON, else text. Raises UserError for one without a name."""
    import json

    from jaxllm.errors import UserError

    out: dict[str, Any] = {}
    for one in given:
        name, equals, value = one.partition("=")
        if not equals or not name.isidentifier():
            raise UserError(f"--option {one}: give it as name=value, such as level=3")
        try:
            out[name] = json.loads(value)
        except ValueError:
            out[name] = value
    return out


def _facts(spec: "EnvSpec") -> dict[str, Any]:
    from envs.api import DEADLINES

    return {
        "name": spec.name,
        "about": spec.about,
        "screen_wh": spec.screen_wh,
        "max_steps": spec.max_steps,
        "success": spec.success,
        "supports": sorted(spec.supports),
        "weight": spec.weight,
        "deadlines": {**DEADLINES, **spec.deadlines},
    }
