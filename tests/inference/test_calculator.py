import copy
import pickle
import re
import runpy
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import ase
import ase.build
import ase.io
import numpy as np
import pytest
from ase import units
from ase.calculators.calculator import PropertyNotImplementedError
from ase.calculators.emt import EMT
from ase.md.verlet import VelocityVerlet

import eqfuse
from eqfuse.data import DataError, Structure
from eqfuse.inference.pairs import Program
from eqfuse.inference.predict import Network, predict
from eqfuse.train import CheckpointError
from eqfuse.train.main import main
from tests.small_runs import TINY


@pytest.fixture(scope="module")
def run(copper, tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "copper"
    settings = ["data=extxyz", f"data.path={copper}", *TINY, "dtype=float64", "epochs=60"]
    # in so few steps Adam comes further
    assert main([*settings, "cutoff=3.6", "training.optimizer=adam", f"run={folder}"]) == 0
    return folder


@pytest.fixture
def atoms(run):
    atoms = ase.build.bulk("Cu", cubic=True)
    atoms.rattle(0.05, seed=0)
    atoms.calc = eqfuse.Calculator(run)
    return atoms


def test_stress_is_the_strain_derivative(atoms):
    """Central differences of step 1e-4: errors of order 1e-8 of the energy's third derivative."""
    stress, cell, step = atoms.get_stress(), atoms.cell.array, 1e-4
    for voigt, (i, j) in enumerate(((0, 0), (1, 1), (2, 2), (1, 2), (0, 2), (0, 1))):
        energies = []
        for sign in (1, -1):
            strain = np.eye(3)
            strain[i, j] += sign * step / 2
            strain[j, i] += sign * step / 2
            moved = atoms.copy()
            moved.set_cell(cell @ strain, scale_atoms=True)
            moved.calc = atoms.calc
            energies.append(moved.get_potential_energy())
        slope = (energies[0] - energies[1]) / (2 * step) / atoms.get_volume()
        assert stress[voigt] == pytest.approx(slope, abs=1e-7, rel=1e-5)
    assert np.abs(stress).max() > 1e-4


def test_energies_add_up(atoms):
    assert atoms.get_potential_energies().sum() == pytest.approx(atoms.get_potential_energy())


def test_stress_is_computed_when_it_is_asked_for(atoms):
    """Stresses of the atoms add up, and those of equal atoms are equal."""
    atoms.get_forces()
    assert "stress" not in atoms.calc.results
    evaluated = atoms.calc._evaluated
    stress, stresses = atoms.get_stress(), atoms.get_stresses()
    assert atoms.calc._evaluated is evaluated
    np.testing.assert_allclose(stresses.sum(axis=0), stress, rtol=0, atol=1e-12)
    assert np.ptp(stresses, axis=0).max() > 1e-5
    twice = atoms.repeat((2, 1, 1))
    twice.calc = atoms.calc
    expected = np.concatenate([stresses, stresses]) / 2
    np.testing.assert_allclose(twice.get_stresses(), expected, rtol=0, atol=1e-12)
    isolated = ase.Atoms("Cu2", [[0, 0, 0], [2, 1, 0]])
    isolated.calc = atoms.calc
    with pytest.raises(PropertyNotImplementedError):
        isolated.get_stresses()


def test_the_hessian_is_the_derivative_of_the_forces(atoms, monkeypatch):
    """Central differences of step 1e-4, with any number of atoms large enough to be sorted."""
    monkeypatch.setattr("eqfuse.data.ordering.LARGE", 2)
    atoms.rattle(0.3, seed=3)
    found, step = eqfuse.hessian(atoms), 1e-4
    assert (np.diff(atoms.calc._listed.order) < 0).any()
    for atom, axis in ((0, 0), (1, 2), (3, 1)):
        forces = []
        for sign in (1, -1):
            moved = atoms.copy()
            moved.positions[atom, axis] += sign * step
            forces.append(atoms.calc.get_forces(moved))
        slope = -(forces[0] - forces[1]) / (2 * step)
        np.testing.assert_allclose(found[atom, axis], slope, rtol=0, atol=1e-5)
        assert np.abs(slope).max() > 1e-2
    np.testing.assert_allclose(found, found.transpose(2, 3, 0, 1), rtol=0, atol=1e-9)
    atoms.calc = EMT()
    with pytest.raises(TypeError, match=r"needs an eqfuse\.Calculator, got EMT"):
        eqfuse.hessian(atoms)


@pytest.mark.parametrize("shared", [True, False])
def test_threads_get_what_belongs_to_their_atoms(atoms, run, shared):
    """Four threads, with one calculator or with one each; the programs are shared in both."""
    rng = np.random.default_rng(0)
    structures = [atoms.copy() for _ in range(4)]
    for structure in structures:
        structure.positions += rng.normal(scale=0.05, size=atoms.positions.shape)
    expected = [(s.copy(), atoms.calc.get_forces(s)) for s in structures]
    compiled = atoms.calc.num_compilations

    def forces(structure):
        structure.calc = atoms.calc if shared else eqfuse.Calculator(run)
        found = []
        for _ in range(5):
            structure.rattle(1e-3, seed=1)
            structure.get_forces()
            structure.positions -= structure.positions - start[id(structure)]
            found.append(structure.get_forces())
        return found

    start = {id(s): s.positions.copy() for s in structures}
    with ThreadPoolExecutor(4) as pool:
        for found, (_, reference) in zip(pool.map(forces, structures), expected, strict=True):
            for one in found:
                np.testing.assert_allclose(one, reference, rtol=0, atol=1e-10)
    assert atoms.calc.num_compilations == compiled


def test_a_list_is_kept_while_the_cell_deforms_within_the_skin(atoms, run):
    fresh = eqfuse.Calculator(run, skin=0.0)
    atoms.get_forces()
    listed = atoms.calc._listed
    rng = np.random.default_rng(0)
    for n in range(4):
        strain = np.eye(3) + rng.normal(scale=0.01, size=(3, 3))
        atoms.set_cell(atoms.cell.array @ strain, scale_atoms=True)
        atoms.positions += rng.normal(scale=0.01, size=(4, 3))
        assert (atoms.calc._listed is listed) or n
        expected = fresh.get_forces(atoms)
        np.testing.assert_allclose(atoms.get_forces(), expected, rtol=0, atol=1e-10)
        if not n:
            assert atoms.calc._listed is listed
    atoms.set_cell(0.8 * atoms.cell.array, scale_atoms=True)
    np.testing.assert_allclose(atoms.get_forces(), fresh.get_forces(atoms), rtol=0, atol=1e-10)
    assert atoms.calc._listed is not listed


def test_more_neighbours_than_a_program_holds_enlarge_it(atoms, run):
    """Under pressure all second neighbours come within the cutoff, in one list."""
    atoms = ase.build.bulk("Cu", cubic=True)
    atoms.set_cell(1.02 * atoms.cell.array, scale_atoms=True)
    atoms.rattle(0.01, seed=0)
    atoms.calc = calculator = eqfuse.Calculator(run, skin=1.0)
    atoms.get_forces()
    listed, edges = calculator._listed, calculator._listed.sizes.edges
    atoms.set_cell(0.92 * atoms.cell.array, scale_atoms=True)
    forces = atoms.get_forces()
    assert calculator._listed is listed
    assert listed.sizes.edges > edges
    expected = eqfuse.Calculator(run, skin=0.0).get_forces(atoms)
    np.testing.assert_allclose(forces, expected, rtol=0, atol=1e-10)


def test_a_list_used_again_gives_what_a_new_one_does(atoms, run):
    rng = np.random.default_rng(0)
    fresh = atoms.copy()
    fresh.calc = eqfuse.Calculator(run, skin=0.0)
    for _ in range(5):
        atoms.positions += rng.normal(scale=0.05, size=atoms.positions.shape)
        fresh.positions = atoms.positions
        np.testing.assert_allclose(atoms.get_forces(), fresh.get_forces(), rtol=0, atol=1e-10)


@pytest.mark.slow
def test_atoms_of_large_structures_are_sorted_and_come_back(atoms, run, monkeypatch):
    """The calculator and `evaluate`; any number of atoms is large here."""
    atoms = atoms * (2, 2, 2)
    rng = np.random.default_rng(0)
    atoms = atoms[rng.permutation(len(atoms))]
    atoms.positions += rng.normal(scale=0.05, size=atoms.positions.shape)
    atoms.calc = eqfuse.Calculator(run)
    before = {name: atoms.calc.get_property(name, atoms) for name in ("forces", "energies")}
    monkeypatch.setattr("eqfuse.data.ordering.LARGE", 2)
    atoms.calc = eqfuse.Calculator(run)
    for name, values in before.items():
        found = atoms.calc.get_property(name, atoms)
        assert np.ptp(values, axis=0).max() > 1e-3
        np.testing.assert_allclose(found, values, rtol=0, atol=1e-10)
    assert (np.diff(atoms.calc._listed.order) < 0).any()
    structure = Structure(atoms.numbers, atoms.positions, atoms.cell.array, atoms.pbc)
    [predicted] = predict(Network(run), [structure])
    np.testing.assert_allclose(predicted.forces, before["forces"], rtol=0, atol=1e-10)


def test_nothing_is_compiled_while_neighbours_change_within_a_bucket(atoms):
    rng = np.random.default_rng(0)
    counts = set()
    calculator = atoms.calc
    # In the larger cell the second shell, at 3.61 Å, is not made of images of the atom itself.
    atoms = atoms.repeat(2)
    atoms.calc = calculator
    atoms.get_forces()
    compiled = calculator.num_compilations
    for _ in range(20):
        atoms.positions += rng.normal(scale=0.02, size=atoms.positions.shape)
        atoms.get_forces()
        counts.add(int(calculator._evaluated.num_edges))
    assert len(counts) > 3
    assert calculator.num_compilations == compiled


def test_energy_is_conserved(atoms):
    """NVE, 200 steps of 1 fs: drift below 0.1 meV per atom, where the kinetic energy moves more."""
    dynamics = VelocityVerlet(atoms, 1.0 * units.fs)
    total, kinetic = [], []
    for _ in range(200):
        dynamics.run(1)
        total.append(atoms.get_total_energy() / len(atoms))
        kinetic.append(atoms.get_kinetic_energy() / len(atoms))
    assert np.ptp(kinetic) > 1e-4
    assert np.ptp(total) < min(1e-4, 0.1 * np.ptp(kinetic))


def test_the_example_draws_the_drift(atoms, run, tmp_path, monkeypatch, capsys):
    example = Path(__file__).parents[2] / "examples" / "nve.py"
    start, picture = tmp_path / "start.xyz", tmp_path / "nve.png"
    ase.io.write(start, atoms, format="extxyz")
    trajectory = tmp_path / "nve.xyz"
    arguments = [str(run), str(start), "--picture", str(picture), "--trajectory", str(trajectory)]
    for steps in ("120", "100"):
        monkeypatch.setattr("sys.argv", [str(example), *arguments, "--steps", steps])
        runpy.run_path(str(example), run_name="__main__")
        assert picture.read_bytes().startswith(b"\x89PNG")
    long, short = capsys.readouterr().out.splitlines()
    drift = re.match(r"drift (-?[\d.]+) meV/atom/ps over 0.06 ps", long)[1]
    assert abs(float(drift)) < 1.0
    assert short.startswith("0.05 ps are too short to fit a drift to")
    frames = ase.io.read(trajectory, ":")
    assert len(frames) == 10
    np.testing.assert_allclose(frames[0].positions, atoms.positions, atol=1e-7)
    assert np.abs(frames[1].get_forces() - frames[0].get_forces()).max() > 1e-4


def test_the_example_refuses_what_it_cannot_use(atoms, run, tmp_path, monkeypatch, capsys):
    example = Path(__file__).parents[2] / "examples" / "nve.py"
    start, water = tmp_path / "start.xyz", tmp_path / "water.xyz"
    ase.io.write(start, atoms, format="extxyz")
    ase.io.write(water, ase.build.molecule("H2O"), format="extxyz")
    for arguments, message in (
        ((tmp_path, start), "no checkpoint"),
        ((run, tmp_path / "none.xyz"), "none.xyz"),
        ((run, water), "H, O not among the model's species"),
    ):
        monkeypatch.setattr("sys.argv", [str(example), *map(str, arguments)])
        with pytest.raises(SystemExit, match="2"):
            runpy.run_path(str(example), run_name="__main__")
        assert message in capsys.readouterr().err


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))])
def test_a_copy_computes_the_same(atoms, copied):
    forces = atoms.get_forces()
    compiled = atoms.calc.num_compilations
    other = ase.build.bulk("Cu", cubic=True)
    other.calc = copied(atoms.calc)
    other.positions = atoms.positions
    np.testing.assert_array_equal(other.get_forces(), forces)
    assert other.calc.num_compilations == compiled
    other.positions[0] += 0.1
    atoms.positions[1] += 0.1
    assert other.get_potential_energy() != atoms.get_potential_energy()


