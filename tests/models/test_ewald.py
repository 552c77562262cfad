"""Sums of latent charges against sums that are written out, and what physics demands of them."""

import functools
import itertools
import math

import ase.build
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.special import erf

from eqfuse.models.ewald import CONSTANT, LatentEwald, Reach

E2 = 14.399645
"""e^2 / (4 pi epsilon_0), eV Å."""
CELL = np.array([[5.0, 0, 0], [1, 6, 0], [0.5, -0.7, 7]])


SUM = jax.jit(LatentEwald.energies, static_argnums=(0, 5))


def energies(ewald, charges, positions, cell=None, index=None, reach=None):
    count = len(positions)
    cells = np.zeros((1, 3, 3)) if cell is None else np.reshape(cell, (-1, 3, 3))
    index = np.zeros(count, np.int32) if index is None else index
    pbc = np.abs(np.linalg.det(cells)) > 0
    counts = np.bincount(index, minlength=len(cells))
    reach = reach or ewald.reach(cells, np.repeat(pbc[:, None], 3, axis=1), counts)
    charges = np.reshape(charges, (count, -1))
    return SUM(ewald, charges, positions, cells, index, reach)


def molecule(count=7, seed=0):
    rng = np.random.default_rng(seed)
    return rng.normal(size=(count, 1)), rng.normal(size=(count, 3)) * 2


def written_out(charges, positions, cell, sigma, largest) -> float:
    """Return the energy as the sum over waves of the paper."""
    reciprocal = 2 * np.pi * np.linalg.inv(cell).T
    most = np.ceil(largest * np.linalg.norm(cell, axis=1) / (2 * np.pi)).astype(int) + 1
    total = 0.0
    for m in itertools.product(*(range(-n, n + 1) for n in most)):
        k = m @ reciprocal
        if 0 < k @ k < largest**2:
            s = np.sum(charges * np.exp(1j * positions @ k))
            total += math.exp(-(sigma**2) * (k @ k) / 2) / (k @ k) * abs(s) ** 2
    return 90.4756 / abs(np.linalg.det(cell)) * total


def test_constant_is_that_of_the_paper():
    assert pytest.approx(90.4756, rel=1e-6) == CONSTANT
    assert pytest.approx(E2 * 2 * math.pi, rel=1e-6) == CONSTANT


@pytest.mark.parametrize("remove_self", [True, False])
def test_direct_sum_is_that_written_out(remove_self):
    charges, positions = molecule()
    ewald = LatentEwald(sigma=0.8, remove_self=remove_self)
    expected = 0.0
    for i, j in itertools.product(range(7), repeat=2):
        r = np.linalg.norm(positions[i] - positions[j])
        if i != j:
            expected += E2 / 2 * charges[i, 0] * charges[j, 0] * erf(r / (0.8 * math.sqrt(2))) / r
        elif not remove_self:
            expected += E2 / 2 * charges[i, 0] ** 2 * math.sqrt(2 / math.pi) / 0.8
    assert float(energies(ewald, charges, positions).sum()) == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("hard", [True, False])
def test_periodic_sum_is_that_written_out(hard):
    charges, positions = molecule()
    ewald = LatentEwald(cutoff=math.pi if hard else None, hard=hard, remove_self=False)
    found = float(energies(ewald, charges, positions, CELL).sum())
    expected = written_out(charges[:, 0], positions, CELL, 1.0, math.pi if hard else 6.5)
    assert found == pytest.approx(expected, rel=1e-6)


def test_rock_salt_has_its_madelung_constant():
    """Far from the width of the Gaussians, point charges: -1.747565 e^2 / d for each pair."""
    salt = ase.build.bulk("NaCl", "rocksalt", a=60.0, cubic=True)
    charges = np.where(salt.numbers == 11, 1.0, -1.0)
    found = float(energies(LatentEwald(sigma=2.0), charges, salt.positions, salt.cell.array).sum())
    assert found == pytest.approx(-4 * 1.7475646 * E2 / 30.0, rel=1e-6)


def test_energy_is_smooth_where_waves_enter():
    """The second derivative by the length of a cell has no jump, which a hard cutoff has."""
    charges, positions = molecule()

    def energy(length, hard):
        ewald = LatentEwald(cutoff=3.0, hard=hard)
        cell = length * jnp.eye(3)
        reach = Reach((6, 6, 6), 7)
        scaled = jnp.asarray(positions) / 7.0 * length
        index = jnp.zeros(7, jnp.int32)
        return ewald.energies(jnp.asarray(charges), scaled, cell[None], index, reach).sum()

    lengths = np.linspace(8.0, 8.8, 41)
    jumps = [
        np.abs(np.diff(jax.jit(jax.vmap(functools.partial(energy, hard=hard)))(lengths), n=2)).max()
        for hard in (False, True)
    ]
    assert jumps[0] < 0.05 * jumps[1]


