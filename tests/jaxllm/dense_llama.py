"""A Llama in float64 NumPy, written from the architecture's definition alone, loops and all."""

from collections.abc import Callable

import numpy as np


def frequencies(C: int, theta: float, scaling: dict[str, float] | None) -> np.ndarray:
    """Angle per token of pair j: by wavelength kept, divided, or blended."""
    out = []
    for j in range(C // 2):
        f = theta ** (-2 * j / C)
        if scaling:
            wavelength = 2 * np.pi / f
            low, high, original = scaling["low"], scaling["high"], scaling["original"]
            if wavelength > original / low:
                f = f / scaling["factor"]
            elif wavelength >= original / high:
                a = (original / wavelength - low) / (high - low)
                f = (1 - a) * f / scaling["factor"] + a * f
        out.append(f)
    return np.array(out)


def forward(
    weights: dict[str, np.ndarray],
    ids: list[int],
    *,
    H: int,
    K: int,
    C: int,
    eps: float,
    freq: np.ndarray,
    inner: list[dict[str, np.ndarray]] | None = None,
    change: Callable[[int, str, np.ndarray], np.ndarray] = lambda layer, site, values: values,
    down_bias: list[np.ndarray] | None = None,
) -> np.ndarray:
    """Logits [T, V] of one text, from tensors under their Hugging Face names; ``inner`` gets each MLP's values, [T, F].

    ``change`` (layer, site, values [T, F]) gives what takes the place of an MLP's values at a site. ``down_bias`` is added to
    what each MLP writes.
    """
    w = {name: np.asarray(value, np.float64) for name, value in weights.items()}

    def norm(x, gain):
        return x / np.sqrt((x * x).mean(-1, keepdims=True) + eps) * gain

    def turn(x, position):
        a, b = x[: C // 2], x[C // 2 :]
        c, s = np.cos(position * freq), np.sin(position * freq)
        return np.concatenate([a * c - b * s, b * c + a * s])

    x = w["model.embed_tokens.weight"][ids]
    T = len(ids)
    layer = 0
    while (p := f"model.layers.{layer}.") + "input_layernorm.weight" in w:
        h = norm(x, w[p + "input_layernorm.weight"])
        q, k, v = (h @ w[p + f"self_attn.{n}_proj.weight"].T for n in "qkv")
        q, k, v = q.reshape(T, H, C), k.reshape(T, K, C), v.reshape(T, K, C)
        out = np.zeros((T, H, C))
        for head in range(H):
            group = head // (H // K)
            for t in range(T):
                query = turn(q[t, head], t)
                scores = np.array([query @ turn(k[s, group], s) for s in range(t + 1)]) / np.sqrt(C)
                e = np.exp(scores - scores.max())
                out[t, head] = (e / e.sum()) @ v[: t + 1, group]
        x = x + out.reshape(T, H * C) @ w[p + "self_attn.o_proj.weight"].T
        h = norm(x, w[p + "post_attention_layernorm.weight"])
        gate, up = h @ w[p + "mlp.gate_proj.weight"].T, h @ w[p + "mlp.up_proj.weight"].T
        gate = change(layer, "gate_pre", gate)
        act = change(layer, "gate_act", gate / (1 + np.exp(-gate)))
        up = change(layer, "up", up)
        product = change(layer, "product", act * up)
        if inner is not None:
            inner.append({"gate_pre": gate, "up": up, "product": product})
        x = x + product @ w[p + "mlp.down_proj.weight"].T + (0 if down_bias is None else down_bias[layer])
        layer += 1
    head = w.get("lm_head.weight", w["model.embed_tokens.weight"])
    return norm(x, w["model.norm.weight"]) @ head.T
