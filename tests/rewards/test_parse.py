"""What is read out of model output, against the tables of the specification; and that no text is slow or raises."""

import random
import time

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxllm.errors import UserError
from jaxllm.frames import FRAMES
from rewards.parse import BOX, DIALECTS, NOTHING, POINT, POLICIES, parse, parse_one

BOX_OF = "box", (10.0, 20.0, 30.0, 40.0)
POINT_OF = "point", (10.0, 20.0)
NONE = "nothing", ()

# dialect, text, what is read, whether it is well formed
READ = [
    ("bracket", "[10, 20, 30, 40]", BOX_OF, True),
    ("bracket", "[10,20,30,40]", BOX_OF, True),
    ("bracket", " [ 10 ,\n20, 30, 40 ]\n", BOX_OF, True),
    ("bracket", "[10, 20, 30, 40]<|im_end|>", BOX_OF, True),
    ("bracket", "[10, 20, 30, 40]</s>\n", BOX_OF, True),
    ("bracket", "[10, 20, 30, 40]<|im_end|><|im_end|>", BOX_OF, False),
    ("bracket", "It is at [10, 20, 30, 40].", BOX_OF, False),
    ("bracket", "位置は[10, 20, 30, 40]です", BOX_OF, False),
    ("bracket", "[[10, 20, 30, 40]]", BOX_OF, False),
    ("bracket", "[[10, 20], [1, 2]]", POINT_OF, False),
    ("bracket", "[10.0, 20.0, 30.0, 40.0]", BOX_OF, False),
    ("bracket", "[-10, 20.5, .5, -.25]", ("box", (-10.0, 20.5, 0.5, -0.25)), False),
    ("bracket", "[10, 20]", POINT_OF, False),
    ("bracket", "[10, 20, 30, 40", BOX_OF, False),
    ("bracket", "[10, 20, 30", NONE, False),
    ("bracket", "[10, 20", NONE, False),
    ("bracket", "[10, 20, 30]", NONE, False),
    ("bracket", "[10, 20, 30, 40, 50]", NONE, False),
    ("bracket", "[10, 20, 30, 40, 50, 60, 70, 80]", NONE, False),
    ("bracket", "[100., 20, 30, 40]", NONE, False),
    ("bracket", "[1e2, 20, 30, 40]", NONE, False),
    ("bracket", "[+10, 20, 30, 40]", NONE, False),
    ("bracket", "[nan, 20, 30, 40]", NONE, False),
    ("bracket", "[inf, 20, 30, 40]", NONE, False),
    ("bracket", "[1.2.3, 20, 30, 40]", NONE, False),
    ("bracket", "[１０, ２０, ３０, ４０]", NONE, False),
    ("bracket", "[1234567890123, 20, 30, 40]", NONE, False),
    ("bracket", "[1234567.890123, 20, 30, 40]", NONE, False),
    ("bracket", "", NONE, False),
    ("qwen25", '{"bbox_2d": [10, 20, 30, 40], "label": "save"}', BOX_OF, True),
    ("qwen25", '[{"bbox_2d": [10, 20, 30, 40], "label": "[1,2,3,4]"}]', BOX_OF, True),
    ("qwen25", '{"label": "save", "bbox_2d": [10, 20, 30, 40]}', BOX_OF, True),
    ("qwen25", '```json\n[\n\t{"bbox_2d": [10, 20, 30, 40], "label": "save"}\n]\n```', BOX_OF, True),
    ("qwen25", '```json\n{"bbox_2d": [10, 20, 30, 40]}\n```<|im_end|>', BOX_OF, True),
    ("qwen25", '```\n{"bbox_2d": [10.5, 20, 30, 40]}\n```', ("box", (10.5, 20.0, 30.0, 40.0)), True),
    ("qwen25", "[10, 20, 30, 40]", BOX_OF, True),
    ("qwen25", '{"bbox_2d": [[10, 20, 30, 40]]}', BOX_OF, False),
    ("qwen25", '{"point_2d": [10, 20], "label": "save"}', POINT_OF, False),
    ("qwen25", '{"bbox_2d": [10, 20]}', POINT_OF, False),
    ("qwen25", '{"bbox_2d": [10, 20, 30]}', NONE, False),
    ("qwen25", '{"bbox_2d": [10, 20, 30, 40, 50]}', NONE, False),
    ("qwen25", '{"bbox_2d": [10, 20, 30, 40]', BOX_OF, False),
    ("qwen25", '[{"bbox_2d": [10, 20, 30, 40', BOX_OF, False),
    ("qwen25", '[{"bbox_2d": [10, 20', NONE, False),
    ("qwen25", '{"point_2d": [10, 20', POINT_OF, False),
    ("qwen25", '[{"bbox_2d": [10, 20, 30, 40]}', BOX_OF, False),
    ("qwen25", '{"bbox_2d": [10, 20, 30, 40]} and so on }]', BOX_OF, False),
    ("qwen25", "{'bbox_2d': [10, 20, 30, 40]}", BOX_OF, False),
    ("qwen25", "{'bbox_2d\": [10, 20, 30, 40]}", BOX_OF, False),
    ("qwen25", '{"bbox_2d": [010, 20, 30, 40]}', BOX_OF, False),
    ("qwen25", '{"size": [10, 20, 30, 40]}', NONE, False),
    ("qwen25", '{"size": [1, 2], "bbox_2d": [10, 20, 30, 40]}', BOX_OF, True),
    (
        "qwen25",
        '<tool_call>\n{"name": "computer", "arguments": {"action": "click", "coordinate": [10, 20, 30, 40]}}\n</tool_call>',
        BOX_OF,
        True,
    ),
    ("qwen25", '<tool_call>{"name": "x", "arguments": {"coordinate": [10, 20]}}</tool_call>', POINT_OF, False),
    (
        "qwen25",
        '<tool_call>{"arguments": {"coordinate": [10, 20]}}</tool_call><tool_call>{"coordinate": [1, 2]}</tool_call>',
        POINT_OF,
        False,
    ),
    ("qwen25", '<tool_call>{"name": "x", "arguments": {"coordinate": [10, 20', POINT_OF, False),
    ("qwen3", '```json\n[{"bbox_2d": [10, 20, 30, 40]}]\n```', BOX_OF, True),
    ("qwen2_box", "<|box_start|>(10,20),(30,40)<|box_end|>", BOX_OF, True),
    ("qwen2_box", "<|object_ref_start|>a(1,2)<|object_ref_end|><|box_start|>(10,20),(30,40)<|box_end|>", BOX_OF, False),
    ("qwen2_box", "(10,20),(30,40)", BOX_OF, True),
    ("qwen2_box", "( 10, 20 ), ( 30, 40 )", BOX_OF, True),
    ("qwen2_box", "(10,20)", POINT_OF, False),
    ("qwen2_box", "(10,20),(30,40", BOX_OF, False),
    ("qwen2_box", "(10,20),(30", NONE, False),
    ("qwen2_box", "(10,20),(30,40),(50,60)", NONE, False),
    ("uitars1", "click(start_box='(10,20)')", POINT_OF, True),
    ("uitars1", "Thought: the button\nAction: click(start_box='<|box_start|>(10,20)<|box_end|>')", POINT_OF, True),
    ("uitars1", "Action: click(start_box='(10,20,30,40)')", BOX_OF, False),
    ("uitars1", "drag(start_box='(10,20)', end_box='(30,40)')", POINT_OF, False),
    ("uitars1", "click(start_box='(10,20')", NONE, False),
    ("uitars1", "click(start_box='(10,20,30)')", NONE, False),
    ("uitars1", "click(start_box='=')", NONE, False),
    ("uitars1", "click(start_box='')", NONE, False),
    ("uitars1", "start_box=", NONE, False),
    ("uitars15", "click(start_box='(10,20)')", POINT_OF, True),
    ("uitars15", "Thought: x\nAction: click(point='<point>10 20</point>')", POINT_OF, True),
    ("uitars15", "drag(start_point='<point>10 20</point>', end_point='<point>30 40</point>')", POINT_OF, False),
    ("uitars15", "click(point='<point>10 20 30</point>')", NONE, False),
    ("uitars15", "click(point='<point></point>')", NONE, False),
    ("paren", "(10, 20)", POINT_OF, True),
    ("paren", "Click at (10, 20).", POINT_OF, False),
    ("paren", "(10, 20, 30)", NONE, False),
    ("paren", "(10, 20, 30, 40)", NONE, False),
    ("stepgui", "point:10,20", POINT_OF, True),
    ("stepgui", "explain:it\taction:CLICK\tpoint:10,20\tsummary:done", POINT_OF, True),
    ("stepgui", "the point: 10, 20 of it", POINT_OF, False),
    ("stepgui", "point:10,20,30", NONE, False),
    ("stepgui", "checkpoint:10,20", NONE, False),
    ("norm01", "[10, 20, 30, 40]", BOX_OF, True),
    ("norm01", '{"bbox_2d": [0.25, 0.5, 0.75, 1]}', ("box", (0.25, 0.5, 0.75, 1.0)), True),
    ("norm01", "click(start_box='(0.25,0.5)')", ("point", (0.25, 0.5)), True),
    ("norm01", "(0.25,0.5),(0.75,1.0)", ("box", (0.25, 0.5, 0.75, 1.0)), True),
    ("norm01", "click(point='<point>0.25 0.5</point>')", ("point", (0.25, 0.5)), True),
    ("norm01", "click(start_box='<|box_start|>(0.25,0.5)<|box_end|>')", ("point", (0.25, 0.5)), True),
    ("norm01", "point:0.25,0.5", ("point", (0.25, 0.5)), True),
]


