"""A file editor for agents, on a session's folder, without starting anything inside.

The commands are those of the published tool: view, create, str_replace, insert, undo_edit. Paths are as inside (/desk/...), or
relative to /desk; what leads out of it, links included, is refused.
"""

import dataclasses
import stat
from collections.abc import Sequence
from typing import Any

from envs.sandbox.bubblewrap import HOME
from envs.sandbox.channel import Clip
from envs.sandbox.paths import MAX_READ, OutsideError, Root

COMMANDS = ("view", "create", "str_replace", "insert", "undo_edit")
LEVELS = 2  # that a view of a folder lists
MAX_LISTED = 1000  # entries that it lists
CONTEXT = 4  # lines shown around an edit
MAX_VERSIONS = 20  # edits of one file that can be undone
MAX_REMEMBERED = 32 << 20  # bytes of earlier versions of all files


@dataclasses.dataclass(frozen=True)
class Edit:
    """What a command of the editor did."""

    text: str  # for the agent: the view, or what was changed, or why not
    ok: bool = True
    error: str = ""  # a code where it was refused: "bad_path", "not_found", "exists", "binary", "no_match", "many_matches" ...


class RefusedError(Exception):
    """A command that can't be done: a code and a sentence."""

    def __init__(self, code: str, message: str):
        super().__init__(message)
        self.code = code


class Editor:
    """The editor of one session. It remembers earlier versions, so that edits can be undone."""

    def __init__(self, root: Root):
        self.root = root
        self.versions: dict[str, list[bytes | None]] = {}  # path -> what it was before each edit; None: it did not exist

    def run(
        self,
        command: str,
        path: str,
        *,
        file_text: str | None = None,
        old_str: str | None = None,
        new_str: str | None = None,
        insert_line: int | None = None,
        view_range: Sequence[int] | None = None,
    ) -> Edit:
        """Does one command. Never raises for what an agent asks.

        Args:
          view: a file with numbered lines, ``view_range`` [first, last] counted from 1, -1 for the end; or two levels of a
            folder. Text of more than 16 KiB is clipped with a marker.
          create: ``file_text`` into a new file; a path that exists is refused.
          str_replace: ``old_str``, which occurs exactly once, becomes ``new_str`` ("" if left out).
          insert: ``new_str`` after line ``insert_line``, 0 for the beginning.
          undo_edit: takes back the last change that this editor made to the file.
        """
        try:
            name = self._name(path)
            if command == "view":
                return Edit(self._view(name, view_range))
            if command == "create":
                return Edit(self._create(name, _given("create", file_text=file_text)))
            if command == "str_replace":
                return Edit(self._replace(name, _given("str_replace", old_str=old_str), new_str or ""))
            if command == "insert":
                if insert_line is None:
                    raise RefusedError("missing_argument", "insert needs insert_line")
                return Edit(self._insert(name, insert_line, _given("insert", new_str=new_str)))
            if command == "undo_edit":
                return Edit(self._undo(name))
            raise RefusedError("unknown_command", f"the editor knows {', '.join(COMMANDS)}, not {command!r}")
        except RefusedError as refused:
            return Edit(str(refused), False, refused.code)
        except OutsideError:
            return Edit(f"{path} is outside {HOME}", False, "bad_path")
        except FileNotFoundError:
            return Edit(f"{path} does not exist", False, "not_found")
        except OSError as error:
            return Edit(f"{path}: {error.strerror or error}", False, "bad_path")

    def _name(self, path: str) -> str:
        """The path from /desk on; ".." and links are resolved where it is opened."""
        if not path.strip():
            raise RefusedError("bad_path", f"a path is needed, such as {HOME}/notes.txt")
        if path == HOME or path.startswith(HOME + "/"):
            path = path[len(HOME) :].lstrip("/")
        elif path.startswith("/"):
            raise OutsideError(path)
        return "/".join(part for part in path.split("/") if part not in ("", "."))

    def _view(self, name: str, view_range: Sequence[int] | None) -> str:
        if self.root.is_dir(name or "."):
            if view_range is not None:
                raise RefusedError("bad_range", "view_range is for files")
            return self._list(name)
        text = self._text(name)
        lines = _lines(text)
        first, last = 1, len(lines)
        if view_range is not None:
            first, last = _range(view_range, len(lines))
        return f"{_shown(name)}, lines {first} to {last} of {len(lines)}:\n{_numbered(lines, first, last)}"

    def _list(self, name: str) -> str:
        found = []
        for entry in self.root.walk(name or ".", LEVELS, MAX_LISTED + 1):
            mark = "/" if stat.S_ISDIR(entry.info.st_mode) else f" -> {entry.target}" if entry.target else ""
            found.append(f"{_shown(entry.path)}{mark}")
        more = f"\n[... more than {MAX_LISTED} entries ...]" if len(found) > MAX_LISTED else ""
        return _clipped(f"{_shown(name)}/, {LEVELS} levels:\n" + "\n".join(found[:MAX_LISTED])) + more

    def _create(self, name: str, text: str) -> str:
        if self.root.exists(name or "."):
            raise RefusedError("exists", f"{_shown(name)} exists; change it with str_replace or insert")
        try:
            self.root.write(name, _fitting(text), new=True)
        except FileExistsError as error:
            raise RefusedError("exists", f"{_shown(name)} exists; change it with str_replace or insert") from error
        self._remember(name, None)
        return f"{_shown(name)} was created with {len(_lines(text))} lines"

    def _replace(self, name: str, old: str, new: str) -> str:
        text = self._text(name)
        if not old:
            raise RefusedError("no_match", "old_str is empty; use insert to add text")
        if (count := text.count(old)) != 1:
            if not count:
                raise RefusedError("no_match", f"old_str does not occur in {_shown(name)}; it has to match exactly")
            where = f"{_shown(name)} (lines {', '.join(map(str, _occurrences(text, old)))})"
            raise RefusedError("many_matches", f"old_str occurs {count} times in {where}; make it unique")
        at = text.index(old)
        self._write(name, text, text[:at] + new + text[at + len(old) :])
        line = text.count("\n", 0, at) + 1
        return self._around(name, line, line + new.count("\n"))

    def _insert(self, name: str, line: int, text: str) -> str:
        before = self._text(name)
        lines = _kept(before)
        if not 0 <= line <= len(lines):
            raise RefusedError("bad_line", f"insert_line is from 0 to {len(lines)} in {_shown(name)}, not {line}")
        head, tail = "".join(lines[:line]), "".join(lines[line:])
        if head and not head.endswith("\n"):
            head += "\n"
        if tail and not text.endswith("\n"):
            text += "\n"
        self._write(name, before, head + text + tail)
        return self._around(name, line + 1, line + len(_lines(text)))

    def _undo(self, name: str) -> str:
        versions = self.versions.get(name)
        if not versions:
            raise RefusedError("no_edit", f"there is no edit of {_shown(name)} to undo")
        before = versions[-1]
        if before is None:
            self.root.remove(name)
        else:
            self.root.write(name, before)
        versions.pop()
        return f"{_shown(name)} is as it was before the last edit" if before is not None else f"{_shown(name)} was removed"

    def _text(self, name: str) -> str:
        if self.root.is_dir(name or "."):
            raise RefusedError("is_folder", f"{_shown(name)} is a folder")
        data = self.root.read(name)
        if b"\0" in data:
            raise RefusedError("binary", f"{_shown(name)} is a binary file of {len(data)} bytes")
        try:
            return data.decode()
        except UnicodeDecodeError as error:
            raise RefusedError("binary", f"{_shown(name)} is not UTF-8 text ({len(data)} bytes)") from error

    def _write(self, name: str, before: str, after: str) -> None:
        self.root.write(name, _fitting(after))
        self._remember(name, before.encode())

    def _remember(self, name: str, before: bytes | None) -> None:
        versions = self.versions.setdefault(name, [])
        versions.append(before)
        del versions[:-MAX_VERSIONS]
        while sum(len(old or b"") for kept in self.versions.values() for old in kept) > MAX_REMEMBERED:
            largest = max(self.versions.values(), key=lambda kept: sum(len(old or b"") for old in kept))
            largest.pop(0)

    def _around(self, name: str, first: int, last: int) -> str:
        lines = _lines(self._text(name))
        return f"{_shown(name)} was edited:\n{_numbered(lines, max(1, first - CONTEXT), min(len(lines), last + CONTEXT))}"


