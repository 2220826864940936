"""The explorer in a real Chromium, as a person uses it."""

import re
import shlex

import explored
import pytest
import system
from explored import DOG_NEURON, EVIL_NEURON, HOSTILE, LAYER
from playwright.sync_api import Browser, Page, expect, sync_playwright

from interp import explore

NAME = f"L{LAYER}/N{DOG_NEURON}"
EVIL = f"L{LAYER}/N{EVIL_NEURON}"
TOKEN = "a secret of enough letters"
SHOWN = HOSTILE.replace(" ", "␣")
STRONG = 5000


@pytest.fixture(scope="module")
def explorer(tmp_path_factory):
    return explored.make(tmp_path_factory.mktemp("explored"))


@pytest.fixture(scope="module")
def address(explorer):
    with explore.serving(explorer, explore.Door("127.0.0.1", None)) as address:
        yield address


@pytest.fixture(scope="module")
def browser():
    executable = system.find()
    if executable is None:
        pytest.fail(system.ADVICE)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=executable, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture
def page(browser: Browser, address):
    """A page on which nothing may go wrong: no error, no request elsewhere, no violation of the policy."""
    page = browser.new_page(viewport={"width": 1280, "height": 900}, base_url=address)
    page.set_default_timeout(30_000)
    expect.set_options(timeout=30_000)
    wrong: list[str] = []
    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.on("console", lambda message: wrong.append(message.text) if message.type == "error" else None)
    page.on("request", lambda request: None if request.url.startswith((address, "data:")) else wrong.append(request.url))
    yield page
    title = page.title()
    page.close()
    assert wrong == []
    assert "owned" not in title


def no_sideways_scroll(page: Page) -> bool:
    return page.evaluate("document.documentElement.scrollWidth <= innerWidth")


def test_search_as_one_types_and_open_by_keyboard(page: Page):
    page.goto("/")
    expect(page.get_by_role("heading", level=1)).to_contain_text("stand for")
    page.keyboard.press("/")
    page.keyboard.type("dog")
    first = page.locator("table.matches a.neuron").first
    expect(first).to_have_text(NAME)
    assert page.url.endswith("#/search?q=dog")
    expect(page.locator("table.matches .token.wanted").first).to_have_text("␣dog")
    page.keyboard.press("ArrowDown")
    expect(first).to_be_focused()
    with page.expect_response("**/api/search*"):
        page.locator("#query").dispatch_event("input")
    expect(first).to_be_focused()  # also when the answer comes again, or late
    page.keyboard.press("ArrowDown")
    expect(first).not_to_be_focused()
    page.keyboard.press("ArrowUp")
    page.keyboard.press("ArrowUp")
    expect(page.locator("#query")).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", level=1)).to_have_text(NAME)
    page.go_back()
    expect(page.locator("#query")).to_have_value("dog")
    page.locator("#query").focus()
    page.keyboard.press("Escape")
    expect(page.locator("#query")).to_have_value("")


def test_a_regular_expression_and_a_bad_one(page: Page):
    page.goto("/#/search?q=%5E+dog%24&by=regex")
    expect(page.locator("table.matches a.neuron").first).to_have_text(NAME)
    expect(page.locator("#by")).to_have_value("regex")


def test_a_neuron_shows_poles_decodes_neighbours_and_contexts(page: Page):
    page.goto("/")
    expect(page.get_by_role("heading", level=1)).to_contain_text("stand for")  # the page's scripts run
    page.locator("#query").fill(NAME.lower())
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", level=1)).to_have_text(NAME)
    assert page.url.endswith(f"#/neuron/{NAME}")
    for heading in ("Its other vectors", "Nearest neighbours", "Natural values", "Where it is moved"):
        expect(page.get_by_role("heading", name=heading)).to_be_visible()
    expect(page.locator(".busy")).to_have_count(0)
    expect(page.locator(".error")).to_have_count(0)
    expect(page.locator("ol.tokens").first.locator("li").first).to_contain_text("␣dog")
    expect(page.locator(".context mark").first).to_be_visible()
    with page.expect_download() as download:
        page.get_by_role("link", name="Neuronpedia JSON").click()
    assert download.value.suggested_filename == f"L{LAYER}-N{DOG_NEURON}.neuronpedia.json"