@pytest.fixture(scope="module")
def single(copper, tmp_path_factory):
    """Trained until forces are more than the rounding of what they are sums of."""
    folder = tmp_path_factory.mktemp("runs") / "copper"
    settings = ["data=extxyz", f"data.path={copper}", *TINY, "cutoff=3.6", "epochs=60"]
    assert main([*settings, "training.optimizer=adam", f"run={folder}"]) == 0
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("pbc", [True, False, (True, False, True)])
def test_atoms_far_from_the_origin_lose_no_precision(single, pbc):
    """Single precision resolves 1e-3 Å at 1e4 Å; atoms may have left their cell one by one."""
    near = ase.build.bulk("Cu", cubic=True) * (2, 2, 2)
    near.rattle(0.05, seed=0)
    near.pbc = pbc
    far = near.copy()
    far.positions += 1e4
    rng = np.random.default_rng(0)
    images = rng.integers(-2000, 2000, (len(far), 3)) * near.pbc
    far.positions += images @ near.cell.array
    forces = []
    for atoms in (near, far):
        atoms.calc = eqfuse.Calculator(single)
        forces.append(atoms.get_forces())
    np.testing.assert_allclose(forces[1], forces[0], atol=1e-5 * np.abs(forces[0]).max())


@pytest.mark.slow
def test_evaluation_of_atoms_that_left_their_cell_loses_no_precision(single):
    near = ase.build.bulk("Cu", cubic=True) * (2, 2, 2)
    near.rattle(0.05, seed=0)
    rng = np.random.default_rng(0)
    images = rng.integers(-2000, 2000, (len(near), 3))
    frames = [
        Structure(near.numbers, positions, near.cell.array, near.pbc)
        for positions in (near.positions, near.positions + images @ near.cell.array)
    ]
    near, far = predict(Network(single), frames)
    assert far.energy == pytest.approx(near.energy, abs=1e-5 * np.abs(near.relative_energy))
    for name in ("forces", "stress"):
        values = getattr(near, name)
        scale = 1e-5 * np.abs(values).max()
        np.testing.assert_allclose(getattr(far, name), values, rtol=0, atol=scale)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["cluster", "slab", "bulk"])
