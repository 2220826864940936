"""A server's figures as text for Prometheus (its text exposition format, version 0.0.4)."""

import http.server
import threading
from collections.abc import Mapping
from typing import Any

PREFIX = "jaxllm_envs"


def prometheus(stats: Mapping[str, Any]) -> str:
    """The figures of `Client.stats` as Prometheus text: one metric after the other, each with help and type."""
    lines: list[str] = []

    def metric(name: str, kind: str, about: str, values: list[tuple[Mapping[str, str], float]]) -> None:
        lines.append(f"# HELP {PREFIX}_{name} {about}")
        lines.append(f"# TYPE {PREFIX}_{name} {kind}")
        for labels, value in values:
            inside = ",".join(f'{key}="{_escaped(text)}"' for key, text in labels.items())
            lines.append(f"{PREFIX}_{name}{{{inside}}} {value}" if inside else f"{PREFIX}_{name} {value}")

    metric("sessions", "gauge", "Sessions by state.", [({"state": k}, v) for k, v in stats["sessions"].items()])
    metric("sessions_max", "gauge", "Sessions at most.", [({}, stats["max_sessions"])])
    metric("workers", "gauge", "Worker processes by kind; out: lanes without restarts left.",
           [({"kind": k}, v) for k, v in stats["workers"].items()])  # fmt: skip
    metric("clients", "gauge", "Clients that said hello.", [({}, stats["clients"])])
    metric("steps_per_second", "gauge", "Steps a second, over the last ten.", [({}, stats["steps_per_s"])])
    metric("operations_total", "counter", "Operations done.", [({"op": k}, v) for k, v in stats["operations"].items()])
    metric("errors_total", "counter", "Operations that did not go well, by status.",
           [({"status": k}, v) for k, v in stats["errors"].items()])  # fmt: skip
    metric("late_results_total", "counter", "Results that came after their deadline and were dropped.", [({}, stats["late"])])
    metric("worker_restarts_total", "counter", "Workers that died or were ended for a deadline.", [({}, stats["restarts"])])
    metric("uptime_seconds", "gauge", "Since the start.", [({}, stats["uptime"])])
    metric("latency_milliseconds", "summary", "From the request to the result, of the last operations.",
           [({"op": op, "quantile": f"0.{name[1:]}"}, value)
            for op, values in stats["latency_ms"].items() for name, value in values.items()])  # fmt: skip
    return "\n".join(lines) + "\n"


def _escaped(text: object) -> str:
    return str(text).replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def start_page(port: int, address: str, token: str) -> http.server.HTTPServer:
    """Serves ``/metrics`` on the loopback from a thread; `shutdown` ends it. Raises UserError if the port is taken."""
    from envs.server import Client, ServerGoneError
    from jaxllm.errors import UserError

    class Page(http.server.BaseHTTPRequestHandler):
        timeout = 5

        def do_GET(self) -> None:
            if self.path != "/metrics":
                self.send_error(404)
                return
            try:
                with Client(address, token, heartbeat=False, patience=5.0) as client:
                    body = prometheus(client.stats()).encode()
            except ServerGoneError:
                self.send_error(503)
                return
            self.send_response(200)
            self.send_header("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    try:
        page = http.server.HTTPServer(("127.0.0.1", port), Page)
    except OSError as error:
        raise UserError(f"port {port} for the figures: {error.strerror}") from error
    threading.Thread(target=page.serve_forever, daemon=True, name="step-server-figures").start()
    return page
