"""A small model with a vocabulary of its own and planted neurons, its map, a tuned sibling, and an explorer of them."""

import dataclasses
import http.client
import json
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import numpy as np
import tiny

from interp import explore
from interp.explore import brain
from interp.run import Control, Settings, map_model
from jaxllm.load import open_checkpoint
from jaxllm.tokenizer_json import BYTE_ALPHABET

HOSTILE = "<img src=x onerror=document.title='owned'>"
WORDS = (" dog", "dog", "Dog", " dogs", " water", HOSTILE, "</script><b>x", "\"'`&amp;", " =1+1")
END = "<|end|>"
VOCABULARY = [bytes([byte]) for byte in range(256)] + [word.encode() for word in WORDS]
V = len(VOCABULARY) + 1
CONFIG = dataclasses.replace(tiny.CONFIG, vocab_size=V, max_position_embeddings=2048, bos_token_id=None, eos_token_ids=(V - 1,))
DOG, EVIL, OTHER = 256, 256 + WORDS.index(HOSTILE), 256 + WORDS.index(" water")
LAYER, DOG_NEURON, EVIL_NEURON = 2, 5, 6


def weights(seed: int = 0) -> tiny.Weights:
    """Neurons 5 and 6 of the last layer read and write the tokens " dog" and `HOSTILE`, along one line."""
    values = tiny.weights(seed, CONFIG)
    head, gain = values["lm_head.weight"], values["model.norm.weight"]
    head[[DOG, EVIL]] *= 3
    for neuron, token in ((DOG_NEURON, DOG), (EVIL_NEURON, EVIL)):
        values[tiny.mlp(LAYER, "up")][neuron] = head[token]
        values[tiny.mlp(LAYER, "down")][:, neuron] = 5 * head[token] / gain
    return values


def save(folder: Path, values: tiny.Weights) -> None:
    """A checkpoint folder with its tokenizer."""
    tiny.save(folder, values, config=CONFIG)
    pieces = ["".join(BYTE_ALPHABET[byte] for byte in word) for word in VOCABULARY]
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    special = {"id": V - 1, "content": END, "special": True, "normalized": False}
    special |= {"single_word": False, "lstrip": False, "rstrip": False}
    model = {"type": "BPE", "vocab": {piece: i for i, piece in enumerate(pieces)}, "merges": []}
    data = {"version": "1.0", "model": model, "pre_tokenizer": level, "decoder": level, "added_tokens": [special]}
    (folder / "tokenizer.json").write_text(json.dumps(data), encoding="utf-8")
    template = "{% for message in messages %}{{ message['content'] }}: {% endfor %}"
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": END, "chat_template": template}), encoding="utf-8")


def make(folder: Path, *, control: bool = True) -> explore.Explorer:
    """Model, map, tuned model and its map under ``folder``, and everything opened."""
    values = weights()
    save(folder / "model", values)
    tuned = {name: value.copy() for name, value in values.items()}
    head = tuned["lm_head.weight"]
    tuned[tiny.mlp(LAYER, "up")][DOG_NEURON] = head[OTHER]
    save(folder / "tuned", tuned)
    settings, drawn = Settings(top_k=8), Control(rows=16) if control else None
    checkpoint = open_checkpoint(folder / "model")
    atlas = map_model(checkpoint, folder / "map", settings, control=drawn)
    other = map_model(open_checkpoint(folder / "tuned"), folder / "tuned-map", settings)
    text = folder / "text.txt"
    text.write_text("a dog and a cat drink water\n" * 12, encoding="utf-8")
    model = brain.load(checkpoint, atlas, str(folder / "model"))
    return explore.open_explorer(atlas, checkpoint=checkpoint, brain=model, other=other, text=text)


def top_tokens(values: tiny.Weights, layer: int, neuron: int) -> np.ndarray:
    """Token ids of a neuron's + pole, best first, by plain arithmetic."""
    return np.argsort(-(values["lm_head.weight"].astype(np.float64) @ values[tiny.mlp(layer, "up")][neuron]), kind="stable")


@dataclasses.dataclass(frozen=True)
class Answer:
    """What a server said."""

    status: int
    headers: http.client.HTTPMessage
    body: bytes

    def json(self):
        return json.loads(self.body)


def ask(address: str, path: str, *, method: str = "GET", body: Any = None, **headers: str) -> Answer:
    """One request; underscores in the names of headers stand for hyphens."""
    connection = http.client.HTTPConnection(urlsplit(address).netloc, timeout=60)
    try:
        sent = {name.replace("_", "-"): value for name, value in headers.items()}
        connection.request(method, path, body, sent, encode_chunked="Transfer-Encoding" in sent)
        response = connection.getresponse()
        return Answer(response.status, response.headers, response.read())
    finally:
        connection.close()


def post(address: str, path: str, data: object, **headers: str) -> Answer:
    """JSON to an address."""
    body = data if isinstance(data, bytes) else json.dumps(data).encode()
    return ask(address, path, method="POST", body=body, **{"content_type": "application/json", **headers})