def test_atoms_astride_faces_of_large_cells_lose_no_precision(single, kind):
    """At the middle of a cell and astride its corner: float32 resolves 1e-4 Å at 1e3 Å."""
    atoms = ase.build.bulk("Cu", cubic=True) * (2, 2, 2)
    atoms.rattle(0.05, seed=0)
    empty = {"cluster": [0, 1, 2], "slab": [2], "bulk": []}[kind]
    frames = []
    for size in (15.0, 1e3):
        middle = atoms.copy()
        lengths = middle.cell.lengths()
        lengths[empty] = size
        middle.set_cell(lengths)
        middle.positions += (lengths - 7) / 2
        astride = middle.copy()
        astride.positions -= astride.positions.mean(axis=0)
        astride.wrap()
        frames += [middle, astride]
    structures = [Structure(f.numbers, f.positions, f.cell.array, f.pbc) for f in frames]
    evaluated = zip(predict(Network(single), structures), structures, strict=True)
    results = [(p.forces, p.stress * s.volume) for p, s in evaluated]
    calculator = eqfuse.Calculator(single)
    for frame in frames:
        frame.calc = calculator
        results.append((frame.get_forces(), frame.get_stress(voigt=False) * frame.get_volume()))
    forces, virial = results[0]
    for others in results[1:]:
        for value, expected in zip(others, (forces, virial), strict=True):
            # roundings of coordinates of 10 Å, and of sums of opposite forces
            scale = 1e-5 * np.abs(expected).max()
            np.testing.assert_allclose(value, expected, rtol=0, atol=scale)


