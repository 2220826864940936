"""Players that need no model: one that acts at random, and a person at the terminal."""

import random
from collections.abc import Callable, Mapping
from typing import Any

from envs.actions import check, shown
from envs.api import Action, ActionSpec, Argument, EnvSpec, Invalid, Json, Obs
from envs.episode import Player
from envs.parse import parse
from envs.parse_format import format_action
from jaxllm.errors import UserError

GIVING_UP = ("finished", "call_user")  # what a random player never does: it would end most episodes at once
KEYS = ("up", "down", "left", "right", "enter", "tab", "space", "backspace", "esc")
WORDS = ("yes", "no", "1", "7", "hello", "ls", "the", "Enter")
ON_ELEMENT = 0.7  # share of points that lie on an element, where the observation lists them
NUMBERS = 10  # numbers without bounds are drawn from 0 up to here


def random_policy(spec: EnvSpec, seed: int = 0) -> Player:
    """A player that draws an action of the spec and its arguments at random: the same seed, the same draws.

    Most points lie on an element of the observation. It never declares the end, unless there is nothing else to do.
    Raises UserError for an environment without actions.
    """
    actions = [action for action in spec.actions if action.name not in GIVING_UP] or list(spec.actions)
    if not actions:
        raise UserError(f"{spec.name} has no actions")
    generator = random.Random(seed)

    def player(state: Mapping[str, Json], obs: Obs) -> Action:
        action = generator.choice(actions)
        arguments = {
            argument.name: _draw(argument, spec, obs, generator)
            for argument in action.arguments
            if argument.required or generator.random() < 0.5
        }
        return Action(action.name, arguments)

    return player


def noisy(player: Player, spec: EnvSpec, noise: float, seed: int = 0) -> Player:
    """The same player, that acts at random instead with probability ``noise``: the same seed, the same slips."""
    slips, generator = random_policy(spec, seed), random.Random(f"slips {seed}")

    def clumsy(state: Mapping[str, Json], obs: Obs) -> Action | Invalid | None:
        return (slips if generator.random() < noise else player)(state, obs)

    return clumsy


def _draw(argument: Argument, spec: EnvSpec, obs: Obs, generator: random.Random) -> Json:
    if argument.kind == "key":
        return generator.choice(argument.choices or KEYS)
    if argument.choices:
        return generator.choice(argument.choices)
    if argument.kind == "point":
        return _point(spec, obs, generator)
    if argument.kind == "text":
        words = (obs.text or "").split()[:1000]
        return generator.choice(words if words and generator.random() < 0.5 else WORDS)
    low = 0 if argument.low is None else argument.low
    high = max(low, NUMBERS) if argument.high is None else argument.high
    if argument.kind == "int":
        return generator.randint(int(low), int(high))
    if argument.kind == "float":
        return generator.uniform(low, high)
    return _array(argument.shape, lambda: _number(low, high, generator))


def _number(low: float, high: float, generator: random.Random) -> float:
    """Whole between whole bounds."""
    whole = isinstance(low, int) and isinstance(high, int)
    return generator.randint(int(low), int(high)) if whole else generator.uniform(low, high)


def _array(shape: tuple[int, ...], draw: Callable[[], float]) -> Json:
    """Nested lists of numbers; one number for no shape."""
    return [_array(shape[1:], draw) for _ in range(shape[0])] if shape else draw()


def _point(spec: EnvSpec, obs: Obs, generator: random.Random) -> list[float]:
    width, height = spec.screen_wh or (1, 1)
    if obs.elements and generator.random() < ON_ELEMENT:
        x1, y1, x2, y2 = generator.choice(obs.elements).box
        x, y = generator.uniform(x1, x2), generator.uniform(y1, y2)
    else:
        x, y = generator.uniform(0, width - 1), generator.uniform(0, height - 1)
    return [round(min(max(x, 0.0), width - 1.0), 1), round(min(max(y, 0.0), height - 1.0), 1)]


def human_policy(spec: EnvSpec, ask: Callable[[str], str] = input, tell: Callable[[str], Any] = print) -> Player:
    """A person who writes actions in the agent's language, with or without ``Action:`` before them.

    What does not parse, or is not an action of the spec, is told with the reason and asked again; ``help`` lists the actions;
    ``quit``, or the end of the input, ends the episode.

    Args:
      ask: shows a prompt and returns a line; raises EOFError at the end of the input.
      tell: shows a message.
    """

    def player(state: Mapping[str, Json], obs: Obs) -> Action | None:
        while True:
            try:
                line = ask("Action: ").strip()
            except EOFError:
                return None
            if line.lower() in ("quit", "exit"):
                return None
            if line.lower() in ("", "help"):
                tell(usage(spec))
                continue
            found = read(line, spec)
            if isinstance(found, Action):
                return found
            tell(f"{found.error}: {found.message}")

    return player


def read(line: str, spec: EnvSpec) -> Action | Invalid:
    """The one action in a person's line, checked; points are pixels of the screenshot."""
    parsed = parse(line, spec.actions, frame="orig", screen_wh=spec.screen_wh)
    return parsed.actions[0] if parsed.error is None else parsed.error


def usage(spec: EnvSpec) -> str:
    """Every action as it is written, with what it does: a line each."""
    rows = [(signature(action), action.about) for action in spec.actions]
    width = min(max((len(call) for call, _ in rows), default=0), 60)
    return "\n".join(f"  {call:<{width}}  {about}".rstrip() for call, about in rows)


def signature(action: ActionSpec) -> str:
    """An action's name and arguments with their kinds: ``scroll(direction: up|down|left|right, point?)``."""
    parts = []
    for argument in action.arguments:
        kind = "|".join(map(str, argument.choices)) if argument.choices else argument.kind
        if argument.low is not None or argument.high is not None:
            low, high = ("" if bound is None else f"{bound:g}" for bound in (argument.low, argument.high))
            kind += f" {low}..{high}"
        parts.append(f"{argument.name}{'' if argument.required else '?'}: {kind}")
    return f"{action.name}({', '.join(parts)})"


def response(action: Action | Invalid, spec: EnvSpec) -> str | None:
    """The turn that an agent would have written for this action, in pixels of the screenshot; None for one that is refused."""
    checked = action if isinstance(action, Invalid) else check(action, spec)
    if isinstance(checked, Invalid):
        return None
    return format_action(checked, spec.actions, screen_wh=spec.screen_wh)


def written(action: Action | Invalid) -> str:
    """An action in short, for people: ``click (40, 80)``, ``type 'abc'``, ``move direction=up``."""
    if isinstance(action, Invalid):
        return f"({action.error})"
    parts = []
    for name, value in action.arguments.items():
        if name in ("point", "start_point", "end_point") and isinstance(value, list | tuple):
            parts.append(
                "(" + ", ".join(f"{round(part, 1):g}" if isinstance(part, int | float) else shown(part) for part in value) + ")"
            )
        elif name in ("content", "command", "code", "key"):
            parts.append(shown(value))
        else:
            parts.append(f"{name}={value if isinstance(value, str) and value.isidentifier() else shown(value)}")
    return " ".join([action.name, *parts])
