"""Frames of a material: cells, defects, strains, and dynamics within limits."""

import itertools
from types import SimpleNamespace

import ase.build
import numpy as np
import pytest
from ase.calculators.emt import EMT
from ase.calculators.lj import LennardJones
from ase.calculators.singlepoint import SinglePointCalculator
from ase.data import covalent_radii

from eqfuse.certify.properties import is_dense, relaxed
from eqfuse.data import DataError
from eqfuse.distill import sampling
from eqfuse.distill.sampling import Conditions, Limits, at_minimum, cells_of, rattled, trajectory
from eqfuse.distill.teacher import labelled
from tests.distill.calculators import Failing

COPPER = ase.build.bulk("Cu", cubic=True)
SHORT = Conditions(temperature=300.0, pressure=None, frames=4, every=5, timestep=2.0)


def run(atoms, calculator, at, seed=0, limits=None):
    """Return the frames of a trajectory, and the frame, reason and failure of its end, or None."""
    rng = np.random.default_rng(seed)
    every = [*trajectory(atoms, calculator, at, rng, limits or Limits())]
    frames = [frame for frame, why, _ in every if not why]
    assert len(every) - len(frames) <= 1
    return frames, every[-1] if every[-1][1] else None


def test_small_cells_are_repeated_along_periodic_vectors():
    slab = ase.build.fcc111("Cu", (1, 1, 3), vacuum=8.0)
    cells = cells_of([ase.build.bulk("Cu"), slab, ase.build.molecule("H2O")], 16)
    assert [len(cell) for cell in cells] == [16, 12, 3]
    lengths = cells[0].cell.lengths()
    assert lengths.max() / lengths.min() <= 2
    assert cells[1].cell.lengths()[2] == slab.cell.lengths()[2]