@pytest.mark.parametrize(("dialect", "text", "expected", "format_ok"), READ)
def test_what_is_read(dialect: str, text: str, expected: tuple[str, tuple[float, ...]], format_ok: bool):
    assert parse_one(text, dialect) == (*expected, format_ok)
    assert parse_one(text, dialect, spans=True) == (*expected, format_ok)  # one by one, without the columns


CHAT = "<|im_start|>user\nlike [1,2,3,4]<|im_end|>\n<|im_start|>assistant\n"
# text, what is read, whether it is well formed
SEARCHED = [
    (CHAT + "[10,20,30,40]<|im_end|>", BOX_OF, True),
    (CHAT + "[5,6,7,8]<|im_end|>\n" + CHAT + "[10,20,30,40]", BOX_OF, True),
    ("system\nYou help.\nuser\nlike [1,2,3,4]\nassistant\n[10,20,30,40]", BOX_OF, True),
    ("The user\nassistant\nsaid [10,20,30,40]", BOX_OF, False),
    ("<think>[1,2,3,4]?</think><answer>[10,20,30,40]</answer>", BOX_OF, True),
    ("<think>[1,2,3,4]?</think>\n<answer>\n[10,20,30,40]\n</answer><|im_end|>", BOX_OF, True),
    ("[1,2,3,4]?</think><answer>[10,20,30,40]</answer>", BOX_OF, True),  # the template opened the block
    ("<answer>[1,2,3,4]</answer> no: <answer>[10,20,30,40]</answer>", BOX_OF, False),
    ("<answer>[10,20,30,40]</answer> or <answer>[1,2,3", BOX_OF, False),
    ("<answer>none</answer> [1,2,3,4]", NONE, False),
    ("<answer>[10,20,30,40]</answer> [1,2,3,4]", BOX_OF, False),
    ("<answer>[10,20,30,40]", BOX_OF, False),
    ("<think>[1,2,3,4]</think> [10,20,30,40]", BOX_OF, True),
    ("so <think>[1,2,3,4]</think> [10,20,30,40]", BOX_OF, False),
    ("<think>[1,2,3,4]</think>", NONE, False),
    ("<think>[1,2,3,4]", NONE, False),
    ("[1,2,3,4]<think>", NONE, False),
    ("<think>a</think>[1,2,3,4]<think>b</think>[10,20,30,40]", BOX_OF, False),
]


