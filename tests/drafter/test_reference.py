"""The drafter against the official PyTorch implementation, whose answers are stored as fixtures.

``tests/fixtures/drafter/make_fixtures.py`` made them and describes them.
"""

from collections.abc import Iterator
from pathlib import Path

import mlx.core as mx
import numpy as np
import pytest

from dflash_mlx.cache.protocol import ContextBuffer
from dflash_mlx.convert import convert
from dflash_mlx.drafter.bound import BoundDrafter
from dflash_mlx.drafter.model import Drafter
from dflash_mlx.loading.loader import load_drafter

FIXTURES = Path(__file__).parent.parent / "fixtures" / "drafter"
CASES = sorted(folder.name for folder in FIXTURES.iterdir() if (folder / "config.json").exists())
# Those that were also asked for drafts, by a target's table and head.
DFLASH2 = ["dflash2", "dflash2_long_kernel"]
BORROWING = ["causal", "sliding", "sliding_both_ways"]
ROUNDS = 5
TOLERANCE = 1e-4
TEMPERATURE = 0.7


def load_case(name: str, folder: Path) -> tuple[Drafter, dict[str, mx.array]]:
    """A case's drafter, converted from the published layout, and the reference answers."""
    drafter = load_drafter(convert(FIXTURES / name, folder / "drafter"))
    drafter.stack_context()
    return drafter, mx.load(str(FIXTURES / name / "reference.safetensors"))


@pytest.fixture(params=CASES)
def case(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Drafter, dict[str, mx.array]]:
    return load_case(request.param, tmp_path)


def commit(
    drafter: Drafter, context: list[ContextBuffer], features: mx.array, rows: mx.array
) -> None:
    """Write ``features`` at the context's offset and keep the first ``rows [B]`` of them."""
    # What a draft needs after the commit must fit too, and no block is longer than 16.
    bound = context[0].offset.max().item() + features.shape[1] + 16
    for cache in context:
        cache.reserve(bound)
    drafter.write_context(features, context)
    offset = context[0].offset + rows
    for cache in context:
        cache.offset = offset


def with_rejected_rows(features: mx.array, rows: int) -> mx.array:
    """``features`` padded to ``rows`` with what a target says about rejected drafts."""
    rejected = mx.random.normal((1, rows - features.shape[1], features.shape[2])) * 10
    return mx.concatenate([features, rejected], axis=1)


def difference(hidden: mx.array, expected: mx.array) -> float:
    assert hidden.shape == expected.shape
    assert hidden.dtype == mx.float32
    return mx.abs(hidden - expected).max().item()


def rounds(
    drafter: Drafter, reference: dict[str, mx.array]
) -> Iterator[tuple[dict[str, mx.array], list[ContextBuffer]]]:
    """Each round's part of the reference, and the context that its block is drafted from."""
    context = drafter.make_context(mx.array([0], mx.int32))
    for number in range(ROUNDS):
        prefix = f"round.{number}."
        part = {k.removeprefix(prefix): v for k, v in reference.items() if k.startswith(prefix)}
        features = part["features"]
        rows = features.shape[1]
        # The prompt has no rejected rows; a round writes its whole block and keeps some rows.
        if number > 0:
            features = with_rejected_rows(features, drafter.config.block_size)
        commit(drafter, context, features, mx.array([rows]))
        yield part, context


def test_rounds(case: tuple[Drafter, dict[str, mx.array]]) -> None:
    drafter, reference = case
    for part, context in rounds(drafter, reference):
        assert mx.array_equal(context[0].offset, part["offset"])
        assert difference(drafter(part["embeddings"], context), part["hidden"]) <= TOLERANCE


