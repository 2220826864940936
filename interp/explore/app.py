"""The explorer as a web application: addresses, and what stands behind each.

Nothing a request says is a path or a name of a file: the page's own files are read once, and everything else is numbers and
text that the handlers check. What takes the model goes through `Turns`, one at a time; so does long arithmetic without it.
"""

import json
import logging
from collections.abc import AsyncIterator, Callable
from importlib import resources
from typing import Any

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from interp import query
from interp.explore import export, search
from interp.explore.explorer import Explorer
from interp.explore.guard import COOKIE, App, Door, Guard, TooLargeError, refuse
from interp.explore.turns import BusyError, Turns
from jaxllm.errors import UserError

log = logging.getLogger(__name__)

TYPES = {"html": "text/html", "css": "text/css", "js": "text/javascript"}
MAX_NUMBER = 1 << 30
NEEDS_MODEL = "this needs the model; start the explorer with --model"


def create_app(explorer: Explorer, door: Door) -> App:
    """The whole application, checks included."""
    turns = Turns()
    handlers = _Handlers(explorer, door, turns)
    neuron = "{layer:int}/{neuron:int}"
    routes = [
        Route("/login", handlers.login, methods=["POST"]),
        Route("/api/map", handlers.facts),
        Route("/api/search", handlers.search),
        Route("/api/picture", handlers.picture),
        Route(f"/api/label/{neuron}", handlers.label),
        Route(f"/api/neuron/{neuron}", handlers.neuron),
        Route(f"/api/neuron/{neuron}/neighbours", handlers.neighbours),
        Route(f"/api/neuron/{neuron}/decodes", handlers.decodes),
        Route(f"/api/neuron/{neuron}/natural", handlers.natural),
        Route(f"/api/neuron/{neuron}/contexts", handlers.contexts),
        Route("/api/compare", handlers.compare),
        Route(f"/api/compare/{neuron}", handlers.compare_neuron),
        Route("/api/generate", handlers.generate, methods=["POST"]),
        Route("/api/export/search.{kind}", handlers.export_search),
        Route("/api/export/report.html", handlers.export_report),
        Route(f"/api/export/{neuron}/" + "{kind}", handlers.export_neuron),
        *(Route(path, _static(body, kind)) for path, (body, kind) in page_files().items()),
    ]
    failures: dict[Any, Any] = {
        UserError: lambda _, error: refuse(400, str(error)),
        BusyError: lambda _, error: refuse(429, "the model is busy and others wait already; try again in a moment"),
        TooLargeError: lambda _, error: refuse(413, "the request is too large"),
        ClientDisconnect: lambda _, error: refuse(400, "the request ended early"),
        HTTPException: lambda _, error: refuse(error.status_code, error.detail),
        Exception: _failed,
    }
    app = Starlette(routes=routes, exception_handlers=failures)
    app.state.turns = turns
    return Guard(app, door)


def page_files() -> dict[str, tuple[bytes, str]]:
    """Every file of the page: address -> content and type."""
    found = {}
    for file in resources.files("interp.explore").joinpath("page").iterdir():
        kind = file.name.rpartition(".")[2]
        if kind in TYPES:
            found["/" if file.name == "index.html" else f"/{file.name}"] = (file.read_bytes(), TYPES[kind])
    found["/report.css"] = (resources.files("interp").joinpath("report.css").read_bytes(), TYPES["css"])
    return found


def _static(body: bytes, kind: str) -> Callable[[Request], Response]:
    def serve(_: Request) -> Response:
        return Response(body, media_type=kind)

    return serve


async def _failed(_: Request, error: Exception) -> Response:
    return refuse(500, "the explorer failed; its terminal says more")


