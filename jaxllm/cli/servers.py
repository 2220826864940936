"""Commands on step servers: serve environments, watch a server, and keep servers on a cluster."""

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro

from jaxllm.cli.fleet import Fleet, read_fleet

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

POLL_SECONDS = 0.5  # between looks at whether a server lives
Port = Annotated[int | None, tyro.conf.arg(metavar="PORT")]
Seconds = Annotated[float, tyro.conf.arg(metavar="SECONDS")]


@dataclasses.dataclass(frozen=True)
class Serve:
    """Serve environments to learners on this host or on others, until Ctrl-C.

    Prints the address, and the file with the token that a client needs. Other hosts can reach a server only with the token and
    encrypted; what it may make is what the patterns name.
    """

    patterns: tyro.conf.Positional[tuple[str, ...]]
    """what it may make, such as "miniwob/*" "shell/*"; "mine:*" for the classes of your own module"""
    workers: int | None = None
    """processes that light environments share (default: one a core, at most 8)"""
    heavy: int = 16
    """processes for browsers and shells, at most; each has one to itself"""
    sessions: int = 256
    """sessions at once, at most"""
    bind: str | None = None
    """tcp://HOST:PORT for other processes and hosts; port 0 for any (default: a private socket of this host)"""
    token_file: Path | None = None
    """file to write the token to, readable by you alone (default: in the server's private folder)"""
    lease: Seconds = 600.0
    """after which the sessions of a silent client end"""
    prometheus: Port = None
    """port of this host for http://127.0.0.1:PORT/metrics"""

    def run(self) -> None:
        import time

        from envs.server import Server
        from jaxllm.cli import console
        from jaxllm.cli.envs import find_own_modules
        from jaxllm.errors import UserError

        find_own_modules()
        for pattern in self.patterns:
            check_pattern(pattern)
        settings: dict[str, Any] = {
            "bind": self.bind,
            "token_file": self.token_file,
            "metrics_port": self.prometheus,
            "lease": self.lease,
        }
        limits = {"workers": self.workers, "heavy": self.heavy, "max_sessions": self.sessions}
        with Server(self.patterns, **settings, **limits) as server:
            console.write(f"Serving {' '.join(self.patterns)}\naddress  {server.address}\ntoken    {server.token_file}")
            if self.prometheus is not None:
                console.write(f"figures  http://127.0.0.1:{self.prometheus}/metrics")
            console.stderr().print(f"Ctrl-C ends it. Watch it: jaxllm envs top {server.address} --token {server.token_file}")
            while server.alive():
                time.sleep(POLL_SECONDS)
        raise UserError("the step server ended; what it wrote above says why")


@dataclasses.dataclass(frozen=True)
class Top:
    """Watch step servers: sessions, steps per second, latencies, restarts, errors.

    Without an address, all of your servers on this host. In a pipe, and with --once, each is shown once.
    """

    address: tyro.conf.Positional[str | None] = None
    """as the server prints it, such as tcp://host:5555 (default: the servers of this host)"""
    token: str | None = None
    """file of the server's token (default: the variable JAXLLM_ENVS_TOKEN; not needed without an address)"""
    fleet: Path | None = None
    """file of `jaxllm envs fleet`: all of its servers"""
    every: Seconds = 1.0
    """between two looks"""
    once: bool = False
    """show the figures once"""
    prometheus: bool = False
    """print the figures once as Prometheus text"""
    json: bool = False
    """print the figures once as JSON"""

    def run(self) -> None:
        import contextlib
        import json
        import time

        from envs.server import Client, ServerGoneError, prometheus
        from jaxllm.cli import console
        from jaxllm.errors import UserError

        if not self.every >= 0.1:
            raise UserError(f"--every must be at least 0.1 seconds, found {self.every}")
        with contextlib.ExitStack() as stack:
            clients = []
            for address, token in self._servers():
                try:
                    clients.append(stack.enter_context(Client(address, token, patience=5.0, heartbeat=False)))
                except ServerGoneError as error:
                    raise UserError(str(error)) from error
            if self.prometheus:
                for client in clients:
                    console.write(prometheus(client.stats()), end="")
            elif self.json:
                console.write(json.dumps([client.stats() for client in clients], indent=1))
            else:
                out = console.stdout()
                if self.once or not out.is_terminal:
                    out.print(figures([client.stats() for client in clients]))
                    return
                from rich.live import Live

                with Live(console=out, auto_refresh=False, screen=True) as live:
                    while True:
                        try:
                            live.update(figures([client.stats() for client in clients]), refresh=True)
                        except ServerGoneError as error:
                            raise UserError(f"{error}; it was there a moment ago") from error
                        time.sleep(self.every)

    def _servers(self) -> "Sequence[tuple[str, str | None]]":
        """Address and token of each."""
        from envs.server import discover
        from jaxllm.errors import UserError

        if self.address is not None and self.fleet is not None:
            raise UserError("give an address or --fleet, not both")
        if self.address is not None:
            return [(self.address, self.token)]
        if self.fleet is not None:
            return read_fleet(self.fleet)
        found = [(server.address, str(server.token_file)) for server in discover.running()]
        if not found:
            raise UserError(
                "no step server of yours runs on this host; start one with `jaxllm envs serve`, or give its address"
            )
        return found


