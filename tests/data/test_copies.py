"""Copies of frames: those of one file are on one side of the split, left out or refused."""

import numpy as np
import pytest

from eqfuse.data import DataError, Dataset, read_embedded
from eqfuse.data.copies import kept_together
from eqfuse.data.store import StoredStructures, write_frames
from tests.data.test_checks import moved

REFERENCES = {1: 0.0, 6: 0.0, 8: 0.0}


@pytest.fixture
def frames(rng):
    """Return 12 frames of ethanol, and 4 copies of some, which are rotated and renumbered."""
    ethanol = read_embedded("ethanol")[:12]
    return [*ethanol, *(moved(ethanol[k], rng) for k in (0, 0, 3, 7))]


def build(frames, **options) -> Dataset:
    return Dataset.build(frames, cutoff=4.0, references=REFERENCES, **options)


def firsts(dataset: Dataset, part: str) -> set[int]:
    """Return the numbers of the first copies of the frames of a set."""
    original = {12: 0, 13: 0, 14: 3, 15: 7}
    return {original.get(k, k) for k in getattr(dataset, f"{part}_indices").tolist()}


@pytest.mark.parametrize("stored", [False, True])
def test_copies_never_straddle_the_split(frames, tmp_path, stored):
    if stored:
        write_frames(tmp_path, {"ethanol.xyz": frames})
        frames = StoredStructures(tmp_path)
    for seed in range(10):
        dataset = build(frames, val_size=4, seed=seed)
        assert not firsts(dataset, "train") & firsts(dataset, "val")
        assert len(dataset.train) + len(dataset.val) == 16
        assert 1 <= len(dataset.val) <= 4
        for part in ("train", "val"):
            for sample, k in zip(
                *(getattr(dataset, part + i) for i in ("", "_indices")), strict=True
            ):
                np.testing.assert_array_equal(sample.in_structure(sample.forces), frames[k].forces)
                assert sample.energy == frames[k].energy
        with pytest.warns(UserWarning, match="left out: 4 frames are copies of others: "):
            dropped = build(frames, val_size=4, seed=seed, duplicates="drop")
        numbers = [*dropped.train_indices, *dropped.val_indices]
        assert len(numbers) == len(firsts(dropped, "train") | firsts(dropped, "val")) == 12
        assert firsts(dropped, "val") == firsts(dataset, "val")
    with pytest.raises(DataError, match=r"4 frames are copies of others .*duplicates=error"):
        build(frames, duplicates="error")


def test_copies_in_files_to_validate_or_test_with_are_left_out(frames):
    unique, copies = frames[:10], [*frames[10:12], frames[12], frames[14]]
    assert len(build(unique, validation=copies).val) == 4  # named by the checks
    with pytest.warns(UserWarning, match="left out: 2 frames are copies"):
        dataset = build(unique, validation=copies, duplicates="drop")
    assert dataset.val_indices.tolist() == [0, 1]
    with pytest.warns(UserWarning, match="left out: 2 frames are copies"):
        dataset = dataset.with_test([frames[15], frames[11]], "drop")
    assert len(dataset.train) == 10
    assert not dataset.test
    with pytest.raises(DataError, match="is a copy of others"):
        dataset.with_test([frames[15]], "error")


@pytest.mark.parametrize(
    ("first", "validates"),
    [
        ([0, 1, 2, 3, 4], [3, 4]),  # no copies
        ([0, 1, 2, 0, 4], [4]),  # a copy of a training frame trains
        ([0, 1, 2, 0, 1], [0, 3]),  # as many as before validate
        ([0, 0, 0, 0, 1], [4]),
        ([0, 0, 0, 3, 3], [3, 4]),  # copies of each other only
        ([0, 0, 0, 0, 0], [3, 4]),  # nothing else to do
        ([0, 1, 1, 0, 1], [0, 3]),
    ],
)
def test_which_frames_validate(first, validates):
    found = kept_together(np.array(first), 3)
    assert np.flatnonzero(found).tolist() == validates
