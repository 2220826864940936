"""A persistent bash in a sandbox: one command at a time, with its folder and variables kept from command to command."""

import dataclasses
import re
import shlex
import time

from envs.sandbox import processes
from envs.sandbox.bubblewrap import HOME, Sandbox
from envs.sandbox.channel import PER_REQUEST, PER_SESSION, RUNNING, Channel, Clip, Output
from jaxllm.errors import UserError

INTERRUPT = "C-c"
GRACE = 2.0  # seconds that an interrupted command has before it is killed
SERVICE = 20.0  # seconds that bash has for what it does for us
MAX_COMMAND = 128 << 10  # bytes
ENDED = {
    "disk": "the session's files take more than the disk limit",
    "files": "the session has more files than the limit",
    "host": "the host's disk is full",
    "output": f"the session printed more than {PER_SESSION >> 20} MiB",
    "closed": "the session was closed",
}
# Bash's own variables, which are no part of the session's state.
OWN = "BASH*|COMP*|DIRSTACK|EPOCH*|FUNCNAME|GROUPS|HOST*|LINENO|MACHTYPE|OPT*|OSTYPE|PIPESTATUS|PPID|RANDOM|SECONDS|SHELLOPTS"
OWN += "|SRANDOM|UID|EUID|_|__*|PS[0-4]|PROMPT_COMMAND|HIST*"
BASE = ("HOME", "LANG", "LC_ALL", "LOGNAME", "PAGER", "PATH", "SHELL", "TERM", "TZ", "USER")
# What an interactive bash says without a terminal, when a signal has ended a command.
NOISE = re.compile(r"^bash: \[\d+: \d+ \(\d+\)\] tcsetattr: Inappropriate ioctl for device\n", re.MULTILINE)
# Functions of ours in the shell: `__status N` sets $?, `__report` tells that a request has ended, `__dump` prints all that a
# new shell needs to go on.
FUNCTIONS = f"""PS1= PS2= PROMPT_COMMAND=; unset HISTFILE; set +H; exec 2>&1
__status() {{ builtin return "$1"; }}
__report() {{
  builtin printf '%s\\0' "$1" "$2" "${{PWD-}}"
  builtin declare -px
  builtin printf '\\0'
  builtin eval "$4"
  builtin printf '\\0'
}} >&"$3" 2>/dev/null
__dump() {{
  local IFS=$'\\n' __name
  for __name in $(builtin compgen -v); do case $__name in {OWN}|IFS) ;; *) builtin declare -p "$__name" ;; esac; done
  for __name in {" ".join(BASE)}; do [[ -v $__name ]] || builtin echo "unset $__name"; done
  builtin printf 'IFS=%q\\n' "$1"
  builtin declare -f; builtin alias -p; builtin shopt -p; builtin umask -p
  __name=$(builtin set +o)
  __name=${{__name//set [+-]o emacs/}}  # would close descriptors that we need
  builtin echo "${{__name//set [+-]o vi/}}"
}}
"""


@dataclasses.dataclass(frozen=True)
class Saved:
    """A shell's state between two commands, without processes."""

    cwd: str
    script: str  # bash: declares variables, functions, aliases and options


