"""The agent's loop: token in, token out, every reason to stop, failures that are no rewards. The sampler is scripted."""

import dataclasses
import functools

import numpy as np
import pytest

import envs
from envs.api import Action, Obs, StepResult
from envs.local import LocalVector
from envs.vector import Batch
from jaxllm.errors import UserError
from rl import tokens
from rl.bytes import END, VOCAB_SIZE
from rl.codec import ChatCodec, PlainCodec
from rl.rollout import Budget, Episode, rollout, scripted
from rl.types import Stop
from tests.rl.scripted_play import CODEC, NEWLINE, TOKENIZER, Counter, Script, line


def play(answers, budget=None, env=Counter, episodes=1, **options):
    """Trajectories of scripted answers, in the order of their numbers, and the sampler."""
    sampler = Script(answers if callable(answers) else lambda key, turn: line(answers[turn]), options.pop("context", 1000))
    vector = LocalVector(env, 2)
    found = rollout(
        sampler, vector, [Episode(i, 100 + i, i // 2) for i in range(episodes)], CODEC, budget or Budget(), **options
    )
    return [one for _, one in sorted(found, key=lambda pair: pair[0].number)], sampler


def test_the_sampler_sees_what_is_stored():
    (one,), sampler = play(["3", "x", "9"])
    (row,) = tokens.rows(one)
    assert row.tokens == sampler.streams[0, 0]
    assert TOKENIZER.decode(row.tokens) == "start 100\n3\nstep 1\nx\n? step 1\n9\n"
    assert (one.stop, one.success, one.outcome) == (Stop.TERMINATED, True, pytest.approx(1.3))
    assert [turn.reward for turn in one.turns] == [0.3, 0, 1.0]
    assert [turn.error for turn in one.turns] == [None, "bad_argument", None]
    assert {version for turn in one.turns for version in turn.version} == {4}


def test_a_cut_answer_is_closed_by_the_harness():
    budget = Budget(max_tokens_per_turn=1)
    (one,), _ = play(lambda key, turn: line("3") if turn == 0 else line("9"), budget)
    assert one.turns[0].ids == (ord("3"),)
    assert not one.turns[0].stopped
    assert one.turns[1].context[0] == NEWLINE  # added, so not trained
    batch = tokens.make_batch([one], [0])
    assert batch.mask.sum() == 2


@pytest.mark.parametrize(
    ("answers", "budget", "options", "stop"),
    [
        (["3"] * 99, Budget(max_turns=3), {}, Stop.MAX_TURNS),
        (["3"] * 99, Budget(max_tokens=5), {}, Stop.MAX_TOKENS),
        (["3"] * 99, Budget(max_tokens_per_turn=2), {"context": 40}, Stop.CONTEXT_OVERFLOW),
        (["x"] * 99, Budget(), {}, Stop.PARSE_ERROR),
        (["3"] * 99, Budget(), {"env": lambda: Counter(max_steps=4)}, Stop.MAX_TURNS),
        (["9"], Budget(), {}, Stop.TERMINATED),
    ],
)
def test_every_reason_to_stop(answers, budget, options, stop):
    (one,), sampler = play(answers, budget, **options)
    assert one.stop is stop
    assert one.stop.truncated == (stop not in (Stop.TERMINATED, Stop.PARSE_ERROR))
    assert len(sampler.streams[0, 0]) <= sampler.context
    tokens.make_batch([one], [0])


def test_what_was_sampled_is_never_encoded_again(smollm2_tokenizer):
    codec = PlainCodec(smollm2_tokenizer)
    split = [token for part in ("he", "llo", "\n") for token in smollm2_tokenizer.encode(part, bos=False)]
    sampler = Script(lambda *_: split, end=split[-1])
    ((_, one),) = rollout(sampler, LocalVector(Counter, 1), [Episode(0, 1)], codec)
    (row,) = tokens.rows(one)
    assert [turn.ids for turn in one.turns] == [tuple(split)] * 3  # three answers that can't be read end it
    assert row.tokens == sampler.streams[0, 0]
    again = smollm2_tokenizer.encode(smollm2_tokenizer.decode(row.tokens), bos=False)
    assert again != row.tokens  # the same text has another spelling
    assert smollm2_tokenizer.decode(again) == smollm2_tokenizer.decode(row.tokens)


def test_long_observations_are_cut_once():
    class Wordy(Counter):
        def _act(self, action):
            found = super()._act(action)
            return dataclasses.replace(found, obs=Obs(text=f"<{self.count}" + "x" * 9000 + f"{self.count}>"))

    (one,), sampler = play(["3"] * 9, Budget(max_tokens_per_turn=2), env=Wordy, context=17_000)
    (row,) = tokens.rows(one)
    text = TOKENIZER.decode(row.tokens)
    assert one.stop is Stop.CONTEXT_OVERFLOW
    assert row.tokens == sampler.streams[0, 0]  # what is stored is what the sampler saw
    assert len(row.tokens) <= 17_000
    for count in range(1, len(one.turns)):
        assert text.count(f"<{count}x") == text.count(f"x{count}>") == 1
    assert len(one.turns) == 5
    assert text.count("characters left out") == 4


def test_cancelled_episodes_say_nothing():
    asked = iter([False] * 6)
    found, sampler = play(["3"] * 99, Budget(), episodes=5, cancelled=lambda: next(asked, True))
    assert found
    assert {one.stop for one in found} == {Stop.CANCELLED}
    assert len(found) == 2  # those under way; none begins after it
    assert all(one.stop.failed for one in found)
    assert sampler.released == set(sampler.streams)


def test_a_caller_who_leaves_gives_the_slots_back():
    sampler = Script(lambda key, turn: line("9" if key[0] == 0 else "1"))
    running = rollout(sampler, LocalVector(Counter, 2), [Episode(i, i) for i in range(4)], CODEC)
    next(running)
    running.close()
    assert sampler.released == set(sampler.streams)


def test_budgets_are_exact():
    (one,), _ = play(["3"] * 99, Budget(max_tokens=5))
    assert one.policy_tokens == 5
    (one,), _ = play(["3"] * 99, Budget(max_turns=3))
    assert len(one.turns) == 3


def test_time_runs_out_for_one_episode_alone():
    now = iter(np.arange(0, 1000, 1.0))
    (one,), _ = play(["3"] * 999, Budget(seconds=10.0, max_tokens=9999), clock=lambda: float(next(now)))
    assert one.stop is Stop.TIMEOUT


def test_a_crash_is_tried_again_and_is_no_reward():
    crashes = iter([2, None, None])  # the first environment, which is taken first, crashes at its second step
    (one,), sampler = play(["3", "9"], env=lambda: Counter(crash_at=next(crashes)))
    assert sorted(sampler.streams) == [(0, 0), (0, 1)]
    assert (one.success, one.attempt) == (True, 1)
    assert one.outcome == pytest.approx(1.3)
    assert [turn.ids for turn in one.turns] == [tuple(line("3")), tuple(line("9"))]


def test_a_failure_for_good_says_nothing():
    (one,), sampler = play(["3"] * 9, Budget(retries=2), env=lambda: Counter(crash_at=1))
    assert one.stop is Stop.ENV_ERROR
    assert one.attempt == 2
    assert sorted(sampler.streams) == [(0, 0), (0, 1), (0, 2)]  # each attempt began with an empty stream
    assert "the disk is on fire" in one.info["message"]
    with pytest.raises(ValueError, match="failed episode"):
        tokens.make_batch([one], [0])


def test_many_episodes_share_few_environments():
    found, _ = play(lambda key, turn: line("9" if turn == key[0] % 3 else "1"), episodes=7)
    assert [len(one.turns) for one in found] == [1, 2, 3, 1, 2, 3, 1]
    assert [one.seed for one in found] == list(range(100, 107))


def test_states_are_anchors():
    (one,), _ = play(["0", "x", "9"], states=True)
    first, second, third = (turn.state for turn in one.turns)
    assert first != second == third  # a refused answer changes nothing; the count of steps is no part of the state


def test_scripted_play_is_what_the_codec_reads():
    env = envs.make("toy/hilo")
    one = scripted(env, envs.oracle("toy/hilo"), CODEC, Episode(0, 5))
    assert one.success
    assert one.turns[0].context == tuple(line("0-9"))
    assert [CODEC.read(turn.ids, env.spec).name for turn in one.turns] == ["guess"] * len(one.turns)


@pytest.mark.parametrize("ids", [[], [NEWLINE], line("12x"), line("-"), line("9" * 30), [VOCAB_SIZE - 1], [200, 201], [END]])
def test_reading_never_raises(ids):
    assert CODEC.read(ids, envs.make("toy/hilo").spec).error == "bad_argument"


def test_plain_lines_need_one_argument():
    with pytest.raises(UserError, match="more than one"):
        CODEC.read(line("1"), envs.describe("games/sokoban"))
    assert CODEC.read(line("n"), envs.make("toy/maze").spec) == Action("go", {"direction": "n"})


def test_a_chat_is_only_ever_extended(smollm2_tokenizer):
    spec = envs.describe("games/sokoban")
    codec = ChatCodec(smollm2_tokenizer)
    prompt = codec.begin(Obs(text="#@$.#"), spec)
    answer = codec.write(Action("move", {"direction": "up"}), spec)
    assert codec.read(answer, spec) == Action("move", {"direction": "up"})
    more = codec.observe(StepResult(Obs(text="done"), 0.0, False, False, {}), stopped=True)
    text = smollm2_tokenizer.decode([*prompt, *answer, *more])
    assert text.startswith(smollm2_tokenizer.decode(prompt))
    assert text.endswith("<|im_start|>user\ndone<|im_end|>\n<|im_start|>assistant\n")
    assert "move(direction)" in text
    wrong = codec.observe(
        StepResult(Obs(text="x"), 0.0, False, False, {"error": "no_action", "message": "say one"}), stopped=False
    )
    assert "Error: no_action. say one" in smollm2_tokenizer.decode(wrong)
    assert smollm2_tokenizer.decode(wrong).startswith("<|im_end|>")
    assert codec.read(smollm2_tokenizer.encode("I do not know", bos=False), spec).error == "no_action"


def test_batches_of_the_local_vector():
    vector = LocalVector(functools.partial(envs.make, "toy/hilo"), 3, seed=1)
    vector.send_reset([0, 1, 2])
    batch = vector.recv()
    assert isinstance(batch, Batch)
    assert batch.ids.tolist() == [0, 1, 2]
    vector.send([Action("guess", {"n": 0})], [1])
    assert vector.recv().ids.tolist() == [1]
    with pytest.raises(UserError, match="nothing is on its way"):
        vector.recv()
    assert vector.state([1])[0]["tried"] == 1
    vector.close()
