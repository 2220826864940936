"""Classes, masks and groups of token ids on the real vocabularies; ids of words were looked up by hand in the two files."""

import json
import time
from pathlib import Path

import numpy as np
import pytest

from interp.tokens import KINDS, Masks, classify, fold, group_tokens, parse_query, untrained_rows
from jaxllm.errors import UserError
from jaxllm.tokenizer import Tokenizer


def ids_of(tok: Tokenizer, *words: str) -> list[int]:
    """One id per word, each of which is one token."""
    ids = [tok.encode(word, bos=False) for word in words]
    assert all(len(some) == 1 for some in ids), dict(zip(words, ids, strict=True))
    return [some[0] for some in ids]


@pytest.fixture(scope="module")
def vocabulary(smollm2_tokenizer: Tokenizer) -> tuple[list[bytes], np.ndarray]:
    """Bytes and group of each of SmolLM2's ids."""
    tok = smollm2_tokenizer
    return [tok.token_bytes(i) for i in range(tok.size)], group_tokens(tok, tok.size).group


class TestGroups:
    def test_spelling_variants_are_one_group(self, smollm2_tokenizer: Tokenizer) -> None:
        tok = smollm2_tokenizer
        groups = group_tokens(tok, tok.size)
        dog = ids_of(tok, " dog", "dog", " Dog", "Dog")
        assert groups.of(dog[0]).tolist() == sorted(dog)
        assert groups.text[groups.group[dog[0]]] == "dog"
        (dogs,) = ids_of(tok, " dogs")
        assert dogs not in groups.of(dog[0])  # plurals are another word

    def test_every_id_is_in_one_group(self, llama3_tokenizer: Tokenizer) -> None:
        V = llama3_tokenizer.size + 5
        groups = group_tokens(llama3_tokenizer, V)
        assert groups.group.dtype == groups.members.dtype == np.int32
        assert sorted(groups.members[groups.members >= 0].tolist()) == list(range(V))
        rows, _ = np.nonzero(groups.members >= 0)
        assert (groups.group[groups.members[groups.members >= 0]] == rows).all()
        assert len(groups.text) == len(groups.members) == groups.group.max() + 1
        assert all(len(groups.of(i)) == 1 for i in range(128000, V))

    def test_equal_by_the_rule_itself(self, smollm2_tokenizer: Tokenizer) -> None:
        tok = smollm2_tokenizer
        groups = group_tokens(tok, tok.size)
        rng = np.random.default_rng(0)
        for left, right in [*rng.integers(17, tok.size, (2000, 2)), *(groups.of(i)[[0, -1]] for i in range(100, 3000))]:
            texts = [tok.token_bytes(i) for i in (left, right)]
            try:
                keys = [text.decode().lstrip(" ").casefold() for text in texts]
            except UnicodeDecodeError:
                continue
            if all(key.strip() for key in keys):
                assert (groups.group[left] == groups.group[right]) == (keys[0] == keys[1]), texts

    def test_runs_of_white_space_stay_apart(self, llama3_tokenizer: Tokenizer) -> None:
        groups = group_tokens(llama3_tokenizer, llama3_tokenizer.size)
        blank = ids_of(llama3_tokenizer, " ", "  ", "   ", "\n", "\n\n", " \n", "\t")
        assert len({int(groups.group[i]) for i in blank}) == len(blank)

    def test_parts_of_a_character_have_no_variants(self) -> None:
        assert fold(b" \xe6\x97") is None
        assert fold(b"  ") is None
        assert fold(b" STRASSE") == fold("Straße".encode()) == "strasse"

    def test_it_is_fast(self, llama3_tokenizer: Tokenizer) -> None:
        start = time.process_time()
        group_tokens(llama3_tokenizer, 128256)
        classify(llama3_tokenizer, 128256)
        assert time.process_time() - start < 1.5


