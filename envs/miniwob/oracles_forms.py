"""Plans for the pages of MiniWoB that take text and values: fields, lists, dates, sliders, tables."""

import re

from envs.miniwob.sight import NotSeenError, Plan, Plans, Sight, click, drag, first, hold, key, let_go, middle, scroll, write


def _text(s: Sight) -> Plan:
    yield from s.enter(s.one("textbox"), s.fields["target"])
    yield s.submit()


def _text_case(s: Sight) -> Plan:
    text = s.fields["text"]
    yield from s.enter(s.one("textbox"), text.upper() if s.fields["case"] == "upper" else text.lower())
    yield s.submit()


def _password(s: Sight) -> Plan:
    for field in s.all("textbox"):
        yield from s.enter(field, s.fields["target"])
    yield s.submit()


def _date(s: Sight) -> Plan:
    field = s.one("textbox")
    yield click((field.box[0] + 14, middle(field)[1]))  # the month comes first
    yield write(s.fields["target"].replace("/", ""))
    yield s.submit()


def _time(s: Sight) -> Plan:
    hours, minutes, half = re.findall(r"(\d+):(\d+) ?([AP]M)", s.fields["target"])[0]
    field = s.one("textbox")
    yield click((field.box[0] + 10, middle(field)[1]))
    yield write(f"{int(hours):02}{minutes}{half}")
    yield s.submit()


def _login(s: Sight) -> Plan:
    for field, name in zip(s.all("textbox"), ("username", "password"), strict=True):
        yield from s.enter(field, s.fields[name])
    yield s.submit("Login")


def _login_popup(s: Sight) -> Plan:
    for number, name in enumerate(("username", "password")):
        for _ in range(3):
            yield click(s.all("textbox")[number])
            if close := [element for element in s.all("button") if element.attributes.get("id") == "popup-cancel"]:
                yield click(close[0])
                continue
            break
        yield write(s.fields[name])
    yield s.click(id="subbtn")


_TITLES = {"Genre": "genre", "Director": "director", "Year": "year", "Released": "year"}


def _search_form(s: Sight) -> Plan:
    """Three fields with a label each, to their left, above or below, in any order."""
    boxes = sorted(s.all("textbox"), key=lambda box: box.box[1])
    titles = [element for element in s.obs.elements if re.search("|".join(_TITLES), element.text) and element.role != "textbox"]
    for title, box in zip(sorted(titles, key=lambda title: middle(title)[1]), boxes, strict=True):
        yield from s.enter(box, s.fields[first(name for word, name in _TITLES.items() if word in title.text)])
    yield click(first(element for element in s.obs.elements if element.text in ("Submit", "Search", "Go!")))


def _radio_and_text(s: Sight) -> Plan:
    yield click(s.all("radio")[int(s.fields["radio target"]) - 1])
    yield from s.enter(s.all("textbox")[int(s.fields["textbox target"]) - 1], s.fields["textbox text"])
    yield s.submit()


def _list(s: Sight) -> Plan:
    yield key("tab")  # a click would open the list outside the page
    yield write(s.fields["target"])
    yield s.submit()


def _dropdown(s: Sight) -> Plan:
    yield s.click(kind="label")
    yield from s.settle(2)
    target = s.fields["dropdown target"]
    for _ in range(12):
        if found := [element for element in s.all(text=target) if "label" not in str(element.attributes.get("class"))]:
            yield click(found[0])
            break
        yield key("down")
    yield from s.settle(2)
    yield s.click("button", s.fields["button target"])


def _options(s: Sight) -> Plan:
    wanted = s.fields["target"].split(", ")
    rows = re.findall(r"<option[^>]*>([^<]*)</option>", s.html)
    wanted.sort(key=rows.index)
    listed = s.one(tag="select")
    yield click((middle(listed)[0], listed.box[1] + 8))
    yield key("home")
    for _ in range(rows.index(wanted[0])):
        yield key("down")
    for name in wanted[1:]:
        if not s.all("option", name):
            yield scroll(middle(listed), "down")
        yield hold("ctrl")
        yield s.click("option", name)
        yield let_go("ctrl")
    yield s.submit()


