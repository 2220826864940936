"""A remote reward server for OpenRLHF: it posts queries, prompts and labels, and gets rewards.

    python -m rewards.adapters.openrlhf --reward gui_g2 --dialect qwen25 --resize qwen25 --port 5000
    # then, for OpenRLHF: --remote_rm_url http://127.0.0.1:5000/get_reward

>>> answer({"query": ["Where is Save?[100,100,200,150]"], "prompts": ["Where is Save?"],
...         "labels": ["[100, 100, 200, 150]"]}, make_scorer("gui_g2", frame="orig"))["rewards"]
[2.0]

A label is the target box, or a mapping with the box and the picture's size, as JSON text. The server is for this machine alone
unless a secret is given; OpenRLHF sends no headers of its own, so that the secret stands in the address:
``/get_reward?token=...``.
"""

import argparse
import hmac
import ipaddress
import os
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from jaxllm.errors import UserError
from rewards.adapters.common import make_scorer, score, target_of
from rewards.score import Scorer
from rewards.score_out import finite

PATH = "/get_reward"
TOKEN_VARIABLE = "JAXLLM_TOKEN"
MIN_TOKEN = 16  # characters
MAX_BODY = 64 << 20  # bytes


def answer(payload: Any, scorer: Scorer) -> dict[str, Any]:
    """OpenRLHF's answer to its request.

    Args:
      payload: ``query``, N texts of prompt and response; ``labels``, N targets; ``prompts``, N texts, which are cut off the
        queries.
    Returns:
      ``rewards`` and ``scores``, N floats each, and ``extra_logs``, the parts of the reward, N numbers each; what JSON cannot
      hold is null.
    Raises:
      UserError: a list is missing or of another length, or a label is no target.
    """
    if not isinstance(payload, Mapping):
        raise UserError("an object with query, prompts and labels is expected")
    queries, labels = _texts(payload, "query"), payload.get("labels")
    if not isinstance(labels, Sequence) or isinstance(labels, str) or len(labels) != len(queries):
        raise UserError(f"labels must be a list of {len(queries)} targets, one for each query")
    prompts = _texts(payload, "prompts") if payload.get("prompts") is not None else [""] * len(queries)
    if len(prompts) != len(queries):
        raise UserError(f"prompts has {len(prompts)} texts, query {len(queries)}")
    texts = [query.removeprefix(prompt) for query, prompt in zip(queries, prompts, strict=True)]
    targets = [target_of(label, f"label {i}") for i, label in enumerate(labels)]
    parts = score(scorer, texts, targets).parts
    rewards = np.asarray(parts.reward, np.float64).tolist()
    logs = {name: np.asarray(values, np.float64).tolist() for name, values in zip(parts._fields, parts, strict=True)}
    return {"rewards": rewards, "scores": rewards, "extra_logs": finite(logs)}


def _texts(payload: Mapping[str, Any], key: str) -> list[str]:
    texts = payload.get(key)
    if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
        raise UserError(f"{key} must be a list of texts")
    return texts


def create_app(scorer: Scorer, *, host: str = "127.0.0.1", token: str | None = None) -> Starlette:
    """The server's application.

    Raises:
      UserError: an address that other machines reach without a token, or a short token.
    """
    if token is None and not _is_loopback(host):
        raise UserError(f"{host} lets other machines in: give a secret with --token, or set {TOKEN_VARIABLE}")
    if token is not None and len(token) < MIN_TOKEN:
        raise UserError(f"the token has {len(token)} characters; give at least {MIN_TOKEN}")

    async def get_reward(request: Request) -> JSONResponse:
        refused = _refusal(request, token)
        if refused is not None:
            return refused
        try:
            body = b""
            async for chunk in request.stream():
                body += chunk
                if len(body) > MAX_BODY:
                    return _refuse(413, f"a request may have {MAX_BODY >> 20} MB")
            return JSONResponse(await run_in_threadpool(_answer_bytes, body, scorer))
        except UserError as error:
            return _refuse(422, str(error))

    return Starlette(routes=[Route(PATH, get_reward, methods=["POST"])])


def _answer_bytes(body: bytes, scorer: Scorer) -> dict[str, Any]:
    import json

    try:
        payload = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise UserError(f"no JSON: {error}") from None
    return answer(payload, scorer)


def _refusal(request: Request, token: str | None) -> JSONResponse | None:
    """Why a request gets no rewards, before its body is read."""
    if token is None:
        if not _is_loopback(request.url.hostname or ""):  # a foreign name that points here
            return _refuse(403, "this server answers to its own address only")
    else:
        scheme, _, offered = request.headers.get("authorization", "").partition(" ")
        offered = offered.strip() if scheme.lower() == "bearer" else request.query_params.get("token", "")
        if not hmac.compare_digest(offered.encode(), token.encode()):
            return _refuse(401, "the token is missing or wrong")
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
        return _refuse(415, "send application/json")
    return None


def _refuse(status: int, why: str) -> JSONResponse:
    return JSONResponse({"error": why}, status)


def _is_loopback(host: str) -> bool:
    try:
        return host.lower() == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def main(arguments: Sequence[str] | None = None) -> int:
    """Serves until Ctrl-C."""
    import uvicorn

    parser = argparse.ArgumentParser(prog="python -m rewards.adapters.openrlhf", description=__doc__.splitlines()[0])
    parser.add_argument("--reward", default="gui_g2", help="name of the reward")
    parser.add_argument("--dialect", default="bracket", help="how the model writes")
    parser.add_argument("--frame", help="what the model's numbers count (default: the dialect's)")
    parser.add_argument("--target-frame", default="orig", help="what the targets' numbers count")
    parser.add_argument("--resize", help="how pictures were resized for the model, such as qwen25")
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on; any but this machine's own needs --token")
    parser.add_argument("--port", type=int, default=5000)
    parser.add_argument("--token", default=os.environ.get(TOKEN_VARIABLE) or None, help=f"secret (default: {TOKEN_VARIABLE})")
    given = parser.parse_args(arguments)
    try:
        settings = {"dialect": given.dialect, "frame": given.frame, "target_frame": given.target_frame, "resize": given.resize}
        app = create_app(make_scorer(given.reward, **settings), host=given.host, token=given.token)
    except UserError as error:
        print(error, file=sys.stderr)
        return 1
    print(f"Rewards: http://{given.host}:{given.port}{PATH}  (Ctrl-C ends it)", flush=True)
    # No access log: the address may hold the secret.
    uvicorn.run(app, host=given.host, port=given.port, log_level="warning", access_log=False, server_header=False, ws="none")
    return 0


if __name__ == "__main__":
    sys.exit(main())