def test_too_many_pairs_are_refused(run):
    """A wide skin or a cell of a tenth of an Å took all memory there was."""
    atoms = ase.build.bulk("Cu", cubic=True)
    message = r"4 atoms in a cell .* pairs within 1e\+06 Å, .* \(a calculator adds its skin to it\)"
    with pytest.raises(DataError, match=message):
        eqfuse.Calculator(run, skin=1e6).get_forces(atoms)
    atoms.set_cell(0.1 * np.eye(3))
    with pytest.raises(DataError, match=r"0\.1\]\] Å .* lower the cutoff .*, or correct the cell"):
        eqfuse.Calculator(run).get_forces(atoms)
    with pytest.raises(DataError, match=r"^structure 0: 4 atoms in a cell of .* pairs within"):
        predict(
            Network(run), [Structure(atoms.numbers, atoms.positions, atoms.cell.array, atoms.pbc)]
        )


def test_atoms_that_cannot_be_are_refused(run):
    calculator = eqfuse.Calculator(run)
    atoms = ase.build.bulk("Cu", cubic=True)
    atoms.positions[1, 2] = np.nan
    with pytest.raises(DataError, match="has diverged"):
        calculator.get_forces(atoms)
    with pytest.raises(DataError, match=r"flown apart, .* 0 × 0 × 2e\+06 Å, .* has diverged"):
        calculator.get_forces(ase.Atoms("Cu2", [[0, 0, 0], [0, 0, 2e6]]))
    with pytest.raises(DataError, match="need linearly independent lattice vectors"):
        calculator.get_forces(ase.Atoms("Cu", pbc=True))
    with pytest.raises(DataError, match="no atoms"):
        calculator.get_forces(ase.Atoms())


