"""Conversations as token ids: one begin-of-text token, user text that stays text, turns that extend and never rewrite.

Only the chat template may emit special tokens. So every string of the messages is wrapped in a pair of private characters
before rendering; afterwards these tell the template's own text from what came from outside.
"""

import dataclasses
import datetime
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from jaxllm.errors import UserError
from jaxllm.template import render
from jaxllm.tokenizer import Tokenizer

Messages = Sequence[Mapping[str, Any]]
Tools = Sequence[Mapping[str, Any]] | None

LLAMA_3_TEMPLATE = """{{- bos_token }}
{%- macro header(role) %}{{ '<|start_header_id|>' ~ role ~ '<|end_header_id|>\\n\\n' }}{% endmacro %}
{%- macro describe(tools) %}
{{- 'Respond in the format {"name": function name, "parameters": dictionary of argument name and its value}. ' }}
{{- 'Do not use variables.\\n\\n' }}
{%- for tool in tools %}{{ tool | tojson(indent=4) ~ '\\n\\n' }}{% endfor %}
{%- endmacro %}
{%- set first_is_system = messages and messages[0].role == 'system' %}
{%- set turns = messages[1:] if first_is_system else messages %}
{{- header('system') }}
{%- if tools %}{{ 'Environment: ipython\\n' }}{% endif %}
{{- 'Cutting Knowledge Date: December 2023\\nToday Date: ' ~ (date_string | default('26 Jul 2024')) ~ '\\n\\n' }}
{%- set in_user = tools_in_user_message | default(true) %}
{%- if tools and not in_user %}
{{- 'You have access to the following functions. To call a function, please respond with JSON for a function call. ' }}
{{- describe(tools) }}
{%- endif %}
{{- messages[0].content | trim if first_is_system }}
{{- '<|eot_id|>' }}
{%- for message in turns %}
{%- if message.tool_calls %}
{%- if message.tool_calls | length > 1 %}{{ raise_exception('at most one tool call per message') }}{% endif %}
{%- set call = message.tool_calls[0].function or message.tool_calls[0] %}
{{- header('assistant') ~ '{"name": ' ~ call.name | tojson ~ ', "parameters": ' ~ call.arguments | tojson ~ '}<|eot_id|>' }}
{%- else %}
{{- header('ipython' if message.role == 'tool' else message.role) }}
{%- if loop.first and tools and in_user and message.role == 'user' %}
{{- 'Given the following functions, please respond with a JSON for a function call ' }}
{{- 'with its proper arguments that best answers the given prompt.\\n\\n' ~ describe(tools) }}
{%- endif %}
{{- message.content | trim if message.content is string else message.content | tojson }}
{{- '<|eot_id|>' }}
{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{ header('assistant') }}{% endif %}"""
"""Llama 3.1's instruct format, for checkpoints in Meta's own form, which carry no template."""

_STRUCTURE = frozenset({"role", "type", "id", "tool_call_id"})  # keys whose values a template compares, not prints
# A turn of each side, to find out what a template writes after an assistant's words. No template's own text has them.
_PROBE_USER, _PROBE_REPLY = "\U000f0000user", "\U000f0000reply"


def template_of(tokenizer: Tokenizer) -> str:
    """The checkpoint's chat template, or Llama 3's for its vocabulary. Raises UserError for a model without either."""
    if tokenizer.chat_template is not None:
        return tokenizer.chat_template
    names = {tokenizer.token_bytes(i) for i in tokenizer.special_ids}
    if {b"<|start_header_id|>", b"<|end_header_id|>", b"<|eot_id|>"} <= names:
        return LLAMA_3_TEMPLATE
    raise UserError("this checkpoint has no chat template; use it with plain text, or give it a chat_template.jinja")


def encode_chat(
    tokenizer: Tokenizer,
    template: str | None,
    messages: Messages,
    *,
    tools: Tools = None,
    date: datetime.date | None = None,
    variables: Mapping[str, Any] | None = None,
    add_generation_prompt: bool = True,
) -> list[int]:
    """Token ids of a conversation. Special tokens spelled in the messages stay text; the ids start with at most one BOS.

    Args:
      template: Jinja source; None takes `template_of` the tokenizer.
      messages, tools, date, variables, add_generation_prompt: as in `jaxllm.template.render`.

    Raises:
      UserError: the template fails, or it rewrites a message that spells a special token, so that the two cannot be told apart.
    """
    options = {"date": date, "variables": variables, "add_generation_prompt": add_generation_prompt}
    parts = _render_parts(tokenizer, template, messages, tools=tools, **options)
    ids = tokenizer.encode_parts(parts, bos=tokenizer.add_bos)
    while tokenizer.add_bos and ids[:2] == [tokenizer.bos_id] * 2:
        del ids[0]
    return ids


