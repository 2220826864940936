"""MiniWoB in the browser: the package's problems for the same seed, raw rewards, frozen time, nothing of the reward shown."""

import io
import json
import re
import subprocess
import sys

import pytest
from PIL import Image

import envs
from envs import Action, Invalid, LostError, miniwob
from envs.browser import Browser, CrashedError
from envs.episode import run_episode
from envs.miniwob.oracles import solved
from envs.miniwob.pages import PAGES
from jaxllm.errors import UserError

SAMPLE = ("click-scroll-list", "drag-sort-numbers", "email-inbox-reply", "enter-date", "tic-tac-toe")


@pytest.fixture(scope="module")
def made():
    """Environments by name and options, made once: a browser takes a second to start."""
    found = {}

    def get(page, **options):
        key = page, *sorted(options.items())
        if key not in found:
            found[key] = envs.make(f"miniwob/{page}", **options)
        return found[key]

    yield get
    for env in found.values():
        env.close()


def button(obs, text="Submit"):
    """A click on a button."""
    box = next(element.box for element in obs.elements if element.role == "button" and element.text == text)
    return Action("click", {"point": ((box[0] + box[2]) / 2, (box[1] + box[3]) / 2)})


def picture(obs):
    return Image.open(io.BytesIO(obs.screenshot)).convert("RGB")


def seedrandom(seed):
    """The generator of D. Bau's seedrandom 2.4 for a number, from its description: ARC4, 52 bits, 256 bytes dropped."""
    key, smear = {}, 0
    for place, letter in enumerate(f"{seed}\0"):
        smear ^= key.get(place, 0) * 19
        key[place] = (smear + ord(letter)) & 255
    box, j = list(range(256)), 0
    for i in range(256):
        j = (j + box[i] + key[i % len(key)]) & 255
        box[i], box[j] = box[j], box[i]
    i = j = 0

    def number(count):
        nonlocal i, j
        value = 0
        for _ in range(count):
            i = (i + 1) & 255
            j = (j + box[i]) & 255
            box[i], box[j] = box[j], box[i]
            value = value * 256 + box[(box[i] + box[j]) & 255]
        return value

    number(256)
    while True:
        n, d, x = number(6), 256**6, 0
        while n < 2**52:
            n, d, x = (n + x) * 256, d * 256, number(1)
        while n >= 2**53:
            n, d, x = n / 2, d / 2, x >> 1
        yield (n + x) / d


def test_there_are_130_pages_with_the_limits_that_their_files_set():
    folder = miniwob.html_folder() / "miniwob"
    limits = {}
    for path in folder.glob("*.html"):
        set_to = re.findall(r"core\.EPISODE_MAX_TIME *= *(\d+)", path.read_text(encoding="utf-8"))
        limits[path.stem] = int(set_to[-1]) / 1000 if set_to else 10.0
    assert len(limits) == 130
    assert {name: page.limit for name, page in PAGES.items()} == limits
    assert list(envs.names("miniwob/*")) == [f"miniwob/{name}" for name in sorted(limits)]


def test_a_page_is_described_without_a_browser(monkeypatch):
    monkeypatch.setattr(Browser, "open", lambda *_, **__: pytest.fail("a browser was started"))
    specs = {name: envs.describe(f"miniwob/{name}") for name in PAGES}
    assert specs["click-test"].screen_wh == (160, 210)
    assert specs["book-flight"].max_steps * 0.15 > 30  # the page's own limit comes first
    assert {name for name, spec in specs.items() if "oracle" in spec.supports} == solved()
    assert envs.oracle("miniwob/count-sides") is None
    assert specs["circle-center"].success < specs["click-test"].success == 1


