"""A learner of the soak, in a process that may be killed: ``python -m environments.soak_client`` with settings on its input.

It writes to its journal what it is about to send, and what came back for it: ``s TOKEN FAMILY OP``, ``a TOKEN STATUS``,
``bad ...`` for an answer that can't be, ``end`` when it has ended in order with an answer to everything.
"""

import json
import os
import random
import select
import sys
import time
from collections.abc import Callable
from typing import Any

from envs import Action, make_vec
from envs.api import Obs
from envs.policies import random_policy
from jaxllm.errors import UserError

WAIT = 180.0  # seconds without any answer from which on one is missing
TRIES = 50  # of a reset, or of making the vector, one after the other
COMMANDS = (
    "ls -la",
    "echo one >> notes; wc notes",
    "cat notes | sort | head",
    "find . -type f | wc -l",
    "sleep 0.05",
    "pwd",
    "",
)
CODE = ("print(1 + 1)", "x = [1, 2]; print(x)", "open('notes').read()")


class Learner:
    """Steps a vector at a given rate until its input ends."""

    def __init__(self, settings: dict[str, Any]):
        self._number = settings["number"]
        self._random = random.Random(settings["seed"])
        self._rate = settings["rate"]
        self._journal = os.open(settings["journal"], os.O_CREAT | os.O_APPEND | os.O_WRONLY, 0o600)
        names, options = settings["names"], settings["options"]
        self._families = ["logged" if ":" in name else name.split("/")[0] for name in names]
        self._vector = self.made(names, options, settings)
        self._policies: list[Callable[..., Any] | None] = [None] * len(names)
        self._pending: dict[int, tuple[str, str]] = {}  # environment -> token and operation on its way
        self._at = [0] * len(names)  # steps of the episode
        self._failed = [0] * len(names)  # resets in a row
        self._count = 0

    def made(self, names: list[str], options: list[dict[str, Any]], settings: dict[str, Any]) -> Any:
        """The vector. Workers may be killed while it is made: then it is made anew."""
        for tries in range(TRIES):
            try:
                return make_vec(
                    names, len(names), max(1, len(names) // 2), seed=settings["seed"] + tries, options=options,
                    address=settings["address"], token=settings["token"],
                )  # fmt: skip
            except UserError:
                if tries == TRIES - 1:
                    raise
        raise AssertionError

    def run(self) -> None:
        """Until the input ends; then everything on its way is waited for."""
        self.reset(list(range(len(self._at))))
        next_turn = time.monotonic()
        while not select.select([sys.stdin], [], [], max(0.0, next_turn - time.monotonic()))[0]:
            next_turn = max(next_turn, time.monotonic() - 1.0) + self.turn(True) / self._rate
        while self._pending:
            self.turn(False)
        self._vector.close()
        self.write("end")

    def turn(self, go_on: bool) -> int:
        """Takes answers, and sends what comes next; how many there were."""
        if not self._pending:
            raise RuntimeError("every environment was given up")
        try:
            batch = self._vector.recv(1, timeout=WAIT)
        except TimeoutError:
            self.write(f"bad no answer for {sorted(self._pending.values())} in {WAIT:g} s")
            raise
        ended, actions, going = [], [], []
        for row, id in enumerate(map(int, batch.ids)):
            token, op = self._pending.pop(id, ("", ""))
            status, obs = batch.status[row], batch.obs[row]
            if not token:
                self.write(f"bad an answer to nothing: environment {id}, {status}")
                continue
            self.write(f"a {token} {status}")
            self.check(id, op, status, obs, token)
            over = batch.terminated[row] or batch.truncated[row] or status not in ("OK", "PARSE_ERROR")
            if not go_on:
                continue
            if over:
                ended.append(id)
            else:
                actions.append(self.action(id, obs))
                going.append(id)
        if going:
            self._vector.send(actions, going)
        if ended:
            self.reset(ended)
        return len(batch)

    def check(self, id: int, op: str, status: str, obs: Obs, token: str) -> None:
        """The number of the step must be the one that comes next."""
        if op == "reset":
            if status == "OK":
                self._at[id] = self._failed[id] = 0
                self._policies[id] = None
                if obs.step:
                    self.write(f"bad {token}: step {obs.step} after a reset")
            return
        if status in ("OK", "PARSE_ERROR"):
            self._at[id] += 1
            if obs.step != self._at[id]:
                self.write(f"bad {token}: {self._families[id]} is at step {obs.step}, not {self._at[id]}")

    def reset(self, ids: list[int]) -> None:
        """Begins episodes; where that failed before, with another seed: a task that took workers with it is in quarantine."""
        fresh, again = [], []
        for id in ids:
            if self._failed[id] > TRIES:
                self.write(f"bad environment {id} ({self._families[id]}) is given up after {TRIES} resets")
                continue
            (again if self._failed[id] else fresh).append(id)
            self._failed[id] += 1
            self.sent(id, "reset")
        if fresh:
            self._vector.send_reset(fresh)
        if again:
            self._vector.send_reset(again, seeds=[self._random.getrandbits(31) for _ in again])

    def action(self, id: int, obs: Obs) -> Action:
        """What to do next, with its token sent ahead."""
        token = self.sent(id, "step")
        spec = self._vector.specs[id]
        if spec.name == "logged":
            return Action("mark", {"token": token})
        if self._policies[id] is None:
            self._policies[id] = random_policy(spec, self._random.getrandbits(31))
        policy = self._policies[id]
        assert policy is not None
        action = policy({}, obs)
        if action.name == "execute_bash":
            return Action(action.name, {"command": self._random.choice(COMMANDS)})
        if action.name == "JupyterCI":
            return Action(action.name, {"code": self._random.choice(CODE)})
        return action

    def sent(self, id: int, op: str) -> str:
        """Writes down what is about to be sent; its token."""
        self._count += 1
        token = f"{self._number}-{self._count}"
        self._pending[id] = (token, op)
        self.write(f"s {token} {self._families[id]} {op}")
        return token

    def write(self, line: str) -> None:
        """To the journal, in one piece."""
        os.write(self._journal, f"{line}\n".encode())


if __name__ == "__main__":
    Learner(json.loads(sys.stdin.readline())).run()
