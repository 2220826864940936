"""Renders a checkpoint's chat template: Jinja of unknown origin, in a sandbox with a budget of steps, time and size.

The sandbox has what the templates on Hugging Face use and no more: values are plain JSON data, methods and filters come from
short lists, and everything that can grow is measured before it does. A template that exceeds its budget raises UserError.
"""

import contextvars
import dataclasses
import datetime
import functools
import json
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import jinja2
from jinja2 import nodes, sandbox
from jinja2.visitor import NodeTransformer

from jaxllm.errors import UserError

MAX_TEMPLATE_CHARS = 1 << 18
MAX_TEXT_CHARS = 1 << 24  # of the output, and of any value on the way
MAX_STEPS = 1 << 21  # loop rounds, calls and parts of values, each time they are looked at
MAX_SECONDS = 10.0

_STR_METHODS = """
    capitalize count endswith find index isalnum isalpha isdigit islower isnumeric isspace isupper join lower lstrip
    partition removeprefix removesuffix replace rfind rindex rpartition rsplit rstrip split splitlines startswith
    strip title upper
"""
_METHODS: tuple[tuple[tuple[type, ...], frozenset[str]], ...] = (
    ((str,), frozenset(_STR_METHODS.split())),
    ((Mapping,), frozenset({"get", "items", "keys", "values"})),
    ((list, tuple), frozenset({"count", "index"})),
    ((int, float, type(None)), frozenset()),
)
_FILTERS = """
    abs capitalize d default dictsort e escape first float groupby int items last list lower map max
    min reject rejectattr reverse round safe select selectattr sort string sum title trim unique upper
"""


class _RefusedError(Exception):
    """The template went over its budget or raised an error of its own."""


@dataclasses.dataclass
class _Budget:
    """What one rendering may still use."""

    steps: int
    deadline: float  # of time.monotonic()

    def spend(self, steps: int) -> None:
        self.steps -= steps
        if self.steps < 0 or time.monotonic() > self.deadline:
            raise _RefusedError(f"it takes more than {MAX_STEPS} steps or {MAX_SECONDS:.0f} s")


_budget: contextvars.ContextVar[_Budget] = contextvars.ContextVar("_budget")


def render(
    template: str,
    messages: Sequence[Mapping[str, Any]],
    *,
    tools: Sequence[Mapping[str, Any]] | None = None,
    date: datetime.date | None = None,
    add_generation_prompt: bool = True,
    bos_token: str = "",
    eos_token: str = "",
    variables: Mapping[str, Any] | None = None,
) -> str:
    """The text of a conversation.

    Args:
      template: Jinja source, as in ``tokenizer_config.json`` or a GGUF's ``tokenizer.chat_template``.
      messages: objects with a ``role`` and a ``content`` (and ``tool_calls`` where the template knows them), of JSON values.
      tools: descriptions of functions as JSON objects.
      date: the date that the template may write; None leaves its own default, or today where it asks for the present.
      add_generation_prompt: whether the text ends with the header of the assistant's next message.

      variables: further switches that the template knows, of JSON values (``tools_in_user_message``, for one).

    Raises:
      UserError: a template that does not parse, fails, refuses the messages or exceeds the budget; messages that are not JSON.
    """
    values: dict[str, Any] = {
        **_plain(variables or {}, "variables"),
        "messages": _plain(messages, "messages"),
        "tools": _plain(tools, "tools"),
        "add_generation_prompt": add_generation_prompt,
        "bos_token": bos_token,
        "eos_token": eos_token,
        "strftime_now": lambda form: (date or datetime.datetime.now()).strftime(_short(form)),
    }
    if date is not None:
        values["date_string"] = date.strftime("%d %b %Y")
    token = _budget.set(_Budget(MAX_STEPS, time.monotonic() + MAX_SECONDS))
    try:
        parts, size = [], 0
        for part in _compile(template).generate(values):
            size += len(part)
            if size > MAX_TEXT_CHARS:
                raise _RefusedError(f"its output is longer than {MAX_TEXT_CHARS} characters")
            parts.append(part)
        return "".join(parts)
    except (_RefusedError, jinja2.TemplateError) as error:
        raise UserError(f"chat template: {error}") from None
    except (ArithmeticError, LookupError, MemoryError, RecursionError, SyntaxError, TypeError, ValueError) as error:
        raise UserError(f"chat template: failed with {type(error).__name__}: {error}") from None
    finally:
        _budget.reset(token)