@pytest.mark.parametrize(("text", "expected", "format_ok"), SEARCHED)
def test_which_text_is_searched(text: str, expected: tuple[str, tuple[float, ...]], format_ok: bool):
    assert parse_one(text) == (*expected, format_ok)
    assert parse_one(text, spans=True) == (*expected, format_ok)


def test_policies():
    two = "[1, 2, 3, 4] or [5, 6, 7, 8] or [9, 9, 9]"
    assert parse_one(two, policy="first")[1] == (1, 2, 3, 4)
    assert parse_one(two, policy="last")[1] == (5, 6, 7, 8)
    assert parse_one(two, policy="only") == (*NONE, False)
    assert parse_one("[1, 2, 3, 4] or [9, 9, 9]", policy="only")[1] == (1, 2, 3, 4)
    assert parse_one("(0.1,0.2) or [0.5, 0.5]", "norm01", policy="last")[1] == (0.5, 0.5)
    assert parse_one("click(start_box='(0.25,0.5)')", "norm01", policy="only")[1] == (0.25, 0.5)  # one place, two forms


def test_a_point_is_well_formed_where_one_is_asked_for():
    assert parse_one('{"point_2d": [10, 20]}', "qwen25", asked="point") == (*POINT_OF, True)
    assert parse_one('{"bbox_2d": [10, 20, 30, 40]}', "qwen25", asked="point") == (*BOX_OF, False)
    assert parse_one("[10, 20]", asked="either") == (*POINT_OF, True)


