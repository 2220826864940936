"""The games as pages: keys, clicks and drags lead where the moves of the text view lead, and the page shows it."""

import io

import numpy as np
import pytest
from PIL import Image

import envs
from envs.api import Action, Task
from envs.games import GAMES, views
from envs.games.core import Chance, decode

NAMES = sorted(GAMES)


@pytest.fixture(scope="module", params=NAMES)
def pair(request):
    """A game as a page and as text."""
    page, text = envs.make(f"games/{request.param}-page"), envs.make(f"games/{request.param}")
    yield request.param, page, text
    page.close()


def pixels(png: bytes) -> np.ndarray:
    with Image.open(io.BytesIO(png)) as image:
        return np.asarray(image.convert("RGB"))


def element(obs, name: str):
    return next((one for one in obs.elements if one.attributes.get("id") == name), None)


def click(obs, name: str) -> Action:
    x1, y1, x2, y2 = element(obs, name).box
    return Action("click", {"point": ((x1 + x2) / 2, (y1 + y2) / 2)})


def agree(page, text) -> bool:
    """Whether both views are in the same state."""
    state = page.state()
    state.pop("selected")
    return state == text.state()


def test_random_moves_lead_to_the_same_states(pair):
    name, page, text = pair
    game, draws = GAMES[name], Chance("page", name)
    task = Task("t", "", {"seed": 6, "level": 1} if game.levels else {"seed": 6})
    obs = page.reset(task)
    text.reset(task)
    assert agree(page, text)
    picture = pixels(obs.screenshot)
    assert picture.shape == (560, 448, 3)
    for _ in range(8):
        move = draws.choice(game.legal(text.now))
        if move.name == "restart":
            continue
        ours, theirs = page.step(views.played(move, obs)), text.step(move)
        obs = ours.obs
        assert agree(page, text)
        assert (ours.reward, ours.terminated, ours.info["effect"]) == (theirs.reward, theirs.terminated, "changed")
        now = pixels(obs.screenshot)
        assert (now != picture).any()
        picture = now
        if theirs.terminated:
            break


def test_the_oracle_plays_the_page_and_a_save_restores_it(pair):
    name, page, text = pair
    policy, plain = envs.oracle(f"games/{name}-page"), envs.oracle(f"games/{name}")
    obs, total = page.reset(seed=3), 0.0
    text.reset(seed=3)
    for _ in range(7):
        result = page.step(policy(page.state(), obs))
        text.step(plain(text.state(), obs))
        obs, total = result.obs, total + result.reward
        assert "error" not in result.info
    assert agree(page, text)
    assert total > 0
    blob, state = page.save(), page.state()
    page.reset(seed=4)
    again = page.restore(blob)
    assert page.state() == state
    assert (pixels(again.screenshot) == pixels(obs.screenshot)).all()
    assert [(one.role, one.text, one.box) for one in again.elements] == [(one.role, one.text, one.box) for one in obs.elements]


def test_an_illegal_move_is_refused_on_the_page_too(pair):
    name, page, _ = pair
    game = GAMES[name]
    seed = next(seed for seed in range(2, 99) if name != "slide-merge" or len(game.legal(game.start(seed, 0))) < 4)
    obs = page.reset(seed=seed)
    before = page.now
    legal = game.legal(before)
    if name in ("slide-merge", "sokoban"):
        ways = {move.arguments.get("direction") for move in legal}
        action = Action("hotkey", {"key": next(way for way in ("up", "right", "down", "left") if way not in ways)})
    elif name == "slide-out":
        stuck = next(bar for bar in "ABCDEFGHIJK" if element(obs, f"bar-{bar}") and not can_move(legal, bar))
        x, y = click(obs, f"bar-{stuck}").arguments["point"]
        x1, y1, x2, y2 = element(obs, f"bar-{stuck}").box
        end = (x + 60, y) if x2 - x1 > y2 - y1 else (x, y + 60)
        action = Action("drag", {"start_point": (x, y), "end_point": end})
    elif name == "tray-match":
        covered = next(one for one in obs.elements if "covered" in str(one.attributes.get("label")) and seen_corner(one, obs))
        action = Action("click", {"point": seen_corner(covered, obs)})
    elif name == "gem-rise":
        single = next((r, c) for r in (6, 7) for c in range(1, 6) if Action("melt", {"row": r, "column": c}) not in legal)
        action = click(obs, f"cell-{single[0]}-{single[1]}")
    else:
        page.reset(Task("t", "", {"seed": 2, "level": 7}))
        page.now = before = decode(GAMES[name].state, {**page.state(), "board": [[15, 4], [1, 8]]})
        page._show(page._browser)
        action = click(page._look(), "cell-1-1")
    result = page.step(action)
    assert result.info["error"] == "illegal_move"
    assert page.now == before
    assert result.reward == 0
    message = result.info["message"]
    assert any(message[1:] in one.text for one in result.obs.elements)


