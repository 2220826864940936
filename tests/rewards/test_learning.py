"""The small world of `benchmarks/reward_learning.py`: its scenes, its policy, a step of its training, its tables."""

import inspect
import json
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from benchmarks.grounding import policy, report, scenes, train, work


@pytest.fixture(scope="module")
def some() -> scenes.Scenes:
    return scenes.make(7, 48)


def test_boxes_are_the_pixels_drawn(some: scenes.Scenes):
    ink = np.asarray(jax.jit(scenes.coverage)(some))
    for s, slot in zip(*np.nonzero(some.used), strict=True):
        rows, columns = np.nonzero(ink[s, slot] > 1e-4)
        x1, y1, x2, y2 = some.boxes[s, slot]
        found = (columns.min(), rows.min(), columns.max() + 1, rows.max() + 1)
        # A pixel is two units wide: the drawn pixels are those that the box reaches into.
        assert found == (x1 // 2, y1 // 2, -(-x2 // 2), -(-y2 // 2))
    assert np.abs(ink[~some.used]).max() == 0
    assert ink.min() > -1e-5
    assert ink.sum(1).max() < 1 + 1e-4


def test_ink_is_that_of_a_finely_sampled_drawing(some: scenes.Scenes):
    ink, fine = np.asarray(jax.jit(scenes.coverage)(some)), 40
    s, slot = np.argwhere(some.used & (some.shapes < len(scenes.SYMBOLS)))[0]
    x1, y1, x2, y2 = some.boxes[s, slot]
    mask = scenes.masks()[some.shapes[s, slot]]
    y, x = ((np.arange(n * fine) + 0.5) / fine * scenes.UNIT for n in ink.shape[-2:])
    column, row = ((at - low) / (high - low) * scenes.RESOLUTION for at, low, high in ((x, x1, x2), (y, y1, y2)))
    inside = [(v >= 0) & (v < scenes.RESOLUTION) for v in (row, column)]
    drawn = mask[np.ix_(*(np.clip(v, 0, scenes.RESOLUTION - 1).astype(int) for v in (row, column)))]
    drawn = drawn * np.outer(*inside)
    expected = drawn.reshape(ink.shape[2], fine, ink.shape[3], fine).mean((1, 3))
    np.testing.assert_allclose(ink[s, slot], expected, atol=0.02)


def test_a_picture_without_the_target_differs_only_in_its_box(some: scenes.Scenes):
    used = some.used.copy()
    used[np.arange(48), some.target] = False
    draw = jax.jit(scenes.draw)
    changed = np.abs(np.asarray(draw(some)) - np.asarray(draw(some._replace(used=used)))).max(-1) > 1e-4
    for s in range(48):
        x1, y1, x2, y2 = some.box[s]
        rows, columns = np.nonzero(changed[s])
        assert x1 // 2 <= columns.min()
        assert columns.max() < x2 / 2
        assert y1 // 2 <= rows.min()
        assert rows.max() < y2 / 2


def test_symbols_are_in_the_font_and_fill_their_boxes():
    masks = scenes.masks()[: len(scenes.SYMBOLS)]
    assert all(0.1 < mask.mean() < 0.95 for mask in masks)
    for edge in (masks[:, 0], masks[:, -1], masks[:, :, 0], masks[:, :, -1]):
        assert (edge.max(1) > 0.1).all()
    # A symbol that the font lacks would be an empty frame, the same for all of them.
    assert all(np.abs(a - b).mean() > 0.05 for i, a in enumerate(masks) for b in masks[:i])


def test_scenes_are_what_they_promise():
    many = scenes.make(3, 600)
    sides = many.boxes[..., 2:] - many.boxes[..., :2]
    assert (many.boxes[many.used] >= 1).all()
    assert (many.boxes[..., 2][many.used] <= scenes.WIDTH).all()
    assert (many.boxes[..., 3][many.used] <= scenes.HEIGHT).all()
    assert sides[many.used].min() >= 4
    assert sides[many.used].max() <= 40
    for boxes, used, colors in zip(many.boxes, many.used, many.colors, strict=True):
        assert len(set(colors)) == scenes.SLOTS
        kept = boxes[used]
        for i, a in enumerate(kept):
            for b in kept[:i]:
                assert max(a[0] - b[2], b[0] - a[2], a[1] - b[3], b[1] - a[3]) >= scenes.GAP
    count = many.used.sum(1)
    assert count.max() == 8
    assert (count >= 5).mean() > 0.95
    assert many.used[np.arange(600), many.target].all()
    assert np.abs(np.bincount(many.size_class) / 600 - scenes.SHARES).max() < 0.1


def test_a_seed_is_a_scene(some: scenes.Scenes):
    again, other = scenes.make(7, 48), scenes.make(8, 48)
    assert all(np.array_equal(a, b) for a, b in zip(some, again, strict=True))
    assert not np.array_equal(some.boxes, other.boxes)


@pytest.fixture(scope="module")
def small() -> policy.Params:
    """A random policy, far from uniform."""
    return jax.tree.map(lambda leaf: 2 * leaf, policy.init(0))


@jax.jit
def look(params: policy.Params, batch: scenes.Scenes, instruction: Any) -> policy.Seen:
    return policy.look(params, scenes.draw(batch), instruction)


def test_the_policy_has_about_the_size_that_is_told(small: policy.Params):
    assert 0.7e6 < sum(leaf.size for leaf in jax.tree.leaves(small)) < 0.9e6


def test_probabilities_of_every_token_sum_to_one(small: policy.Params, some: scenes.Scenes):
    two = jax.tree.map(lambda leaf: leaf[:2], some)
    seen = look(small, two, two.instruction)
    for place, bins in enumerate((policy.COLUMNS * policy.ROWS, *policy.BINS)):
        tokens = np.tile([[[11, 3, 4, 5, 6]]], (2, bins, 1))
        tokens[:, :, place] = np.arange(bins)
        log_p = np.asarray(jax.jit(policy.logprobs)(small, seen, jnp.asarray(tokens)))
        np.testing.assert_allclose(np.exp(log_p[..., place]).sum(1), 1, rtol=1e-4)
        # Given the patch, the other tokens do not depend on each other.
        others = [i for i in range(1, 5) if i != place]
        if place:
            assert np.ptp(log_p[..., others], axis=1).max() < 1e-4


def test_samples_come_as_often_as_their_probability_says(small: policy.Params, some: scenes.Scenes):
    two = jax.tree.map(lambda leaf: leaf[:2], some)
    seen = look(small, two, two.instruction)
    tokens = jax.jit(policy.sample, static_argnums=3)(jax.random.key(1), small, seen, 4000)
    chances = np.asarray(jax.nn.softmax(seen.patch[0]))
    found = np.bincount(np.asarray(tokens)[0, :, 0], minlength=40) / 4000
    assert np.abs(found - chances).max() < 4 * 0.5 / 4000**0.5
    assert int(policy.greedy(small, seen)[0, 0]) == chances.argmax()


def test_boxes_and_answers_are_each_others_inverse(some: scenes.Scenes):
    answers = np.asarray(policy.to_tokens(jnp.asarray(some.boxes[some.used])))
    boxes = np.asarray(policy.to_boxes(jnp.asarray(answers)))
    true = some.boxes[some.used]
    np.testing.assert_allclose(boxes[:, 2:] - boxes[:, :2], true[:, 2:] - true[:, :2])
    # Bins are a unit wide.
    assert np.abs((boxes[:, :2] + boxes[:, 2:]) / 2 - (true[:, :2] + true[:, 2:]) / 2).max() <= 0.5
    np.testing.assert_array_equal(np.asarray(policy.to_tokens(jnp.asarray(boxes))), answers)


def test_a_few_steps_raise_the_reward(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(policy, "BLOCKS", 1)
    monkeypatch.setattr(train, "CONTENDERS", {"alpha 10": train.CONTENDERS["alpha 10"]})
    train._branches.cache_clear()
    step = jax.jit(inspect.unwrap(train.grpo_step))  # compiled for these settings, and forgotten with them
    batch, params = scenes.make(1, 4), policy.init(0)
    state, ask = train.optimiser(0.0).init(params), (batch.instruction, batch.box)
    found = []
    for i in range(40):
        params, state, facts = step(params, state, jax.random.key(i), batch, ask, jnp.int32(0), jnp.float32(1e-3))
        found.append({name: float(value) for name, value in facts.items()})
    train._branches.cache_clear()
    early, late = (np.mean([facts["reward"] for facts in part]) for part in (found[:5], found[-5:]))
    assert late > early + 0.1
    assert found[-1]["entropy"] < found[0]["entropy"]
    assert found[0]["signal"] == 1


def test_every_contender_gives_a_group_finite_advantages():
    key = jax.random.key(0)
    corner = jax.random.uniform(key, (3, 8, 2), minval=20, maxval=60)
    boxes = jnp.concatenate([corner, corner + jnp.asarray([8.0, 6.0])], -1)
    targets = jnp.asarray([[[30.0, 30, 45, 42]], [[30, 30, 45, 42]], [[1, 1, 5, 6]]])
    train._branches.cache_clear()
    results = jax.jit(lambda *operands: [branch(operands) for branch in train._branches()])(boxes, targets, key)
    for name, (found, advantages) in zip(train.CONTENDERS, results, strict=True):
        assert found.shape == advantages.shape == (3, 8), name
        assert np.isfinite(advantages).all(), name
        np.testing.assert_allclose(advantages.sum(-1), 0, atol=1e-3, err_msg=name)


def test_labels_are_noisy_but_not_off():
    boxes = np.tile([[40.0, 30, 50, 40]], (4000, 1)).astype(np.float32)
    found = train.noisy(boxes, np.random.default_rng(0))
    centre = (found[:, :2] + found[:, 2:]) / 2
    np.testing.assert_allclose(centre.mean(0), [45, 35], atol=0.2)
    np.testing.assert_allclose(centre.std(0), [3, 3], atol=0.15)
    np.testing.assert_allclose(np.log((found[:, 2] - found[:, 0]) / 10).std(), 0.25, atol=0.02)


def test_starts_come_back_from_their_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    params: dict[str, Any] = {"a": np.arange(3.0), "block0": {"b": np.ones((2, 2))}}
    calls: list[int] = []

    def made(base: int, *_: Any) -> dict[str, Any]:
        calls.append(base)
        return {"weak": params}

    monkeypatch.setattr(train, "warm_starts", made)
    settings = {"steps": 3, "weak": 2, "shifting": 1}
    path = work.warm(tmp_path, 0, settings, ("weak",))
    assert work.warm(tmp_path, 0, settings, ("weak",)) == path
    assert calls == [0]
    found = work._load(path, "weak")
    assert found.keys() == {"a", "block0"}
    np.testing.assert_array_equal(found["block0"]["b"], params["block0"]["b"])


def row(reward: str, seed: int, hits: float, **more: Any) -> dict[str, Any]:
    end = {size: {"greedy": hits, "sampled": hits, "iou": hits / 2} for size in ("all", *scenes.SIZES)}
    point = {"step": 10, "signal": 0.5, **end}
    return {"setup": {}, "start": "shifted", "reward": reward, "seed": seed, "base": 0, "end": end, "curve": [point]} | more


def test_differences_are_paired_by_seed():
    rows = [row("point", s, v) for s, v in enumerate((0.61, 0.72, 0.83))]
    rows += [row("binary point", s, v) for s, v in enumerate((0.60, 0.70, 0.80, 0.10))]
    mean, low, high = report.against(rows, "shifted", "point", "binary point", "small", "greedy")
    # 1, 2 and 3 points: Student's t with two degrees of freedom, 4.303 · 1 / √3.
    assert (mean, low, high) == pytest.approx((2, 2 - 2.4843, 2 + 2.4843), abs=1e-3)
    text = report.table(rows, [row("start", 0, 0.4)], "shifted", tuple(train.CONTENDERS))
    assert [line.split("|")[1].strip() for line in text.splitlines()[2:]] == ["*start*", "point", "binary point"]
    assert "72.0 (61.0–83.0)" in text
    begin = row("start", 0, 0.4)
    assert report.picture(rows, [begin | {"curve": begin["end"]}], ["shifted"]).startswith(b"\x89PNG")


def test_an_interrupted_file_is_read_up_to_its_last_whole_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "benchmarks"))
    import reward_learning

    file = tmp_path / "runs.jsonl"
    lines = [json.dumps(row("point", seed, 0.5)) for seed in range(2)]
    file.write_text(f"{lines[0]}\nnonsense\n{lines[1]}\n{lines[0][:50]}")
    assert [found["seed"] for found in reward_learning._read(file)] == [0, 1]
    assert file.read_text().endswith("\n")
    assert list(reward_learning._read(tmp_path / "none.jsonl")) == []
