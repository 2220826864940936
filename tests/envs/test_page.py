"""A user's page as an environment: ten lines of HTML, a judge in the page or in Python, and the mistakes a user makes."""

import re

import pytest

import envs
from envs import Action, VerifierError
from envs.browser import Browser, ScriptError
from jaxllm.errors import UserError

ADD = """<title>Add</title>
<p id=q></p><input id=a autofocus><button id=ok>OK</button>
<script>
  const [x, y] = [SEED % 10, SEED % 7];
  q.textContent = `${x} + ${y} = ?`;
  window.TASK = "Answer the question and press OK.";
  ok.onclick = () => { window.DONE = true; window.REWARD = a.value == x + y ? 1 : -1; };
</script>
"""
COUNTER = """<title>Press it three times</title>
<button onclick="n.textContent = Number(n.textContent) + 1">more</button><p id=n>0</p>
<img src="secret.png"><script>fetch("http://127.0.0.1:9/x").catch(() => { document.title += "!"; });</script>"""
SIZE = [300, 200]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("pages")
    (path / "add.html").write_text(ADD)
    (path / "counter.html").write_text(COUNTER)
    (path / "judges.py").write_text(
        "seen = []\n"
        "def three(view):\n"
        "    seen.append(view)\n"
        "    return min(int(view['own']), 3) / 3\n"
        "def answered(view):\n"
        "    right = view['answer'] == '7'\n"
        "    return {'reward': float(right), 'done': False, 'success': right}\n"
        "def broken(view):\n"
        "    return {'score': 1}\n"
        "def raising(view):\n"
        "    return view['answer']['price']\n"
    )
    return path


def centre(obs, role):
    x1, y1, x2, y2 = next(element.box for element in obs.elements if element.role == role)
    return {"point": ((x1 + x2) / 2, (y1 + y2) / 2)}


@pytest.fixture(scope="module")
def adder(folder):
    env = envs.make(f"page/{folder}/add.html", size=SIZE)
    yield env
    env.close()


@pytest.mark.parametrize(("answer", "reward"), [("7", 1.0), ("8", -1.0)])
def test_a_page_of_ten_lines_is_an_environment(adder, answer, reward):
    obs = adder.reset(seed=12)  # 12 % 10 + 12 % 7 = 2 + 5
    assert obs.text.startswith('Answer the question and press OK.\n[1] text "2 + 5 = ?" ')
    assert adder.task.instruction == "Answer the question and press OK."
    adder.step(Action("click", centre(obs, "textbox")))
    result = adder.step(Action("type", {"content": answer}))
    assert (result.reward, result.terminated) == (0.0, False)
    result = adder.step(Action("click", centre(obs, "button")))
    assert (result.reward, result.terminated, result.info["success"]) == (reward, True, reward == 1)
    assert adder.state()["values"] == [answer]


def test_boxes_are_those_of_the_document(adder):
    obs = adder.reset(seed=0)
    rect = adder._browser.evaluate("(({left, top, right, bottom}) => [left, top, right, bottom])(ok.getBoundingClientRect())")
    assert next(element.box for element in obs.elements if element.role == "button") == pytest.approx(rect, abs=0.01)


def test_a_seed_is_there_before_the_scripts_and_a_save_goes_on(adder):
    digests = {}
    for seed in (0, 3, 0):
        adder.reset(seed=seed)
        digests.setdefault(seed, set()).add(envs.digest(adder.state()))
    assert [len(found) for found in digests.values()] == [1, 1]
    assert digests[0] != digests[3]
    obs = adder.reset(seed=12)
    adder.step(Action("click", centre(obs, "textbox")))
    adder.step(Action("type", {"content": "7"}))
    blob = adder.save()
    adder.reset(seed=1)
    obs = adder.restore(blob)
    assert adder.step(Action("click", centre(obs, "button"))).reward == 1.0


def test_random_numbers_of_the_page_follow_from_the_seed(adder):
    drawn = []
    for seed in (4, 9, 4):
        adder.reset(seed=seed)
        drawn.append(adder._browser.evaluate("[Math.random(), Math.random()]"))
    assert drawn[0] == drawn[2] != drawn[1]
    assert all(0 <= number < 1 for number in drawn[0])