def can_move(legal: list[Action], bar: str) -> bool:
    return any(move.arguments["piece"] == bar for move in legal)


def seen_corner(one, obs):
    """A point of an element that lies in no element listed after it, which would cover it."""
    x1, y1, x2, y2 = one.box
    for point in ((x1 + 8, y1 + 8), (x2 - 8, y1 + 8), (x1 + 8, y2 - 8), (x2 - 8, y2 - 8)):
        over = [
            other
            for other in obs.elements
            if other.id > one.id and other.box[0] <= point[0] <= other.box[2] and other.box[1] <= point[1] <= other.box[3]
        ]
        if not over:
            return point
    return None


def test_clicks_beside_the_game_and_other_keys_do_nothing(pair):
    _, page, _ = pair
    obs = page.reset(seed=5)
    before = page.state()
    for action in (Action("click", {"point": (200, 30)}), Action("hotkey", {"key": "tab"}), Action("wait")):
        result = page.step(action)
        assert result.info["effect"] == "unchanged"
        assert "error" not in result.info
    assert {**page.state(), "step": 0} == before
    assert result.obs.t_virtual >= 5
    assert (pixels(result.obs.screenshot) == pixels(obs.screenshot)).all()
    done = page.step(Action("finished", {"content": "done"}))
    assert done.terminated
    assert page.step(Action("wait")).info["error"] == "episode_over"


@pytest.fixture(scope="module")
def yard():
    env = envs.make("games/slide-out-page", screenshot=False)
    yield env
    env.close()


def test_a_bar_is_chosen_by_a_click_and_moved_by_arrows(yard):
    obs = yard.reset(seed=0)
    assert obs.screenshot is None
    move = next(move for move in GAMES["slide-out"].legal(yard.now) if abs(move.arguments["cells"]) == 1)
    bar, cells = move.arguments["piece"], move.arguments["cells"]
    chosen = yard.step(click(obs, f"bar-{bar}"))
    assert yard.state()["selected"] == bar
    assert "selected" in element(chosen.obs, f"bar-{bar}").attributes["label"]
    x1, y1, x2, y2 = element(obs, f"bar-{bar}").box
    key = {(True, 1): "right", (True, -1): "left", (False, 1): "down", (False, -1): "up"}[x2 - x1 > y2 - y1, cells]
    wanted = GAMES["slide-out"].play(yard.now, move)
    assert yard.step(Action("hotkey", {"key": key})).info["effect"] == "changed"
    assert yard.now == wanted


def test_a_drag_too_far_stops_where_the_bar_does(yard):
    obs = yard.reset(seed=0)
    moves = GAMES["slide-out"].legal(yard.now)
    furthest = max(moves, key=lambda move: move.arguments["cells"])
    drag = views.played(furthest, obs)
    (x, y), (to_x, to_y) = drag.arguments["start_point"], drag.arguments["end_point"]
    end = (min(to_x + 300 * (to_x > x), 447), min(to_y + 300 * (to_y > y), 559))
    wanted = GAMES["slide-out"].play(yard.now, furthest)
    yard.step(Action("drag", {"start_point": (x, y), "end_point": end}))
    assert yard.now == wanted


@pytest.fixture(scope="module")
def pipes():
    env = envs.make("games/loop-rotate-page", screenshot=False)
    yield env
    env.close()


def test_an_action_makes_one_move_at_most(pipes):
    obs = pipes.reset(seed=1)
    move = GAMES["loop-rotate"].legal(pipes.now)[0]
    wanted = GAMES["loop-rotate"].play(pipes.now, move)
    point = views.played(move, obs).arguments["point"]
    pipes.step(Action("left_double", {"point": point}))
    assert pipes.now == wanted
    assert pipes.step(Action("right_single", {"point": point})).info["effect"] == "unchanged"
    elsewhere = click(obs, "cell-2-3").arguments["point"]
    assert pipes.step(Action("drag", {"start_point": point, "end_point": elsewhere})).info["effect"] == "unchanged"


def test_the_page_is_told_nothing_of_what_is_to_come():
    for game in GAMES.values():
        shown = views.view(game, game.start(1, 0), "", "")
        assert not shown.keys() & {"rng", "seed", "solution"}
