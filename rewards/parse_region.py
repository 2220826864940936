"""Which part of a model's output is its answer.

Everything is a search for fixed strings, so that the time is linear in the text whatever it holds.
"""

import dataclasses

# What opens an assistant's turn when the whole conversation came along.
ASSISTANT = (
    "<|im_start|>assistant",
    "<|start_header_id|>assistant<|end_header_id|>",
    "<start_of_turn>model",
    "<|assistant|>",
)
BARE_USER, BARE_ASSISTANT = "user\n", "\nassistant\n"  # what is left of such markers when a tokenizer drops special tokens
END_OF_TURN = ("<|im_end|>", "<|endoftext|>", "<|eot_id|>", "<|end|>", "<end_of_turn>", "</s>")
ANSWER, ANSWER_END = "<answer>", "</answer>"
THINK, THINK_END = "<think>", "</think>"
CALL, CALL_END = "<tool_call>", "</tool_call>"
BLANKS = " \t\n\r\f\v"


@dataclasses.dataclass(frozen=True, slots=True)
class Region:
    """The answer within a text: ``text[start:end]``, without blanks and end marker around it."""

    start: int
    end: int
    bare: bool  # nothing stands outside it but a closed think block, the answer's own tags and one end marker


def find(text: str, *, tool_calls: bool = False, strip: bool = True) -> Region | None:
    """The answer in a text; None where there is none, because a think block was never closed.

    In this order: what precedes the last assistant marker is cut; the last complete answer block, if there is one; otherwise
    what follows the think block, if there is one; one end-of-turn marker is removed; in dialects of tool calls, the first
    complete call.

    Args:
      tool_calls: whether the dialect answers in tool calls.
      strip: whether blanks and an end marker around the answer are no part of it.
    """
    start, end, bare = _turn(text), len(text), True
    if "<" in text:
        close = text.rfind(ANSWER_END, start)
        opened = text.rfind(ANSWER, start, close) if close >= 0 else -1
        if opened >= 0:
            bare = _is_thought(text, start, opened) and not _trimmed(text, close + len(ANSWER_END), end)
            start, end = opened + len(ANSWER), close
        else:
            thought, begun = text.rfind(THINK_END, start), text.rfind(THINK, start)
            if begun > thought:
                return None
            if thought >= 0:
                bare = _is_thought(text, start, thought + len(THINK_END))
                start = thought + len(THINK_END)
            if strip:
                end = _without_marker(text, start, end)
        if tool_calls:
            begun = text.find(CALL, start, end)
            closed = text.find(CALL_END, begun, end) if begun >= 0 else -1
            if closed >= 0:
                bare = bare and not text[start:begun].strip(BLANKS) and not text[closed + len(CALL_END) : end].strip(BLANKS)
                start, end = begun + len(CALL), closed
    if strip:
        start, end = _stripped(text, start, end)
    return Region(start, end, bare)


def _turn(text: str) -> int:
    """Where the last assistant turn begins; 0 when the text is one turn."""
    if "assistant" not in text and "model" not in text:
        return 0
    begin = 0
    for marker in ASSISTANT:
        found = text.rfind(marker)
        if found >= 0:
            begin = max(begin, found + len(marker))
    bare = text.rfind(BARE_ASSISTANT)
    if bare >= begin and (text.startswith(BARE_USER) or "\n" + BARE_USER in text[:bare]):
        begin = bare + len(BARE_ASSISTANT)
    return begin


def _is_thought(text: str, start: int, end: int) -> bool:
    """Whether ``text[start:end]`` is blank or one think block, whose opening the chat template may have written."""
    start, end = _stripped(text, start, end)
    return start == end or (text.startswith(THINK_END, end - len(THINK_END)) and text.find(THINK, start + 1, end) < 0)


def _trimmed(text: str, start: int, end: int) -> bool:
    """Whether more than blanks and one end marker is left."""
    start, end = _stripped(text, start, _without_marker(text, start, end))
    return start < end


def _without_marker(text: str, start: int, end: int) -> int:
    """The end without one end-of-turn marker and the blanks around it."""
    _, end = _stripped(text, start, end)
    for marker in END_OF_TURN:
        if end - len(marker) >= start and text.startswith(marker, end - len(marker)):
            return end - len(marker)
    return end


def _stripped(text: str, start: int, end: int) -> tuple[int, int]:
    """The bounds without ASCII blanks at either side."""
    if start < end and (text[start] in BLANKS or text[end - 1] in BLANKS):
        inner = text[start:end]
        left = len(inner) - len(inner.lstrip(BLANKS))
        start, end = start + left, start + left + len(inner.strip(BLANKS))
    return start, end