def _word(s: Sight) -> Plan:
    number = int(re.findall(r"the (\d+)(?:st|nd|rd|th) word", s.utterance)[0])
    paragraph = re.findall(r"<p>(.*?)</p>", s.html, re.DOTALL)[0]
    yield from s.enter(s.one("textbox"), re.sub(r"[^A-Za-z0-9]", "", paragraph.split()[number - 1]))
    yield s.submit()


def _last_word(s: Sight) -> Plan:
    boxes = s.all("textbox")
    yield from s.enter(boxes[1], re.sub(r"\W+$", "", str(boxes[0].attributes["value"]).split()[-1]))
    yield s.submit()


def _copy(s: Sight) -> Plan:
    boxes = s.all("textbox")
    yield from s.enter(boxes[-1], str(boxes[int(s.fields.get("target", "1")) - 1].attributes["value"]))
    yield s.submit()


def _letters(s: Sight) -> Plan:
    yield from s.enter(s.one("textbox"), "".join(element.text for element in s.all("text")))
    yield s.submit()


def _sum(s: Sight) -> Plan:
    first, operator, second = re.findall(r"(-?\d+) *([-+x×*]) *(-?\d+)", s.one("text").text)[0]
    a, b = int(first), int(second)
    yield from s.enter(s.one("textbox"), str({"+": a + b, "-": a - b}.get(operator, a * b)))
    yield s.submit()


def _algebra(s: Sight) -> Plan:
    """x + a = b, a - x = b and so on: the number that fits, found by trying."""
    left, right = s.one("text").text.split("=")
    for x in range(-300, 301):
        terms = re.findall(r"([-+]?)\s*(x|\d+)", left)
        value = sum((-1 if sign == "-" else 1) * (x if term == "x" else int(term)) for sign, term in terms)
        if value == int(right):
            yield from s.enter(s.one("textbox"), str(x))
            yield s.submit()
    raise NotSeenError(s.one("text").text)


def _blocks(s: Sight) -> Plan:
    yield from s.enter(s.one("textbox"), str(len(s.all(kind="addition-block"))))
    yield s.submit()


def _table(s: Sight) -> Plan:
    cells = [element.text for element in s.all("cell")]
    values = dict(zip(cells[::2], cells[1::2], strict=True))
    labels = [element.text.rstrip(":") for element in s.all("label")] or [s.fields["target"]]
    for label, field in zip(labels, s.all("textbox"), strict=True):
        yield from s.enter(field, values[label])
    yield s.submit()


def _guess(s: Sight) -> Plan:
    low, high = 0, 9
    while True:
        guess = (low + high) // 2
        yield from s.enter(s.one("textbox"), str(guess))
        yield s.submit()
        if any("lower" in element.text for element in s.all("text")):
            high = guess - 1
        else:
            low = guess + 1


def _generate(s: Sight) -> Plan:
    criterion, number = s.fields["criterion"], int(s.fields.get("number") or 0)
    while True:
        yield s.click("button", "Generate")
        shown = int(s.one("text").text)
        fits = {"less than": shown < number, "greater than": shown > number, "odd": shown % 2 == 1, "even": shown % 2 == 0}
        if fits[criterion]:
            yield s.submit()


def _autocomplete(s: Sight) -> Plan:
    start, end = s.fields["start"], s.fields.get("end", "")
    yield from s.enter(s.one("textbox"), start)
    yield from s.settle(4)
    for _ in range(40):
        if found := [item for item in s.all("menuitem") if item.text.startswith(start) and item.text.endswith(end)]:
            yield click(found[0])
            yield from s.settle(2)
            yield s.submit()
        yield key("down")
        value = str(s.one("textbox").attributes["value"])
        if value.startswith(start) and value.endswith(end) and len(value) > len(start):
            yield key("enter")
            yield s.submit()


def _spinner(s: Sight) -> Plan:
    target = int(s.fields["target"])
    while (value := int(str(s.one("spinbutton").attributes["value"]))) != target:
        yield s.click(kind="ui-icon-triangle-1-n" if value < target else "ui-icon-triangle-1-s")
    yield s.submit()