def test_what_the_run_does_not_know_is_refused(run, tmp_path):
    atoms = ase.build.molecule("H2O")
    atoms.calc = eqfuse.Calculator(run)
    with pytest.raises(DataError, match="H, O not among the model's species"):
        atoms.get_potential_energy()
    with pytest.raises(CheckpointError, match="no checkpoint"):
        eqfuse.Calculator(tmp_path)
    for skin in (-1.0, np.inf, np.nan):
        with pytest.raises(ValueError, match=f"zero or more Å, and finite, got {skin}"):
            eqfuse.Calculator(run, skin=skin)
    with pytest.raises(ValueError, match="which='foo' is unknown"):
        eqfuse.Calculator(run, which="foo")


def test_isolated_atoms_have_the_energies_that_were_given(water, tmp_path):
    given = {"H": 3.25, "O": 4.5}
    kind = {"config_type": "IsolatedAtom"}
    atoms = [ase.Atoms(symbol, info={**kind, "energy": e}) for symbol, e in given.items()]
    ase.io.write(tmp_path / "all.xyz", [*atoms, *ase.io.read(water, ":")], format="extxyz")
    settings = ["data=extxyz", f"data.path={tmp_path / 'all.xyz'}", *TINY, "epochs=1"]
    assert main([*settings, f"run={tmp_path / 'run'}"]) == 0
    calculator = eqfuse.Calculator(tmp_path / "run")
    for symbol, energy in given.items():
        assert calculator.get_potential_energy(ase.Atoms(symbol)) == energy
    apart = ase.Atoms("H2O", [[0, 0, 0], [50, 0, 0], [0, 50, 0]])
    assert calculator.get_potential_energy(apart) == 11.0