def test_without_strip_a_trailing_newline_is_no_part_of_the_format():
    assert parse(["[1,2,3,4]", "[1,2,3,4]\n", "[1,2,3,4]<|im_end|>"], strip=False).format_ok.tolist() == [True, False, False]


def test_the_release_reads_what_it_read():
    """The reader of the released code: the first quadruple of the whole text, any Unicode digits, no limit of digits."""
    texts = [
        "<think>[1,2,3,4]</think>[5,6,7,8]",
        "[１,２,３,４]",
        "[" + ",".join(4 * ["9" * 400]) + "]",
        "[1,2,3,4]\n",
        "[1,2]",
    ]
    parsed = parse(texts, "gui_g2_release")
    assert parsed.kind.tolist() == [BOX, BOX, BOX, BOX, NOTHING]
    assert parsed.box[:2].tolist() == [[1, 2, 3, 4]] * 2
    assert np.isposinf(parsed.box[2]).all()
    assert parsed.format_ok.tolist() == [False, True, True, False, False]


def test_columns_and_their_types():
    parsed = parse(["[10, 20, 31, 40]", "no", None, "[7, 8]"], spans=True)
    assert parsed.kind.tolist() == [BOX, NOTHING, NOTHING, POINT]
    assert parsed.point[[0, 3]].tolist() == [[20.5, 30], [7, 8]]  # the centre, in floats
    assert parsed.box[3].tolist() == [7, 8, 7, 8]
    assert np.isnan(parsed.box[1:3]).all()
    assert np.isnan(parsed.point[1:3]).all()
    assert parsed.span is not None
    assert parsed.span.tolist() == [[0, 16], [-1, -1], [-1, -1], [0, 6]]
    types = parsed.kind.dtype, parsed.box.dtype, parsed.point.dtype, parsed.format_ok.dtype, parsed.span.dtype
    assert types == (np.int8, np.float32, np.float32, np.bool_, np.int32)
    assert len(parsed) == 4


def test_spans_count_characters():
    text = "点ü <think>x</think> [1, 2, 3, 4]!"
    span = parse([text], spans=True).span
    assert span is not None
    assert text[span[0, 0] : span[0, 1]] == "[1, 2, 3, 4]"


@pytest.mark.parametrize("dialect", DIALECTS)
def test_frames_exist(dialect: str):
    assert parse([], dialect).frame in FRAMES
    assert parse([], dialect).box.shape == (0, 4)


def test_every_kind_of_column_is_read_alike():
    texts = ["[1, 2, 3, 4]", None, "at [5, 6, 7, 8]", "ü"] * 3
    expected = parse(texts)
    columns = [
        pa.array(texts, pa.large_string()),
        pa.chunked_array([texts[:5], texts[5:]], pa.string()),
        pa.array(["", *texts], pa.string()).slice(1),
        pa.array(texts).dictionary_encode(),
        pa.array(texts, pa.string_view()),
        np.array(texts, object),
        tuple(texts),
    ]
    for column in columns:
        parsed = parse(column)
        np.testing.assert_array_equal(parsed.box, expected.box)
        np.testing.assert_array_equal(parsed.kind, expected.kind)