class Shell:
    """A bash that is started at once, and anew when a command ends it.

    ``cwd`` is its working folder and ``exported`` its exported variables as bash declares them, after the last command.
    """

    def __init__(self, sandbox: Sandbox, *, seed: int = 0, saved: Saved | None = None):
        """Args: where it runs; the seed of $RANDOM; the state to start from (of `save`)."""
        self.sandbox = sandbox
        self._seed = seed
        self._number = 0
        self._running = False
        self._last_code = 0
        self._clip = Clip()
        self.cwd, self.exported = HOME, ""
        self._start(saved)

    def run(self, command: str, timeout: float = 30.0) -> Output:
        """Runs a command and waits for its end, ``timeout`` seconds at most: then the exit code is -1 and it goes on.

        An empty command waits for the one that is running; "C-c" interrupts it, and after `GRACE` seconds kills all that the
        shell has started. A command that ends the shell, or prints more than `PER_REQUEST` bytes, leaves a new shell behind.
        Never raises for what a command does; raises UserError for a command that is too long or has a NUL.
        """
        begun = time.monotonic()
        output = self._run(command, timeout)
        return dataclasses.replace(output, seconds=time.monotonic() - begun)

    @property
    def running(self) -> bool:
        """Whether a command has not ended."""
        return self._running

    def live(self) -> bool:
        """Whether a command or anything that it left in the background still runs."""
        return self._running or bool(self._channel.others())

    def save(self) -> Saved:
        """The state for a new shell. $RANDOM goes on from a new seed, here and there. Raises UserError while processes
        live, and in a folder below /tmp."""
        if self.sandbox.ended or self.live():
            raise UserError("a shell can't be saved while a command runs, in the background too; end it first")
        if self.cwd.startswith(("/tmp/", "/dev/shm/")):
            raise UserError(f"a shell in {self.cwd} can't be saved: what is there is not kept; change to {HOME} first")
        report = self._service("RANDOM=$RANDOM; __seed=$RANDOM; RANDOM=$__seed", '__dump "$IFS"; builtin echo "RANDOM=$__seed"')
        return Saved(self.cwd, report[4].decode(errors="surrogateescape"))

    def close(self) -> None:
        """Ends it and all that it started. May be called twice."""
        self._channel.close()

    def _run(self, command: str, timeout: float) -> Output:
        if self.sandbox.ended:
            return Output("", RUNNING, note=f"the session is over: {ENDED[self.sandbox.ended]}")
        if command.strip() == INTERRUPT:
            return self._interrupt() if self._running else self._idle()
        if not command.strip():
            return self._wait(timeout) if self._running else self._idle()
        if self._running:
            note = f"a command is still running: wait for it with an empty command, or interrupt it with {INTERRUPT}"
            return Output("", RUNNING, note=note)
        if "\0" in command or len(command.encode(errors="surrogatepass")) > MAX_COMMAND:
            raise UserError(f"a command has no NUL and at most {MAX_COMMAND >> 10} KiB; write longer text to a file")
        self._begin(command.encode(errors="replace").decode())
        return self._wait(timeout)

    def _idle(self) -> Output:
        clip = Clip()
        self._channel.drain(clip)
        return Output(clip.text(), self._last_code, clip.omitted, "no command is running")

    def _begin(self, command: str) -> None:
        self._clip = Clip()
        self._running = True
        self._number += 1
        # Commands inherit both descriptors: a redirection that closed them would not be undone after a syntax error.
        line = f"eval {shlex.quote(command)} 0<&{self._idle_number}"
        status = f"__status {self._last_code}\n" if self._last_code else ""  # so that $? is the last command's, not ours
        self._channel.send(f"{status}{line}\n{self._report_line('')}\n".encode())

    def _report_line(self, extra: str) -> str:
        # An interrupted line is dropped as a whole, so the report has a line of its own. It is a simple command: after some
        # syntax errors bash takes the next line's first word for one, whatever it is.
        return f'__report {self._number} "$?" {self._reports_number} {shlex.quote(extra)}'

    def _wait(self, timeout: float) -> Output:
        until = time.monotonic() + timeout
        while True:
            report = self._channel.collect(self._clip, max(0.0, until - time.monotonic()))
            if report and report[0] == str(self._number).encode():
                self._note(report)
                return self._output(self._last_code)
            if report is None:
                break
        if self._channel.flooded:
            self.sandbox.ended = "output"
            self.sandbox.kill()
        if self.sandbox.ended:
            self._running = False
            return self._output(RUNNING, f"the session is over: {ENDED[self.sandbox.ended]}")
        if not self._channel.alive:
            code = self._channel.child.returncode
            self._restart()
            return self._output(code, f"the shell ended with exit code {code}; a new one was started in {HOME}")
        if self._clip.total > PER_REQUEST:
            self._restart()
            note = f"killed: it printed more than {PER_REQUEST >> 20} MiB; a new shell was started in {HOME}"
            return self._output(137, note)
        return self._output(RUNNING)

    def _output(self, code: int, note: str = "") -> Output:
        clip, self._clip = self._clip, Clip()
        return Output(NOISE.sub("", clip.text()), code, clip.omitted, note)

    def _interrupt(self) -> Output:
        self._channel.interrupt()
        first = self._wait(GRACE)
        if not self._running:
            return first
        if program := self._channel.program():
            for pid in processes.descendants(program):
                processes.end(pid)
        second = self._wait(GRACE)
        if self._running:
            self._restart()
            second = dataclasses.replace(second, exit_code=137, note=f"killed; a new shell was started in {HOME}")
        return dataclasses.replace(second, text=first.text + second.text, omitted=first.omitted + second.omitted)

    def _note(self, report: list[bytes]) -> None:
        self._running = False
        self._last_code = Channel.status(report[1])
        self.cwd = report[2].decode(errors="replace")
        self.exported = report[3].decode(errors="replace")

    def _restart(self) -> None:
        self._channel.close()
        self._start(None)

    def _start(self, saved: Saved | None) -> None:
        self._channel = Channel(self.sandbox, self._argv, 5, HOME)
        self._running, self._last_code, self.cwd = False, 0, HOME
        self._service(FUNCTIONS)
        script = saved.script if saved else f"RANDOM={self._seed % 32768}"
        where = f"builtin cd -- {shlex.quote(saved.cwd)}\n" if saved else ""  # first: it sets OLDPWD
        self._service(f"{where}eval {shlex.quote(script)} 2>/dev/null")

    def _argv(self, idle: int, reports: int) -> list[str]:
        self._idle_number, self._reports_number = idle, reports
        return ["bash", "--norc", "--noprofile", "--noediting", "-i"]  # interactive, so that it outlives an interrupt

    def _service(self, script: str, extra: str = "") -> list[bytes]:
        """Has bash do something for us; returns its report. Raises UserError where it does not answer."""
        self._number += 1
        self._channel.send(f"{script}\n{self._report_line(extra)}\n".encode(errors="surrogateescape"))
        clip, until = Clip(), time.monotonic() + SERVICE
        while time.monotonic() < until and self._channel.alive:
            report = self._channel.collect(clip, until - time.monotonic())
            if report and report[0] == str(self._number).encode():
                code = self._last_code
                self._note(report)
                self._last_code = code
                return report
        raise UserError(f"bash does not answer in its sandbox ({self.sandbox.folder.name}); {clip.text()[-200:]}")
