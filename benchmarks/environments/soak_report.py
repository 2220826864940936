"""What became of a soak: the journals of the learners against what the environments wrote down, and what is left."""

import argparse
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

GROWTH = 1.1  # of memory after the warm-up
SECONDS = 15.0  # that processes may take to end after the server
CGROUPS = Path("/sys/fs/cgroup")


def judge(soak: Any, amiss: list[str]) -> list[str]:
    """Everything that is amiss, in words."""
    done = Counter(token for path in soak.logs.glob("done-*") for token in path.read_text().split())
    amiss += [f"step {token} was done {count} times" for token, count in done.items() if count > 1]
    ok: set[str] = set()
    soak.sent, soak.answers, soak.unanswered = Counter(), defaultdict(Counter), 0
    for number, killed in soak.ended:
        read(soak, number, killed, ok, done, amiss)
    if strangers := done.keys() - soak.marks:
        amiss.append(f"{len(strangers)} steps were done that nobody sent, such as {sorted(strangers)[0]}")
    if there := soak.watch.left(SECONDS):
        amiss.append(f"processes are left: {there}")
    pids = {pid for pid, _ in soak.watch.seen}
    amiss += [f"shared memory is left: {path.name}" for path in Path("/dev/shm").glob(f"{soak.prefix}*")]
    amiss += [f"a folder is left: {path.name}" for path in soak.temporary.iterdir()]
    for path in CGROUPS.rglob("jaxllm-*-*"):
        if path.name.split("-")[1].isdigit() and int(path.name.split("-")[1]) in pids:
            amiss.append(f"a control group is left: {path}")
    for name, (early, late) in soak.watch.growth().items():
        if late > GROWTH * early:
            amiss.append(f"the memory of the {name} grew from {early:.1f} to {late:.1f} MB")
    return amiss


def read(soak: Any, number: int, killed: bool, ok: set[str], done: Counter[str], amiss: list[str]) -> None:
    """One journal: what was sent, what came back."""
    path = soak.folder / f"journal-{number}"
    lines = path.read_text().splitlines() if path.exists() else []
    waiting: dict[str, tuple[str, str]] = {}
    for line in lines:
        kind, _, rest = line.partition(" ")
        if kind == "s":
            token, family, op = rest.split()
            waiting[token] = (family, op)
            soak.sent[family, op] += 1
            soak.marks.add(token)
        elif kind == "a":
            token, status = rest.split()
            if token not in waiting:
                amiss.append(f"learner {number}: {token} was answered twice")
                continue
            family, op = waiting.pop(token)
            soak.answers[family, op][status] += 1
            if family == "logged" and op == "step" and status == "OK" and done[token] != 1:
                amiss.append(f"step {token} is OK and was done {done[token]} times")
        elif kind == "bad":
            amiss.append(f"learner {number}: {rest}")
    if killed:
        soak.unanswered += len(waiting)
    elif not lines or lines[-1] != "end":
        log = (soak.folder / f"learner-{number}.log").read_text().strip().splitlines()
        amiss.append(f"learner {number} did not end in order: {log[-1] if log else 'without a word'}")
    elif waiting:
        amiss.append(f"learner {number}: no answer for {sorted(waiting)[:5]}")


def report(
    amiss: list[str], soak: Any, killed: Counter[str], stats: dict[str, Any], seconds: float, arguments: argparse.Namespace
) -> dict[str, Any]:
    """Prints the table; returns what goes into the line of JSON."""
    steps = sum(count for (_, op), count in soak.sent.items() if op == "step")
    answers = sum(sum(found.values()) for found in soak.answers.values())
    if steps < arguments.steps:
        amiss.append(f"{steps} steps, fewer than {arguments.steps}")
    print(f"{seconds:.0f} s, {steps:,} steps sent, killed: {', '.join(f'{n} x {what}' for what, n in sorted(killed.items()))}")
    print(f"  {'family':10} {'operation':10} {'sent':>7}  answers")
    for (family, op), count in sorted(soak.sent.items()):
        found = ", ".join(f"{status} {n:,}" for status, n in soak.answers[family, op].most_common())
        print(f"  {family:10} {op:10} {count:>7,}  {found}")
    total = sum(soak.sent.values())
    print(f"  {total:,} operations, {answers:,} answers, {soak.unanswered} on their way to learners that were killed")
    growth = soak.watch.growth()
    for name, (early, late) in growth.items():
        print(f"  memory of the {name}: {early:.1f} MB after the warm-up, {late:.1f} MB at the end ({late / early - 1:+.1%})")
    print(f"  {stats['restarts']} restarts of workers, {len(soak.watch.seen):,} processes in all")
    for line in amiss[:20]:
        print(f"  AMISS: {line}")
    print("  nothing is amiss" if not amiss else f"  {len(amiss)} things are amiss")
    return {
        "benchmark": "env_soak",
        "seconds": round(seconds),
        "steps": steps,
        "operations": sum(soak.sent.values()),
        "answers": answers,
        "lost_with_their_learner": soak.unanswered,
        "killed": dict(killed),
        "restarts": stats["restarts"],
        "statuses": dict(sum(soak.answers.values(), Counter())),
        "memory_mb": {name: [round(early, 1), round(late, 1)] for name, (early, late) in growth.items()},
        "amiss": amiss[:50],
        "met": not amiss,
    }
