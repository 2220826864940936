"""Text to ids and back, for the three forms of tokenizer files and the two kinds of BPE.

`smollm2_tokens.json` comes from the reference implementation of SmolLM2 and `llama3_tokens.json` from tiktoken 0.12, which
reads Meta's file in its own way.
"""

import base64
import concurrent.futures
import json
import random
from pathlib import Path
from typing import Any

import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxllm.errors import UserError
from jaxllm.tokenizer import Tokenizer, show_bytes
from jaxllm.tokenizer_files import llama_3_special_tokens

DATA = Path(__file__).parents[1] / "data"


def golden(name: str) -> list[dict[str, Any]]:
    return json.loads((DATA / name).read_text())


@pytest.fixture(scope="session")
def sentencepiece(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    """A vocabulary of Llama 2's kind: a space mark, a byte for each character it lacks."""
    return Tokenizer.load(write_sentencepiece(tmp_path_factory.mktemp("sentencepiece")))


def write_sentencepiece(folder: Path, pre_tokenizer: dict[str, Any] | None = None) -> Path:
    pieces = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), "▁", "d", "o", "g", "do", "dog", "▁dog", "A"]
    normalizer = {
        "type": "Sequence",
        "normalizers": [{"type": "Prepend", "prepend": "▁"}, {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}],
    }
    steps = [
        {"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
        {"type": "ByteFallback"},
        {"type": "Fuse"},
        {"type": "Strip", "content": " ", "start": 1, "stop": 0},
    ]
    data = {
        "version": "1.0",
        "added_tokens": [added(i, pieces[i]) for i in range(3)],
        "normalizer": None if pre_tokenizer else normalizer,
        "pre_tokenizer": pre_tokenizer,
        "post_processor": {
            "type": "TemplateProcessing",
            "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
            "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 0}}],
            "special_tokens": {"<s>": {"id": "<s>", "ids": [1], "tokens": ["<s>"]}},
        },
        "decoder": {"type": "Sequence", "decoders": steps},
        "model": {
            "type": "BPE",
            "unk_token": "<unk>",
            "fuse_unk": True,
            "byte_fallback": True,
            "vocab": {piece: i for i, piece in enumerate(pieces)},
            "merges": ["d o", "do g", "▁ dog"],
        },
    }
    return write(folder, data, {"bos_token": "<s>", "eos_token": {"content": "</s>"}})


def added(token_id: int, content: str, *, special: bool = True) -> dict[str, Any]:
    return {"id": token_id, "content": content, "special": special} | dict.fromkeys(
        ("single_word", "lstrip", "rstrip", "normalized"), False
    )


def write(folder: Path, data: Any, config: Any = None) -> Path:
    (folder / "tokenizer.json").write_text(json.dumps(data))
    if config is not None:
        (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return folder


def byte_level(vocab: dict[str, int], merges: list[str], added_tokens: list[dict[str, Any]], **model: Any) -> dict[str, Any]:
    step = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    return {
        "version": "1.0",
        "added_tokens": added_tokens,
        "pre_tokenizer": step,
        "decoder": step,
        "model": {"type": "BPE", "vocab": vocab, "merges": merges, **model},
    }


def gguf_fields(tokenizer: Tokenizer, folder: Path, pre: str) -> dict[str, Any]:
    """The metadata that a GGUF of this tokenizer carries."""
    tokenizer.save(folder)
    data = json.loads((folder / "tokenizer.json").read_text())
    tokens = {i: token for token, i in data["model"]["vocab"].items()} | {t["id"]: t["content"] for t in data["added_tokens"]}
    special = {token["id"] for token in data["added_tokens"]}
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": pre,
        "tokenizer.ggml.tokens": [tokens[i] for i in range(len(tokens))],
        "tokenizer.ggml.token_type": [3 if i in special else 1 for i in range(len(tokens))],
        "tokenizer.ggml.merges": [m if isinstance(m, str) else " ".join(m) for m in data["model"]["merges"]],
        "tokenizer.ggml.bos_token_id": tokenizer.bos_id,
        "tokenizer.ggml.eos_token_id": tokenizer.eos_id,
        "tokenizer.ggml.padding_token_id": tokenizer.pad_id,
        "tokenizer.ggml.add_bos_token": tokenizer.add_bos,
        "tokenizer.chat_template": tokenizer.chat_template or "",
    }


class TestSmolLM2:
    def test_ids_are_those_of_the_reference(self, smollm2_tokenizer: Tokenizer) -> None:
        for case in golden("smollm2_tokens.json"):
            assert smollm2_tokenizer.encode(case["text"], specials=True) == case["ids"], case["text"]
            assert smollm2_tokenizer.decode(case["ids"]) == case["text"]

    def test_each_digit_is_split_off_first(self, smollm2: Path, smollm2_tokenizer: Tokenizer) -> None:
        plain = tokenizers.Tokenizer.from_file(str(smollm2 / "tokenizer.json"))
        plain.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
        wrong = [c["text"] for c in golden("smollm2_tokens.json") if plain.encode(c["text"]).ids != c["ids"]]
        assert {"x  5 and   77", "a\n\n  12\t3"} <= set(wrong)  # so the cases above do see the difference

    def test_no_bos_and_three_special_ids(self, smollm2_tokenizer: Tokenizer) -> None:
        tok = smollm2_tokenizer
        assert (tok.bos_id, tok.eos_id, tok.pad_id, tok.add_bos, tok.size) == (1, 2, 2, False, 49152)
        assert tok.special_ids == frozenset(range(17))
        assert tok.encode("Hi") == [26843]
        assert tok.encode("Hi", bos=True) == [1, 26843]

    def test_the_gguf_form_gives_the_same_tokenizer(self, smollm2_tokenizer: Tokenizer, tmp_path: Path) -> None:
        fields = gguf_fields(smollm2_tokenizer, tmp_path, "smollm")
        tok = Tokenizer.from_gguf(fields)
        assert tok.digest() == smollm2_tokenizer.digest()
        assert tok.chat_template == smollm2_tokenizer.chat_template
        other = Tokenizer.from_gguf({**fields, "tokenizer.ggml.pre": "llama-bpe"})
        assert other.digest() != tok.digest()
        assert other.encode("x  5 and   77") != tok.encode("x  5 and   77")

    @pytest.mark.parametrize(
        ("key", "value", "message"),
        [
            ("tokenizer.ggml.pre", "default", "'default' is not supported"),
            ("tokenizer.ggml.model", "llama", "'llama' with"),
            ("tokenizer.ggml.merges", ["a b c"], "does not join two tokens"),
            ("tokenizer.ggml.merges", ["nosuch token"], "does not join two tokens"),
            ("tokenizer.ggml.merges", None, "must be a list"),
            ("tokenizer.ggml.tokens", ["a", "a"], "entries for 2 tokens"),
            ("tokenizer.ggml.token_type", [1], "has 1 entries"),
            ("tokenizer.ggml.eos_token_id", 49152, "is not an id of 49152 tokens"),
            ("tokenizer.chat_template", 5, "int in place of a text"),
        ],
    )
    def test_damaged_gguf_metadata_is_refused(
        self, smollm2_tokenizer: Tokenizer, tmp_path: Path, key: str, value: Any, message: str
    ) -> None:
        fields = gguf_fields(smollm2_tokenizer, tmp_path, "smollm")
        with pytest.raises(UserError, match=message):
            Tokenizer.from_gguf({**fields, key: value})

    def test_many_threads_agree(self, smollm2_tokenizer: Tokenizer) -> None:
        texts = [case["text"] for case in golden("smollm2_tokens.json")] * 20
        with concurrent.futures.ThreadPoolExecutor(8) as pool:
            ids = list(pool.map(lambda text: smollm2_tokenizer.encode(text, specials=True), texts))
        assert ids == [case["ids"] for case in golden("smollm2_tokens.json")] * 20


class TestLlama3:
    def test_ids_are_those_of_tiktoken(self, llama3_tokenizer: Tokenizer) -> None:
        for case in golden("llama3_tokens.json"):
            assert llama3_tokenizer.encode(case["text"], bos=False) == case["ids"], case["text"]
            assert llama3_tokenizer.decode(case["ids"]) == case["text"]

    def test_special_ids_have_the_published_names(self, llama3_tokenizer: Tokenizer) -> None:
        names = {
            128000: "<|begin_of_text|>",
            128001: "<|end_of_text|>",
            128002: "<|reserved_special_token_0|>",
            128003: "<|reserved_special_token_1|>",
            128004: "<|finetune_right_pad_id|>",
            128005: "<|reserved_special_token_2|>",
            128006: "<|start_header_id|>",
            128007: "<|end_header_id|>",
            128008: "<|eom_id|>",
            128009: "<|eot_id|>",
            128010: "<|python_tag|>",
            128011: "<|reserved_special_token_3|>",
            128255: "<|reserved_special_token_247|>",
        }
        assert {i: llama3_tokenizer.display(i) for i in names} == names
        assert llama3_tokenizer.special_ids == frozenset(range(128000, 128256))
        assert len(set(llama_3_special_tokens())) == 256
        assert llama3_tokenizer.token_bytes(0) == b"!"  # so 0 is no padding
        assert (llama3_tokenizer.bos_id, llama3_tokenizer.eos_id, llama3_tokenizer.pad_id) == (128000, 128001, 128004)

    def test_it_starts_with_exactly_one_bos(self, llama3_tokenizer: Tokenizer) -> None:
        assert llama3_tokenizer.encode("Hello") == [128000, 9906]
        assert llama3_tokenizer.encode("<|begin_of_text|>Hello", specials=True) == [128000, 9906]
        assert llama3_tokenizer.encode("") == [128000]
        assert 128000 not in llama3_tokenizer.encode("Hello", bos=False)

    def test_special_tokens_in_a_text_stay_text(self, llama3_tokenizer: Tokenizer) -> None:
        text = "<|begin_of_text|>a<|eot_id|><|python_tag|>"
        ids = llama3_tokenizer.encode(text, bos=False)
        assert llama3_tokenizer.special_ids.isdisjoint(ids)
        assert llama3_tokenizer.decode(ids) == text
        assert llama3_tokenizer.encode(text, bos=False, specials=True) == [128000, 64, 128009, 128010]

    def test_saved_and_loaded_it_is_the_same(self, llama3_tokenizer: Tokenizer, tmp_path: Path) -> None:
        llama3_tokenizer.save(tmp_path)
        again = Tokenizer.load(tmp_path)
        assert again.digest() == llama3_tokenizer.digest()
        assert again.encode("Hello") == [128000, 9906]
        # The file alone, read by the library, puts the one begin-of-text token itself.
        alone = tokenizers.Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
        assert alone.encode("Hello").ids == [128000, 9906]
        assert len(json.loads((tmp_path / "tokenizer.json").read_text())["model"]["merges"]) == 280147  # as published

    def test_the_gguf_form_encodes_alike(self, llama3_tokenizer: Tokenizer, tmp_path: Path) -> None:
        tok = Tokenizer.from_gguf(gguf_fields(llama3_tokenizer, tmp_path, "llama-bpe"))
        assert tok.digest() == llama3_tokenizer.digest()
        for case in golden("llama3_tokens.json"):
            assert tok.encode(case["text"]) == [128000, *case["ids"]]


def line(token: bytes, rank: object) -> bytes:
    return base64.b64encode(token) + f" {rank}\n".encode()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"\n\x0e\n\x05<unk>\x15\x00\x00\x00\x00\x18\x02", "SentencePiece"),
        (b"!!!! 0\n", "line 1: expected a base64 token and a rank"),
        (line(b"a", 0) + b"Yg==\n", "line 2: expected a base64 token"),
        (line(b"a", 0) + b"Yg== two\n", "line 2: expected a base64 token"),
        (line(b"a", 0) + line(b"b", 0), "rank 0 is there twice"),
        (b" 0\n", "empty token"),
        (b"A" * 1_000_000, "line 1: 1000000 bytes is too long"),
        (line(b"a", 0), "found 1 ranks"),
        (line(b"a", -1), "found 1 ranks"),
        (b"", "found 0 ranks"),
        (b"".join(line(b"%d" % (i // 2), i) for i in range(128_000)), "have two ranks"),
        (b"".join(line(b"%d" % i, i) for i in range(128_000)), "no token for the byte 0"),
    ],
)
def test_a_damaged_tokenizer_model_is_refused(tmp_path: Path, content: bytes, message: str) -> None:
    (tmp_path / "tokenizer.model").write_bytes(content)
    with pytest.raises(UserError, match=message):
        Tokenizer.load(tmp_path)


WORD = byte_level({"a": 0, "b": 1, "ab": 2, "<s>": 3}, ["a b"], [added(3, "<s>")])


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ([], "expected a JSON object"),
        ({}, "the model is not BPE"),
        ({"model": {"type": "Unigram", "vocab": []}}, "the model is not BPE"),
        (WORD | {"added_tokens": [{"id": -1, "content": "x"}]}, "added_tokens"),
        (WORD | {"added_tokens": {"a": 1}}, "added_tokens"),
        (WORD | {"model": WORD["model"] | {"vocab": {"a": 0, "b": 1, "ab": 1 << 40}}}, "distinct ids under"),
        (WORD | {"model": WORD["model"] | {"vocab": {"a": 0, "b": 0, "ab": 1}}}, "distinct ids under"),
        (WORD | {"model": WORD["model"] | {"merges": ["a z"]}}, "not a tokenizer that can be read"),
        (WORD | {"pre_tokenizer": {"type": "NoSuch"}}, "not a tokenizer that can be read"),
        (WORD | {"pre_tokenizer": None, "decoder": None}, "neither byte-level nor SentencePiece-style"),
    ],
)
def test_a_damaged_tokenizer_json_is_refused(tmp_path: Path, data: Any, message: str) -> None:
    with pytest.raises(UserError, match=message):
        Tokenizer.load(write(tmp_path, data))


