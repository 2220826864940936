"""A vocabulary of bytes for models that are trained from random weights: 256 bytes and two marks."""

from jaxllm.tokenizer import Tokenizer
from jaxllm.tokenizer_files import TokenizerData
from jaxllm.tokenizer_json import BYTE_ALPHABET, added_token, byte_level

BEGIN, END = 256, 257  # ids of the marks
VOCAB_SIZE = 264  # rows of the model's head: a multiple of eight, so that it can be split over devices
TEMPLATE = (
    "{% for message in messages %}{{ message.content }}{% if message.role == 'assistant' %}<|end|>{% endif %}{% endfor %}"
)


def byte_tokenizer() -> Tokenizer:
    """One id for each byte, in order, then ``<|begin|>`` and ``<|end|>``; nothing is merged."""
    vocab = {BYTE_ALPHABET[byte]: byte for byte in range(256)}
    added = [added_token(BEGIN, "<|begin|>", special=True), added_token(END, "<|end|>", special=True)]
    split = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    data = byte_level(vocab, [], added, split, ignore_merges=False)
    return Tokenizer(TokenizerData(data, BEGIN, END, None, False, TEMPLATE, "the vocabulary of bytes"))