def test_clamp_in_the_playground(page: Page):
    page.goto("/#/playground?prompt=a+dog&tokens=9")
    page.get_by_label("Neuron to clamp").fill(NAME)
    page.get_by_role("button", name="add clamp").click()
    page.get_by_label(f"{NAME} value").fill(str(STRONG))
    page.get_by_label("Site").select_option("product")
    page.get_by_role("button", name="run").click()
    expect(page.get_by_text("Point at a token")).to_be_visible()
    plain, clamped = (page.locator(".answer").nth(i) for i in (0, 1))
    expect(clamped).to_have_text(" dog" * 9, use_inner_text=True)
    assert " dog dog" not in plain.inner_text()
    assert page.locator("#next tr").first.inner_text().startswith("␣dog")
    clamped.locator("span").nth(1).hover()
    expect(page.locator("#tip")).to_contain_text("in the plain model")
    assert f"clamps=L{LAYER}%2FN{DOG_NEURON}%3D{STRONG}" in page.url
    page.reload()
    expect(page.get_by_label(f"{NAME} value")).to_have_value(str(STRONG))
    expect(page.get_by_text("Point at a token")).to_be_visible()
    expect(page.locator(".answer").nth(1)).to_have_text(" dog" * 9, use_inner_text=True)


def test_the_slider_and_the_copied_commands(page: Page, explorer):
    page.goto(f"/#/playground?prompt=it%27s+%22so%22&clamps={NAME}=20")
    expect(page.get_by_text("Point at a token")).to_be_visible()
    slider = page.get_by_label(f"{NAME} slider")
    slider.focus()
    page.keyboard.press("Home")
    expect(page.get_by_label(f"{NAME} value")).to_have_value("-100")
    page.get_by_role("button", name="copy as command line").click()
    code = page.locator("pre.copy")
    words = shlex.split(code.inner_text())
    assert words[:4] == ["jaxllm", "clamp", "--set", f"{NAME}=-100"]
    assert words[-2:] == [explorer.brain.name, 'it\'s "so"']
    page.get_by_role("button", name="copy as Python").click()
    text = code.inner_text()
    compile(text, "copied", "exec")
    assert f"NeuronClamp({LAYER}, {DOG_NEURON}, -100, " in text
    assert 'it\'s \\"so\\"' in text


def test_compare_and_one_neuron_before_and_after(page: Page):
    page.goto("/#/compare")
    link = page.locator("table a.neuron").first
    expect(link).to_have_text(NAME)
    expect(page.locator("svg polyline").first).to_be_attached()
    link.click()
    expect(page.get_by_role("heading", level=1)).to_have_text(f"{NAME}, before and after")
    tops = [page.locator(".columns > section").nth(i).locator("ol.tokens li").first.inner_text() for i in (0, 1)]
    assert tops[0].startswith("␣dog")
    assert not tops[1].startswith("␣dog")


def test_every_neuron_of_the_picture_is_a_link(page: Page):
    page.goto("/#/picture")
    stage = page.locator("#stage")
    expect(page.get_by_text("Grey: no label")).to_be_visible()
    canvas = stage.locator("canvas")
    canvas.focus()
    page.keyboard.press("ArrowRight")
    spot = page.locator("#spot")
    expect(spot).to_be_visible()
    before = spot.get_attribute("href")
    page.keyboard.press("ArrowRight")
    assert re.fullmatch(r"#/neuron/L\d/N\d+", before)
    assert spot.get_attribute("href") != before
    page.keyboard.press("+")
    page.keyboard.press("+")
    expect(page).to_have_url(re.compile("zoom="))
    zoomed = page.url
    page.reload()
    expect(page.get_by_text("Grey: no label")).to_be_visible()
    assert page.url == zoomed
    box = stage.bounding_box()
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    expect(spot).to_be_visible()
    href = spot.get_attribute("href")
    page.mouse.down()
    page.mouse.up()
    expect(page).to_have_url(re.compile(re.escape(href)))