def _slide(s: Sight, number: int, target: int) -> Plan:
    """Sets the n-th slider: a drag to about the place, arrow keys for the rest."""

    def value() -> int:
        return int([element for element in s.all("text") if re.fullmatch(r"-?\d+", element.text)][number].text)

    def handle() -> Plan:
        yield click(s.all(kind="ui-slider-handle")[number])

    yield from handle()
    yield key("home")
    low, start = value(), middle(s.all(kind="ui-slider-handle")[number])
    if low < target:
        yield key("end")
        high, end = value(), middle(s.all(kind="ui-slider-handle")[number])
        if low < target < high:
            share = (target - low) / (high - low)
            goal = (start[0] + (end[0] - start[0]) * share, start[1] + (end[1] - start[1]) * share)
            yield drag(s.all(kind="ui-slider-handle")[number], goal)
    while value() != target:
        yield key("right" if value() < target else "left")


def _slider(s: Sight) -> Plan:
    yield from _slide(s, 0, int(s.fields["target"]))
    yield s.submit()


def _sliders(s: Sight) -> Plan:
    for number, name in enumerate(("n1", "n2", "n3")):
        yield from _slide(s, number, int(s.fields[name]))
    yield s.submit()


def _slider_and_box(s: Sight) -> Plan:
    yield from _slide(s, 0, int(s.fields["slider target"]))
    yield click(s.all("checkbox")[int(s.fields["checkbox target"]) - 1])
    yield s.submit()


_MONTHS = ["January", "February", "March", "April", "May", "June"]
_MONTHS += ["July", "August", "September", "October", "November", "December"]


def _calendar(s: Sight) -> Plan:
    """Opens the date picker, goes back by months, picks the day."""
    wanted = int(s.fields["month"])
    yield s.click("textbox")
    yield from s.settle()
    for _ in range(12):
        shown = _MONTHS.index(s.one(kind="ui-datepicker-month").text) + 1
        if shown == wanted:
            break
        yield s.click(kind="ui-icon-circle-triangle-w" if shown > wanted else "ui-icon-circle-triangle-e")
    yield s.click("link", s.fields["day"])
    yield from s.settle()
    yield s.submit()


def _agreement(s: Sight) -> Plan:
    asked = re.findall(r'enter the name "(.*?)" then press "(.*?)"', s.utterance)
    if not asked:
        yield s.click("button", "Cancel")
    text = s.all("textbox")[0]
    for _ in range(4):
        yield scroll(middle(text), "down")
    yield from s.enter(s.all("textbox")[1], asked[0][0])
    yield s.click("button", asked[0][1])


def _terminal(s: Sight) -> Plan:
    yield s.click(kind="terminal-line") if s.all(kind="terminal-line") else s.click(text="user$")
    yield write("ls\n")
    lines = re.findall(r'class="output">([^<]*)<', s.html)
    files = lines[-1].split()
    extension = re.findall(r"extension (\.\S+)", s.utterance)
    fits = [name for name in files if (name.endswith(extension[0]) if extension else "." not in name)]
    yield write(f"rm {fits[0]}\n")


PLANS: Plans = {
    "choose-date": _calendar,
    "choose-date-easy": _calendar,
    "choose-date-medium": _calendar,
    "choose-date-nodelay": _calendar,
    "choose-list": _list,
    "click-scroll-list": _options,
    "copy-paste": _copy,
    "copy-paste-2": _copy,
    "enter-date": _date,
    "enter-password": _password,
    "enter-text": _text,
    "enter-text-2": _text_case,
    "enter-text-dynamic": _text,
    "enter-time": _time,
    "find-word": _word,
    "form-sequence": _slider_and_box,
    "form-sequence-2": _radio_and_text,
    "form-sequence-3": _dropdown,
    "generate-number": _generate,
    "guess-number": _guess,
    "login-user": _login,
    "login-user-popup": _login_popup,
    "multi-layouts": _search_form,
    "multi-orderings": _search_form,
    "read-table": _table,
    "read-table-2": _table,
    "scroll-text": _last_word,
    "sign-agreement": _agreement,
    "simple-algebra": _algebra,
    "simple-arithmetic": _sum,
    "terminal": _terminal,
    "text-transform": _letters,
    "use-autocomplete": _autocomplete,
    "use-autocomplete-nodelay": _autocomplete,
    "use-slider": _slider,
    "use-slider-2": _sliders,
    "use-spinner": _spinner,
    "visual-addition": _blocks,
}