def _given(command: str, **arguments: str | None) -> str:
    ((name, value),) = arguments.items()
    if value is None:
        raise RefusedError("missing_argument", f"{command} needs {name}")
    return value


def _shown(name: str) -> str:
    return f"{HOME}/{name}" if name else HOME


def _fitting(text: str) -> bytes:
    data = text.encode(errors="replace")
    if len(data) > MAX_READ:
        raise RefusedError("too_long", f"a file that is edited has at most {MAX_READ >> 20} MiB")
    return data


def _kept(text: str) -> list[str]:
    """Lines with their newlines."""
    lines = text.split("\n")
    kept = [line + "\n" for line in lines[:-1]]
    return [*kept, lines[-1]] if lines[-1] else kept


def _lines(text: str) -> list[str]:
    return [line.removesuffix("\n") for line in _kept(text)]


def _range(given: Any, count: int) -> tuple[int, int]:
    whole = isinstance(given, list | tuple) and len(given) == 2
    if not whole or not all(isinstance(end, int) and not isinstance(end, bool) for end in given):
        raise RefusedError("bad_range", f"view_range is two line numbers, [first, last], not {str(given)[:80]}")
    first, last = given
    last = count if last == -1 else last
    if not 1 <= first <= last <= count and (first, last, count) != (1, 0, 0):
        raise RefusedError("bad_range", f"view_range lies within [1, {count}], the first before the last, not {list(given)}")
    return first, last


def _numbered(lines: list[str], first: int, last: int) -> str:
    return _clipped("\n".join(f"{number:6d}\t{lines[number - 1]}" for number in range(first, last + 1)))


def _clipped(text: str) -> str:
    clip = Clip()
    clip.add(text.encode(errors="replace"))
    return clip.text()


def _occurrences(text: str, part: str) -> list[int]:
    found: list[int] = []
    at = text.find(part)
    while at >= 0 and len(found) < 20:
        found.append(text.count("\n", 0, at) + 1)
        at = text.find(part, at + len(part))
    return found
