"""Prompts that leave out the past: what stays, that nothing is guessed twice, and that each answer is trained once."""

import numpy as np
import pytest

import envs
from envs.api import Action, Obs, StepResult, Task
from envs.local import LocalVector
from rl import tokens
from rl.codec import ChatCodec
from rl.memory import LEFT_OUT, Answer, Memory, assemble
from rl.rollout import Budget, Episode, rollout
from rl.types import Stop
from tests.rl.scripted_play import CODEC, TOKENIZER, Counter, Script, line

SPEC = Counter().spec
SEEN = [StepResult(Obs(text=f"o{i}"), 0.0, False, False, {}) for i in range(4)]
ANSWERS = [Answer(line(str(i)), stopped=True) for i in range(1, 4)]


def prompt(**options):
    """The text of the fourth turn's prompt."""
    return TOKENIZER.decode(assemble(Memory(**options), CODEC, SPEC, None, SEEN, ANSWERS))


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, "o0\n1\no1\n2\no2\n3\no3\n"),
        ({"turns": 9}, "o0\n1\no1\n2\no2\n3\no3\n"),
        ({"turns": 1}, "1. 1 -> o1\n2. 2 -> o2\no2\n3\no3\n"),
        ({"turns": 0}, "1. 1 -> o1\n2. 2 -> o2\n3. 3 -> o3\no3\n"),
        ({"observations": 2}, f"{LEFT_OUT}\n1\n{LEFT_OUT}\n2\no2\n3\no3\n"),
        ({"turns": 2, "observations": 1}, f"1. 1 -> o1\n{LEFT_OUT}\n2\n{LEFT_OUT}\n3\no3\n"),
        ({"tokens": 20}, "o0\n1\no1\n2\no2\n3\no3\n"),
        ({"tokens": 16}, "1. 1 -> o1\n2. 2 -> o2\n3. 3 -> o3\no3\n"),  # no fewer are left; the newest observation stays
        ({"turns": 0, "line_tokens": 3}, "1. 1 -\n2. 2 -\n3. 3 -\no3\n"),
    ],
)
def test_what_stays(options, expected):
    assert prompt(**options) == expected
    assert prompt(**options) == prompt(**options)


def test_the_limit_of_tokens_evicts_the_oldest_first():
    wide = [StepResult(Obs(text=f"{i}" * 30), 0.0, False, False, {}) for i in range(4)]
    found = [len(assemble(Memory(tokens=n, line_tokens=5), CODEC, SPEC, None, wide, ANSWERS)) for n in (130, 129, 110, 60)]
    # Observations have 31 tokens, answers 2, lines 8.
    assert found == [4 * 31 + 3 * 2, 8 + 3 * 31 + 2 * 2, 8 + 3 * 31 + 2 * 2, 3 * 8 + 31]


def test_a_refused_answer_leaves_its_error():
    refused = [SEEN[0], StepResult(Obs(text="o1"), 0.0, False, False, {"error": "bad_argument"})]
    assert TOKENIZER.decode(assemble(Memory(turns=0), CODEC, SPEC, None, refused, ANSWERS[:1])) == "1. 1 -> bad_argument\no1\n"


def test_a_chat_keeps_task_and_order(smollm2_tokenizer):
    codec, spec, task = ChatCodec(smollm2_tokenizer), envs.describe("games/sokoban"), Task("t", "Solve it.")
    answers = [Answer(codec.write(Action("move", {"direction": "up"}), spec), stopped=True)] * 2
    text = smollm2_tokenizer.decode(assemble(Memory(turns=1), codec, spec, task, SEEN[:3], answers))
    assert "user\nSolve it.\n\nEarlier turns:\n1. Action: move(direction='up') -> o1\n\no1<|im_end|>" in text
    assert text.endswith("move(direction='up')<|im_end|>\n<|im_start|>user\no2<|im_end|>\n<|im_start|>assistant\n")
    whole = assemble(Memory(turns=5), codec, spec, task, SEEN[:3], answers)
    stream = codec.begin(SEEN[0].obs, spec, task)
    for answer, result in zip(answers, SEEN[1:], strict=False):
        stream = [*stream, *answer.ids, *codec.observe(result, stopped=True)]
    assert whole == stream


def play(memory, answers, budget=None, context=1000):
    """One episode of scripted answers, and the sampler."""
    turn = iter(answers)
    sampler = Script(lambda *_: line(next(turn)), context)
    (found,) = rollout(sampler, LocalVector(Counter, 1), [Episode(0, 100)], CODEC, budget or Budget(), memory=memory)
    return found[1], sampler


def test_rewritten_turns_open_segments_and_train_each_answer_once():
    one, sampler = play(Memory(turns=1), ["1", "2", "3", "9"])
    assert [turn.rewritten for turn in one.turns] == [False, False, True, True]
    rows = list(tokens.rows(one))
    assert [TOKENIZER.decode(row.tokens) for row in rows] == [
        "start 100\n1\nstep 1\n2\n",
        "1. 1 -> step 1\nstep 1\n2\nstep 2\n3\n",
        "1. 1 -> step 1\n2. 2 -> step 2\nstep 2\n3\nstep 3\n9\n",
    ]
    assert [row.tokens for row in rows] == [sampler.streams[key] for key in ((0, 0), (0, 0, 1), (0, 0, 2))]
    batch = tokens.make_batch([one], [0])
    assert batch.mask.sum() == one.policy_tokens == 8
    np.testing.assert_array_equal(batch.order[:3], [0, 1, 2])
    assert (one.stop, one.outcome) == (Stop.TERMINATED, pytest.approx(1.6))


def test_a_memory_of_everything_is_the_plain_stream():
    plain, _ = play(Memory(), ["1", "2", "9"])
    kept, _ = play(Memory(turns=50), ["1", "2", "9"])
    assert (kept.turns, kept.outcome) == (plain.turns, plain.outcome)
    assert len(list(tokens.rows(kept))) == 1


def test_a_short_memory_outlives_the_context():
    answers = ["3"] * 30
    long, _ = play(Memory(), answers, Budget(max_tokens_per_turn=2), context=60)
    short, sampler = play(
        Memory(turns=1, tokens=30, line_tokens=1), answers, Budget(max_tokens_per_turn=2, max_turns=8), context=60
    )
    assert (long.stop, len(long.turns)) == (Stop.CONTEXT_OVERFLOW, 6)
    assert (short.stop, len(short.turns)) == (Stop.MAX_TURNS, 8)
    assert all(len(stream) <= 60 for stream in sampler.streams.values())