def test_cells_at_the_minimum_have_all_strains_volumes_and_moved_atoms():
    """A cell of three elements whose order has no centre of inversion: strains move its atoms."""
    start = ase.build.bulk("Cu", a=3.8).repeat((1, 1, 4))
    start.symbols[:2] = "AuAg"
    start.rattle(0.05, seed=1)
    minimum = relaxed(start, EMT(), cell=True)
    given = start, 8, EMT(), np.random.default_rng(0)
    made = [*itertools.islice(at_minimum(*given), 48)]
    assert {a.info["config_type"] for a in made} == {"minimum"}
    places, strains = minimum.get_scaled_positions(), []
    for k, (as_they_are, relaxes) in enumerate(zip(made[::3], made[1::3], strict=True)):
        for atoms in (as_they_are, relaxes):
            change = np.linalg.inv(minimum.cell.array) @ atoms.cell.array - np.eye(3)
            i, j = ((0, 0), (1, 1), (2, 2), (1, 2), (0, 2), (0, 1))[k % 6]
            strain = change[i, j] * (1 if i == j else 2)
            assert np.count_nonzero(np.abs(change) > 1e-12) == (1 if i == j else 2)
            assert 0.005 <= (-1) ** (k // 6) * strain <= 0.02
            strains.append(strain)
        assert np.allclose(as_they_are.get_scaled_positions(), places)
        assert np.abs(labelled(relaxes, EMT()).get_forces()).max() < 2e-3
    assert len({*strains}) == 32
    assert [len(atoms) for atoms in made[2::3]] == [4, 8] * 8
    volumes = [a.get_volume() / minimum.get_volume() for a in made[2::6]]
    assert volumes == pytest.approx([0.94, 1.015, 1.06, 0.985, 1.03, 0.97, 1.09, 1.12])
    for atoms in made[5::6]:
        moved = cells_of([minimum], 8)[0].positions - atoms.positions
        assert 0.002 < moved.std() < 0.05


def test_atoms_that_no_strain_moves_are_moved_in_each_turn():
    """Those of copper are centres of inversion: relaxed under strain, they would be no news."""
    made = [*itertools.islice(at_minimum(COPPER, 8, EMT(), np.random.default_rng(0)), 10)]
    assert [len(atoms) for atoms in made] == [4, 8, 4, 4, 8] * 2
    places = cells_of([COPPER], 8)[0].get_scaled_positions()
    assert all(np.abs(a.get_scaled_positions() - places).max() > 1e-4 for a in made[1::5])


def test_relaxations_under_strain_are_short(monkeypatch):
    """Relax a disordered alloy, which takes more than twenty steps without the bound."""
    monkeypatch.setattr(sampling, "_STEPS", 5)
    start = COPPER.repeat(2)
    start.symbols[np.random.default_rng(0).permutation(32)[:12]] = "Au"
    calls, compute = [], EMT.calculate
    monkeypatch.setattr(EMT, "calculate", lambda *a, **k: calls.append(0) or compute(*a, **k))
    cells = at_minimum(start, 32, EMT(), np.random.default_rng(0))
    next(cells)
    before = len(calls)
    next(cells)
    assert len(calls) - before <= 6


def test_slabs_molecules_and_gases_are_not_dense():
    slab = ase.build.fcc111("Cu", (2, 2, 3), vacuum=8.0)
    assert not is_dense(slab)
    slab.pbc = True
    gas = ase.build.bulk("Cu", a=12.6, cubic=True)  # planes are 6.3 Å apart along vectors
    found = [is_dense(a) for a in (slab, gas, ase.build.molecule("H2O"))]
    assert found == [False] * 3
    assert is_dense(ase.build.bulk("Cu"))
    assert is_dense(COPPER)  # 1.8 Å apart


def test_defects_are_a_missing_atom_and_vacuum():
    bulk, vacancy, surface = cells_of([COPPER], 32, ("vacancy", "surface"))
    assert (len(bulk), len(vacancy), len(surface)) == (32, 31, 32)
    assert [a.info["config_type"] for a in (vacancy, surface)] == ["vacancy", "surface"]
    # one spacing of planes, of half a vector of the small cell, is in the vacuum
    grown = surface.cell.lengths() - bulk.cell.lengths()
    assert sorted(grown.round(6)) == [0, 0, pytest.approx(10 - 3.61 / 2)]


def test_surface_of_a_molecule_is_refused():
    with pytest.raises(DataError, match="defects=surface needs a crystal, and H2O is not"):
        cells_of([ase.build.molecule("H2O")], 8, ("surface",))


def test_strain_has_its_deviation_and_scales_atoms():
    rng, strains = np.random.default_rng(0), []
    for _ in range(300):
        made = rattled(COPPER, rng, 0.03, 0.0)
        assert np.allclose(made.get_scaled_positions(), COPPER.get_scaled_positions())
        strains.append(made.cell.array @ np.linalg.inv(COPPER.cell.array) - np.eye(3))
    assert np.std(strains) == pytest.approx(0.03, rel=0.1)  # 2700 numbers: 4% at three deviations


@pytest.mark.parametrize("pbc", [(True, True, False), (False, False, False)])
def test_strain_leaves_vectors_that_are_not_periodic(pbc):
    slab = ase.build.fcc111("Cu", (1, 1, 3), vacuum=8.0)
    slab.pbc = pbc
    made = rattled(slab, np.random.default_rng(0), 0.03, 0.0)
    assert (made.cell[2] == slab.cell[2]).all()
    assert np.allclose(made.positions[:, 2], slab.positions[:, 2])
    assert (made.cell[0, 0] != slab.cell[0, 0]) == pbc[0]


def test_molecule_without_cell_is_rattled():
    water = ase.build.molecule("H2O")
    made = rattled(water, np.random.default_rng(0), 0.03, 0.1)
    assert not made.cell.any()
    assert 0 < np.abs(made.positions - water.positions).max() < 1


def test_trajectory_has_the_labels_of_its_frames():
    frames, stop = run(COPPER, EMT(), SHORT)
    assert stop is None
    assert [frame.info["temperature_k"] for frame in frames] == [300.0] * 4
    energy = EMT().get_potential_energy(frames[-1])
    assert frames[-1].get_potential_energy() == pytest.approx(energy, 1e-12)
    assert np.abs(frames[-1].positions - COPPER.positions).max() > 0.01
    again, _ = run(COPPER, EMT(), SHORT)  # of the same seed
    assert (again[-1].positions == frames[-1].positions).all()


def test_pressure_compresses():
    frames, stop = run(COPPER, EMT(), SHORT._replace(pressure=20.0, frames=40))
    assert stop is None
    assert frames[-1].get_volume() < 0.97 * COPPER.get_volume()
    assert np.allclose(frames[-1].cell.array, np.eye(3) * frames[-1].cell[0, 0])


@pytest.mark.parametrize(
    ("limits", "message"),
    [
        (Limits(force=0.01), "a force of"),
        (Limits(closeness={(29, 29): 1.2}), "of the sum of their covalent radii"),
        (Limits(network=SimpleNamespace(uncertainty={"limit": 0.2})), "a spread of 0.3 eV"),
    ],
)
def test_trajectory_stops_before_a_frame_beyond_a_limit(limits, message, monkeypatch):
    spreads = iter((0.1, 0.3))

    def predict(*_):
        spread = SimpleNamespace(energies=np.array([0.0, next(spreads)]))
        return [SimpleNamespace(spread=spread)]

    monkeypatch.setattr(sampling, "predict", predict)
    frames, (last, why, failed) = run(COPPER, EMT(), SHORT, 0, limits)
    assert len(frames) == (1 if limits.network else 0)
    assert message in why
    assert not failed
    assert "momenta" not in last.arrays
    assert last.calc is None


def test_trajectory_ends_where_its_calculator_fails():
    frames, (last, why, failed) = run(COPPER, Failing(100.0), SHORT)
    assert frames == []
    assert (why, failed, len(last)) == ("RuntimeError: no convergence", True, 4)


def test_limits_are_those_that_labels_support():
    argon = LennardJones(sigma=3.4, epsilon=0.01)
    near, far = (labelled(ase.Atoms("Ar2", [(0, 0, 0), (0, 0, r)]), argon) for r in (3.3, 3.8))
    force = np.linalg.norm(near.get_forces()[0])
    limits = Limits.of([far, near])
    assert limits.closeness == {(18, 18): pytest.approx(3.3 / (2 * covalent_radii[18]))}
    assert limits[1:3] == (pytest.approx(max(1.5 * force, 5)), (0.0, np.inf))


def test_limit_of_distances_is_that_of_their_elements():
    """Two hydrogens of ethanol as far as an O-H bond is long are no ethanol."""
    ethanol = ase.build.molecule("CH3CH2OH")
    bound = ethanol.copy()
    bound.positions[8] = bound.positions[7] + (0, 0, 0.9)
    assert ethanol.symbols[[7, 8]].get_chemical_formula() == "H2"
    for atoms in (ethanol, bound):
        atoms.calc = SinglePointCalculator(atoms, energy=0.0, forces=np.zeros((9, 3)))
    limits = Limits.of([ethanol])
    assert limits.passed(ethanol) == ""
    assert limits.passed(bound) == "H and H at 1.45 of the sum of their covalent radii"


def test_limits_are_of_dynamics_where_there_is_any():
    near, far = (labelled(ase.build.bulk("Cu", a=a), EMT()) for a in (3.4, 3.7))
    near.info["config_type"], far.info["config_type"] = "strained", "dynamics"
    both, strained = Limits.of([near, far]), Limits.of([near])
    assert both.volume == pytest.approx((0.95 * 3.7**3 / 4, 1.05 * 3.7**3 / 4))
    assert strained.volume == pytest.approx((0.95 * 3.4**3 / 4, 1.05 * 3.4**3 / 4))
    assert both.closeness[29, 29] > strained.closeness[29, 29]
    assert both.passed(near) == "a volume of 9.83 Å³ per atom"
    assert strained.passed(near) == ""


def test_timestep_is_short_with_hydrogen():
    assert [sampling.timestep_of(ase.Atoms(s)) for s in ("CuH", "CuO", "Cu")] == [0.5, 1.0, 2.0]
