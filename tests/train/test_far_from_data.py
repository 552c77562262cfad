"""Two atoms at any distance, and a bond that is stretched, with ZBL and `model.shift=zero`.

What is tested holds for any parameters, since it is far from all data: those here are untrained.
"""

import functools
import itertools

import jax
import numpy as np
import pytest
from ase.build import molecule

from eqfuse.data import Dataset, Shape, Structure, collate
from eqfuse.data.samples import prepare_samples
from eqfuse.models import predict
from eqfuse.train.molecule import build_potential
from eqfuse.train.settings.options import parse
from eqfuse.train.step import initial_parameters

CUTOFF, COULOMB = 4.5, 14.399645
NEAR = np.array([0.003, *np.arange(0.02, 0.301, 0.02)])
FAR = np.array([3.0, CUTOFF - 0.01, CUTOFF, 6.0, 20.0])
METHANE = molecule("CH4")
KINDS = list(itertools.product((False, True), ("mean", "zero")))


def pair(distance) -> Structure:
    return Structure([1, 1], [[0, 0, 0], [0, 0, distance]])


def stretched(distance) -> Structure:
    """Return methane with its last hydrogen at another distance from the carbon."""
    positions = METHANE.positions.copy()
    positions[-1] *= distance / np.linalg.norm(positions[-1])
    return Structure(METHANE.numbers, positions)


@pytest.fixture(scope="module")
def energies():
    """Return energies of a kind of network, relative to isolated atoms, eV: H2, methane, CH3."""
    rng = np.random.default_rng(0)
    frames = [  # bound by 5 eV an atom
        Structure(s.numbers, s.positions, energy=-25.0, forces=rng.normal(size=(5, 3)))
        for s in map(stretched, (1.0, 1.1, 1.2))
    ]
    dataset = Dataset.build(frames, cutoff=CUTOFF, val_size=1, references={1: 0.0, 6: 0.0})
    distances = np.concatenate([NEAR, FAR])
    methyl = Structure(METHANE.numbers[:-1], METHANE.positions[:-1])
    structures = [*map(pair, distances), *map(stretched, distances), methyl]
    with pytest.MonkeyPatch.context() as patch:  # nearer than data may be
        patch.setitem(prepare_samples.__globals__, "LEAST_DISTANCE", 0.0)
        samples = prepare_samples(structures, CUTOFF, dataset.species, None)
    shape = Shape(
        sum(s.num_atoms for s in samples) + 1, sum(s.num_edges for s in samples), len(samples) + 1
    )
    small = ["model=nequip", "data=ethanol", "channels=2", "layers=1", "lmax=1"]

    def potential_of(zbl, shift):
        names = [f"model.zbl={str(zbl).lower()}", f"model.shift={shift}", f"cutoff={CUTOFF}"]
        return build_potential(parse([*small, *names]).model, dataset, "xla")[0]

    with jax.enable_x64(True):
        graph = collate(samples, shape, np.float64).graph
        params = initial_parameters(potential_of(False, "mean"), 0, graph, "float64")["params"]

    @functools.cache
    def compiled(zbl):
        return jax.jit(functools.partial(predict, potential_of(zbl, "mean")))

    @functools.cache
    def of(zbl, shift):
        given = np.array(potential_of(zbl, shift).shift)  # a parameter, which needs no compilation
        with jax.enable_x64(True):
            found = compiled(zbl)({"params": params | {"shift": given}}, graph).energy
        h2, methane = np.split(np.asarray(found[:-2]), 2)
        return h2, methane, float(found[-2])

    return of


@pytest.mark.parametrize("shift", ["mean", "zero"])
def test_with_zbl_near_atoms_repel_each_other_as_bare_nuclei(energies, shift):
    """The network is finite at every distance, and ZBL is not."""
    for found, plain, charges in zip(
        energies(True, shift)[:2], energies(False, shift)[:2], (1, 6), strict=True
    ):
        assert (np.diff(found[: len(NEAR)]) < 0).all()
        np.testing.assert_allclose(NEAR[0] * found[0], COULOMB * charges, rtol=0.05)
        assert np.ptp(plain[: len(NEAR)]) < 50 < 1000 < np.ptp(found[: len(NEAR)])


@pytest.mark.parametrize(("zbl", "shift"), KINDS)
def test_beyond_the_cutoff_atoms_have_the_energy_of_isolated_ones(energies, zbl, shift):
    h2, methane, methyl = energies(zbl, shift)
    beyond = np.concatenate([NEAR, FAR]) >= CUTOFF
    np.testing.assert_array_equal(h2[beyond], 0)
    np.testing.assert_allclose(methane[beyond], methyl, rtol=0, atol=1e-12)
    assert abs(methyl) > 1
    last = np.flatnonzero(~beyond)[-1]  # 0.01 Å within
    assert 0 < abs(h2[last]) < 1e-3
    assert abs(methane[last] - methyl) < 1e-3
    # at 3 Å hydrogen is bound by the shift alone: the mean energy of the data, or none
    assert FAR[0] == 3.0
    bound = h2[len(NEAR)]
    assert bound < -7 if shift == "mean" else abs(bound) < 0.5


@pytest.mark.parametrize(("shift", "expected"), [("mean", -1.5), ("zero", 0.0)])
def test_atoms_begin_at_the_mean_energy_or_at_their_reference(shift, expected):
    frames = [Structure([1, 1], [[0, 0, 0], [0, 0, d]], energy=-5.0) for d in (0.7, 0.8, 0.9)]
    dataset = Dataset.build(frames, cutoff=3.0, val_size=1, references={1: -1.0})
    config = parse(["model=mace", "data=ethanol", "channels=2", f"model.shift={shift}"])
    potential, fields = build_potential(config.model, dataset, None)
    assert potential.shift == (expected,)
    assert "shift" not in fields