class _Handlers:
    """What each address answers. Those that are not ``async`` run in threads."""

    def __init__(self, explorer: Explorer, door: Door, turns: Turns):
        self.explorer, self.door, self.turns, self.arithmetic = explorer, door, turns, Turns()

    async def login(self, request: Request) -> Response:
        data = await _json(request)
        if not isinstance(data, dict) or not isinstance(data.get("token"), str) or not self.door.knows(data["token"]):
            return refuse(401, "the token is wrong")
        response = JSONResponse({"welcome": True})
        response.set_cookie(COOKIE, self.door.session, httponly=True, samesite="strict", path="/")
        return response

    def facts(self, _: Request) -> Response:
        return JSONResponse(self.explorer.facts())

    def search(self, request: Request) -> Response:
        return JSONResponse(self._found(request, 50))

    def _found(self, request: Request, limit: int) -> dict[str, Any]:
        asked = request.query_params
        limit = _whole(asked.get("limit", str(limit)))
        return self.explorer.search(asked.get("q", ""), asked.get("by", "word"), asked.get("pole", ""), limit)

    def picture(self, request: Request) -> Response:
        asked = request.query_params
        found = self.explorer.picture(asked.get("statistic", "specialisation"), asked.get("q", ""), asked.get("by", "word"))
        scale = {"low": found.low, "high": found.high, "log": found.log, "shape": found.codes.shape}
        return Response(found.codes.tobytes(), media_type="application/octet-stream", headers={"x-scale": json.dumps(scale)})

    def label(self, request: Request) -> Response:
        return JSONResponse(self.explorer.label(*_neuron(request)))

    def neuron(self, request: Request) -> Response:
        return JSONResponse(self.explorer.neuron(*_neuron(request)))

    async def neighbours(self, request: Request) -> Response:
        layer, neuron = _neuron(request)
        pole = request.query_params.get("pole", "+")
        if pole not in query.POLES:
            raise UserError(f"pole {pole!r}: choose + or -")
        async with self.arithmetic:
            return JSONResponse(await run_in_threadpool(self.explorer.neighbours, layer, neuron, pole))

    async def decodes(self, request: Request) -> Response:
        from interp.explore import brain

        return await self._with_model(request, "decodes", lambda model, *n: brain.decodes(model, self.explorer.atlas, *n))

    async def natural(self, request: Request) -> Response:
        from interp.explore import brain

        site = request.query_params.get("site", "up")
        return await self._with_model(
            request, f"natural {site}", lambda model, layer, neuron: brain.natural(model, layer, neuron, site)
        )

    async def contexts(self, request: Request) -> Response:
        from interp.explore import brain

        text = self.explorer.text
        if text is None:
            raise UserError("there is no text; start the explorer with --text")
        return await self._with_model(
            request, "contexts", lambda model, layer, neuron: brain.contexts(model, layer, neuron, text)
        )

    async def _with_model(self, request: Request, what: str, make: Callable[..., Any]) -> Response:
        """A kept answer about a neuron, or one that the model makes in its turn."""
        model, (layer, neuron) = self.explorer.brain, _neuron(request)
        if model is None:
            raise UserError(NEEDS_MODEL)
        self.explorer.atlas.position(layer, neuron)
        key = (what, layer, neuron)
        kept = self.explorer.answers.peek(key)
        if kept is None:
            async with self.turns:
                if await request.is_disconnected():
                    return Response(status_code=204)
                kept = await run_in_threadpool(self.explorer.answers.get, key, lambda: make(model, layer, neuron))
        return JSONResponse(kept)

    async def compare(self, _: Request) -> Response:
        async with self.arithmetic:
            return JSONResponse(await run_in_threadpool(lambda: self.explorer.comparison))

    def compare_neuron(self, request: Request) -> Response:
        layer, neuron = _neuron(request)
        both = [self.explorer.neuron(layer, neuron, other=other) for other in (False, True)]
        return JSONResponse({"before": both[0], "after": both[1]})

    async def generate(self, request: Request) -> Response:
        from interp.explore import playground

        model = self.explorer.brain
        if model is None:
            raise UserError(NEEDS_MODEL)
        asked = playground.parse(await _json(request))
        prepared = await run_in_threadpool(playground.prepare, model, asked)
        if self.turns.full:
            raise BusyError
        events = playground.answer(model, asked, *prepared)
        return StreamingResponse(self._lines(request, events), media_type="application/x-ndjson")

    async def _lines(self, request: Request, events: Any) -> AsyncIterator[str]:
        """Events as lines of JSON, each made only while somebody waits for it."""
        if self.turns.count:
            yield json.dumps({"event": "wait", "before": self.turns.count}) + "\n"
        try:
            async with self.turns:
                while not await request.is_disconnected():
                    event = await run_in_threadpool(next, events, None)
                    if event is None:
                        return
                    yield json.dumps(event) + "\n"
        except (UserError, BusyError) as error:
            yield json.dumps({"event": "error", "error": str(error) or "the model is busy"}) + "\n"
        except Exception:
            log.exception("generation failed")
            yield json.dumps({"event": "error", "error": "the explorer failed; its terminal says more"}) + "\n"
        finally:
            events.close()

    def export_search(self, request: Request) -> Response:
        found = self._found(request, search.MAX_MATCHES)
        kind, asked = request.path_params["kind"], request.query_params.get("q", "")
        if kind == "csv":
            return _download(export.csv_of_matches(found), "text/csv", "search.csv")
        if kind == "json":
            return _download(json.dumps(found, indent=1), "application/json", "search.json")
        if kind == "html":
            about = f"Search for {asked!r} by {request.query_params.get('by', 'word')} in the map of {self._model_name}."
            text = export.page(f"Neurons for {asked}", about, export.tables_of_matches(found))
            return _download(text, "text/html", "search.html")
        raise HTTPException(404, "no such export")

    async def export_report(self, _: Request) -> Response:
        from interp import report

        async with self.arithmetic:
            text = await run_in_threadpool(report.page, self.explorer.atlas)
        return _download(text, "text/html", "report.html")

    def export_neuron(self, request: Request) -> Response:
        layer, number = _neuron(request)
        neuron, kind, kept = self.explorer.neuron(layer, number), request.path_params["kind"], self.explorer.answers.peek
        decodes, contexts = (kept((what, layer, number)) for what in ("decodes", "contexts"))
        near = kept(("neighbours", layer, number, neuron["better_pole"]))
        name = f"L{layer}-N{number}"
        if kind == "csv":
            return _download(export.csv_of_neuron(neuron), "text/csv", f"{name}.csv")
        if kind == "json":
            facts = {"model": self._model_name, "neuron": neuron, "decodes": decodes, "neighbours": near, "contexts": contexts}
            return _download(json.dumps(facts, indent=1), "application/json", f"{name}.json")
        if kind == "neuronpedia.json":
            feature = export.neuronpedia(self._model_name, neuron, contexts)
            return _download(json.dumps(feature, indent=1), "application/json", f"{name}.neuronpedia.json")
        if kind == "html":
            about = f"Neuron L{layer}/N{number} of {self._model_name}, read from its weights."
            tables = export.tables_of_neuron(neuron, decodes, near, contexts)
            return _download(export.page(f"L{layer}/N{number}", about, tables), "text/html", f"{name}.html")
        raise HTTPException(404, "no such export")

    @property
    def _model_name(self) -> str:
        return str(self.explorer.atlas.meta["model"]["name"])


def _neuron(request: Request) -> tuple[int, int]:
    layer, neuron = request.path_params["layer"], request.path_params["neuron"]
    if max(layer, neuron) > MAX_NUMBER:
        raise UserError("no such neuron")
    return layer, neuron


def _whole(text: str) -> int:
    if not (text.isascii() and text.isdecimal() and len(text) <= 6 and int(text) >= 1):
        raise UserError(f"limit {text[:20]!r} is not a number from 1 up")
    return int(text)


async def _json(request: Request) -> Any:
    try:
        return json.loads(await request.body())
    except (ValueError, RecursionError):
        raise UserError("the request is not JSON") from None


def _download(text: str, kind: str, name: str) -> Response:
    return Response(text, media_type=kind, headers={"content-disposition": f'attachment; filename="{name}"'})