def test_mutated_files_end_in_a_clean_error_or_a_tokenizer(tmp_path: Path) -> None:
    rng = random.Random(0)
    tiny = write_sentencepiece(tmp_path)
    files = {name: json.loads((tiny / name).read_text()) for name in ("tokenizer.json", "tokenizer_config.json")}
    odd = [None, True, -1, 1 << 70, 0.5, "", "x", "\ud800", [], [[]], {}, {"type": "Sequence"}, {"content": 3}]
    loaded = 0
    for _ in range(400):
        name = rng.choice(sorted(files))
        data = json.loads(json.dumps(files[name]))
        node: Any = data
        while True:  # down to a random place
            key = rng.choice(list(node) if isinstance(node, dict) else range(len(node)))
            if not node[key] or not isinstance(node[key], dict | list) or rng.random() < 0.4:
                break
            node = node[key]
        node[key] = rng.choice(odd)
        (tiny / name).write_text(json.dumps(data))
        try:
            tok = Tokenizer.load(tiny)
            tok.decode(tok.encode("dog <s>", bos=False))
            loaded += 1
        except UserError:
            pass
        (tiny / name).write_text(json.dumps(files[name]))
    assert 0 < loaded < 400


def test_a_folder_without_tokenizer_says_so(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"no tokenizer\.json and no tokenizer\.model"):
        Tokenizer.load(tmp_path)