@pytest.mark.parametrize(
    ("name", "options", "said"),
    [
        ("click-tset", {}, "there is no miniwob/click-tset"),
        ("click-test", {"backend": "firefox"}, "firefox"),
        ("click-test", {"reset": "hard"}, "reset is one of navigate, page"),
        ("click-test", {"mode": "dev"}, "mode is one of train, test, default"),
        ("click-test", {"colour": 1}, "there is no option 'colour'"),
        ("click-test", {"screenshot": "png"}, "screenshot is true or false"),
        ("use-slider", {"reset": "page"}, 'use reset="navigate"'),
    ],
)
def test_what_a_user_gets_wrong_is_said(name, options, said):
    with pytest.raises(UserError, match=re.escape(said)):
        envs.make(f"miniwob/{name}", **options).reset()


@pytest.mark.parametrize("seed", [0, 1, 7])
def test_a_seed_gives_the_problem_that_the_package_gives(made, seed):
    draw = seedrandom(seed)
    left, top = int(next(draw) * 118), int(next(draw) * 118) + 50  # as click-test-2 draws the place of button ONE
    obs = made("click-test-2").reset(seed=seed)
    one = next(element for element in obs.elements if element.text == "ONE")
    assert one.box[:2] == pytest.approx((left, top), abs=0.1)


def test_the_observation_has_the_task_and_the_elements_with_their_boxes(made):
    env = made("click-checkboxes")
    obs = env.reset(seed=0)
    assert picture(obs).size == (160, 210)
    assert obs.text.splitlines()[0] == env.task.instruction == "Select HF2 and click Submit."
    assert [(element.role, element.text) for element in obs.elements if element.role == "checkbox"] == [
        ("checkbox", "AU"),
        ("checkbox", "HF2"),
    ]
    assert re.search(r'^\[5\] button "Submit" \d+,\d+,\d+,\d+$', obs.text, re.MULTILINE)
    assert (obs.step, obs.t_virtual) == (0, 0.0)
    assert env.state()["fields"]["target 0"] == "HF2"


def test_the_oracle_solves_and_what_the_last_step_showed_is_kept(made):
    env = made("click-checkboxes")
    for seed in (0, 2):
        result = run_episode(env, envs.oracle("miniwob/click-checkboxes", seed), seed=seed)[-2].result
        assert (result.reward, result.terminated, result.truncated, result.info["success"]) == (1.0, True, False, True)
        assert any(element.attributes.get("checked") for element in result.obs.elements)
        assert picture(result.obs).getpixel((150, 5)) == (255, 255, 0)  # the yellow of the task, not the cover
        again = env.step(Action("wait"))
        assert again.info["error"] == "episode_over"
        assert again.obs is result.obs


def test_a_wrong_submit_fails_and_pays_its_parts(made):
    env = made("click-checkboxes-soft")
    obs = env.reset(seed=1)
    boxes = sum(element.role == "checkbox" for element in obs.elements)
    wanted = sum(field.startswith("target") for field in env.state()["fields"])
    result = env.step(button(obs))
    assert result.reward == pytest.approx((boxes - 2 * wanted) / boxes)  # each box pays 1, or -1 where it is wrong
    assert result.terminated
    assert not result.info["success"]


def test_find_greatest_pays_for_a_wrong_card_and_that_is_no_success(made):
    env = made("find-greatest")
    for card in range(3):
        obs = env.reset(seed=3)
        x1, y1, x2, y2 = [element.box for element in obs.elements if "card" in element.attributes.get("class", "")][card]
        obs = env.step(Action("click", {"point": ((x1 + x2) / 2, (y1 + y2) / 2)})).obs
        result = env.step(button(obs))
        assert result.reward in (pytest.approx(0.1), 1.0)
        assert result.info["success"] == (result.reward == 1.0)
        if result.reward < 1:
            return
    pytest.fail("no card was wrong")


def test_cards_face_down_are_not_told(made):
    obs = made("find-greatest").reset(seed=3)
    assert not re.search(r'"\d+"', obs.text)