def test_far_position(case: tuple[Drafter, dict[str, mx.array]]) -> None:
    drafter, reference = case
    features, offset = reference["far.features"], reference["far.offset"]
    # At 20000 the rounding of float32 angles alone moves the hidden states by up to 6e-4. The
    # reference's CPU rounding is what can be met exactly; a GPU's sine and cosine may differ.
    with mx.stream(mx.cpu):
        rows = features.shape[1]
        context = drafter.make_context(offset - rows)
        commit(drafter, context, features, mx.array([rows]))
        hidden = drafter(reference["far.embeddings"], context)
        assert difference(hidden, reference["far.hidden"]) <= TOLERANCE


def test_long_context(case: tuple[Drafter, dict[str, mx.array]]) -> None:
    drafter, reference = case
    rows, width = reference["long.offset"].item(), drafter.fc.weight.shape[1]
    random = np.random.RandomState(reference["long.seed"].item())
    features = random.standard_normal((1, rows, width)).astype(np.float32)
    with mx.stream(mx.cpu):  # as above
        context = drafter.make_context(mx.array([0], mx.int32))
        for start in range(0, rows, 2048):
            chunk = mx.array(features[:, start : start + 2048])
            commit(drafter, context, chunk, mx.array([chunk.shape[1]]))
        hidden = drafter(reference["long.embeddings"], context)
        assert difference(hidden, reference["long.hidden"]) <= TOLERANCE


def test_ragged_batch(case: tuple[Drafter, dict[str, mx.array]]) -> None:
    """Two batch rows of different start, length and offset answer as each does alone."""
    drafter, reference = case
    names = ("round.0", "far")
    features = [reference[f"{name}.features"] for name in names]
    rows = mx.array([f.shape[1] for f in features])
    offset = mx.concatenate([reference[f"{name}.offset"] for name in names])
    longest = rows.max().item()
    with mx.stream(mx.cpu):  # as above
        context = drafter.make_context(offset - rows)
        padded = mx.concatenate([with_rejected_rows(f, longest) for f in features])
        commit(drafter, context, padded, rows)
        hidden = drafter(mx.concatenate([reference[f"{n}.embeddings"] for n in names]), context)
        for row, name in enumerate(names):
            expected = reference[f"{name}.hidden"]
            assert difference(hidden[row : row + 1], expected) <= TOLERANCE


class Tables:
    """What a drafter borrows of a target."""

    dtype = mx.float32

    def __init__(self, reference: dict[str, mx.array]):
        self._table, self._head = reference["table"], reference["head"]
        self.vocab_size = self._table.shape[0]

    def embedding(self, ids: mx.array) -> mx.array:
        return self._table[ids]

    embed = embedding

    def head_raw(self, hidden: mx.array) -> mx.array:
        return hidden @ self._head.T


@pytest.mark.parametrize("name", BORROWING)
def test_logits_from_the_targets_table_and_head(name: str, tmp_path: Path) -> None:
    drafter, reference = load_case(name, tmp_path)
    bound = BoundDrafter(drafter, Tables(reference))
    for part, context in rounds(drafter, reference):
        n = part["embeddings"].shape[1]
        logits = bound.draft(part["anchor"], n, context).logits
        assert difference(logits, part["logits"]) <= TOLERANCE


@pytest.mark.parametrize("name", DFLASH2)
def test_selected_paths_and_their_distribution(name: str, tmp_path: Path) -> None:
    drafter, reference = load_case(name, tmp_path)
    bound = BoundDrafter(drafter, Tables(reference))
    for part, context in rounds(drafter, reference):
        n = part["embeddings"].shape[1]
        walk = bound.draft(part["anchor"], n, context)
        path, _ = walk.follow(mx.argmax(walk.logits, axis=-1), walk.logits)
        assert mx.array_equal(path, part["path"])
        # The official draw, as if every way had led to it.
        drawn = mx.argmax(walk.ids == part["sampled"][..., None], axis=-1, keepdims=True)
        choice = mx.broadcast_to(drawn, walk.ids.shape)
        path, scores = walk.follow(choice, walk.logits / TEMPERATURE)
        assert mx.array_equal(path, part["sampled"])
        assert difference(mx.softmax(scores, axis=-1), part["q"]) <= TOLERANCE
