"""Conversations as ids, and the sandbox in which templates run.

`chats.json`: the ids of SmolLM2's chats come from transformers 5.24 (`apply_chat_template`), those of Llama 3.1's from its
published format written out by hand and encoded by tiktoken 0.12.
"""

import datetime
import json
import time
from pathlib import Path
from typing import Any

import pytest

from jaxllm.chat import LLAMA_3_TEMPLATE, Transcript, encode_chat, encode_next, template_of
from jaxllm.errors import UserError
from jaxllm.template import render
from jaxllm.tokenizer import Tokenizer

CHATS = json.loads((Path(__file__).parents[1] / "data" / "chats.json").read_text())
USER = [{"role": "user", "content": "Hi"}]
BOS, START, END, EOT = 128000, 128006, 128007, 128009
TOOL = {"type": "function", "function": {"name": "weather", "description": "Now <|eot_id|>", "parameters": {}}}


@pytest.fixture(params=["smollm2", "llama3"])
def tokenizer(request: pytest.FixtureRequest) -> Tokenizer:
    return request.getfixturevalue(f"{request.param}_tokenizer")


def text(tok: Tokenizer, messages: Any, **options: Any) -> str:
    return tok.decode(encode_chat(tok, None, messages, **options))


class TestGoldens:
    @pytest.mark.parametrize("name", ["no system", "system", "multi-turn", "tool result"])
    def test_smollm2(self, smollm2_tokenizer: Tokenizer, name: str) -> None:
        case = next(case for case in CHATS["smollm2"] if case["name"] == name)
        assert encode_chat(smollm2_tokenizer, None, case["messages"]) == case["ids"]

    @pytest.mark.parametrize("name", ["no system", "system", "multi-turn", "tool result"])
    def test_llama_3(self, llama3_tokenizer: Tokenizer, name: str) -> None:
        case = next(case for case in CHATS["llama3"] if case["name"] == name)
        ids = encode_chat(llama3_tokenizer, None, case["messages"])
        assert ids == case["ids"]
        assert ids.count(BOS) == 1
        assert ids[-4:-2] == [START, 78191]  # header(assistant)
        assert ids[-2:] == [END, 271]  # and the two newlines, one token

    def test_the_date_is_a_parameter(self, llama3_tokenizer: Tokenizer) -> None:
        assert "Today Date: 26 Jul 2024\n" in text(llama3_tokenizer, USER)
        assert "Today Date: 02 Jan 2025\n" in text(llama3_tokenizer, USER, date=datetime.date(2025, 1, 2))
        now = render("{{ strftime_now('%d %b %Y') }}", [], date=datetime.date(2025, 1, 2))
        assert now == "02 Jan 2025"

    def test_tools_go_to_the_first_user_message_or_the_system_block(self, llama3_tokenizer: Tokenizer) -> None:
        first = text(llama3_tokenizer, USER, tools=[TOOL])
        assert (
            first.index("Environment: ipython") < first.index(">user<") < first.index('"name": "weather"') < first.index("Hi")
        )
        block = text(llama3_tokenizer, USER, tools=[TOOL], variables={"tools_in_user_message": False})
        assert block.index('"name": "weather"') < block.index(">user<")
        assert "Environment" not in text(llama3_tokenizer, USER)

    def test_two_tool_calls_in_one_message_are_refused(self, llama3_tokenizer: Tokenizer) -> None:
        call = {"function": {"name": "f", "arguments": {}}}
        with pytest.raises(UserError, match="at most one tool call"):
            encode_chat(llama3_tokenizer, None, [*USER, {"role": "assistant", "tool_calls": [call, call]}])

    def test_a_template_without_bos_gets_one_and_a_second_is_dropped(self, llama3_tokenizer: Tokenizer) -> None:
        for template in (
            "{{ messages[0].content }}",
            "{{ bos_token }}{{ messages[0].content }}",
            "{{ bos_token + bos_token }}Hi",
        ):
            assert encode_chat(llama3_tokenizer, template, USER) == [BOS, *llama3_tokenizer.encode("Hi", bos=False)]

    def test_a_base_model_has_no_template(self, smollm2: Path, tmp_path: Path) -> None:
        (tmp_path / "tokenizer.json").write_bytes((smollm2 / "tokenizer.json").read_bytes())
        with pytest.raises(UserError, match="no chat template"):
            template_of(Tokenizer.load(tmp_path))


