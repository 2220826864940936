"""Players without a model: at random, and a person at the terminal."""

import collections
from collections.abc import Callable

import pytest
from hypothesis import given, strategies

from envs import policies
from envs.actions import COMPUTER, MOBILE, TOOLS, check
from envs.api import Action, ActionSpec, Argument, Element, EnvSpec, Invalid, Obs
from envs.parse import parse
from envs.policies import human_policy, random_policy
from jaxllm.errors import UserError
from tests.envs.toys import SPECS

BOX = ActionSpec("act", (Argument("value", "json", low=-1.0, high=1.0, shape=(2, 3)),))
DISCRETE = ActionSpec("act", (Argument("value", "int", low=0, high=3),))
SCREEN = EnvSpec("any", "all actions of a screen", (*COMPUTER, *MOBILE[1:2], *TOOLS, BOX), (160, 210))
OBS = Obs(text="Click the button named Ok", elements=(Element(1, "button", "Ok", (20, 30, 60, 50)),))


@given(strategies.integers(0, 2**31))
def test_every_random_action_is_one_that_the_environment_takes(seed: int):
    player = random_policy(SCREEN, seed)
    for _ in range(30):
        action = player({}, OBS)
        assert isinstance(action, Action)
        assert isinstance(check(action, SCREEN), Action), action


def test_the_same_seed_draws_the_same_and_another_does_not():
    runs = []
    for seed in (5, 5, 6):
        player = random_policy(SCREEN, seed)
        runs.append([player({}, OBS) for _ in range(20)])
    assert runs[0] == runs[1]
    assert runs[0] != runs[2]


def test_random_players_try_everything_but_giving_up():
    player = random_policy(SCREEN, 0)
    seen = collections.Counter(player({}, OBS).name for _ in range(2000))
    assert set(seen) == {action.name for action in SCREEN.actions} - {"finished", "call_user"}
    only = EnvSpec("only", "nothing else to do", (COMPUTER[-2],))
    assert only.actions[0].name == "finished"
    assert random_policy(only)({}, OBS).name == "finished"
    with pytest.raises(UserError, match="has no actions"):
        random_policy(EnvSpec("none", "", ()))


def test_most_points_lie_on_an_element():
    click = EnvSpec("click", "", (COMPUTER[0],), (1000, 1000))
    player = random_policy(click, 0)
    points = [player({}, OBS).arguments["point"] for _ in range(1000)]
    share = sum(20 <= x <= 60 and 30 <= y <= 50 for x, y in points) / len(points)
    assert 0.65 < share < 0.76  # 0.7 and the element's own thousandth of the rest
    bare = [player({}, Obs()).arguments["point"] for _ in range(1000)]
    assert {x // 250 for x, _ in bare} == {y // 250 for _, y in bare} == {0, 1, 2, 3}


def test_array_actions_have_the_shape_and_bounds_of_the_spec():
    player = random_policy(EnvSpec("array", "", (BOX,)), 1)
    value = player({}, Obs()).arguments["value"]
    assert [len(row) for row in value] == [3, 3]
    assert all(-1 <= number <= 1 for row in value for number in row)
    numbers = collections.Counter()
    player = random_policy(EnvSpec("discrete", "", (DISCRETE,)), 1)
    for _ in range(200):
        numbers[player({}, Obs()).arguments["value"]] += 1
    assert set(numbers) == {0, 1, 2, 3}


def typed(*lines: str) -> tuple[Callable[[str], str], list[str]]:
    """A terminal where these lines are typed, and what it shows."""
    waiting, shown = list(lines), []

    def ask(prompt: str) -> str:
        if not waiting:
            raise EOFError
        return waiting.pop(0)

    return ask, shown


def test_a_person_writes_the_agents_language():
    lines = [
        "Action: click(point='<point>40 40</point>')",
        "click(point='(1, 2)')",
        "drag(start_point='(1,2)', end_point='(3,4)')",
    ]
    ask, shown = typed(*lines)
    player = human_policy(SPECS["screen"], ask, shown.append)
    assert [player({}, Obs()) for _ in range(4)] == [
        Action("click", {"point": (40, 40)}),
        Action("click", {"point": (1, 2)}),
        Action("drag", {"start_point": (1, 2), "end_point": (3, 4)}),
        None,  # the end of the input
    ]
    assert shown == []


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("clik(point='(1,2)')", "unknown_action: "),
        ("click()", "missing_argument: click needs point"),
        ("click(point='here')", "bad_point: "),
        ("click(point='(500,2)')", "off_screen: "),
        ("hello", "no_action"),
        ("help", "  click(point: point)"),
        ("", "  click(point: point)"),
    ],
)
def test_what_a_person_mistypes_is_told_and_asked_again(line: str, message: str):
    ask, shown = typed(line, "wait()")
    assert human_policy(SPECS["screen"], ask, shown.append)({}, Obs()) == Action("wait", {})
    assert len(shown) == 1
    assert shown[0].startswith(message)


def test_quit_ends_the_episode():
    ask, shown = typed("quit", "wait()")
    assert human_policy(SPECS["screen"], ask, shown.append)({}, Obs()) is None


def test_help_says_how_every_action_is_written():
    text = policies.usage(EnvSpec("x", "", (*COMPUTER, DISCRETE)))
    assert len(text.splitlines()) == len(COMPUTER) + 1
    assert "scroll(point?: point, direction: up|down|left|right)" in text
    assert "act(value: int 0..3)" in text


def test_responses_are_read_back_as_the_same_action():
    for action in (
        Action("click", {"point": (40.5, 12)}),
        Action("type", {"content": "it's\n"}),
        Action("execute_bash", {"command": "ls -la"}),
        Action("act", {"value": [[0.5, 0, 1], [1, -1, 0]]}),
    ):
        turn = policies.response(action, SCREEN)
        assert turn is not None
        read = parse(turn, SCREEN.actions, frame="orig", screen_wh=SCREEN.screen_wh)
        assert read.actions == (check(action, SCREEN),)
    assert policies.response(Action("fly"), SCREEN) is None
    assert policies.response(Invalid("no_action"), SCREEN) is None


@pytest.mark.parametrize(
    ("action", "text"),
    [
        (Action("click", {"point": (40.0, 12.5)}), "click (40, 12.5)"),
        (Action("drag", {"start_point": [1, 2], "end_point": [3, 4]}), "drag (1, 2) (3, 4)"),
        (Action("type", {"content": "a\x1b[2J"}), "type 'a\\x1b[2J'"),
        (Action("move", {"direction": "up"}), "move direction=up"),
        (Action("click", {"point": "no\npoint"}), "click point='no\\npoint'"),
        (Invalid("no_action", "nothing"), "(no_action)"),
    ],
)
def test_actions_in_short(action: Action | Invalid, text: str):
    assert policies.written(action) == text