@dataclasses.dataclass(frozen=True)
class Gateway:
    """Serve environments to any client of OpenEnv, over WebSockets, until Ctrl-C.

    Prints the address that a client takes as its base_url. With several environments, each is at ADDRESS/FAMILY/NAME.
    """

    names: tyro.conf.Positional[tuple[str, ...]]
    """environments, such as games/sokoban; several are told apart by their addresses"""
    bind: str = "127.0.0.1:8000"
    """HOST:PORT, port 0 for any free one; other hosts than this one only with a token"""
    token_file: Path | None = None
    """file with a token of yours, which clients must send as Authorization: Bearer"""
    option: tyro.conf.UseAppendAction[tuple[str, ...]] = ()
    """option of the environments, such as level=3; repeat it for several"""
    sessions: int = 64
    """sessions at once, at most"""

    def run(self) -> None:
        import time

        from envs import openenv
        from jaxllm.cli import console
        from jaxllm.cli.envs import find_own_modules, options

        find_own_modules()
        token = None if self.token_file is None else read_token(self.token_file)
        given = options(self.option)
        with openenv.Gateway(self.names, bind=self.bind, token=token, options=given, max_sessions=self.sessions) as gateway:
            console.write(f"Serving {' '.join(self.names)} to OpenEnv clients\naddress  {gateway.address}")
            console.stderr().print("Ctrl-C ends it.")
            while True:
                time.sleep(POLL_SECONDS)


COMMANDS: dict[str, type[Any]] = {"envs serve": Serve, "envs top": Top, "envs fleet": Fleet, "envs gateway": Gateway}


def read_token(path: Path) -> str:
    """A token from its file. Raises UserError where it can't be read, is empty, or holds more than one word."""
    from jaxllm.errors import UserError

    try:
        with path.open() as file:
            words = file.read(4096).split()
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"--token-file {path}: {getattr(error, 'strerror', None) or 'not text'}") from None
    if len(words) != 1:
        raise UserError(f"--token-file {path}: a token is one word, found {len(words)}")
    return words[0]


def check_pattern(pattern: str) -> None:
    """Raises UserError for a pattern that names nothing."""
    import difflib
    import fnmatch

    import envs
    from envs.registry import FAMILIES, family
    from jaxllm.cli.envs import OPEN_FAMILIES
    from jaxllm.errors import UserError

    head, slash, _ = pattern.partition("/")
    if ":" in head:
        return
    families = [name for name in FAMILIES if fnmatch.fnmatchcase(name, head)]
    if not slash or not families:
        near = difflib.get_close_matches(head, FAMILIES, n=1)
        hint = f"; did you mean {near[0]}/*?" if near else f"; families are {', '.join(FAMILIES)}"
        raise UserError(f"{pattern!r} names no environments: write family/pattern, such as games/*{hint}")
    if len(families) == 1 and (missing := family(families[0]).missing()):
        raise UserError(f"{pattern} can't be served here: {missing}")
    if not set(families) & set(OPEN_FAMILIES) and next(envs.names(pattern), None) is None:
        raise UserError(f"no environment matches {pattern!r}; see `jaxllm envs list {families[0]}`")


def figures(servers: "list[Mapping[str, Any]]") -> Any:
    """What `top` shows of some servers: for each a table of facts and one of operations."""
    from rich.console import Group

    from jaxllm.cli import console

    shown: list[Any] = []
    for stats in servers:
        facts = console.table(f"{stats['address']}, up {duration(stats['uptime'])}", "", "")
        facts.show_header = False
        sessions, workers = stats["sessions"], stats["workers"]
        states = ", ".join(f"{count} {state}" for state, count in sessions.items())
        facts.add_row("sessions", f"{sum(sessions.values())} of {stats['max_sessions']}: {states}")
        facts.add_row("steps/s", f"{stats['steps_per_s']:,.1f}")
        facts.add_row("clients", str(stats["clients"]))
        facts.add_row("workers", ", ".join(f"{count} {kind}" for kind, count in workers.items() if kind != "all"))
        facts.add_row("restarts", f"{stats['restarts']}, late results {stats['late']}")
        facts.add_row("errors", ", ".join(f"{kind} {count}" for kind, count in stats["errors"].items()) or "none")
        if stats["quarantined"]:
            facts.add_row("quarantined", ", ".join(map(str, stats["quarantined"])))
        names = sorted(stats["names"].items(), key=lambda item: -item[1])
        facts.add_row("environments", ", ".join(f"{name} {count}" for name, count in names) or "none")
        operations = console.table("", "operation", "done", "p50 ms", "p90 ms", "p99 ms")
        for column in operations.columns[1:]:
            column.justify = "right"
        for operation, count in stats["operations"].items():
            spread = stats["latency_ms"].get(operation, {})
            operations.add_row(operation, f"{count:,}", *(f"{spread[p]:,.1f}" if p in spread else "" for p in QUANTILES))
        shown += [facts, operations]
    return Group(*shown)


QUANTILES = ("p50", "p90", "p99")


def duration(seconds: float) -> str:
    """``3725`` -> "1 h 2 min"."""
    minutes, hours = int(seconds // 60), int(seconds // 3600)
    if hours:
        return f"{hours} h {minutes % 60} min"
    return f"{minutes} min {seconds % 60:.0f} s" if minutes else f"{seconds:.0f} s"
