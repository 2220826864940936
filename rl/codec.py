"""Between observations and token ids: what the policy reads, and how its answer becomes an action.

A codec only ever adds to a conversation; `rl.memory` puts prompts together whose older turns are left out. What the policy
sampled is decoded for the parser, and for the line that is left of an old turn, and never encoded again where it is trained.
"""

import itertools
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from envs.api import Action, EnvSpec, Invalid, Obs, StepResult, Task
from envs.parse import parse
from envs.parse_format import format_action
from jaxllm import chat
from jaxllm.errors import UserError
from jaxllm.tokenizer import Tokenizer

MAX_TEXT = 4000  # characters of an observation; longer ones are clipped in the middle, with a mark


class Codec(Protocol):
    """How one kind of conversation is written."""

    stop_ids: frozenset[int]  # that end an answer

    def begin(self, obs: Obs, spec: EnvSpec, task: Task | None = None, lines: Sequence[str] = ()) -> list[int]:
        """The ids of a prompt: the actions, the task, ``lines`` about turns that are left out, and what is seen now."""

    def observe(self, result: StepResult, *, stopped: bool) -> list[int]:
        """The ids that follow an answer: its end, unless the policy wrote it (`stopped`), and what the step led to."""

    def read(self, ids: Sequence[int], spec: EnvSpec) -> Action | Invalid:
        """The action of an answer; never raises."""

    def write(self, action: Action, spec: EnvSpec) -> list[int]:
        """The ids of the answer that `read` gives this action for, its end included."""

    def line(self, ids: Sequence[int], result: StepResult, limit: int) -> str:
        """An answer and what it led to, in one line of at most ``limit`` tokens."""


class PlainCodec:
    """Lines of plain text, for environments with a single action of a single argument: the answer is the argument's value."""

    def __init__(self, tokenizer: Tokenizer):
        self._tokenizer = tokenizer
        (self._end,) = tokenizer.encode("\n", bos=False)
        self.stop_ids = frozenset({self._end})

    def begin(self, obs: Obs, spec: EnvSpec, task: Task | None = None, lines: Sequence[str] = ()) -> list[int]:
        """The observation as a line, after those of turns that are left out."""
        return self._tokenizer.encode("".join(f"{line}\n" for line in (*lines, _text(obs))), bos=False)

    def observe(self, result: StepResult, *, stopped: bool) -> list[int]:
        """The observation as a line, with a question mark before it where the answer was not understood."""
        mark = "? " if result.info.get("error") else ""
        return [*([] if stopped else [self._end]), *self._tokenizer.encode(f"{mark}{_text(result.obs)}\n", bos=False)]

    def read(self, ids: Sequence[int], spec: EnvSpec) -> Action | Invalid:
        """The line as the value of the one argument."""
        text = _decoded(self._tokenizer, ids).removesuffix("\n")
        action, argument = _only(spec)
        if argument.kind == "int":
            if not (text.isascii() and text.lstrip("-").isdigit() and len(text) < 20):
                return Invalid("bad_argument", f"{argument.name} is a whole number")
            return Action(action.name, {argument.name: int(text)})
        if argument.choices and text not in argument.choices:
            return Invalid("bad_argument", f"{argument.name} is one of {', '.join(map(str, argument.choices))}")
        return Action(action.name, {argument.name: text})

    def write(self, action: Action, spec: EnvSpec) -> list[int]:
        """The value as a line."""
        _, argument = _only(spec)
        return self._tokenizer.encode(f"{action.arguments[argument.name]}\n", bos=False)

    def line(self, ids: Sequence[int], result: StepResult, limit: int) -> str:
        """The answer, an arrow and the observation."""
        return _line(self._tokenizer, ids, result, limit)


