"""A policy that looks at a picture and answers with a box, coarse to fine: a patch, a place in it, a width and a height.

The picture is cut into cells of 4 x 4 pixels, which meet the instruction at once, then into 40 patches of 16 x 16 units for
three transformer blocks. The answer is five tokens; four of them come from the chosen patch alone, so that one pass over the
picture serves all samples of a group. There are no convolutions: their gradients are slow on CPUs.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from .scenes import COLORS, HEIGHT, SYMBOLS, UNIT, WIDTH

PATCH = 16  # units
COLUMNS, ROWS = WIDTH // PATCH, HEIGHT // PATCH
BINS = (PATCH, PATCH, 40, 40)  # x and y in the patch, width, height, each a unit wide
CELL = 4  # pixels
D, HEADS, BLOCKS, CELL_WIDTH = 128, 4, 3, 64

Params = dict[str, Any]


class Seen(NamedTuple):
    """What the policy makes of B pictures."""

    patch: Any  # [B, 40], logits of the first token
    patches: Any  # [B, 40, D], from which the others come


def init(seed: int) -> Params:
    """Random parameters, float32."""
    rng = np.random.default_rng(seed)

    def matrix(rows: int, columns: int, scale: float = 1.0) -> np.ndarray:
        return (scale * rng.normal(size=(rows, columns)) / rows**0.5).astype(np.float32)

    params: Params = {
        "cell": matrix(3 * CELL * CELL, CELL_WIDTH),
        "cell_bias": np.zeros(CELL_WIDTH, np.float32),
        "ask_color": matrix(len(COLORS), CELL_WIDTH, 3.0),
        "ask_symbol": matrix(len(SYMBOLS), CELL_WIDTH, 3.0),
        "merge": matrix(4 * CELL_WIDTH, D),
        "place": matrix(COLUMNS * ROWS + 2, D, 2.0),
        "token_color": matrix(len(COLORS), D, 3.0),
        "token_symbol": matrix(len(SYMBOLS), D, 3.0),
        "query": matrix(D, D),
        "key": matrix(D, D),
        "fine": matrix(D, 2 * D),
        "fine_out": matrix(2 * D, sum(BINS), 0.1),
    }
    for i in range(BLOCKS):
        params[f"block{i}"] = {
            "qkv": matrix(D, 3 * D),
            "out": matrix(D, D, 0.5),
            "up": matrix(D, 4 * D),
            "down": matrix(4 * D, D, 0.5),
            "norms": np.ones((2, D), np.float32),
        }
    params["norm"] = np.ones(D, np.float32)
    return params


def look(params: Params, picture: Any, instruction: Any) -> Seen:
    """One pass over pictures [B, 40, 64, 3] with instructions [B, 2]."""
    B = picture.shape[0]
    color, symbol = instruction[:, 0], instruction[:, 1]
    # Patch, then cell in the patch, then pixel in the cell.
    side = PATCH // UNIT // CELL
    cells = (picture - 0.5).reshape(B, ROWS, side, CELL, COLUMNS, side, CELL, 3).transpose(0, 1, 4, 2, 5, 3, 6, 7)
    asked = params["ask_color"][color] + params["ask_symbol"][symbol] + params["cell_bias"]
    seen = (cells.reshape(-1, 3 * CELL * CELL) @ params["cell"]).reshape(B, -1, CELL_WIDTH)
    tokens = jax.nn.relu(2 * seen + asked[:, None]).reshape(-1, side * side * CELL_WIDTH) @ params["merge"]
    words = jnp.stack([params["token_color"][color], params["token_symbol"][symbol]], 1)
    # Tokens of all pictures in one axis: XLA's CPU backend is quickest with plain matrices.
    x = (jnp.concatenate([tokens.reshape(B, -1, D), words], 1) + params["place"]).reshape(-1, D)
    for i in range(BLOCKS):
        block = params[f"block{i}"]
        x = x + _attend(block, _norm(x, block["norms"][0]), B)
        x = x + jax.nn.relu(_norm(x, block["norms"][1]) @ block["up"]) @ block["down"]
    x = _norm(x, params["norm"]).reshape(B, -1, D)
    patches, word = x[:, :-2], x[:, -2] + x[:, -1]
    query = word @ params["query"] @ params["key"].T / D**0.5
    return Seen(jnp.einsum("bd,bpd->bp", query, patches), patches)


def sample(key: Any, params: Params, seen: Seen, G: int) -> Any:
    """G answers each: tokens [B, G, 5]."""
    patch_key, *keys = jax.random.split(key, 1 + len(BINS))
    patch = jax.random.categorical(patch_key, seen.patch[:, None], shape=(seen.patch.shape[0], G))
    rest = [jax.random.categorical(k, part) for k, part in zip(keys, fine(params, seen, patch), strict=True)]
    return jnp.stack([patch, *rest], -1)


def greedy(params: Params, seen: Seen) -> Any:
    """The most likely token at each step: [B, 5]."""
    patch = seen.patch.argmax(-1)[:, None]
    return jnp.stack([patch, *(part.argmax(-1) for part in fine(params, seen, patch))], -1)[:, 0]


def logprobs(params: Params, seen: Seen, tokens: Any) -> Any:
    """Log-probability of each token of answers [B, G, 5], in the same shape."""
    patch = tokens[..., 0]
    logits = [jnp.broadcast_to(seen.patch[:, None], (*patch.shape, seen.patch.shape[-1])), *fine(params, seen, patch)]
    picked = [
        (jax.nn.log_softmax(part) * jax.nn.one_hot(tokens[..., i], part.shape[-1])).sum(-1) for i, part in enumerate(logits)
    ]
    return jnp.stack(picked, -1)


def fine(params: Params, seen: Seen, patch: Any) -> list[Any]:
    """Logits of the other four tokens, [B, G, bins] each, given patches [B, G]."""
    chosen = jnp.einsum("bgp,bpd->bgd", jax.nn.one_hot(patch, COLUMNS * ROWS), seen.patches)
    logits = jax.nn.relu(chosen.reshape(-1, D) @ params["fine"]) @ params["fine_out"]
    return jnp.split(logits.reshape(*patch.shape, -1), [sum(BINS[: i + 1]) for i in range(len(BINS) - 1)], -1)


def entropy(seen: Seen) -> Any:
    """Of the patch, in nats: [B]."""
    log_p = jax.nn.log_softmax(seen.patch)
    return -(jnp.exp(log_p) * log_p).sum(-1)


def to_boxes(tokens: Any) -> Any:
    """Boxes [..., 4] in units that answers [..., 5] stand for; the centre lies in the middle of its bin."""
    patch, x, y, width, height = jnp.moveaxis(tokens, -1, 0)
    centre = jnp.stack([patch % COLUMNS * PATCH + x, patch // COLUMNS * PATCH + y], -1) + 0.5
    half = (jnp.stack([width, height], -1) + 1) / 2
    return jnp.concatenate([centre - half, centre + half], -1)


def to_tokens(boxes: Any) -> Any:
    """The answer [..., 5] that comes nearest to a box [..., 4]; boxes off the screen are moved onto it."""
    centre = jnp.floor((boxes[..., :2] + boxes[..., 2:]) / 2).astype(jnp.int32)
    x = jnp.clip(centre[..., 0], 0, WIDTH - 1)
    y = jnp.clip(centre[..., 1], 0, HEIGHT - 1)
    sides = jnp.clip(jnp.round(boxes[..., 2:] - boxes[..., :2]).astype(jnp.int32) - 1, 0, BINS[-1] - 1)
    patch = y // PATCH * COLUMNS + x // PATCH
    return jnp.concatenate([jnp.stack([patch, x % PATCH, y % PATCH], -1), sides], -1)


def _attend(block: Params, x: Any, B: int) -> Any:
    q, k, v = (
        (x @ block["qkv"]).reshape(B, -1, 3, HEADS, D // HEADS).transpose(2, 0, 3, 1, 4).reshape(3, B * HEADS, -1, D // HEADS)
    )
    weights = jax.nn.softmax(q @ k.transpose(0, 2, 1) / (D // HEADS) ** 0.5)
    return (weights @ v).reshape(B, HEADS, -1, D // HEADS).transpose(0, 2, 1, 3).reshape(-1, D) @ block["out"]


def _norm(x: Any, gain: Any) -> Any:
    return x * jax.lax.rsqrt((x**2).mean(-1, keepdims=True) + 1e-6) * gain
