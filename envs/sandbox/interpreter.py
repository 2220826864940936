"""A stateful Python in a sandbox, as a notebook's kernel: names stay, and a cell's last value is printed."""

import dataclasses
import struct
import time

from envs.sandbox.bubblewrap import HOME, Sandbox, capabilities
from envs.sandbox.channel import PER_REQUEST, RUNNING, Channel, Clip, Output
from envs.sandbox.shell import ENDED
from jaxllm.errors import UserError

GRACE = 2.0  # seconds that an interrupted cell has before its interpreter is killed
START = 20.0  # seconds that Python may take to start
MAX_CODE = 1 << 20  # bytes
# Runs inside, isolated from the session's own modules until it has its imports. A request is a length and a cell's text.
PROGRAM = """
import ast, linecache, os, sys, traceback
requests, reports = os.fdopen(os.dup(0), "rb"), int(sys.argv[1])
null = os.open("/dev/null", os.O_RDONLY)
os.dup2(null, 0)
os.dup2(1, 2)
os.set_inheritable(reports, False)
sys.path.insert(0, "")
names = {"__name__": "__main__", "__builtins__": __builtins__}
number = -1
def run(text):
    name = f"<cell {number}>"
    linecache.cache[name] = (len(text), None, text.splitlines(True), name)
    tree = ast.parse(text, name)
    last = [tree.body.pop()] if tree.body and isinstance(tree.body[-1], ast.Expr) else []
    exec(compile(tree, name, "exec"), names)
    if last:
        exec(compile(ast.Interactive(last), name, "single"), names)
while True:
    try:
        size = requests.read(8)
        if len(size) < 8:
            break
        text = requests.read(int.from_bytes(size, "little")).decode("utf-8", "replace")
    except KeyboardInterrupt:
        continue
    number += 1
    status = 0
    try:
        run(text)
    except SystemExit as error:
        status = error.code if isinstance(error.code, int) else int(error.code is not None)
    except BaseException as error:
        status = 1
        shown = error.__traceback__
        while shown and not shown.tb_frame.f_code.co_filename.startswith("<cell"):
            shown = shown.tb_next
        traceback.print_exception(type(error), error, shown)
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    except BaseException:
        sys.stdout, sys.stderr = open(1, "w", closefd=False), open(2, "w", closefd=False)
    os.write(reports, b"%d\\0%d\\0" % (number + 1, status % 256))
"""


class Interpreter:
    """A Python that is started with its first cell, and anew after one that ends it."""

    def __init__(self, sandbox: Sandbox):
        self.sandbox = sandbox
        self._channel: Channel | None = None
        self._number = 0

    def run(self, code: str, timeout: float = 30.0) -> Output:
        """Runs a cell: what it printed, with exit code 0, or 1 and a traceback.

        After ``timeout`` seconds it is interrupted (KeyboardInterrupt), and killed where that does not help; then all names are
        lost. Raises UserError for code that is too long, and where there is no Python inside.
        """
        begun = time.monotonic()
        return dataclasses.replace(self._run(code, timeout), seconds=time.monotonic() - begun)

    def live(self) -> bool:
        """Whether the interpreter runs, and holds names that can't be saved."""
        return self._channel is not None and self._channel.alive

    def close(self) -> None:
        """Ends it and all that it started. The next cell starts a new one. May be called twice."""
        if self._channel:
            self._channel.close()
            self._channel = None

    def _run(self, code: str, timeout: float) -> Output:
        if self.sandbox.ended:
            return Output("", RUNNING, note=f"the session is over: {ENDED[self.sandbox.ended]}")
        text = code.encode(errors="replace")
        if len(text) > MAX_CODE:
            raise UserError(f"a cell has at most {MAX_CODE >> 20} MiB of code; write longer text to a file")
        if self._channel is None:
            if not capabilities()["python"]:
                raise UserError("the interpreter needs python3 under /usr or /usr/local on this machine; install it")
            self._channel = Channel(self.sandbox, lambda _, reports: ["python3", "-I", "-c", PROGRAM, str(reports)], 2, HOME)
            self._number = 0
            self._send(self._channel, b"")
            self._wait(self._channel, Clip(), START)  # its own start is not the cell's time
        channel, clip, note = self._channel, Clip(), ""
        self._send(channel, text)
        report = self._wait(channel, clip, timeout)
        if report is None and self._goes_on(channel, clip):
            note = f"interrupted after {timeout:g} s"
            channel.interrupt()
            report = self._wait(channel, clip, GRACE)
        if report is not None:
            return Output(clip.text(), report, clip.omitted, note)
        if channel.flooded:
            self.sandbox.ended = "output"
            self.sandbox.kill()
        if self.sandbox.ended:
            note, status = f"the session is over: {ENDED[self.sandbox.ended]}", RUNNING
        elif clip.total > PER_REQUEST:
            note, status = f"killed: it printed more than {PER_REQUEST >> 20} MiB; all names are lost", 137
        elif channel.alive:
            note, status = f"killed after {timeout:g} s; all names are lost", 137
        else:
            status = channel.child.returncode
            note = f"the interpreter ended with exit code {status}; all names are lost"
        self.close()
        return Output(clip.text(), status, clip.omitted, note)

    def _send(self, channel: Channel, text: bytes) -> None:
        self._number += 1
        channel.send(struct.pack("<Q", len(text)) + text)

    def _goes_on(self, channel: Channel, clip: Clip) -> bool:
        return channel.alive and not channel.flooded and clip.total <= PER_REQUEST

    def _wait(self, channel: Channel, clip: Clip, timeout: float) -> int | None:
        until = time.monotonic() + timeout
        while (report := channel.collect(clip, max(0.0, until - time.monotonic()))) is not None:
            if report[0] == str(self._number).encode():
                return Channel.status(report[1])
        return None