def _plain(value: Any, name: str) -> Any:
    """A copy made of JSON values alone, so that the template meets no object with methods of its own."""
    try:
        return json.loads(json.dumps(value))
    except (TypeError, ValueError, RecursionError) as error:
        raise UserError(f"chat {name}: not JSON values: {error}") from None


@functools.lru_cache(maxsize=32)
def _compile(template: str) -> jinja2.Template:
    if len(template) > MAX_TEMPLATE_CHARS:
        raise UserError(f"chat template: {len(template)} characters is too long (limit {MAX_TEMPLATE_CHARS})")
    return _environment().from_string(template)


def _measured(value: Any) -> Any:
    """The value itself, once its size, with everything in it counted as often as it occurs, is known to be bounded."""
    budget, waiting, chars = _budget.get(), [value], 0
    while waiting:
        item = waiting.pop()
        budget.spend(1)
        if isinstance(item, str):
            chars += len(item)
        elif isinstance(item, Mapping):
            waiting.extend(item)
            waiting.extend(item.values())
        elif isinstance(item, list | tuple | set):
            waiting.extend(item)
        elif isinstance(item, int) and item.bit_length() > 256:
            raise _RefusedError("a number is too large")
        if chars > MAX_TEXT_CHARS:
            raise _RefusedError(f"a value is longer than {MAX_TEXT_CHARS} characters")
    return value


def _loop(value: Any) -> Any:
    """What a loop runs over, paid for in advance."""
    if not hasattr(value, "__len__"):
        value = _listed(value)
    _budget.get().spend(len(value))
    return value


def _listed(values: Iterable[Any]) -> list[Any]:
    items = []
    for item in values:
        _budget.get().spend(1)
        items.append(item)
    return items


def _concat(parts: Iterable[Any]) -> str:
    return "".join(map(str, _measured(list(parts))))