def test_the_picture_of_a_search_has_its_own_address(page: Page):
    page.goto("/#/picture?q=%20dog&by=token")
    expect(page.get_by_text(re.compile("neurons have it among their first tokens"))).to_be_visible()
    colours = page.evaluate(
        "new Set(new Uint32Array(document.querySelector('#stage canvas').getContext('2d')"
        ".getImageData(40, 0, 1200, 500).data.buffer)).size"
    )
    assert colours > 3


def test_a_hostile_token_is_text_in_every_view(page: Page):
    page.goto("/")
    page.locator("#query").fill(HOSTILE)
    page.locator("#by").select_option("token")
    expect(page.locator("table.matches .token.wanted").first).to_have_text(SHOWN)
    page.goto(f"/#/neuron/{EVIL}")
    expect(page.locator("ol.tokens li .token").first).to_have_text(SHOWN)
    expect(page.locator(".busy")).to_have_count(0)
    page.goto(f"/#/playground?prompt=a+dog&tokens=9&site=product&clamps={EVIL}={STRONG}")
    expect(page.get_by_text("Point at a token")).to_be_visible()
    expect(page.locator(".answer").nth(1)).to_contain_text(HOSTILE)
    assert page.locator("main img, main b, main script").count() == 0
    assert "owned" not in page.title()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_narrow_screen_never_scrolls_sideways(browser: Browser, address, scheme):
    page = browser.new_page(viewport={"width": 400, "height": 800}, base_url=address, color_scheme=scheme)
    page.set_default_timeout(30_000)
    views = (
        "#/",
        "#/search?q=dog",
        f"#/neuron/{NAME}",
        "#/picture",
        f"#/playground?clamps={NAME}=20",
        "#/compare",
        f"#/compare/{NAME}",
    )
    for view in views if scheme == "light" else views[:2]:
        page.goto(f"/{view}")
        page.reload()
        expect(page.get_by_role("heading", level=1)).to_be_visible()
        expect(page.locator(".busy")).to_have_count(0)
        assert no_sideways_scroll(page), view
    dark = page.evaluate("getComputedStyle(document.body).backgroundColor") != "rgb(255, 255, 255)"
    assert dark == (scheme == "dark")
    page.close()


def test_a_very_large_screen(browser: Browser, address):
    page = browser.new_page(viewport={"width": 3840, "height": 2160}, base_url=address)
    page.goto("/#/picture")
    expect(page.locator("#stage canvas")).to_be_visible()
    assert page.locator("#stage").bounding_box()["width"] > 2500
    page.close()


def test_the_token_is_asked_for_and_taken_from_the_address(browser: Browser, explorer):
    with explore.serving(explorer, explore.Door("127.0.0.1", TOKEN)) as address:
        page = browser.new_page(base_url=address)
        page.goto("/")
        page.locator("#token").fill("a wrong one")
        page.keyboard.press("Enter")
        expect(page.get_by_text("the token is wrong")).to_be_visible()
        page.locator("#token").fill(TOKEN)
        page.keyboard.press("Enter")
        expect(page.get_by_role("heading", level=1)).to_contain_text("stand for")
        page.close()
        page = browser.new_context(base_url=address).new_page()
        page.goto(f"/#token={TOKEN.replace(' ', '%20')}")
        expect(page.get_by_role("heading", level=1)).to_contain_text("stand for")
        assert "token" not in page.url
        page.close()


def test_a_missing_browser_is_told(monkeypatch):
    monkeypatch.setenv("CHROMIUM", "/nowhere")
    assert system.find() is None
    assert "apt-get install chromium" in system.ADVICE
