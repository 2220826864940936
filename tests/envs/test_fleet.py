"""Step servers on a Ray cluster of two raylets, one of which is killed in mid-run."""

import contextlib
import os
import shutil
import signal
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from envs import Action
from envs.fleet import Fleet
from envs.server.auth import is_local
from jaxllm.errors import UserError

pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),  # Ray's own
    pytest.mark.filterwarnings("ignore::FutureWarning"),
]
PATIENCE = 120.0  # seconds that the busiest machine may take
MOVE = Action("move", {"by": 1})


def within(condition: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        if time.monotonic() > deadline:
            return False
        threading.Event().wait(0.05)
    return True


def patiently(start: Callable[[], Any]) -> Any:
    """What starts, at the third attempt at the latest: on a busy machine Ray's own patience with a node can be too short."""
    mine = psutil.Process()
    for attempt in range(3):
        before = set(mine.children(recursive=True))
        try:
            return start()
        except Exception as error:
            if attempt == 2 or "timed out during startup" not in str(error):
                raise
            rest = set(mine.children(recursive=True)) - before
            for process in rest:
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.kill()
            psutil.wait_procs(list(rest), timeout=PATIENCE)
    raise AssertionError


def lives(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """A head and one more node, each a raylet with the least memory that Ray allows."""
    changed = {
        "PYTHONPATH": str(Path(__file__).parent / "server"),  # for the servers' workers
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_agent_register_timeout_ms": "120000",
    }
    before = {name: os.environ.get(name) for name in changed}
    os.environ.update(changed)
    import ray
    from ray.cluster_utils import Cluster

    health = {"health_check_initial_delay_ms": 1000, "health_check_period_ms": 1000, "health_check_failure_threshold": 5}
    folder = tempfile.mkdtemp(prefix="ray-")  # its sockets want a short path
    least = {"num_cpus": 1, "object_store_memory": 80 << 20, "include_dashboard": False}
    head = {**least, "_system_config": health, "temp_dir": folder}
    cluster = patiently(lambda: Cluster(initialize_head=True, head_node_args=head))
    yield cluster
    ray.shutdown()
    cluster.shutdown()
    shutil.rmtree(folder, ignore_errors=True)
    for name, value in before.items():
        if value is None:
            del os.environ[name]
        else:
            os.environ[name] = value


def test_a_raylet_that_is_killed_costs_its_sessions_and_nothing_else(cluster: Any) -> None:
    node = patiently(lambda: cluster.add_node(num_cpus=1, object_store_memory=80 << 20))
    with Fleet(["server_envs:*"], cluster=cluster.address, workers=1) as fleet:
        first, second = fleet.servers
        assert {first.node, second.node} == {node.node_id, cluster.head_node.node_id}
        assert all("." in one.token or is_local(one.address) for one in (first, second))  # encrypted where others can reach it
        assert first.token != second.token
        assert first.token not in repr(fleet.servers)
        victim, survivor = (first, second) if first.node == node.node_id else (second, first)
        with fleet.make_vec("server_envs:Walk", 4, seed=1, options={"length": 1000}) as vector:
            assert vector.reset().status == ["OK"] * 4
            assert vector.step([MOVE] * 4).status == ["OK"] * 4
            for process in node.all_processes["raylet"]:
                os.kill(process.process.pid, signal.SIGKILL)
            statuses = ["OK"] * 4
            assert within(lambda: "LOST" in _step(vector, statuses))
            lost = [id for id, status in enumerate(statuses) if status == "LOST"]
            assert lost == [id for id in range(4) if id % 2 == victim.number]  # they take turns
            assert within(lambda: set(vector.reset(lost).status) == {"OK"})
            assert vector.step([MOVE] * 4).status == ["OK"] * 4
            assert within(lambda: [one.state for one in fleet.servers] == ["up", "up"])
            again = fleet.servers[victim.number]
            assert again.restarts >= 1
            assert again.node == survivor.node
            assert again.address != victim.address
            assert fleet.servers[survivor.number].pid == survivor.pid
            vector.step([MOVE] * 4)
        with fleet.make_vec("server_envs:Walk", 4) as vector:  # both of them
            assert vector.reset().status == ["OK"] * 4
            assert {client.address for client in vector._clients} == set(fleet.addresses)
            # A server's process alone: Ray's actor lives, and says so.
            os.kill(survivor.pid, signal.SIGKILL)
            assert within(lambda: fleet.servers[survivor.number].restarts >= 1)
            assert within(lambda: [one.state for one in fleet.servers] == ["up", "up"])
            assert within(lambda: set(vector.reset().status) == {"OK"})
        pids = [one.pid for one in fleet.servers]
        assert all(lives(pid) for pid in pids)
    assert within(lambda: not any(lives(pid) for pid in [*pids, victim.pid, survivor.pid]))
    with pytest.raises(UserError, match=r"did not start: .*family"):
        Fleet(["server_envs:*"], cluster=cluster.address, servers=1, family=1)


def _step(vector: Any, statuses: list[str]) -> list[str]:
    statuses[:] = vector.step([MOVE] * 4).status
    return statuses