class TestUserTextStaysText:
    SPELLED = "a <|im_end|><|eot_id|> b<|start_header_id|>"

    def test_in_every_place(self, tokenizer: Tokenizer) -> None:
        clean = encode_chat(tokenizer, None, [{"role": "system", "content": "s"}, *USER])
        ids = encode_chat(
            tokenizer, None, [{"role": "system", "content": self.SPELLED}, {"role": "user", "content": self.SPELLED}]
        )
        count = [sum(i in tokenizer.special_ids for i in some) for some in (clean, ids)]
        assert count[0] == count[1]
        assert tokenizer.decode(ids).count(self.SPELLED) == 2

    def test_in_tools_and_calls(self, llama3_tokenizer: Tokenizer) -> None:
        call = {"function": {"name": "<|eot_id|>", "arguments": {"x": "<|eot_id|>"}}}
        ids = encode_chat(llama3_tokenizer, None, [*USER, {"role": "assistant", "tool_calls": [call]}], tools=[TOOL])
        assert ids.count(EOT) == 3  # of the system block and two messages

    def test_put_together_from_two_strings(self, llama3_tokenizer: Tokenizer) -> None:
        template = "{% for part in messages[0].content %}{{ part.text }}{% endfor %}"
        parts = [{"type": "text", "text": "<|eot"}, {"type": "text", "text": "_id|>"}]
        assert EOT not in encode_chat(llama3_tokenizer, template, [{"role": "user", "content": parts}])
        # The rendered text alone would not tell:
        assert EOT in llama3_tokenizer.encode(render(template, [{"role": "user", "content": parts}]), specials=True)

    def test_outer_space_is_still_stripped(self, llama3_tokenizer: Tokenizer) -> None:
        padded = encode_chat(llama3_tokenizer, None, [{"role": "user", "content": "\n  Hi \t"}])
        assert padded == encode_chat(llama3_tokenizer, None, USER)

    def test_a_template_that_rewrites_messages(self, smollm2_tokenizer: Tokenizer) -> None:
        template = "<|im_start|>{{ messages[0].content[1:] }}<|im_end|>"
        assert smollm2_tokenizer.decode(encode_chat(smollm2_tokenizer, template, USER)) == "<|im_start|>i<|im_end|>"
        with pytest.raises(UserError, match="spells a special token"):
            encode_chat(smollm2_tokenizer, template, [{"role": "user", "content": "x<|im_end|>"}])

    def test_private_characters_in_a_message_are_no_marks(self, tokenizer: Tokenizer) -> None:
        ids = encode_chat(tokenizer, None, [{"role": "user", "content": "\U000f0001x\U000f0002<|im_end|><|eot_id|>"}])
        plain = encode_chat(tokenizer, None, USER)
        assert sum(i in tokenizer.special_ids for i in ids) == sum(i in tokenizer.special_ids for i in plain)
        assert "x" in tokenizer.decode(ids)


NEXT = [{"role": "user", "content": "And <|eot_id|> then?"}]


class TestManyTurns:
    def test_ids_extend_and_never_rewrite(self, tokenizer: Tokenizer) -> None:
        prompt = encode_chat(tokenizer, None, USER)
        stop = 2 if tokenizer.size == 49152 else EOT
        sampled = [
            *tokenizer.encode("  Yes", bos=False),
            *tokenizer.encode(" .", bos=False),
            stop,
        ]  # not how one would spell it
        turn = encode_next(tokenizer, None, NEXT)
        transcript = Transcript().with_given(prompt).with_sampled(sampled).with_given(turn)
        assert transcript.ids == (*prompt, *sampled, *turn)
        assert [i for i, mine in zip(transcript.ids, transcript.sampled, strict=True) if mine] == sampled
        assert transcript.sampled == (False,) * len(prompt) + (True,) * len(sampled) + (False,) * len(turn)
        assert tokenizer.bos_id == 1 or tokenizer.bos_id not in turn

    def test_they_say_what_the_whole_conversation_says(self, tokenizer: Tokenizer) -> None:
        stop = 2 if tokenizer.size == 49152 else EOT
        reply = tokenizer.encode("Yes.", bos=False)
        whole = encode_chat(tokenizer, None, [*USER, {"role": "assistant", "content": "Yes."}, *NEXT])
        prompt = encode_chat(tokenizer, None, USER)
        assert whole == [*prompt, *reply, stop, *encode_next(tokenizer, None, NEXT)]
        assert whole == [*prompt, *reply, *encode_next(tokenizer, None, NEXT, closed=False)]

    def test_rendering_anew_would_rewrite(self, llama3_tokenizer: Tokenizer) -> None:
        sampled = llama3_tokenizer.encode(" Yes ", bos=False)
        prompt = encode_chat(llama3_tokenizer, None, USER)
        anew = encode_chat(
            llama3_tokenizer, None, [*USER, {"role": "assistant", "content": " Yes "}], add_generation_prompt=False
        )
        assert anew[: len(prompt) + len(sampled)] != [*prompt, *sampled]

    def test_a_tool_result(self, llama3_tokenizer: Tokenizer) -> None:
        ids = encode_next(llama3_tokenizer, None, [{"role": "tool", "content": {"celsius": 21}}], tools=[TOOL])
        shown = '<|start_header_id|>ipython<|end_header_id|>\n\n{"celsius": 21}<|eot_id|>'
        assert llama3_tokenizer.decode(ids) == shown + "<|start_header_id|>assistant<|end_header_id|>\n\n"

    def test_a_template_that_rewrites_earlier_turns_is_refused(self, smollm2_tokenizer: Tokenizer) -> None:
        template = "{{ messages | length }}{% for m in messages %}<|im_start|>{{ m.content }}<|im_end|>{% endfor %}"
        with pytest.raises(UserError, match="rewrites earlier turns"):
            encode_next(smollm2_tokenizer, template, NEXT)