def test_a_verifier_gets_what_the_page_holds_and_pays_what_a_step_adds(folder, monkeypatch):
    monkeypatch.syspath_prepend(str(folder))
    env = envs.make(
        f"page/{folder}/counter.html", size=SIZE, verifier="judges:three", state="n.textContent", task="Press it thrice."
    )
    try:
        obs = env.reset(seed=5)
        assert obs.text.startswith("Press it thrice.\n")
        click = Action("click", centre(obs, "button"))
        results = [env.step(click) for _ in range(3)]
        assert [result.reward for result in results] == pytest.approx([1 / 3] * 3)
        assert [result.terminated for result in results] == [False, False, True]
        assert results[-1].info["success"]
        import judges

        view = judges.seen[-1]
        assert (view["own"], view["step"], view["answer"]) == ("3", 3, None)
        assert [element["text"] for element in view["elements"] if element["role"] == "button"] == ["more"]
        assert "http://127.0.0.1:9/x" in env._browser.refused
    finally:
        env.close()


def test_an_answer_is_judged_when_the_agent_says_that_it_is_done(folder, monkeypatch):
    monkeypatch.syspath_prepend(str(folder))
    env = envs.make(f"page/{folder}/add.html", size=SIZE, verifier="judges:answered", screenshot=False)
    try:
        for answer, reward in (("7", 1.0), ("6", 0.0)):
            assert env.reset(seed=12).screenshot is None
            result = env.step(Action("finished", {"content": answer}))
            assert (result.reward, result.terminated, result.info["success"]) == (reward, True, reward == 1)
    finally:
        env.close()


def test_a_verifier_that_raises_is_no_reward_of_nothing(folder, monkeypatch):
    monkeypatch.syspath_prepend(str(folder))
    env = envs.make(f"page/{folder}/add.html", size=SIZE, verifier="judges:raising", screenshot=False)
    try:
        with pytest.raises(VerifierError, match="its verifier raised TypeError: 'NoneType'"):
            env.reset(seed=12)
    finally:
        env.close()


def test_reward_done_and_success_may_be_expressions(folder):
    options = {"reward": "Number(n.textContent)", "done": "n.textContent === '2'", "success": "document.title.length > 3"}
    env = envs.make(f"page/{folder}/counter.html", size=SIZE, **options)
    try:
        click = Action("click", centre(env.reset(), "button"))
        assert [env.step(click).reward, env.step(click).terminated] == [1.0, True]
    finally:
        env.close()


def test_a_page_that_loses_its_way_cuts_the_episode_short(adder, monkeypatch):
    obs = adder.reset(seed=12)

    def stopped(expression):
        raise ScriptError("the script did not end and was stopped")

    with monkeypatch.context() as patched:
        patched.setattr(adder._browser, "evaluate", stopped)
        result = adder.step(Action("click", centre(obs, "textbox")))
    assert (result.reward, result.terminated, result.truncated, result.info["error"]) == (0.0, False, True, "page_error")
    assert adder.reset(seed=12).text == obs.text


@pytest.mark.parametrize(
    ("page", "options", "said"),
    [
        ("none.html", {}, "there is no such file"),
        ("add.html", {"size": [0, 10]}, "size is a width and a height"),
        ("add.html", {"size": "big"}, "size is list or tuple"),
        ("add.html", {"speed": 2}, "there is no option 'speed'"),
        ("add.html", {"verifier": "no_such_module:f"}, "name it module:function"),
        ("add.html", {"verifier": "json:nothing"}, "name it module:function"),
        ("add.html", {"seed_as": "a b"}, "seed_as is a name of a variable"),
        ("add.html", {"reward": "1 +"}, "no JavaScript expression"),
        ("add.html", {"reward": "'much'"}, "must be a finite number"),
        ("add.html", {"verifier": "judges:broken"}, "an object with reward, done and success"),
    ],
)
def test_what_a_user_gets_wrong_is_said(folder, monkeypatch, page, options, said):
    monkeypatch.syspath_prepend(str(folder))

    def start():
        env = envs.make(f"page/{folder}/{page}", **{"size": SIZE, **options})
        try:
            env.reset()
        finally:
            env.close()

    with pytest.raises(UserError, match=re.escape(said)):
        start()


def test_pages_are_described_without_a_browser(folder, monkeypatch):
    monkeypatch.setattr(Browser, "open", lambda *_, **__: pytest.fail("a browser was started"))
    spec = envs.describe(f"page/{folder}/add.html", max_steps=7, success=0.5)
    assert (spec.max_steps, spec.success, spec.screen_wh) == (7, 0.5, (1024, 768))
    assert spec.action("navigate") is None
    assert envs.describe("page/http://localhost:1/shop").action("navigate") is not None
    assert list(envs.names("page/*")) == []
