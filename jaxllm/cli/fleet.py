"""The command that keeps step servers on a cluster, and the file that tells learners where they are."""

import dataclasses
from pathlib import Path
from typing import Any

import tyro

POLL_SECONDS = 0.5  # between looks at the servers
MOST_FLEET_BYTES = 1 << 20  # of the file


@dataclasses.dataclass(frozen=True)
class Fleet:
    """Keep step servers on the nodes of a Ray cluster, until Ctrl-C.

    A server that dies with its node comes up on another. Their addresses and tokens are kept in a file that you alone can read,
    for `envs.make_vec` and `jaxllm envs top --fleet`.
    """

    patterns: tyro.conf.Positional[tuple[str, ...]]
    """what the servers may make, such as "miniwob/*" "shell/*" """
    cluster: str | None = None
    """address of the Ray cluster (default: RAY_ADDRESS, or the one on this host)"""
    servers: int | None = None
    """how many (default: one a node)"""
    workers: int | None = None
    """processes of each server that light environments share (default: one a core, at most 8)"""
    heavy: int = 16
    """processes of each server for browsers and shells, at most"""
    sessions: int = 256
    """sessions at once on each server, at most"""
    out: Path = Path("fleet.json")
    """file for the addresses and tokens of the servers that are up, kept as they change, removed at the end"""

    def run(self) -> None:
        import time

        from envs import fleet
        from jaxllm.cli import console
        from jaxllm.cli.servers import check_pattern
        from jaxllm.errors import UserError

        for pattern in self.patterns:
            check_pattern(pattern)
        limits: dict[str, Any] = {"workers": self.workers, "heavy": self.heavy, "max_sessions": self.sessions}
        with fleet.Fleet(self.patterns, cluster=self.cluster, servers=self.servers, **limits) as placed:
            try:
                shown: list[Any] = []
                while True:
                    servers = placed.servers
                    now = [(one.state, one.address, one.restarts, one.error) for one in servers]
                    if now != shown:
                        shown = now
                        up = [one for one in servers if one.state == "up"]
                        write_private(self.out, {"addresses": [one.address for one in up], "tokens": [one.token for one in up]})
                        table = console.table("", "server", "state", "node", "address", "restarts", "")
                        for one in servers:
                            table.add_row(str(one.number), one.state, one.node[:8], one.address, str(one.restarts), one.error)
                        console.stdout().print(table)
                        console.stderr().print(f"Addresses and tokens: {self.out}. Ctrl-C ends it.")
                    if all(one.state == "out" for one in servers):
                        raise UserError("every server of the fleet is out; the table says why")
                    time.sleep(POLL_SECONDS)
            finally:
                self.out.unlink(missing_ok=True)


def write_private(path: Path, data: Any) -> None:
    """Writes JSON whole or not at all, readable by this user alone. Raises UserError where it can't be written."""
    import json
    import os

    from jaxllm.errors import UserError

    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600)
        with os.fdopen(descriptor, "w") as file:
            json.dump(data, file, indent=1)
        temporary.replace(path)
    except OSError as error:
        raise UserError(f"--out {path} cannot be written: {error.strerror}; name a file in a folder that exists") from None


def read_fleet(path: Path) -> list[tuple[str, str]]:
    """Address and token of each server in a file of `jaxllm envs fleet`. Raises UserError for another file."""
    import json

    from jaxllm.errors import UserError

    try:
        with path.open("rb") as file:
            data = json.loads(file.read(MOST_FLEET_BYTES))
        found = list(zip(data["addresses"], data["tokens"], strict=True))
    except OSError as error:
        raise UserError(f"--fleet {path}: {error.strerror}; `jaxllm envs fleet` writes it while it runs") from None
    except (ValueError, KeyError, TypeError):
        found = [(0, 0)]
    if not all(isinstance(address, str) and isinstance(token, str) for address, token in found):
        raise UserError(f"--fleet {path}: not a file that `jaxllm envs fleet` wrote")
    if not found:
        raise UserError(f"--fleet {path}: no server of the fleet is up")
    return found