def _join(values: Iterable[Any], separator: str = "", attribute: str | None = None) -> str:
    items = _listed(values)
    if attribute is not None:
        items = [item.get(attribute, "") for item in items]
    _measured([items, str(separator) * min(len(items), MAX_TEXT_CHARS // max(1, len(str(separator))) + 1)])
    return str(separator).join(map(str, items))


def _replace(text: Any, old: str, new: str, count: int | None = -1) -> str:
    text, old, new = str(_measured(text)), str(old), str(new)
    found = text.count(old)
    if found * len(new) > MAX_TEXT_CHARS:
        raise _RefusedError(f"a value is longer than {MAX_TEXT_CHARS} characters")
    return text.replace(old, new, -1 if count is None else count)


def _indent(text: Any, width: int = 4, first: bool = False, blank: bool = False) -> str:
    pad = " " * min(int(width), 64)
    lines = str(_measured(text)).split("\n")
    return "\n".join(pad + line if (i or first) and (line or blank) else line for i, line in enumerate(lines))


def _tojson(
    value: Any, indent: int | None = None, ensure_ascii: bool = False, separators: Any = None, sort_keys: bool = False
) -> str:
    """JSON as Hugging Face's templates expect it: nothing escaped for HTML."""
    indent = None if indent is None else min(int(indent), 64)
    return json.dumps(
        _measured(value), indent=indent, ensure_ascii=ensure_ascii, separators=separators, sort_keys=bool(sort_keys)
    )


def _raise_exception(message: str) -> None:
    raise _RefusedError(_short(message))


def _short(text: Any) -> str:
    return str(_measured(text))[:1000]


def _range(*bounds: int) -> range:
    numbers = range(*bounds)
    _budget.get().spend(len(numbers))
    return numbers


class _Environment(sandbox.ImmutableSandboxedEnvironment):
    """Jinja's sandbox, with lists of what is allowed in place of lists of what is not."""

    intercepted_binops = frozenset({"+", "*", "**", "%"})
    concat = staticmethod(lambda parts: "".join(_measured(list(parts))))  # of macros and of blocks that are set

    def wrap_str_format(self, value: Any) -> None:
        """No formatting by pattern: a width in the pattern sets the size of the result."""

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        numbers = isinstance(left, int | float) and isinstance(right, int | float)
        if operator == "**" or (operator in "*%" and not numbers):
            raise _RefusedError(f"the operator {operator} on {type(left).__name__} and {type(right).__name__} is not allowed")
        _measured((left, right))
        return super().call_binop(context, operator, left, right)

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        for kinds, allowed in _METHODS:
            if isinstance(obj, kinds):
                return attr in allowed
        return super().is_safe_attribute(obj, attr, value)

    def call(__self, __context: Any, __obj: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: N805
        _budget.get().spend(1)
        owner = getattr(__obj, "__self__", None)
        if isinstance(owner, str) and __obj.__name__ == "replace":
            return _replace(owner, *args)
        if isinstance(owner, str) and __obj.__name__ == "join":
            return _join(args[0], owner)
        result = super().call(__context, __obj, *args, **kwargs)
        return _measured(result) if isinstance(result, str | list | tuple | dict) else result

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        return _Meter().visit(super()._parse(source, name, filename))


class _Meter(NodeTransformer):
    """Puts a measuring filter around every loop's source and every expression that makes a larger value of smaller ones."""

    def visit_For(self, node: nodes.For) -> nodes.Node:  # noqa: N802
        self.generic_visit(node)
        node.iter = _filtered(node.iter, "loop_")
        return node

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:  # noqa: N802
        self.generic_visit(node)
        return _filtered(nodes.List(node.nodes, lineno=node.lineno), "concat_")

    def visit_List(self, node: nodes.List) -> nodes.Node:  # noqa: N802
        return _filtered(self.generic_visit(node), "measured_")

    def visit_Dict(self, node: nodes.Dict) -> nodes.Node:  # noqa: N802
        return _filtered(self.generic_visit(node), "measured_")

    def visit_Tuple(self, node: nodes.Tuple) -> nodes.Node:  # noqa: N802
        self.generic_visit(node)
        return _filtered(node, "measured_") if node.ctx == "load" else node


def _filtered(node: Any, name: str) -> nodes.Filter:
    return nodes.Filter(node, name, [], [], None, None, lineno=node.lineno)


def _guarded(function: Callable[..., Any]) -> Callable[..., Any]:
    """The filter with its input and its result measured; lazy results become lists."""

    def call(first: Any, value: Any, args: tuple[Any, ...], kwargs: dict[str, Any], passes: bool) -> Any:
        value = _listed(value) if hasattr(value, "__next__") else value
        result = function(*([first] if passes else []), _measured(value), *args, **kwargs)
        return _measured(_listed(result) if hasattr(result, "__next__") else result)

    kind = getattr(function, "jinja_pass_arg", None)
    # Taking the context also keeps Jinja from evaluating the filter while it compiles.
    if kind is None:
        return jinja2.pass_context(lambda context, value, *args, **kwargs: call(None, value, args, kwargs, False))
    attribute = kind.name

    @jinja2.pass_context
    def with_first(context: Any, value: Any, *args: Any, **kwargs: Any) -> Any:
        first = {"context": context, "environment": context.environment, "eval_context": context.eval_ctx}[attribute]
        return call(first, value, args, kwargs, True)

    return with_first


def _environment() -> _Environment:
    env = _Environment(
        trim_blocks=True,
        lstrip_blocks=True,
        extensions=["jinja2.ext.loopcontrols"],
        finalize=lambda value: _measured(value) if isinstance(value, list | tuple | dict) else value,
    )
    standard = {name: env.filters[name] for name in _FILTERS.split()}
    own = {"join": _join, "replace": _replace, "indent": _indent, "tojson": _tojson}
    measuring = {"loop_": _loop, "concat_": _concat, "measured_": _measured}
    env.filters = {name: _guarded(function) for name, function in {**standard, **own}.items()}
    env.filters.update({name: jinja2.pass_context(_length) for name in ("count", "length")})
    env.filters.update({name: jinja2.pass_context(_drop_context(function)) for name, function in measuring.items()})
    env.globals = {"namespace": env.globals["namespace"], "dict": dict, "range": _range, "raise_exception": _raise_exception}
    return env


def _length(context: Any, value: Any) -> int:
    return len(value)


def _drop_context(function: Callable[[Any], Any]) -> Callable[[Any, Any], Any]:
    return lambda context, value: function(value)
