"""From ``argv`` to an exit code: the listing, one command, and what happens when it ends badly.

Exit codes: 0 done, 1 a mistake that the user can mend (``UserError``), 2 wrong usage, 130 interrupted by Ctrl-C, 141 the
reader of stdout went away.
"""

import difflib
import errno
import os
import sys
from collections.abc import Iterable, Sequence
from typing import Any

from jaxllm.cli import commands, interrupt, runtime
from jaxllm.errors import UserError

EXIT_USER_ERROR = 1
EXIT_USAGE = 2
EXIT_BROKEN_PIPE = 141

# What the file system refuses; the user mends it, so it needs no traceback.
REFUSALS = {
    errno.EACCES,
    errno.EPERM,
    errno.EROFS,
    errno.ENOSPC,
    errno.EDQUOT,
    errno.ENOTDIR,
    errno.EISDIR,
    errno.ENAMETOOLONG,
    errno.EIO,
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command line (default: the process's own) and return the exit code; raises only what is a bug."""
    try:
        if argv is None:
            interrupt.install()
        code = _dispatch(list(sys.argv[1:] if argv is None else argv))
        sys.stdout.flush()
    except KeyboardInterrupt:
        code = _interrupted()
    except BrokenPipeError:
        # The interpreter flushes stdout once more at exit; give it somewhere to go.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_BROKEN_PIPE
    if code == interrupt.EXIT_CODE and argv is None:
        interrupt.leave()
    return code


def _dispatch(argv: list[str]) -> int:
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")  # a terminal without UTF-8 must not end the program
    argv, verbose = _take_verbose(argv)
    if not argv or argv[0] in ("-h", "--help", "help"):
        print(listing())
        return 0
    if argv[0] == "--version":
        print(f"jaxllm {runtime.version()}")
        return 0
    known = {name: command for group in commands.grouped().values() for name, command in group.items()}
    first = argv[0]
    family = [name for name in known if name.startswith(f"{first} ")]  # commands of two words that share the first
    if family and (len(argv) == 1 or argv[1] in ("-h", "--help")):
        print(listing(first))
        return 0
    words = 2 if family else 1
    name, arguments = " ".join(argv[:words]), argv[words:]
    if name not in known:
        close = _close(name, family, known)
        hint = f"did you mean {close[0]!r}?" if close else "the commands are: " + ", ".join(family or known)
        kind = "option" if name.startswith("-") else "command"
        print(f"jaxllm: unknown {kind} {name!r}; {hint}", file=sys.stderr)
        return EXIT_USAGE
    command = _parse(name, known[name], arguments)
    return command if isinstance(command, int) else _run(command, verbose)


def _close(name: str, family: list[str], known: Iterable[str]) -> list[str]:
    """The command that was meant, if one is near: of a family of two words, by the second."""
    if family:
        seconds = {other.split()[1]: other for other in family}
        return [seconds[word] for word in difflib.get_close_matches(name.partition(" ")[2], seconds, n=1)]
    return difflib.get_close_matches(name, [*known, *{other.split()[0] for other in known}], n=1)


def _take_verbose(argv: list[str]) -> tuple[list[str], bool]:
    """``-v`` may stand anywhere before ``--``: it belongs to every command."""
    end = argv.index("--") if "--" in argv else len(argv)
    kept = [word for word in argv[:end] if word not in ("-v", "--verbose")]
    return kept + argv[end:], len(kept) < end


def _parse(name: str, command: type[Any], arguments: list[str]) -> Any:
    """An instance of the dataclass, or the exit code when the arguments ask for help or do not fit.

    A command whose defaults depend on what it is asked has a class method ``defaults(arguments)``, which returns an instance.
    """
    import tyro

    config = (tyro.conf.PositionalMetavarFromFieldName, tyro.conf.FlagCreatePairsOff)
    try:
        default = command.defaults(arguments) if hasattr(command, "defaults") else tyro.MISSING_NONPROP
        return tyro.cli(command, prog=f"jaxllm {name}", args=arguments, default=default, config=config)
    except UserError as error:
        print(f"jaxllm: {error}", file=sys.stderr)
        return EXIT_USER_ERROR
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else EXIT_USAGE


def _run(command: commands.Command, verbose: bool) -> int:
    try:
        runtime.prepare(verbose)
        command.run()
    except UserError as error:
        print(f"jaxllm: {error}", file=sys.stderr)
        return EXIT_USER_ERROR
    except BrokenPipeError:
        raise
    except Exception as error:
        # Native code that was interrupted reports an error of its own.
        if interrupt.requested():
            return _interrupted()
        if isinstance(error, OSError) and error.errno in REFUSALS:
            where = f"{error.filename}: " if error.filename else ""
            print(f"jaxllm: {where}{error.strerror}", file=sys.stderr)
            return EXIT_USER_ERROR
        raise
    return 0


def _interrupted() -> int:
    print("\njaxllm: interrupted", file=sys.stderr)
    return interrupt.EXIT_CODE


def listing(first: str = "") -> str:
    """The text of ``jaxllm --help``: every command with one line; with ``first``, those whose first of two words it is."""
    groups = commands.grouped()
    if first:
        found = {title: {name: group[name] for name in group if name.split()[0] == first} for title, group in groups.items()}
        return "\n".join([f"usage: jaxllm [-v] {first} COMMAND ...", *_rows(found)])
    lines = ["usage: jaxllm [-v] COMMAND ...", "", "Reads the neurons of a Llama, and runs it, in JAX.", *_rows(groups)]
    lines += [
        "",
        "MODEL is a folder of safetensors, a .gguf file, a Hugging Face id, or smollm2.",
        "",
        "Options:",
        "  -h, --help     this text; after a command, that command's arguments",
        "  -v, --verbose  log what is done, to stderr",
        "  --version      the version",
    ]
    return "\n".join(lines)


def _rows(groups: dict[str, dict[str, type[Any]]]) -> list[str]:
    width = max((len(name) for group in groups.values() for name in group), default=0)
    lines = []
    for title, group in groups.items():
        if group:
            lines += ["", f"{title}:"]
            lines += [f"  {name:<{width}}  {commands.summary(command)}" for name, command in group.items()]
    return lines
