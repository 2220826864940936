"""Plans for the pages of MiniWoB that look like an app: mail, social media, a search engine, a phone book, a shop."""

import re
from collections.abc import Callable

from envs.api import Element
from envs.miniwob.sight import NotSeenError, Plan, Plans, Sight, click, first, hover, key, middle

SCREENS = 25  # keys by which a list is searched


def _reveal(s: Sight, seen: Callable[[], list[Element]]) -> Plan:
    """Goes down a list until something shows."""
    for _ in range(SCREENS):
        if seen():
            return
        yield key("down")
        yield hover((2, 60))
    raise NotSeenError("not in the list")


def _mail(s: Sight) -> Plan:
    sender, task = s.fields["by"], s.fields.get("task", "forward")
    yield s.click("heading", "Primary")
    yield from _reveal(s, lambda: [e for e in s.all(text=sender) if e.box[3] < 190])
    thread = s.one(text=sender)
    if task in ("star", "important", "delete"):
        icons = s.all(kind="trash" if task == "delete" else "star")
        yield click(min(icons, key=lambda icon: abs(middle(icon)[1] - thread.box[1] - 11)))
        return
    yield click(thread)
    yield s.click("heading", "Primary") if s.all("heading", "Primary") else hover((80, 150))
    name = "reply" if task == "reply" else "forward"
    if not s.all(text=name.capitalize()):
        yield click((80, 120))
        yield from _reveal(s, lambda: s.all(text=name.capitalize()))
    yield s.click(text=name.capitalize())
    if task == "reply":
        yield from s.enter(s.one(id="reply-text"), s.fields["message"])
    else:
        yield from s.enter(s.one(kind="forward-sender"), s.fields["to"])
    yield s.click(id=f"send-{name}")


_POST = 45.0  # px between the name of a post and its buttons, at most


def _posts(s: Sight, user: str, kind: str) -> list[Element]:
    """The buttons of a kind under a user's posts, as far as they can be clicked."""
    found = []
    for name in s.all(text=user):
        under = [e for e in s.all(kind=kind) if 0 < middle(e)[1] - middle(name)[1] < _POST and e.box[3] - e.box[1] > 8]
        found += under[:1]
    return found


_ICONS = {"Reply": "reply", "Retweet": "retweet", "Like": "like", "Share": "share"}


def _post(s: Sight) -> Plan:
    user, button = s.fields["user"], s.fields["button"]
    kind = _ICONS.get(button, "more")
    yield click((80, 75))
    yield from _reveal(s, lambda: _posts(s, user, kind))
    yield hover(_posts(s, user, kind)[0])  # the icon is gone for a moment when the pointer comes
    yield click(_posts(s, user, kind)[0])
    if kind == "more":
        yield from _reveal(s, lambda: [e for e in s.obs.elements if e.text.startswith(button) and e.box[3] < 205])
        yield click(first(e for e in s.obs.elements if e.text.startswith(button)))


def _many_posts(s: Sight) -> Plan:
    user, kind = s.fields["user"], _ICONS[s.fields["button"]]
    left = int(s.fields.get("amount", "99"))
    yield click((60, 75))
    for _ in range(2 * SCREENS):
        todo = [e for e in _posts(s, user, kind) if "active" not in str(e.attributes["class"])]
        if todo and left:
            left -= 1
            yield click(todo[0])
            yield hover((2, 60))
        elif s.all("button", "Submit") and s.one("button", "Submit").box[3] - s.one("button", "Submit").box[1] > 8:
            yield s.submit()
        else:
            yield key("down")
            yield hover((2, 60))


def _contact(s: Sight) -> Plan:
    name, kind = s.fields["name"], re.findall(r"phone|email|address", s.utterance)[-1]
    while not s.all("heading", name):
        yield s.click("link", ">")
    yield s.click("link", kind=kind)


def _search(s: Sight) -> Plan:
    rank = int(s.fields["rank"]) - 1
    yield from s.enter(s.one("textbox"), s.fields["query"])
    yield s.click("button", "Search")
    for _ in range(rank // 3):
        yield s.click("link", ">")
    yield click(s.all("link", kind="search-title")[rank % 3])


def _stock(s: Sight) -> Plan:
    limit = float(s.fields["target"])
    buy = s.one("button", "Buy")
    while True:
        price = re.findall(r'id="stock-price"[^>]*>\$([\d.]+)<', s.html)
        yield click(buy) if price and float(price[0]) < limit - 0.5 else hover(buy)


PLANS: Plans = {
    "email-inbox": _mail,
    "email-inbox-delete": _mail,
    "email-inbox-forward": _mail,
    "email-inbox-forward-nl": _mail,
    "email-inbox-forward-nl-turk": _mail,
    "email-inbox-important": _mail,
    "email-inbox-nl-turk": _mail,
    "email-inbox-noscroll": _mail,
    "email-inbox-reply": _mail,
    "email-inbox-star-reply": _mail,
    "phone-book": _contact,
    "search-engine": _search,
    "social-media": _post,
    "social-media-all": _many_posts,
    "social-media-some": _many_posts,
    "stock-market": _stock,
}