class TestSpecialTokens:
    def test_a_mark_that_the_file_does_not_flag_is_special_too(self, tmp_path: Path) -> None:
        letters = {char: i for i, char in enumerate("ab<>tol_")}
        data = byte_level(letters, [], [added(8, "<tool>", special=False), added(9, "ab", special=False)])
        rust = tokenizers.Tokenizer.from_str(json.dumps(data))
        rust.encode_special_tokens = True
        assert rust.encode("<tool>").ids == [8]  # the library's own switch leaves it an open door
        tok = Tokenizer.load(write(tmp_path, data))
        assert tok.encode("a<tool>ab") == [0, 2, 4, 5, 5, 6, 3, 9]  # a word that was added is still one token
        assert tok.encode("<tool>", specials=True) == [8]

    @pytest.mark.parametrize("model", [{"ignore_merges": True}, {"ignore_merges": False}])
    def test_a_word_that_spells_one_is_written_out_by_bytes(self, tmp_path: Path, model: dict[str, Any]) -> None:
        data = byte_level({"e": 0, "n": 1, "d": 2, "en": 3, "end": 4}, ["e n", "en d"], [added(4, "end")], **model)
        tok = Tokenizer.load(write(tmp_path, data))
        assert tok.encode("end") == [0, 1, 2]
        assert tok.encode("end", specials=True) == [4]

    def test_side_files_name_the_ends_and_the_template(self, tmp_path: Path) -> None:
        config = {"bos_token": "<s>", "add_bos_token": True, "chat_template": [{"name": "default", "template": "x"}]}
        tok = Tokenizer.load(write(tmp_path, WORD, config))
        assert (tok.bos_id, tok.eos_id, tok.chat_template) == (3, None, "x")
        assert tok.encode("ab") == [3, 2]
        (tmp_path / "chat_template.jinja").write_text("y")
        assert Tokenizer.load(tmp_path).chat_template == "y"

    def test_bos_without_such_a_token_is_an_error(self, tmp_path: Path) -> None:
        with pytest.raises(UserError, match="no begin-of-text token"):
            Tokenizer.load(write(tmp_path, WORD)).encode("ab", bos=True)

    def test_dropout_padding_and_truncation_of_the_file_are_off(self, tmp_path: Path) -> None:
        data = byte_level({"a": 0, "b": 1, "ab": 2}, ["a b"], [], dropout=0.9)
        data["truncation"] = {"max_length": 2, "strategy": "LongestFirst", "stride": 0, "direction": "Right"}
        tok = Tokenizer.load(write(tmp_path, data))
        assert tok.encode("ab" * 50) == [2] * 50


