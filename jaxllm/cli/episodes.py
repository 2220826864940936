"""Commands that play environments: watch one episode, record many, and check what was recorded."""

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tyro

if TYPE_CHECKING:
    from envs.api import Action, EnvSpec, Invalid, Obs
    from envs.episode import Player, Turn
    from envs.replay import Difference

SHOWN_LINES = 60  # of an observation
SHOWN_ELEMENTS = 40
SHOWN_DIFFERENCES = 50
SHOWN_TEXT = 60  # characters of a value in a table


@dataclasses.dataclass(frozen=True)
class Play:
    """Play one episode in the terminal, and write it as a film strip and an animation.

    Every observation, action and reward is printed. What a person writes is in the agent's language, such as
    click(point='<point>40 80</point>'); "help" lists the actions. After Ctrl-C the pictures show what there was.
    """

    name: tyro.conf.Positional[str]
    """family/name as `jaxllm envs list` gives it, or module:Class of your own"""
    policy: Literal["oracle", "random", "human"] | None = None
    """who plays (default: the oracle where there is one, else at random)"""
    seed: int = 0
    """of the episode; the same seed gives the same task"""
    option: tyro.conf.UseAppendAction[tuple[str, ...]] = ()
    """option of the environment, such as level=3; repeat it for several"""
    max_steps: int | None = None
    """stop after so many actions (default: the environment's own limit)"""
    out: Path = Path("plays")
    """folder for the pictures"""

    def run(self) -> None:
        import envs
        from envs import film
        from envs.episode import ended, outcome, turns
        from jaxllm.cli import console
        from jaxllm.cli.envs import find_own_modules, options
        from jaxllm.files import write_atomically

        find_own_modules()
        given = options(self.option)
        spec = envs.describe(self.name, **given)
        policy = self.policy or ("random" if envs.oracle(self.name, self.seed) is None else "oracle")
        watched = _Watched(_player(self.name, policy, spec, self.seed), spec)
        stem = f"{safe(self.name)}-{policy}-{self.seed}"
        make_folder(self.out)
        episode: list[Turn] = []
        env = envs.make(self.name, **given)
        try:
            for turn in turns(env, watched, self.max_steps, seed=self.seed):
                episode.append(turn)
                watched.tell(turn)
        finally:
            env.close()
            if episode:
                moments = film.frames(ended(episode))
                title = f"{self.name}, seed {self.seed}, {policy}: {watched.task or spec.about}"
                write_atomically(self.out / f"{stem}.png", film.strip(moments, title))
                write_atomically(self.out / f"{stem}.gif", film.animation(moments))
                console.write(f"Written: {self.out / stem}.png and .gif")
        end = outcome(episode)
        console.write(f"{end.ending} after {end.steps} step{'s' * (end.steps != 1)}, reward {end.reward:g}")


@dataclasses.dataclass(frozen=True)
class Record:
    """Record many episodes: Parquet with a row for each step, and pictures by their hash.

    What the folder holds already stays: an interrupted run is gone on with, and a larger -n adds episodes.
    """

    name: tyro.conf.Positional[str]
    """family/name as `jaxllm envs list` gives it, or module:Class of your own"""
    out: Path
    """folder for the episodes"""
    episodes: Annotated[int, tyro.conf.arg(aliases=["-n"], metavar="N")] = 100
    """how many episodes the folder is to hold"""
    policy: Literal["oracle", "random"] = "oracle"
    """who plays"""
    seed: int = 0
    """of the run; each episode has a seed of its own that follows from it"""
    option: tyro.conf.UseAppendAction[tuple[str, ...]] = ()
    """option of the environment, such as level=3; repeat it for several"""
    max_steps: int | None = None
    """stop an episode after so many actions (default: the environment's own limit)"""
    envs: int = 1
    """environments that play at once, in processes of their own; 1 plays in this one"""
    workers: int | None = None
    """processes for them (default: as many as fit this machine)"""

    def run(self) -> None:
        from envs.record import record
        from envs.record_folder import Run
        from jaxllm.cli import console
        from jaxllm.cli.envs import find_own_modules, options

        find_own_modules()
        run = Run(self.name, self.policy, self.seed, options(self.option), self.max_steps)
        ends: list[Any] = []
        with console.progress(f"Recording {self.name}", total=self.episodes, unit="steps") as advance:

            def report(episode: int, end: Any) -> None:
                ends.append(end)
                advance(1, end.steps)

            done = record(run, self.episodes, self.out, num_envs=self.envs, workers=self.workers, report=report)
        if done < self.episodes:
            console.stderr().print(f"{self.episodes - done} episodes were there already")
        if ends:
            solved, steps = sum(end.success for end in ends), sum(end.steps for end in ends)
            reward = sum(end.reward for end in ends) / len(ends)
            console.write(f"{done} episodes, {steps} steps: {solved} solved ({solved / done:.1%}), mean reward {reward:.4g}")
        console.write(f"Written: {self.out}")


