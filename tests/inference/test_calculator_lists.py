"""Neighbour lists of the calculator: kept, enlarged, in any cell, without losing precision."""

import jax.numpy as jnp
import numpy as np
import pytest

import eqfuse
from eqfuse.data import neighbor_list
from eqfuse.inference.evaluator import Program
from eqfuse.inference.lists import is_valid, list_pairs, running_count
from tests.small_runs import copper_cell


def test_a_list_is_kept_while_the_cell_deforms_within_the_skin(atoms, run):
    fresh, atoms.calc = (eqfuse.Calculator(run, skin=skin) for skin in (0.0, 0.5))
    atoms.get_forces()
    listed = atoms.calc._evaluator.listed
    rng = np.random.default_rng(0)
    for n in range(4):
        strain = np.eye(3) + rng.normal(scale=0.01, size=(3, 3))
        atoms.set_cell(atoms.cell.array @ strain, scale_atoms=True)
        atoms.positions += rng.normal(scale=0.01, size=(4, 3))
        expected = fresh.get_forces(atoms)
        np.testing.assert_allclose(atoms.get_forces(), expected, rtol=0, atol=1e-10)
        assert n or atoms.calc._evaluator.listed is listed
    atoms.set_cell(0.8 * atoms.cell.array, scale_atoms=True)
    np.testing.assert_allclose(atoms.get_forces(), fresh.get_forces(atoms), rtol=0, atol=1e-10)
    assert atoms.calc._evaluator.listed is not listed


@pytest.mark.parametrize(("copies", "skin"), [((2, 2, 2), 1.5), ((3, 3, 1), 0.7)])
def test_lists_of_few_atoms_are_kept_for_longer(atoms, run, copies, skin):
    """All of 32 atoms or 36 move by one length; distances change by at most twice that."""
    rng = np.random.default_rng(0)
    atoms = atoms.repeat(copies)
    atoms.calc, fresh = eqfuse.Calculator(run), eqfuse.Calculator(run, skin=0.0)
    atoms.get_forces()
    listed, start = atoms.calc._evaluator.listed, atoms.positions.copy()
    step = rng.normal(size=start.shape)
    step *= skin / 2 / np.linalg.norm(step, axis=1, keepdims=True)
    for part, is_kept in ((0.99, True), (1.01, False)):
        atoms.positions = start + part * step
        expected = fresh.get_forces(atoms)
        np.testing.assert_allclose(atoms.get_forces(), expected, rtol=0, atol=1e-10)
        assert (atoms.calc._evaluator.listed is listed) == is_kept


def test_more_neighbours_than_a_program_holds_enlarge_it(run):
    """Under pressure all second neighbours come within the cutoff, in one list."""
    atoms = copper_cell(scale=0.01)
    atoms.set_cell(1.02 * atoms.cell.array, scale_atoms=True)
    calculator, fresh = (eqfuse.Calculator(run, skin=skin) for skin in (1.0, 0.0))
    calculator.get_forces(atoms)
    listed, edges = calculator._evaluator.listed, calculator._evaluator.listed.sizes.edges
    atoms.set_cell(0.92 * atoms.cell.array, scale_atoms=True)
    forces = calculator.get_forces(atoms)
    assert calculator._evaluator.listed is listed
    assert listed.sizes.edges > edges
    np.testing.assert_allclose(forces, fresh.get_forces(atoms), rtol=0, atol=1e-10)


def test_nothing_is_compiled_while_neighbours_change_within_a_bucket(atoms, rng):
    calculator, counts = atoms.calc, set()
    # In the larger cell the second shell, at 3.61 Å, is not made of images of the atom itself.
    atoms = atoms.repeat(2)
    atoms.positions += rng.normal(scale=0.02, size=atoms.positions.shape)
    calculator.get_forces(atoms)
    compiled = calculator.num_compilations
    for _ in range(8):
        atoms.positions += rng.normal(scale=0.02, size=atoms.positions.shape)
        calculator.get_forces(atoms)
        counts.add(len(neighbor_list(atoms.positions, atoms.cell.array, atoms.pbc, 3.6)[0]))
    assert len(counts) > 3
    assert calculator.num_compilations == compiled


def test_atoms_many_cells_away_lose_no_precision(run, atoms):
    """float32 resolves 1e-4 Å at 1e3 Å, which is 1e-3 of these forces."""
    expected, calculator = atoms.get_forces(), eqfuse.Calculator(run, dtype="float32")
    atoms.positions += np.random.default_rng(0).integers(-300, 300, (4, 3)) @ atoms.cell.array
    scale = 1e-5 * np.abs(expected).max()
    np.testing.assert_allclose(calculator.get_forces(atoms), expected, rtol=0, atol=scale)


@pytest.mark.slow
def test_atoms_that_come_and_go_compile_little(run):
    """Vacancies use the program of the whole crystal, and many sizes a few programs."""
    calculator, fresh = (eqfuse.Calculator(run, dtype="float64") for _ in range(2))
    for one in (calculator, fresh):
        one._evaluator.program = Program(one.network.module)
    crystal = copper_cell((2, 2, 1), seed=1)
    for count in (16, 15, 14, 12, 16, 9, 15):
        energy = calculator.get_potential_energy(crystal[:count])
        assert energy == pytest.approx(fresh.get_potential_energy(crystal[:count]), abs=1e-9)
        fresh._evaluator.program.sizes.clear()
        fresh._evaluator.listed = None
    assert calculator.num_compilations == 1
    # it has no other sizes to use; with headroom, the second 16 has others than the first
    assert fresh.num_compilations == 6
    added = crystal.repeat((1, 1, 2))
    for count in range(17, 33):
        calculator.get_potential_energy(added[:count])
    assert calculator.num_compilations <= 8


CUTOFF, SKIN = 4.0, 0.8


@pytest.mark.parametrize("count", [1, 16, 37, 5000])
def test_places_are_running_count(count):
    keep = np.random.default_rng(count).random(count) < 0.5
    expected = np.append(0, np.cumsum(keep))
    np.testing.assert_array_equal(running_count(jnp.asarray(keep)), expected)


def test_a_list_is_valid_as_long_as_it_holds_all_pairs():
    """Random deformations and moves: wherever a pair is missing, the list is not valid."""
    crystal, rng = copper_cell((2, 1, 1), 0.2), np.random.default_rng(1)
    old = crystal.positions
    cell = crystal.cell.array + np.random.default_rng(0).normal(scale=0.3, size=(3, 3))

    def pairs(positions, cell, reach):
        senders, receivers, images = list_pairs(positions, cell, np.ones(3, bool), reach)
        return {*map(tuple, np.column_stack([senders, receivers, images]).tolist())}

    listed, missing, kept = pairs(old, cell, CUTOFF + SKIN), 0, 0
    for scale in np.linspace(0.0, 0.25, 60):
        deformation = np.eye(3) + rng.normal(scale=scale / 2, size=(3, 3))
        now = old @ deformation + rng.normal(scale=scale, size=old.shape)
        complete = pairs(now, cell @ deformation, CUTOFF) <= listed
        valid = is_valid((old, cell), (now, cell @ deformation), CUTOFF, SKIN)
        assert complete or not valid
        missing += not complete
        kept += valid
    assert missing > 5
    assert kept > 5
    assert not is_valid((old, np.zeros((3, 3))), (old, cell), CUTOFF, SKIN)
    assert is_valid((old, cell), (old + 0.0, cell), CUTOFF, 0.0)
    assert not is_valid((old, cell), (old + 0.4001 * np.eye(3)[0], cell), CUTOFF, 0.8)