def test_doing_nothing_ends_at_the_pages_own_limit(made):
    env = made("click-test-2")
    first = env.reset(seed=0)
    result = env.step(Action("wait"))
    assert not result.terminated
    result = env.step(Action("wait"))
    assert (result.reward, result.terminated, result.info["reason"]) == (-1.0, True, "timed out")
    assert result.info["elapsed"] == result.obs.t_virtual == pytest.approx(10.0)
    assert not result.info["success"]
    assert [element.text for element in result.obs.elements] == [element.text for element in first.elements]


def test_time_stands_still_while_the_agent_thinks(made):
    env = made("chase-circle")
    first = env.reset(seed=5)
    browser = env._browser
    now = browser.evaluate("[Date.now(), performance.now(), document.getElementById('circ').getAttribute('cx')]")
    for _ in range(200):  # some tenths of a second of real time
        assert browser.evaluate("[Date.now(), performance.now(), document.getElementById('circ').getAttribute('cx')]") == now
    moved = env.step(Action("hover", {"point": (1, 1)}))
    assert moved.obs.t_virtual == pytest.approx(0.15)
    assert moved.obs.elements[0].box != first.elements[0].box  # a control: with time it moves


def test_refused_actions_change_nothing(made):
    env = made("click-test-2")
    env.reset(seed=0)
    before = env.state()
    for action, error in (
        (Action("click", {"point": (400, 100)}), "off_screen"),
        (Action("navigate", {"url": "file:///etc/passwd"}), "unknown_action"),
        (Invalid("no_action"), "no_action"),
    ):
        result = env.step(action)
        assert result.info["error"] == error
        assert result.info["effect"] == "unchanged"
    assert result.truncated  # the third failure in a row
    assert {**env.state(), "step": 0} == before


def test_the_last_reward_does_not_show(made):
    env = made("click-test-2", reset="page")
    fresh = env.reset(seed=4)
    env.step(button(fresh, "TWO"))
    assert picture(env.reset(seed=4)).tobytes() == picture(fresh).tobytes()
    env.step(button(fresh, "TWO"))
    browser = env._browser
    browser.evaluate("document.getElementById('miniwob-hidden').remove()")
    dark = Image.open(io.BytesIO(browser.screenshot())).convert("RGB").getpixel((150, 5))
    assert max(dark) < 60  # a control: without the style, the start cover lies over the page
    assert "reward-last" not in json.dumps(env.state())
    env.close()


def test_a_reset_in_the_page_and_an_anew_load_give_the_same(made):
    page, load = made("click-test-2", reset="page"), made("click-test-2")
    for seed in (0, 3, 0):
        assert envs.digest({**page.reset(seed=seed).__dict__, "screenshot": None, "arrays": None, "elements": None})
        assert page.reset(seed=seed).text == load.reset(seed=seed).text
        assert envs.digest(page.state()) == envs.digest(load.state())


def test_digests_are_the_same_in_another_process_and_order(made):
    script = (
        "import envs, sys\n"
        "env = envs.make('miniwob/email-inbox')\n"
        "for seed in (9, 0):\n"
        "    env.reset(seed=seed)\n"
        "    result = env.step(envs.Action('click', {'point': (40, 90)}))\n"
        "    print(envs.digest(env.state()), hash(result.obs.text) and result.obs.text.count('['))\n"
        "env.close()\n"
    )
    other = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120, check=True)
    env, lines = made("email-inbox"), []
    for seed in (0, 9):
        env.reset(seed=seed)
        result = env.step(Action("click", {"point": (40, 90)}))
        lines.append(f"{envs.digest(env.state())} {result.obs.text.count('[')}")
    assert other.stdout.split("\n")[:2] == lines[::-1]
    assert lines[0] != lines[1]


def test_a_blinking_cursor_is_not_in_the_digest(made):
    env = made("terminal")
    env.reset(seed=0)
    cursor = "document.getElementById('input-flicker').className"
    seen, documents = {env._browser.evaluate(cursor)}, {env.state()["html"]}
    for _ in range(12):
        env.step(Action("hover", {"point": (150, 205)}))
        documents.add(env.state()["html"])
        seen.add(env._browser.evaluate(cursor))
    assert len(seen) == 2
    assert len(documents) == 1