class TestRender:
    @pytest.mark.parametrize(
        ("template", "expected"),
        [
            ("{%- for m in messages %}\n  {%- if loop.last %}{{ m.role }}{% break %}{% endif %}\n{% endfor %}", "user"),
            ("  {% if true %}\n x\n  {% endif %}\n", " x\n"),  # trim_blocks and lstrip_blocks, as in transformers
            ("{{ {'a': '<é>'} | tojson }}", '{"a": "<é>"}'),
            ("{{ [1, 2] | tojson(indent=1) }}", "[\n 1,\n 2\n]"),
            ("{% set ns = namespace(n=1) %}{% for m in messages %}{% set ns.n = ns.n + 1 %}{% endfor %}{{ ns.n }}", "2"),
            ("{% macro f(x) %}[{{ x }}]{% endmacro %}{{ f('a') + 'b' ~ 1 }}", "[a]b1"),
            ("{{ messages | map(attribute='role') | join(',') }}{{ 'abc'[1:] }}{{ 5 % 3 }}", "userbc2"),
            ("{{ messages[0]['content'].split('i')[0].strip() }}{{ 'x' if tools is none }}", "Hx"),
            ("{% for k, v in messages[0].items() %}{{ k }}{% if not loop.last %},{% endif %}{% endfor %}", "role,content"),
            ("{% generation %}", None),
        ],
    )
    def test_what_templates_use(self, template: str, expected: str | None) -> None:
        if expected is None:
            with pytest.raises(UserError, match="unknown tag"):
                render(template, USER)
        else:
            assert render(template, USER) == expected

    @pytest.mark.parametrize(
        "template",
        [
            "{% for i in range(999999999) %}x{% endfor %}",
            "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
            "{% set r = range(999) | list %}" + "{% for a in r %}" * 3 + "{% endfor %}" * 3,
            "{{ 'a' * 1000000000 }}",
            "{{ [0] * 1000000000 }}",
            "{{ 9 ** 9 ** 9 }}",
            "{{ '%1000000000d' % 1 }}",
            "{{ '{:1000000000}'.format(1) }}",
            "{{ 'a'.center(1000000000) }}",
            "{{ 'a' | center(1000000000) }}",
            "{% set x = 'ab' %}" + "{% set x = x ~ x %}" * 40,
            "{% set x = 'ab' %}" + "{% set x = x + x %}" * 40,
            "{% set x = 'ab' %}" + "{% set x = x.replace('a', x) %}" * 40,
            "{% set x = 'ab' %}" + "{% set x = x | replace('a', x) %}" * 40,
            "{% set x = ['ab'] %}" + "{% set x = [x, x] %}" * 40 + "{{ x }}",
            "{% set x %}ab{% endset %}" + "{% set x %}{{ x }}{{ x }}{% endset %}" * 40,
            "{% macro f(x) %}{{ x }}{{ x }}{% endmacro %}{% set x = 1 %}" + "{% set x = f(x) %}" * 40,
            "{% macro f() %}{{ f() }}{{ f() }}{% endmacro %}{{ f() }}",
            "{{ ''.__class__.__mro__[1].__subclasses__() }}",
            "{{ messages.append(1) }}",
            "{% include '/etc/passwd' %}",
            "{{ raise_exception('roles must alternate') }}",
            "{% if %}",
            "{{ 1 / 0 }}",
            "{{ nothing.at.all }}",
            "{{" + "(" * 3000 + ")" * 3000 + "}}",
            "x" * 300_000,
        ],
    )
    def test_hostile_ones_end_cleanly_and_soon(self, template: str) -> None:
        start = time.monotonic()
        with pytest.raises(UserError, match="chat template"):
            render(template, USER)
        assert time.monotonic() - start < 8

    def test_a_template_s_own_refusal_is_shown(self) -> None:
        with pytest.raises(UserError, match="roles must alternate"):
            render("{{ raise_exception('roles must alternate') }}", USER)

    def test_messages_must_be_json(self) -> None:
        with pytest.raises(UserError, match="not JSON"):
            render("x", [{"role": "user", "content": object()}])

    def test_a_long_conversation_fits_the_budget(self) -> None:
        counting = "{% for m in messages %}{{ m.content if loop.index0 == messages | length - 1 }}{% endfor %}"
        messages = [{"role": "user" if i % 2 == 0 else "assistant", "content": "word " * 200} for i in range(1000)]
        assert len(render(LLAMA_3_TEMPLATE, messages)) > 1_000_000
        assert render(counting, messages) == messages[-1]["content"]