class TestSentencePiece:
    def test_it_encodes_and_decodes(self, sentencepiece: Tokenizer) -> None:
        tok = sentencepiece
        ids = tok.encode("dog dogé")
        assert [tok.display(i) for i in ids] == ["<s>", "␣dog", "␣dog", "⟨c3⟩", "⟨a9⟩"]
        assert tok.decode(ids, skip_specials=True) == "dog dogé"
        assert tok.encode("</s>", bos=False)[0] != 2
        assert 2 not in tok.encode("</s>")

    def test_bytes_and_display(self, sentencepiece: Tokenizer) -> None:
        tok = sentencepiece
        ids = {tok.display(i): i for i in range(tok.size)}
        assert len(ids) == tok.size
        assert tok.token_bytes(ids["␣dog"]) == b" dog"
        assert (tok.token_bytes(ids["⟨41⟩"]), tok.token_bytes(ids["A"])) == (b"A", b"A")
        assert tok.byte_ids == frozenset(range(3, 259))
        assert (tok.bos_id, tok.eos_id, tok.add_bos) == (1, 2, True)

    def test_ids_are_the_library_s_own(self, tmp_path: Path, sentencepiece: Tokenizer) -> None:
        scheme = {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "first", "split": False}
        for folder, pre in ((tmp_path / "prepend", None), (tmp_path / "first", scheme)):
            folder.mkdir()
            tok = Tokenizer.load(write_sentencepiece(folder, pre))
            rust = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
            for text in ("dog dog", " dog", "<s>dog</s>dog dog", "dog</s>\ndog", ""):
                ids = rust.encode(text, add_special_tokens=False).ids
                assert tok.encode(text, bos=False, specials=True) == ids, (pre, text)
                assert tok.decode(ids) == rust.decode(ids, skip_special_tokens=False)


