"""The forms in which models write a point or a box, as patterns that take linear time.

A number is an optional minus, then digits with an optional fraction, or a fraction with a leading dot: ASCII digits, at most 12
of them, no exponent, no plus. Every quantifier is possessive or bounded and every pattern starts with a fixed character that it
cannot cross again, so that no text is read more than a few times.
"""

import dataclasses
import re
from collections.abc import Iterator

MAX_DIGITS = 12
B = r"[ \t\n\r\f\v]*+"  # blanks
NUMBER = rf"-?(?:[0-9]{{1,{MAX_DIGITS}}}+(?![0-9.])|(?=[0-9.]{{2,{MAX_DIGITS + 1}}}(?![0-9.]))[0-9]*+\.[0-9]++)"
A_B = rf"{B}(?P<a>{NUMBER}){B},{B}(?P<b>{NUMBER}){B}"
C_D = rf"{B}(?P<c>{NUMBER}){B},{B}(?P<d>{NUMBER}){B}"
PLAIN_PAIR = rf"{B}{NUMBER}{B},{B}{NUMBER}{B}"
TWO_OR_FOUR = rf"{A_B}(?:,{C_D})?+"


@dataclasses.dataclass(frozen=True, slots=True)
class Candidate:
    """One place of a text that gives a point or a box."""

    start: int  # of the place, in characters
    end: int
    numbers: tuple[str, ...]  # two or four
    cut: bool  # the text ended before the form was closed


class Form:
    """One way to write a point or a box.

    The pattern's groups a, b, c, d are the numbers; ``cut`` matches where the text ends before the form does, ``more`` where it
    goes on with too many numbers, ``two`` where two numbers are all that is wanted.
    """

    def __init__(self, pattern: str, *needs: str, two: bool = False, flags: int = re.ASCII):
        self.pattern = re.compile(pattern, flags)
        self.needs = needs  # strings of which one is in every text that has this form
        self.two = two  # as the group of that name, for the whole form
        groups = self.pattern.groupindex
        self._names = ("a", "b", "c", "d") if "c" in groups else ("a", "b")
        self._cut, self._more, self._two = (groups.get(name) for name in ("cut", "more", "two"))

    def may_be_in(self, text: str, start: int, end: int) -> bool:
        """Whether it is worth a search."""
        return any(text.find(part, start, end) >= 0 for part in self.needs)

    def matches(self, text: str, start: int, end: int) -> Iterator[re.Match[str]]:
        """Every place in ``text[start:end]`` that has this form, from left to right."""
        for match in self.pattern.finditer(text, start, end):
            if self._more and match[self._more] is not None:
                continue
            if self._cut and match[self._cut] is not None and len(self.numbers(match)) == 2:
                wanted = self.two or (self._two is not None and match[self._two] is not None)
                if not wanted:
                    continue  # the first half of a box is no point
            yield match

    def numbers(self, match: re.Match[str]) -> tuple[str, ...]:
        """The two or four numbers of a match."""
        numbers = match.group(*self._names)
        return numbers[:2] if numbers[-1] is None else numbers

    def candidate(self, match: re.Match[str]) -> Candidate:
        """A match as plain values."""
        return Candidate(*match.span(), self.numbers(match), self._cut is not None and match[self._cut] is not None)


CLOSED = r"(?:\]|(?P<cut>\Z))"
LIST = Form(rf"\[{TWO_OR_FOUR}{CLOSED}", ",")
# A list that is not the value of a quoted key.
UNKEYED_LIST = Form(rf"""\[(?=[-.0-9 \t\n\r\f\v])(?<!["']:\[)(?<!["']:\s\[)(?<!["']\s:\s\[){TWO_OR_FOUR}{CLOSED}""", ",")
KEYED_LIST = Form(
    rf"""["'](?:bbox_2d|(?P<two>point_2d|coordinate))["']{B}:{B}(?:\[{B}(?=\[))?+\[{TWO_OR_FOUR}{CLOSED}""",
    "_2d",
    "coordinate",
)
PAIRS = rf"\({A_B}\)(?:{B},{B}\({C_D}(?:\)|(?P<cut>\Z)))?+(?P<more>(?:{B},{B}\((?:{PLAIN_PAIR}\))?+)++)?+"
CORNERS = Form(PAIRS, ",")
TOKEN_CORNERS = Form(rf"<\|box_start\|>{B}{PAIRS}{B}(?:<\|box_end\|>)?+", "<|box_start|>")
PAREN = Form(rf"\({A_B}(?:\)|(?P<cut>\Z))", ",", two=True)
START_BOX = Form(
    rf"""start_box{B}={B}["']?+(?:<\|box_start\|>)?+{B}[(\[]{TWO_OR_FOUR}(?:[)\]]|(?P<cut>\Z))(?:<\|box_end\|>)?+["']?+""",
    "start_box",
    two=True,
)
POINT_TAG = Form(
    rf"""\b(?:start_)?+point{B}={B}["']?+<point>{B}(?P<a>{NUMBER})[ \t\n\r\f\v]++(?P<b>{NUMBER}){B}"""
    r"""(?:</point>|(?P<cut>\Z))["']?+""",
    "<point>",
    two=True,
)
POINT_FIELD = Form(rf"\bpoint{B}:{B}(?P<a>{NUMBER}){B},{B}(?P<b>{NUMBER})(?P<more>{B},{B}[-.0-9])?+", "point", two=True)
# What the released GUI-G2 reads, in linear time: any Unicode digits, any number of them.
RELEASE_NUMBER = r"-?(?:\d++(?:\.\d++)?+|\.\d++)"
RELEASE = Form(
    r"\[\s*+" + r"\s*+,\s*+".join(f"(?P<{name}>{RELEASE_NUMBER})" for name in "abcd") + r"\s*+\]", ",", flags=re.UNICODE
)