@dataclasses.dataclass(frozen=True)
class Replay:
    """Play recorded episodes again, and check every observation, picture, reward and state.

    The first difference of each episode is listed; with any, the exit code is 1.
    """

    folder: tyro.conf.Positional[Path]
    """folder that `jaxllm envs record` wrote"""
    json: bool = False
    """print JSON"""

    def run(self) -> None:
        import json

        from envs.replay import replay
        from jaxllm.cli import console
        from jaxllm.cli.envs import find_own_modules
        from jaxllm.errors import UserError

        find_own_modules()
        with console.progress("Replaying", unit="episodes") as advance:
            count, found = replay(self.folder, lambda _: advance(1))
        if self.json:
            facts = {"episodes": count, "differences": [dataclasses.asdict(one) for one in found]}
            console.write(json.dumps(facts, indent=1))
        elif found:
            console.stdout().print(_differences(found))
        if found:
            raise UserError(f"{self.folder}: {len(found)} of {count} episodes came out otherwise than recorded")
        if not self.json:
            console.write(f"{count} episodes came out as recorded: every observation, picture, reward and state")


COMMANDS: dict[str, type[Any]] = {"envs play": Play, "envs record": Record, "envs replay": Replay}


class _Watched:
    """A player whose observations and actions are printed."""

    def __init__(self, player: "Player", spec: "EnvSpec") -> None:
        self._player, self._spec = player, spec
        self.task: str | None = None  # what the agent is told, once the episode has begun

    def __call__(self, state: Any, obs: "Obs") -> "Action | Invalid | None":
        from envs.episode import instruction
        from jaxllm.cli import console

        if obs.step == 0:
            self.task = instruction(state)
            console.write(f"{self._spec.name}: {visible(self.task or self._spec.about)}")
        console.write(f"\n[{obs.step}] {obs.t_virtual:g} s")
        console.write(visible(seen(obs)))
        return self._player(state, obs)

    def tell(self, turn: "Turn") -> None:
        """Prints what an action led to, or the last observation."""
        from envs.policies import written
        from jaxllm.cli import console

        if turn.action is None or turn.result is None:
            console.write(f"\n[{turn.obs.step}] {turn.obs.t_virtual:g} s, the end")
            console.write(visible(seen(turn.obs)))
            return
        info = turn.result.info
        parts = [visible(written(turn.action)), f"reward {turn.result.reward:g}", str(info.get("effect", ""))]
        if "error" in info:
            parts.append(visible(f"{info['error']}: {info.get('message', '')}"))
        console.write("-> " + ", ".join(part for part in parts if part))


def _player(name: str, policy: str, spec: "EnvSpec", seed: int) -> "Player":
    from envs.policies import human_policy
    from envs.record import player

    return human_policy(spec) if policy == "human" else player(name, policy, spec, seed)


def seen(obs: "Obs") -> str:
    """An observation for the terminal: its text, else what is on the screen, else its arrays."""
    from envs.film import array_text

    lines = []
    if obs.text is not None:
        lines = obs.text.splitlines()
    elif obs.elements:
        for element in obs.elements[:SHOWN_ELEMENTS]:
            x, y = (element.box[0] + element.box[2]) / 2, (element.box[1] + element.box[3]) / 2
            lines.append(f"{element.id:>4} {element.role:<10} ({x:.0f}, {y:.0f})  {element.text[:SHOWN_TEXT]}")
        if len(obs.elements) > SHOWN_ELEMENTS:
            lines.append(f"... and {len(obs.elements) - SHOWN_ELEMENTS} more elements")
    elif obs.arrays:
        lines = array_text(obs.arrays).splitlines()
    if len(lines) > SHOWN_LINES:
        lines = [*lines[:SHOWN_LINES], f"... and {len(lines) - SHOWN_LINES} more lines"]
    if obs.screenshot is not None:
        lines.append(f"(a screenshot of {len(obs.screenshot):,} bytes)")
    return "\n".join(lines)


def visible(text: str) -> str:
    """Text without what would move a terminal's cursor."""
    return "".join(c if c.isprintable() or c == "\n" else {"\t": "    "}.get(c, "�") for c in text)


def safe(name: str) -> str:
    """An environment's name as part of a file's name."""
    return "".join(c if c.isalnum() or c in "._-" else "-" for c in name)[:100]


def make_folder(path: Path) -> None:
    """Makes the folder for results. Raises UserError where it can't be one."""
    from jaxllm.errors import UserError

    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"--out {path} cannot be a folder: {error.strerror}; choose another one") from None


def _differences(found: "list[Difference]") -> Any:
    from jaxllm.cli import console

    table = console.table("The first difference of each episode", "episode", "step", "what", "recorded", "now")
    for one in found[:SHOWN_DIFFERENCES]:
        shown = (visible(text)[:SHOWN_TEXT] for text in (one.recorded, one.found))
        table.add_row(str(one.episode), str(one.step), one.column, *shown)
    if len(found) > SHOWN_DIFFERENCES:
        table.caption = f"and {len(found) - SHOWN_DIFFERENCES} more"
    return table