class TestClasses:
    def test_counts_of_the_real_vocabularies(self, smollm2_tokenizer: Tokenizer, llama3_tokenizer: Tokenizer) -> None:
        counts = classify(smollm2_tokenizer, 49152 + 8).counts()
        assert (counts["special"], counts["padding"], counts["untrained"]) == (17, 8, 0)
        # Every byte from 0x80 on is a token of Llama 3's, and SmolLM2's lacks fifteen that its text never had.
        assert classify(llama3_tokenizer, 128256).counts()["byte"] == 128
        assert counts["byte"] == 113
        assert sum(counts.values()) == 49152 + 8

    def test_masks_are_a_union_and_only_padding_is_on(self, smollm2_tokenizer: Tokenizer) -> None:
        V = 49152 + 8
        untrained = np.zeros(V, bool)
        untrained[[3, 100]] = True  # a special token and a normal one
        classes = classify(smollm2_tokenizer, V, untrained)
        assert np.flatnonzero(~classes.allowed(Masks())).tolist() == list(range(49152, V))
        every = classes.allowed(Masks(mask_special=True, mask_untrained=True, mask_bytes=True))
        assert (~every).sum() == 8 + 17 + 1 + 113
        assert classes.allowed(Masks(mask_padding=False)).all()
        assert [KINDS[code] for code in classes.kind[[3, 100, 49152]]] == ["special", "untrained", "padding"]

    def test_shares_of_top_tokens(self, smollm2_tokenizer: Tokenizer) -> None:
        classes = classify(smollm2_tokenizer, 49152)
        shares = classes.shares(np.array([[2, 2767], [2767, -1]]))
        assert shares == {"normal": 2 / 3, "byte": 0.0, "untrained": 0.0, "special": 1 / 3, "padding": 0.0}

    def test_a_head_smaller_than_the_vocabulary_is_refused(self, smollm2_tokenizer: Tokenizer) -> None:
        with pytest.raises(UserError, match="different models"):
            classify(smollm2_tokenizer, 49151)

    def test_masking_everything_is_refused(self, smollm2_tokenizer: Tokenizer) -> None:
        classes = classify(smollm2_tokenizer, 49152, np.ones(49152, bool))
        with pytest.raises(UserError, match="leave no token"):
            classes.allowed(Masks(mask_untrained=True))

    def test_untrained_rows(self) -> None:
        rng = np.random.default_rng(0)
        norms = np.exp(rng.normal(1.0, 0.2, 5000))
        norms[[10, 20]] = [0.0, 0.01]
        norms[30] = 50.0  # long rows are trained
        same = np.arange(5000)
        same[41] = 40
        assert np.flatnonzero(untrained_rows(norms, same)).tolist() == [10, 20, 40, 41]

    def test_rows_all_alike_are_untrained(self) -> None:
        assert untrained_rows(np.ones(4), np.zeros(4, int)).all()


class TestQuery:
    def test_a_token_comes_with_its_group(self, smollm2_tokenizer: Tokenizer, vocabulary: tuple) -> None:
        query = parse_query(" dog", *vocabulary)
        assert query.ids[0] == 2767  # as the reference gives for " dog"
        assert set(query.ids) == set(ids_of(smollm2_tokenizer, " dog", "dog", " Dog", "Dog"))
        assert query.note is None

    def test_a_spelling_that_is_no_token(self, vocabulary: tuple) -> None:
        query = parse_query("dOG", *vocabulary)
        assert sorted(query.ids) == sorted(parse_query("dog", *vocabulary).ids)
        assert query.note == "'dOG' is no token; found by its variant ␣dog"

    def test_several_tokens_count_by_the_first_and_it_says_so(self, smollm2_tokenizer: Tokenizer, vocabulary: tuple) -> None:
        (white,) = ids_of(smollm2_tokenizer, " white")
        query = parse_query(" white elephant", *vocabulary, encode=smollm2_tokenizer.encode)
        assert query.ids[0] == white
        assert query.note == "' white elephant' is more than one token; using its first, ␣white"
        assert parse_query(" white elephant", *vocabulary).ids[0] == white

    def test_special_tokens_by_name(self, vocabulary: tuple) -> None:
        assert parse_query("<|im_end|>", *vocabulary).ids == [2]

    def test_nothing_to_find(self, vocabulary: tuple) -> None:
        with pytest.raises(UserError, match="is empty"):
            parse_query("", *vocabulary)
        with pytest.raises(UserError, match="starts with no token"):
            parse_query("\U00040000", [b"a"], np.zeros(1, np.int32))

    def test_a_fallback_byte_does_not_hide_the_letter(self, tmp_path: Path) -> None:
        pieces = ["<unk>", *(f"<0x{byte:02X}>" for byte in range(256)), "▁", "A", "a"]
        model = {"type": "BPE", "byte_fallback": True, "vocab": {piece: i for i, piece in enumerate(pieces)}, "merges": []}
        (tmp_path / "tokenizer.json").write_text(json.dumps({"version": "1.0", "model": model}))
        tok = Tokenizer.load(tmp_path)
        groups = group_tokens(tok, tok.size)
        assert parse_query("A", [tok.token_bytes(i) for i in range(tok.size)], groups.group).ids == [258, 259]
        assert classify(tok, tok.size).counts()["byte"] == 256
