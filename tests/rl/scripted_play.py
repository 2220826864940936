"""An environment that counts, and a sampler that answers from a list: rollouts without a model."""

from collections import deque

from envs.api import ActionSpec, Argument, EnvSpec, Obs, StepResult
from envs.base import BaseEnv
from rl.bytes import byte_tokenizer
from rl.codec import PlainCodec
from rl.engine import Completion

TOKENIZER = byte_tokenizer()
CODEC = PlainCodec(TOKENIZER)
NEWLINE = ord("\n")


class Counter(BaseEnv):
    """Says how many steps were taken; "9" ends it and pays 1, other digits pay a tenth."""

    def __init__(self, max_steps=50, crash_at=None):
        action = ActionSpec("say", (Argument("n", "int", low=0, high=9),))
        super().__init__(EnvSpec("test/counter", "counts", (action,), max_steps=max_steps))
        self.crash_at = crash_at

    def _reset(self, task, seed):
        self.count, self.seed = 0, seed
        return Obs(text=f"start {seed}")

    def _act(self, action):
        self.count += 1
        if self.count == self.crash_at:
            raise RuntimeError("the disk is on fire")
        n = action.arguments["n"]
        return StepResult(Obs(text=f"step {self.count}"), 1.0 if n == 9 else n / 10, n == 9, False, {})

    def _state(self):
        return {"count": self.count}


class Script:
    """A sampler that answers each session from a list, and remembers what it was fed."""

    def __init__(self, answers, context=1000, end=NEWLINE):
        self.answers, self.context, self.end, self.free = answers, context, end, 8
        self.streams, self.given, self.queue, self.released = {}, {}, deque(), set()

    busy = property(lambda self: len(self.queue))

    def room(self, key):
        return self.context - len(self.streams.get(key, []))

    def submit(self, key, ids, *, max_tokens, stop_ids):
        self.streams.setdefault(key, []).extend(ids)
        turn = self.given[key] = self.given.get(key, -1) + 1
        answer = self.answers(key, turn)[:max_tokens]
        self.queue.append(Completion(key, tuple(answer), (-0.5,) * len(answer), (4,) * len(answer), answer[-1:] == [self.end]))
        self.streams[key].extend(answer)

    def advance(self):
        return [self.queue.popleft()]

    def release(self, key):
        assert key in self.streams
        self.released.add(key)


def line(text):
    """The ids of a line."""
    return TOKENIZER.encode(text + "\n", bos=False)
