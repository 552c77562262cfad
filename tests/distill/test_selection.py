"""Frames that are labelled: far from each other, of a large spread, and no copies."""

import ase.build
import numpy as np

from eqfuse.distill.selection import choose, features
from tests.lammps.untrained import untrained_run


def rattled(count: int, seed: int = 0, scale: float = 0.1) -> list:
    rng, frames = np.random.default_rng(seed), []
    for _ in range(count):
        atoms = ase.build.bulk("Cu", cubic=True)
        atoms.positions += rng.normal(scale=scale, size=(4, 3))
        frames.append(atoms)
    return frames


def test_features_do_not_depend_on_orientation_or_order():
    [atoms] = rattled(1)
    turned = atoms[::-1]
    turned.rotate(40, (1, 2, 3), rotate_cell=True)
    found = features([atoms, turned])
    np.testing.assert_allclose(found[0], found[1], atol=1e-9)


def test_copies_are_left_out():
    frames = rattled(4)
    copies = [atoms.copy() for atoms in frames]
    for atoms in copies:
        atoms.rotate(30, "z", rotate_cell=True)
    assert sorted(k % 4 for k in choose(frames + copies, [], 8)) == [0, 1, 2, 3]
    assert choose(copies, frames, 8) == []
    assert choose([], frames, 8) == []


def test_farthest_from_labels_is_first():
    known = rattled(5, scale=0.02)
    far = ase.build.bulk("Cu", a=4.2, cubic=True)
    assert choose([*rattled(3, seed=1, scale=0.02), far], known, 1) == [3]


def test_frames_of_a_small_spread_are_left_out():
    chosen = choose(rattled(8), [], 4, spreads=[0, 1, 0, 1, 0, 1, 0, 1])
    assert sorted(chosen) == [1, 3, 5, 7]


def test_features_of_a_network_choose(tmp_path):
    run = untrained_run(tmp_path, numbers=(29,))
    frames = rattled(3)
    found = features(frames, run)
    assert found.shape[0] == 3
    assert np.isfinite(found).all()
    assert sorted(choose([*frames, frames[1].copy()], [], 4, network=run))[:1] == [0]
    assert len(choose([*frames, frames[1].copy()], [], 4, network=run)) == 3
