"""The keys of a US keyboard, as the debugging protocol describes them."""

import dataclasses

MODIFIERS = {"alt": 1, "ctrl": 2, "meta": 4, "shift": 8}  # bits of `Input.dispatchKeyEvent`


@dataclasses.dataclass(frozen=True)
class Key:
    """One key: the values of a KeyboardEvent (UI Events, W3C) and the Windows virtual key code that goes with them."""

    key: str
    code: str
    number: int
    text: str = ""  # what it writes

    def event(self, down: bool, modifiers: int) -> dict[str, str | int]:
        """The parameters of the event. A key writes nothing while ctrl, alt or meta is held."""
        parameters: dict[str, str | int] = {"type": "keyUp", "modifiers": modifiers, "key": self.key, "code": self.code}
        if self.number:
            parameters["windowsVirtualKeyCode"] = self.number
        if down:
            text = "" if modifiers & ~MODIFIERS["shift"] else self.text
            parameters["type"] = "keyDown" if text else "rawKeyDown"
            if text:
                parameters["text"] = text
        return parameters


_NAMED = {
    "enter": Key("Enter", "Enter", 13, "\r"),
    "esc": Key("Escape", "Escape", 27),
    "tab": Key("Tab", "Tab", 9),
    "space": Key(" ", "Space", 32, " "),
    "backspace": Key("Backspace", "Backspace", 8),
    "delete": Key("Delete", "Delete", 46),
    "insert": Key("Insert", "Insert", 45),
    "home": Key("Home", "Home", 36),
    "end": Key("End", "End", 35),
    "pageup": Key("PageUp", "PageUp", 33),
    "pagedown": Key("PageDown", "PageDown", 34),
    "up": Key("ArrowUp", "ArrowUp", 38),
    "down": Key("ArrowDown", "ArrowDown", 40),
    "left": Key("ArrowLeft", "ArrowLeft", 37),
    "right": Key("ArrowRight", "ArrowRight", 39),
    "ctrl": Key("Control", "ControlLeft", 17),
    "shift": Key("Shift", "ShiftLeft", 16),
    "alt": Key("Alt", "AltLeft", 18),
    "meta": Key("Meta", "MetaLeft", 91),
    "capslock": Key("CapsLock", "CapsLock", 20),
    **{f"f{n}": Key(f"F{n}", f"F{n}", 111 + n) for n in range(1, 13)},
}
# Unshifted character, shifted character, code, virtual key code.
_SIGNS = (
    ("`", "~", "Backquote", 192),
    ("-", "_", "Minus", 189),
    ("=", "+", "Equal", 187),
    ("[", "{", "BracketLeft", 219),
    ("]", "}", "BracketRight", 221),
    ("\\", "|", "Backslash", 220),
    (";", ":", "Semicolon", 186),
    ("'", '"', "Quote", 222),
    (",", "<", "Comma", 188),
    (".", ">", "Period", 190),
    ("/", "?", "Slash", 191),
    *((digit, sign, f"Digit{digit}", ord(digit)) for digit, sign in zip("0123456789", ")!@#$%^&*(", strict=True)),
    *((chr(n + 32), chr(n), f"Key{chr(n)}", n) for n in range(ord("A"), ord("Z") + 1)),
)
_WRITING = {sign[upper]: sign for sign in _SIGNS for upper in (0, 1)}


def named(name: str, modifiers: int = 0) -> Key:
    """The key that a name of `envs.actions.KEYS`, or a character, means. With shift held it writes its upper character."""
    if name in _NAMED:
        return _NAMED[name]
    key = writing(name)
    if modifiers & MODIFIERS["shift"] and name in _WRITING:
        return dataclasses.replace(key, key=_WRITING[name][1], text=_WRITING[name][1])
    return key


def writing(character: str) -> Key:
    """The key that writes a character; one without a place on the keyboard where there is none."""
    if character in "\r\n":
        return _NAMED["enter"]
    if character == "\t":
        return _NAMED["tab"]
    if character == " ":
        return _NAMED["space"]
    _, _, code, number = _WRITING.get(character, ("", "", "", 0))
    return Key(character, code, number, character)


def needs_shift(character: str) -> bool:
    """Whether a US keyboard writes this character with shift held."""
    return character in _WRITING and _WRITING[character][0] != character