@pytest.mark.slow
def test_atoms_that_come_and_go_compile_little(run):
    """Vacancies use the program of the whole crystal, and many sizes a few programs."""
    calculator, fresh = (eqfuse.Calculator(run, dtype="float64") for _ in range(2))
    calculator._program, fresh._program = (
        Program(calculator.network._potential, calculator.cutoff, "float64") for _ in range(2)
    )
    crystal = ase.build.bulk("Cu", cubic=True).repeat((2, 2, 1))
    crystal.rattle(0.05, seed=1)
    for count in (16, 15, 14, 12, 16, 9, 15):
        energy = calculator.get_potential_energy(crystal[:count])
        assert energy == pytest.approx(fresh.get_potential_energy(crystal[:count]), abs=1e-9)
        fresh._program.sizes.clear()
        fresh._listed = None
    assert calculator.num_compilations == 1
    assert fresh.num_compilations == 5  # it has no other sizes to use: as many as there are
    added = crystal.repeat((1, 1, 2))
    for count in range(17, 33):
        calculator.get_potential_energy(added[:count])
    assert calculator.num_compilations <= 8


def test_a_slab_has_the_stress_that_training_gave_it(run):
    slab = ase.build.fcc111("Cu", (1, 1, 3), vacuum=5.0)
    slab.pbc = (True, True, False)
    slab.rattle(0.05, seed=0)
    slab.calc = eqfuse.Calculator(run)
    xx, step, energies = slab.get_stress()[0], 1e-4, []
    for sign in (1, -1):
        moved = slab.copy()
        strain = np.diag([1 + sign * step / 2, 1, 1])
        moved.set_cell(slab.cell.array @ strain, scale_atoms=True)
        moved.calc = slab.calc
        energies.append(moved.get_potential_energy())
    slope = (energies[0] - energies[1]) / step / slab.get_volume()
    assert xx == pytest.approx(slope, abs=1e-7, rel=1e-5)
    assert abs(xx) > 1e-4
    slab.set_cell(slab.cell.array * [[1], [1], [0]])
    with pytest.raises(PropertyNotImplementedError):
        slab.get_stress()


@pytest.mark.parametrize(
    ("argument", "message"),
    [
        ({"default_dtype": "float64"}, "no argument default_dtype: here it is called dtype"),
        ({"device": "cuda"}, "no argument device: .*JAX_PLATFORMS"),
        ({"skinn": 3}, "no argument skinn; nearest: skin"),
        ({"zzz": 1}, "no argument zzz; it has run, skin, which, dtype"),
        ({"device": "cpu", "skinn": 3}, "device: .*; Calculator has no argument skinn"),
    ],
)
def test_unknown_arguments_are_refused_by_name(tmp_path, argument, message):
    with pytest.raises(TypeError, match=message):
        eqfuse.Calculator(tmp_path, **argument)


def test_arguments_of_ase_calculators(run, tmp_path):
    atoms = ase.build.bulk("Cu", cubic=True)
    calculator = eqfuse.Calculator(run, atoms=atoms, directory=tmp_path, label="copper")
    assert atoms.calc is calculator
    assert calculator.directory == str(tmp_path)
    assert calculator.label == f"{tmp_path}/copper"