class TestDisplay:
    @pytest.mark.parametrize(
        ("value", "shown"),
        [
            (b" dog", "␣dog"),
            (b"dog", "dog"),
            (b"\n\n", "↵↵"),
            (b"\t\r\x00\x7f", "⇥␍␀␡"),
            (b"\xe2\x80", "⟨e2 80⟩"),
            (b" \xe6\x97", "␣⟨e6 97⟩"),
            (b"\xef\xbf\xbd", "⟨U+FFFD⟩"),
            ("\u200b\u00a0".encode(), "⟨U+200B⟩⟨U+00A0⟩"),
            ("␣".encode(), "⟨U+2423⟩"),
            ("日本🙂".encode(), "日本🙂"),
            (b"<&\"'>", "<&\"'>"),
        ],
    )
    def test_every_byte_is_visible(self, value: bytes, shown: str) -> None:
        assert show_bytes(value) == shown

    @given(st.binary(max_size=8), st.binary(max_size=8))
    @settings(max_examples=300, deadline=None)
    def test_different_bytes_look_different(self, left: bytes, right: bytes) -> None:
        assert (show_bytes(left) == show_bytes(right)) == (left == right)
        assert "\ufffd" not in show_bytes(left)
        assert all(char.isprintable() and char != " " for char in show_bytes(left).replace("⟨", "").split(" ") for char in char)

    def test_a_whole_vocabulary_has_no_two_alike(self, smollm2_tokenizer: Tokenizer, llama3_tokenizer: Tokenizer) -> None:
        for tok in (smollm2_tokenizer, llama3_tokenizer):
            shown = [tok.display(i) for i in range(tok.size)]
            assert len(set(shown)) == tok.size
            assert not any("\ufffd" in text or " dog" in text for text in shown)

    def test_ids_without_a_token(self, smollm2_tokenizer: Tokenizer) -> None:
        assert smollm2_tokenizer.display(49152) == "⟨no token 49152⟩"
        with pytest.raises(UserError, match="outside the tokenizer's range"):
            smollm2_tokenizer.token_bytes(49152)
        with pytest.raises(UserError, match="outside the tokenizer's range"):
            smollm2_tokenizer.decode([-1])