def test_a_save_goes_on_where_it_was_and_another_replay_is_lost(made):
    env = made("click-checkboxes")
    obs = env.reset(seed=2)
    x1, y1, x2, y2 = obs.elements[0].box
    env.step(Action("click", {"point": ((x1 + x2) / 2, (y1 + y2) / 2)}))
    blob, key = env.save(), envs.digest(env.state())
    env.step(button(obs))
    obs = env.restore(blob)
    assert envs.digest(env.state()) == key
    assert obs.elements[0].attributes["checked"]
    with pytest.raises(LostError, match="1 actions"):
        env.restore(json.dumps({**json.loads(blob), "digest": "0" * 64}).encode())


def test_a_reward_that_is_no_number_counts_as_failed(made):
    env = made("bisect-angle")
    obs = env.reset(seed=0)
    x1, y1, x2, y2 = next(element.box for element in obs.elements if element.attributes.get("class") == "init-blue")
    env.step(Action("click", {"point": ((x1 + x2) / 2 - 2, (y1 + y2) / 2 - 2)}))  # drawn on the vertex: there is no angle
    result = env.step(button(obs))
    assert (result.reward, result.terminated, result.info["success"]) == (-1.0, True, False)
    assert result.info["error"] == "reward_not_finite"


def test_a_browser_that_dies_is_replaced_at_the_next_reset(made):
    env = made("click-button")
    first = env.reset(seed=0)
    subprocess.run(["kill", "-9", str(env._browser.pid)], check=True)
    with pytest.raises(CrashedError):
        env.step(Action("wait"))
    assert env.step(Action("wait")).info["error"] == "episode_over"
    assert env.reset(seed=0).text == first.text


def test_a_task_names_its_seed(made):
    env = made("click-test-2")
    env.reset(seed=8)
    task, text = env.task, env.reset(seed=8).text
    assert env.reset(task, seed=1).text == text
    with pytest.raises(UserError, match="must be a whole number"):
        env.reset(envs.Task("t", "", {"seed": "x"}))


def test_only_a_browser_that_is_frozen_claims_the_clock():
    assert "clock" in envs.describe("miniwob/click-test").supports
    assert "clock" not in envs.describe("miniwob/click-test", backend="playwright").supports


def test_the_split_between_training_and_test_is_an_option(made):
    assert made("click-test-transfer").reset(seed=0).text.startswith("Click button ONE.")
    assert made("click-test-transfer", mode="test", screenshot=False).reset(seed=0).text.startswith("Click button TWO.")
    assert made("click-test-transfer", mode="test", screenshot=False).reset(seed=0).screenshot is None


@pytest.mark.parametrize("page", SAMPLE)
def test_oracles_solve_pages_of_every_kind(page):
    env = envs.make(f"miniwob/{page}")
    try:
        assert run_episode(env, envs.oracle(f"miniwob/{page}", 1), seed=1)[-2].result.info["success"]
    finally:
        env.close()


@pytest.mark.slow
@pytest.mark.parametrize("page", sorted(solved()))
def test_every_oracle_solves_most_of_its_problems(page):
    env = envs.make(f"miniwob/{page}", screenshot=False)
    try:
        solved = [
            run_episode(env, envs.oracle(f"miniwob/{page}", seed), seed=seed)[-2].result.info["success"] for seed in range(3)
        ]
    finally:
        env.close()
    assert sum(solved) >= 2, solved


@pytest.mark.slow
def test_every_page_starts_twice_the_same_and_shows_its_task():
    differ = []
    for page in PAGES:
        env = envs.make(f"miniwob/{page}")
        try:
            first = env.reset(seed=11)
            key = envs.digest(env.state())
            assert picture(first).size == (160, 210)
            assert len(env.task.instruction) > 10
            second = env.reset(seed=11)
            if envs.digest(env.state()) != key or first.text != second.text:
                differ.append(page)
            assert env.reset(seed=12).t_virtual == 0
        finally:
            env.close()
    assert not differ
