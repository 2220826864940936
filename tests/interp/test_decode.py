"""The kernel against the dense reference, for odd sizes, ties, masks, both dtypes and every way to split it."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from reference import dense_decode

from interp import decode_cpu, simd
from interp.decode import decode, prepare_head, top
from jaxllm.sharding import make_mesh


def make(N, D, V, seed=0, scale=1.0):
    rng = np.random.default_rng(seed)
    return rng.normal(size=(N, D)).astype(np.float32) * scale, (rng.normal(size=(V, D)) + 0.3).astype(np.float32)


def check(decoded, dense, rtol=2e-5):
    np.testing.assert_array_equal(decoded.ids, dense.ids)
    for field in dense._fields[1:]:
        np.testing.assert_allclose(getattr(decoded, field), getattr(dense, field), rtol=rtol, atol=rtol, err_msg=field)


@pytest.mark.parametrize(
    ("N", "D", "V", "k"),
    [
        (1, 3, 2, 1),
        (5, 7, 97, 10),
        (33, 16, 64, 64),
        (130, 8, 1000, 16),
        (300, 12, 2048, 3),
        (9, 5, 65, 16),
        (128, 24, 5000, 17),
    ],
)
def test_matches_the_dense_reference(N, D, V, k):
    rows, head = make(N, D, V)
    groups = np.arange(V) // 3
    check(decode(rows, prepare_head(head, groups=groups), k=k), dense_decode(rows, head, k, groups=groups))


def test_masked_ids_enter_nothing():
    rows, head = make(40, 8, 700)
    allowed = np.arange(700) % 3 != 0
    head[0] = 1e4  # would win everywhere
    decoded = decode(rows, prepare_head(head, allowed=allowed, groups=np.arange(700) // 5), k=12)
    check(decoded, dense_decode(rows, head, 12, allowed=allowed, groups=np.arange(700) // 5))
    assert (np.asarray(decoded.ids) % 3 != 0).all()


def test_padding_never_wins_when_all_logits_are_negative():
    rows, head = np.ones((4, 4), np.float32), -np.ones((70, 4), np.float32) - np.arange(70)[:, None].astype(np.float32)
    decoded = decode(rows, prepare_head(head), k=70)
    check(decoded, dense_decode(rows, head, 70))


def test_equal_logits_come_in_the_order_of_their_ids():
    rng = np.random.default_rng(1)
    head = rng.integers(-1, 2, (3000, 6)).astype(np.float32)
    rows = rng.integers(-1, 2, (50, 6)).astype(np.float32)
    dense = dense_decode(rows, head, 16)
    assert (dense.logits[..., 0] == dense.logits[..., 15]).any()  # ties there are
    np.testing.assert_array_equal(decode(rows, prepare_head(head), k=16).ids, dense.ids)


def test_negative_zero_ties_with_zero():
    head = np.zeros((200, 2), np.float32)
    head[::2] = -0.0
    decoded = decode(np.array([[1.0, 1.0]], np.float32), prepare_head(head), k=5)
    np.testing.assert_array_equal(np.asarray(decoded.ids)[0], [[0, 1, 2, 3, 4]] * 2)


@pytest.mark.parametrize("scale", [1e-6, 50.0, 1e4])
def test_probabilities_survive_any_scale(scale):
    rows, head = make(20, 16, 900, scale=scale)
    decoded, dense = decode(rows, prepare_head(head), k=10), dense_decode(rows, head, 10)
    check(decoded, dense, rtol=2e-3 if scale > 1 else 2e-5)
    p = np.exp(np.asarray(decoded.logits) - np.asarray(decoded.lse)[..., None])
    assert np.isfinite(p).all()
    assert (p <= 1 + 1e-3).all()


def test_a_flat_row_has_no_spread_and_full_entropy():
    _, head = make(1, 8, 300)
    decoded = decode(np.zeros((2, 8), np.float32), prepare_head(head), k=4)
    np.testing.assert_allclose(decoded.entropy, 1, rtol=1e-6)
    np.testing.assert_array_equal(decoded.std, 0)
    np.testing.assert_array_equal(decoded.kurtosis, 0)
    np.testing.assert_array_equal(np.asarray(decoded.ids)[0, 0], [0, 1, 2, 3])


def test_top_is_the_first_pole_of_decode():
    rows, head = make(70, 9, 1500)
    vocabulary = prepare_head(head)
    full, one = decode(rows, vocabulary, k=16), top(rows, vocabulary, k=16)
    np.testing.assert_array_equal(one.ids, full.ids[:, 0])
    np.testing.assert_allclose(one.lse, full.lse[:, 0], rtol=1e-6)


def test_permuting_neurons_or_the_vocabulary_permutes_the_result():
    rows, head = make(40, 8, 400)
    order, vocabulary_order = np.random.default_rng(2).permutation(40), np.random.default_rng(3).permutation(400)
    plain = decode(rows, prepare_head(head), k=8)
    np.testing.assert_array_equal(decode(rows[order], prepare_head(head), k=8).ids, np.asarray(plain.ids)[order])
    permuted = decode(rows, prepare_head(head[vocabulary_order]), k=8)
    np.testing.assert_array_equal(vocabulary_order[np.asarray(permuted.ids)], plain.ids)


@pytest.mark.parametrize("shape", [(1, 1, 8), (8, 1, 1), (2, 2, 2), (1, 2, 4)])
@pytest.mark.parametrize("V", [97, 2049])
def test_eight_devices_give_what_one_gives(shape, V):
    rows, head = make(37, 8, V)
    head[V // 2] = head[3]  # a tie across devices
    allowed = np.arange(V) % 11 != 5
    groups = np.arange(V) % (V // 3)
    data, fsdp, tensor = shape
    mesh = make_mesh(data=data, fsdp=fsdp, tensor=tensor)
    one = decode(rows, prepare_head(head, allowed=allowed, groups=groups), k=12)
    many = decode(rows, prepare_head(head, allowed=allowed, groups=groups, mesh=mesh), k=12)
    np.testing.assert_array_equal(one.ids, many.ids)
    for field in one._fields[1:]:
        np.testing.assert_allclose(getattr(many, field), getattr(one, field), rtol=1e-5, atol=1e-5, err_msg=field)


def test_bfloat16_operands_keep_float32_logits():
    rows, head = make(256, 64, 3000)
    decoded = decode(rows, prepare_head(head, dtype=jnp.bfloat16), k=10)
    rounded = [np.asarray(jnp.asarray(x, jnp.bfloat16), np.float64) for x in (rows, head)]
    dense = dense_decode(*rounded, 10)
    assert decoded.logits.dtype == jnp.float32
    assert (np.asarray(decoded.ids) == dense.ids).mean() > 0.9999
    np.testing.assert_allclose(decoded.logits, dense.logits, rtol=1e-5, atol=1e-5)


def test_no_array_of_all_neurons_by_all_ids_is_formed():
    N, V = 16384, 2048
    rows, head = make(N, 8, V)
    text = jax.jit(lambda r, v: decode(r, v, k=16)).lower(rows, prepare_head(head)).compile().as_text()
    assert f"[{N},{V}]" not in text
    assert f"[4096,{V}]" in text  # the block, as a control that shapes are found this way
    assert "[4,4096,2048]" not in text
    assert "[4,4096,32,64]" not in text


@pytest.mark.parametrize(("rows_of_a_tile", "columns"), [(5, 128), (64, 64), (1, 512)])
@pytest.mark.parametrize("V", [64, 513, 1000])
def test_tiles_of_any_size_give_the_same(monkeypatch, rows_of_a_tile, columns, V):
    monkeypatch.setattr(decode_cpu, "ROWS", rows_of_a_tile)
    monkeypatch.setattr(decode_cpu, "COLUMNS", columns)
    rows, head = make(23, 8, V)
    rows[3] *= 40  # its maximum moves far from tile to tile
    head[V // 2] = head[1]  # a tie across tiles
    groups = np.arange(V) % (V // 3)
    k = min(V, 20)
    check(decode(rows, prepare_head(head, groups=groups), k=k), dense_decode(rows, head, k, groups=groups), rtol=1e-4)
    one, dense = top(rows, prepare_head(head), k=k), dense_decode(rows, head, k)
    np.testing.assert_array_equal(one.ids, dense.ids[:, 0])
    np.testing.assert_allclose(one.lse, dense.lse[:, 0], rtol=1e-5)


def test_the_same_shape_compiles_once(caplog):
    rows, head = make(64, 8, 300)
    vocabulary, mesh = prepare_head(head), make_mesh()
    decode(rows, vocabulary, k=5)
    programs = decode_cpu._multiply._cache_size()
    decode(rows + 1, vocabulary, k=5)
    assert decode_cpu._multiply._cache_size() == programs
    decode(rows[:63], vocabulary, k=5)  # another shape: the count does grow
    assert decode_cpu._multiply._cache_size() > programs

    vocabulary = prepare_head(head, mesh=mesh)
    decode(rows, vocabulary, k=5)
    with jax.log_compiles(), caplog.at_level("WARNING"):
        decode(rows + 1, vocabulary, k=5)
        assert not [r for r in caplog.records if "Compiling" in r.getMessage()]
        decode(rows[:63], vocabulary, k=5)
        assert [r for r in caplog.records if "Compiling" in r.getMessage()]


@pytest.mark.parametrize("scale", [1e-3, 1.0, 30.0])
def test_the_fast_exponential_is_exact_to_a_few_units_in_the_last_place(scale):
    @simd.loop
    def apply(x, out):
        for i in range(len(x)):
            out[i] = simd.exp(x[i])

    x = -np.abs(np.random.default_rng(0).normal(size=5000).astype(np.float32)) * np.float32(scale)
    out = np.empty_like(x)
    apply(x, out)
    exact = np.exp(x.astype(np.float64))
    inside = x > -86
    assert inside.sum() > 4000
    assert (np.abs(out / exact - 1) < 1e-6 + 6e-8 * np.abs(x))[inside].all()
    assert (out[~inside] < 1e-36).all()


def test_wrong_arguments_are_named():
    rows, head = make(3, 4, 20)
    with pytest.raises(ValueError, match="found 21"):
        decode(rows, prepare_head(head), k=21)
    with pytest.raises(ValueError, match="5 wide"):
        decode(np.zeros((2, 5), np.float32), prepare_head(head), k=2)
    with pytest.raises(ValueError, match="no id"):
        prepare_head(head, allowed=np.zeros(20, bool))