class TestStreaming:
    @given(st.lists(st.integers(0, 49151), max_size=30))
    @settings(max_examples=100, deadline=None)
    def test_the_pieces_make_the_whole(self, smollm2_tokenizer: Tokenizer, ids: list[int]) -> None:
        whole = b"".join(map(smollm2_tokenizer.token_bytes, ids)).decode("utf-8", errors="replace")
        stream = smollm2_tokenizer.stream()
        assert "".join([*map(stream.push, ids), stream.finish()]) == whole == smollm2_tokenizer.decode(ids)

    def test_half_a_character_waits(self, smollm2_tokenizer: Tokenizer) -> None:
        ids = smollm2_tokenizer.encode("🙂")
        assert len(ids) > 1
        stream = smollm2_tokenizer.stream()
        assert [stream.push(i) for i in ids] == [""] * (len(ids) - 1) + ["🙂"]
        stream = smollm2_tokenizer.stream()
        stream.push(ids[0])
        assert stream.finish() == "\ufffd"

    def test_special_tokens_can_be_left_out(self, smollm2_tokenizer: Tokenizer) -> None:
        assert smollm2_tokenizer.decode([1, 26843, 2]) == "<|im_start|>Hi<|im_end|>"
        assert smollm2_tokenizer.decode([1, 26843, 2], skip_specials=True) == "Hi"


@given(st.text(max_size=60))
@settings(max_examples=200, deadline=None)
def test_any_text_comes_back(llama3_tokenizer: Tokenizer, text: str) -> None:
    assert llama3_tokenizer.decode(llama3_tokenizer.encode(text, bos=False)) == text


def test_a_lone_surrogate_is_no_text(smollm2_tokenizer: Tokenizer) -> None:
    with pytest.raises(UserError, match="not valid Unicode"):
        smollm2_tokenizer.encode("\ud800")