def encode_next(
    tokenizer: Tokenizer,
    template: str | None,
    messages: Messages,
    *,
    tools: Tools = None,
    date: datetime.date | None = None,
    variables: Mapping[str, Any] | None = None,
    closed: bool = True,
) -> list[int]:
    """Ids that follow a sampled assistant turn: what the template writes after it, the new messages, the next header.

    The next prompt is the previous prompt, the sampled ids and these; nothing before them is rendered or encoded anew.

    Args:
      messages: the new messages alone (tool results, user turns).
      closed: whether the sampled ids end with a stop token; if not, these ids start with the template's own.

    Raises:
      UserError: the template fails, or it writes earlier turns differently once messages follow.
    """
    probe = [{"role": "user", "content": _PROBE_USER}, {"role": "assistant", "content": _PROBE_REPLY}]
    common: dict[str, Any] = {"tools": tools, "date": date, "variables": variables}
    before = _render_parts(tokenizer, template, probe, add_generation_prompt=False, **common)
    after = _render_parts(tokenizer, template, [*probe, *messages], add_generation_prompt=True, **common)
    start = next((i for i, (text, _) in enumerate(before) if _PROBE_REPLY in text), None)
    text_before, text_after = ("".join(text for text, _ in parts) for parts in (before, after))
    if start is None or not text_after.startswith(text_before):
        raise UserError("chat template: it rewrites earlier turns when messages follow; a conversation cannot be extended")
    tail = _after(after, _PROBE_REPLY)
    if closed and tail and tail[0][1]:
        ends = [name for name in tokenizer.special_names if tail[0][0].startswith(name)]
        tail[0] = (tail[0][0].removeprefix(max(ends, key=len, default="")), True)
    return tokenizer.encode_parts(tail, start=False)


@dataclasses.dataclass(frozen=True)
class Transcript:
    """The ids of a conversation under way, with a mark on those that the model sampled."""

    ids: tuple[int, ...] = ()
    sampled: tuple[bool, ...] = ()  # one per id: the loss counts these alone

    def with_given(self, ids: Sequence[int]) -> "Transcript":
        """Followed by ids that the model did not sample (a prompt, `encode_next`)."""
        return Transcript((*self.ids, *ids), (*self.sampled, *(False for _ in ids)))

    def with_sampled(self, ids: Sequence[int]) -> "Transcript":
        """Followed by the model's own ids, with the stop token if it sampled one."""
        return Transcript((*self.ids, *ids), (*self.sampled, *(True for _ in ids)))


def _after(parts: list[tuple[str, bool]], mark: str) -> list[tuple[str, bool]]:
    for i, (text, trusted) in enumerate(parts):
        if mark in text:
            return [part for part in [(text.split(mark, 1)[1], trusted), *parts[i + 1 :]] if part[0]]
    return []


def _render_parts(
    tokenizer: Tokenizer, template: str | None, messages: Messages, *, tools: Tools, **options: Any
) -> list[tuple[str, bool]]:
    """The rendered text in parts: (text, whether it is the template's own)."""
    source = template_of(tokenizer) if template is None else template
    names = {"bos_token": tokenizer.bos_id, "eos_token": tokenizer.eos_id}
    options |= {key: "" if i is None else tokenizer.token_bytes(i).decode("utf-8", "replace") for key, i in names.items()}
    plain = render(source, messages, tools=tools, **options)
    content = json.dumps([messages, tools], ensure_ascii=False, default=str)
    opening, closing = _unused(plain + content + source)
    for everything in (True, False):

        def mark(text: str) -> str:
            core = text.strip()
            lead = text[: len(text) - len(text.lstrip())]
            return f"{lead}{opening}{core}{closing}{text[len(lead) + len(core) :]}" if core else text

        marked_tools = _map_strings(tools, mark) if everything else tools
        marked = [_map_strings(message, mark, keys=None if everything else {"content", "text"}) for message in messages]
        try:
            parts = _split(render(source, marked, tools=marked_tools, **options), opening, closing)
        except UserError:
            continue
        if parts is not None and "".join(text for text, _ in parts) == plain:
            return parts
    joined = "".join(_strings([messages, tools]))
    if any(name in joined for name in tokenizer.special_names):
        raise UserError("chat template: it rewrites the messages, and one of them spells a special token; remove that text")
    return [(plain, True)]


def _map_strings(value: Any, function: Callable[[str], str], keys: set[str] | None = None) -> Any:
    """The value with each string changed that is not a key or a structural word; ``keys`` limits it to what lies under them."""
    if isinstance(value, str):
        return function(value) if keys is None else value
    if isinstance(value, Mapping):
        return {
            key: item if key in _STRUCTURE else _map_strings(item, function, None if keys is None or key in keys else keys)
            for key, item in value.items()
        }
    return [_map_strings(item, function, keys) for item in value] if isinstance(value, list | tuple) else value


def _strings(value: Any) -> Iterator[str]:
    """Every string in the value that is not a key."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping | list | tuple):
        for item in value.values() if isinstance(value, Mapping) else value:
            yield from _strings(item)


def _split(text: str, opening: str, closing: str) -> list[tuple[str, bool]] | None:
    """Cuts at the marks; None when they do not alternate."""
    parts = []
    outside, *rest = text.split(opening)
    if closing in outside:
        return None
    parts.append((outside, True))
    for piece in rest:
        if piece.count(closing) != 1:
            return None
        inner, outer = piece.split(closing)
        parts += [(inner, False), (outer, True)]
    return [part for part in parts if part[0]]


def _unused(text: str) -> tuple[str, str]:
    """Two private characters that the text has not."""
    free: Iterator[str] = (chr(i) for i in range(0xF0001, 0xFFFFD) if chr(i) not in text)
    return next(free), next(free)