def test_many_blocks_are_read_in_order():
    n = 150_000
    parsed = parse([f"[{i}, 2, 3, 4]" for i in range(n)])
    np.testing.assert_array_equal(parsed.box[:, 0], np.arange(n))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: parse(["x"], "latin"), "'latin' is unknown; there are bracket, qwen25"),
        (lambda: parse(["x"], policy="best"), "first, last, only"),
        (lambda: parse(["x"], asked="circle"), "box, point, either"),
        (lambda: parse("[1,2,3,4]"), "not one text"),
        (lambda: parse([1, 2]), "sequence of str"),
        (lambda: parse(pa.array([1, 2])), "not of int64"),
    ],
)
def test_mistakes_are_told(call, message: str):
    with pytest.raises(UserError, match=message):
        call()


ATOMS = (
    *"[](){},.-+:'\"`<>|\\/=_ \t\n\v\0é点１²\ud800",
    *("1", "23", "4.5", "-7", "007", ".5", "1e3", "nan", "9" * 13, ", ", "[1, 2, 3, 4]", "(1,2)", '"bbox_2d": ', "point_2d"),
    *("'coordinate'", '{"arguments": ', "start_box='", "click(", "point='<point>", "</point>", "<|box_start|>", "<|box_end|>"),
    *("```", "```json\n", "<think>", "</think>", "<answer>", "</answer>", "<tool_call>", "</tool_call>", "<|im_end|>", "</s>"),
    *("Thought: x", "\nAction: ", "\nassistant\n", "user\n", "<|im_start|>assistant", "point:", "\U0001f5b1"),
)
SEEDS = [text for _, text, _, _ in READ] + [text for text, _, _ in SEARCHED]


def hostile(rng: random.Random) -> str:
    """Pieces of every form, or a good answer damaged, or a few pieces again and again."""
    choice = rng.random()
    if choice < 0.3:
        return "".join(rng.choices(ATOMS, k=rng.randint(0, 20)))
    if choice < 0.4:
        return "".join(rng.choices(ATOMS, k=rng.randint(1, 3))) * rng.randint(1, 500)
    text = rng.choice(SEEDS)
    for _ in range(rng.randint(1, 3)):
        i = rng.randint(0, len(text))
        text = text[:i] + rng.choice(ATOMS) + text[i + rng.choice((0, 0, 1, 1, 3)) :]
    return text


@pytest.mark.parametrize("dialect", DIALECTS)
def test_hostile_texts_neither_raise_nor_take_long_and_columns_agree_with_single_texts(dialect: str):
    rng = random.Random(dialect)
    texts = [hostile(rng) for _ in range(1000)]
    for policy in POLICIES:
        begun = time.process_time()
        one_by_one = parse(texts, dialect, policy=policy, spans=True)
        assert time.process_time() - begun < 1
        columns = parse(texts, dialect, policy=policy)
        np.testing.assert_array_equal(columns.kind, one_by_one.kind)
        np.testing.assert_array_equal(columns.box, one_by_one.box)
        np.testing.assert_array_equal(columns.format_ok, one_by_one.format_ok)
        assert not (columns.format_ok & (columns.kind == NOTHING)).any()


MEGABYTE = 1_000_000
UNITS = ("1", "1.", "[", "]", "[]", "(", "[[1,", "[ ", "(1,2),", "-", '"', "<think>", "start_box='", "point='<point>", " ")


@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize("unit", UNITS)
def test_a_megabyte_of_anything_takes_linear_time(dialect: str, unit: str):
    text = unit * (MEGABYTE // len(unit))
    taken = []
    for _ in range(3):
        begun = time.process_time()
        assert parse([text], dialect).kind.tolist() in ([NOTHING], [POINT])
        taken.append(time.process_time() - begun)
    limit = 0.05 if set(unit) <= set("1[]()") else 0.25
    assert min(taken) < limit


@given(
    st.lists(st.floats(-9999, 9999).map(lambda x: f"{x:.6f}"), min_size=4, max_size=4), st.sampled_from(["bracket", "qwen25"])
)
def test_numbers_are_the_nearest_float32(numbers: list[str], dialect: str):
    text = "[" + ", ".join(numbers) + "]"
    expected = np.array([np.float32(number) for number in numbers])
    np.testing.assert_array_equal(parse([text], dialect).box[0], expected)
    np.testing.assert_array_equal(parse([text], dialect, spans=True).box[0], expected)