class ChatCodec:
    """Turns of a chat model in the agents' language (`envs.parse`): ``Thought: ...`` and ``Action: click(...)``."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        *,
        template: str | None = None,
        stop_ids: frozenset[int] = frozenset(),
        frame: str = "orig",
        variables: Mapping[str, Any] | None = None,
    ):
        """
        Args:
          template: of the chat; the tokenizer's own by default.
          stop_ids: that end a turn; the tokenizer's end of text by default.
          frame: of the points in answers; see `jaxllm.frames`.
        """
        self._tokenizer, self._template, self._frame = tokenizer, template, frame
        self._options: dict[str, Any] = {"variables": variables}
        ends = stop_ids or (frozenset() if tokenizer.eos_id is None else frozenset({tokenizer.eos_id}))
        if not ends:
            raise UserError("the tokenizer has no end of text: name the ids that end a turn")
        self.stop_ids = ends

    def begin(self, obs: Obs, spec: EnvSpec, task: Task | None = None, lines: Sequence[str] = ()) -> list[int]:
        """The actions as the system's words; the task, lines about earlier turns and the observation as the user's."""
        earlier = "\n".join(["Earlier turns:", *lines]) if lines else ""
        parts = [part for part in (task and task.instruction, earlier, _text(obs)) if part]
        messages = [{"role": "system", "content": manual(spec)}, {"role": "user", "content": "\n\n".join(parts)}]
        return chat.encode_chat(self._tokenizer, self._template, messages, **self._options)

    def observe(self, result: StepResult, *, stopped: bool) -> list[int]:
        """The observation as the user's words, and what was wrong with the answer."""
        wrong = f"Error: {result.info['error']}. {result.info.get('message', '')}\n" if result.info.get("error") else ""
        messages = [{"role": "user", "content": wrong + _text(result.obs)}]
        return chat.encode_next(self._tokenizer, self._template, messages, closed=stopped, **self._options)

    def read(self, ids: Sequence[int], spec: EnvSpec) -> Action | Invalid:
        """The one action of the answer."""
        kept = [token for token in ids if token not in self.stop_ids]
        found = parse(_decoded(self._tokenizer, kept), spec.actions, frame=self._frame, screen_wh=spec.screen_wh)
        return found.error or found.actions[0]

    def write(self, action: Action, spec: EnvSpec) -> list[int]:
        """The call as a turn, without a thought."""
        text = format_action(action, spec.actions, frame=self._frame, screen_wh=spec.screen_wh)
        return [*self._tokenizer.encode(text, bos=False), min(self.stop_ids)]

    def line(self, ids: Sequence[int], result: StepResult, limit: int) -> str:
        """The answer's words, an arrow and the observation."""
        return _line(self._tokenizer, [token for token in ids if token not in self.stop_ids], result, limit)


def manual(spec: EnvSpec) -> str:
    """What the actions of an environment are, for the system's words."""
    lines = [f"{action.name}({', '.join(a.name for a in action.arguments)}): {action.about}" for action in spec.actions]
    return "\n".join(["You act in an environment. Answer with one line, Action: name(argument=value). Actions:", *lines])


def _decoded(tokenizer: Tokenizer, ids: Sequence[int]) -> str:
    """The text; an id that no token has, which the head may have a row for, becomes U+FFFD."""
    parts = [(known, list(run)) for known, run in itertools.groupby(ids, lambda token: token < tokenizer.size)]
    return "".join(tokenizer.decode(run) if known else "\ufffd" * len(run) for known, run in parts)


def _line(tokenizer: Tokenizer, ids: Sequence[int], result: StepResult, limit: int) -> str:
    outcome = result.info.get("error") or _text(result.obs)
    text = " ".join(f"{_decoded(tokenizer, ids)} -> {outcome}".split())
    cut = tokenizer.encode(text, bos=False)[:limit]
    return _decoded(tokenizer, cut).rstrip("\ufffd ")


def _text(obs: Obs) -> str:
    text = obs.text or ""
    if len(text) <= MAX_TEXT:
        return text
    half = MAX_TEXT // 2
    return f"{text[:half]}\n[{len(text) - 2 * half} characters left out]\n{text[-half:]}"


def _only(spec: EnvSpec) -> Any:
    """The single action and its single argument. Raises UserError for an environment with more."""
    if len(spec.actions) != 1 or len(spec.actions[0].arguments) != 1:
        raise UserError(f"{spec.name} has more than one action or argument: plain lines can't tell them apart")
    return spec.actions[0], spec.actions[0].arguments[0]