def test_structures_side_by_side_are_those_alone():
    """Two cells and a molecule, padded; several charges of an atom."""
    rng = np.random.default_rng(3)
    counts, cells = [4, 7, 3], np.stack([5.0 * np.eye(3), np.zeros((3, 3)), np.diag([4.0, 6, 9])])
    charges, positions = rng.normal(size=(16, 2)), rng.normal(size=(16, 3)) * 2
    charges[14:] = 0
    index = np.repeat([0, 1, 2, 3], [*counts, 2]).astype(np.int32)
    ewald = LatentEwald()
    pbc = np.array([[True] * 3, [False] * 3, [True] * 3])
    reach = ewald.reach(cells, pbc, counts).grown(Reach((0, 0, 0), 9))
    found = energies(
        ewald, charges, positions, np.append(cells, np.zeros((1, 3, 3)), 0), index, reach
    )
    alone = [
        energies(ewald, charges[index == g][:, [c]], positions[index == g], cells[g])
        for g in range(3)
        for c in range(2)
    ]
    expected = np.concatenate([alone[2 * g] + alone[2 * g + 1] for g in range(3)])
    np.testing.assert_allclose(found[:14], expected, rtol=1e-12)
    np.testing.assert_array_equal(found[14:], 0)


@pytest.mark.parametrize(
    ("cell", "most"), [(None, 1e9), (CELL, 1e9), pytest.param(CELL, 0, marks=pytest.mark.slow)]
)
def test_derivatives_are_those_of_differences(cell, most, monkeypatch):
    """By the direct sum, by waves and on a mesh."""
    monkeypatch.setattr("eqfuse.models.ewald.MOST_TERMS", most)
    charges, positions = molecule(4)
    ewald, index = LatentEwald(), jnp.zeros(4, jnp.int32)
    cells = np.zeros((1, 3, 3)) if cell is None else cell[None]
    reach = ewald.reach(cells, [[cell is not None] * 3], [4])
    reach = reach if cell is None else reach.grown(Reach((8, 8, 8), 4))

    def energy(arguments):
        q, x, strain = arguments
        deform = jnp.eye(3) + strain
        return ewald.energies(q, x @ deform, jnp.asarray(cells) @ deform, index, reach).sum()

    rng = np.random.default_rng(1)
    start = charges, positions, np.zeros((3, 3))
    along, other = ([rng.normal(size=a.shape) for a in start] for _ in range(2))

    def slope(arguments):
        gradient = jax.grad(energy)(arguments)
        return sum(jnp.vdot(g, d) for g, d in zip(gradient, other, strict=True))

    def moved(step):
        return tuple(a + step * d for a, d in zip(start, along, strict=True))

    for function in (energy, slope):  # first and second derivatives
        compiled = jax.jit(jax.value_and_grad(function))
        (before, _), (after, _) = (compiled(moved(step)) for step in (-1e-5, 1e-5))
        found = sum(np.vdot(g, d) for g, d in zip(compiled(start)[1], along, strict=True))
        assert found == pytest.approx(float(after - before) / 2e-5, rel=1e-6, abs=1e-6)


@pytest.mark.parametrize(
    ("shape", "hard"),
    [
        ((5, 6, 7), False),
        ((4, 9, 12), True),
        pytest.param((5, 6, 7), True, marks=pytest.mark.slow),
        pytest.param((4, 9, 12), False, marks=pytest.mark.slow),
    ],
)
def test_mesh_has_the_sums_written_out(shape, hard, monkeypatch):
    """Two cells, one oblique, and padding, with all derivatives.

    The bound is that of forces for one charge, 2e-5, for two of an atom and twice the energy; the
    derivative by a cell is that of all its atoms.
    """
    rng = np.random.default_rng(0)
    charges, positions = rng.choice([-1.0, 1.0], (9, 2)), rng.normal(size=(9, 3)) * 6
    charges[7:] = 0
    positions[3] = [0.0, -1e-18, 0.0]  # which rounds to the other end of the cell
    index = jnp.asarray([0] * 4 + [1] * 3 + [2] * 2, jnp.int32)
    oblique = np.array([[5.0, 0, 0], [1, 6, 0], [0.5, -1, 7]])
    cells = jnp.asarray([np.diag(1.0 * np.array(shape)), oblique])
    ewald = LatentEwald(sigma=0.9, cutoff=math.pi if hard else None, hard=hard)
    reach = ewald.reach(np.asarray(cells), [[True] * 3] * 2, [4, 3])

    def total(q, x, cells):
        energies = ewald.energies(q, x, cells, index, reach)
        return energies[:4].sum() + 2 * energies[4:].sum()

    found, expected = [], []
    for results, most in ((found, 0), (expected, 1e9)):
        monkeypatch.setattr("eqfuse.models.ewald.MOST_TERMS", most)
        own = functools.partial(total)  # or what was traced with the other would be found again
        results += jax.jit(jax.value_and_grad(own, (0, 1, 2)))(charges, positions, cells)
    assert float(found[0]) != float(expected[0])
    for a, b, most in zip(found[1], expected[1], (8e-5, 8e-5, 4 * 8e-5), strict=True):
        np.testing.assert_allclose(a, b, rtol=0, atol=most)
    assert float(found[0]) == pytest.approx(float(expected[0]), abs=5e-6)
