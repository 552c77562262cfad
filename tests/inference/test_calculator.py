import copy
import pickle
import pydoc
import re
import runpy
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import ase
import ase.build
import ase.db
import ase.io
import numpy as np
import pytest
from ase.calculators.calculator import PropertyNotImplementedError
from ase.calculators.emt import EMT
from ase.calculators.fd import calculate_numerical_stress

import eqfuse
from eqfuse.data import DataError, Structure
from eqfuse.runs.errors import CheckpointError
from eqfuse.train.main import main
from tests.inference.conftest import slope_of_forces
from tests.small_runs import TINY


@pytest.mark.parametrize("far", [1e11, 1e15, 1e300])
@pytest.mark.parametrize("pbc", [True, False])
def test_positions_that_are_not_known_are_refused(far, pbc, run):
    """In a cell an image of the atom is near, at a place that float64 does not resolve."""
    calculator = eqfuse.Calculator(run)
    atoms = ase.Atoms("Cu3", [[0, 0, 0], [2, 0, 0], [0, 2, 0]], cell=[8, 8, 8], pbc=pbc)
    for _ in range(2):  # when the structure is new, and when atoms have moved
        moved = atoms.copy()
        moved.positions[0] += far
        with pytest.raises(DataError, match=r"from the origin, too far|flown apart"):
            calculator.get_potential_energy(moved)
        assert np.isfinite(calculator.get_potential_energy(atoms))


def test_stress_is_the_strain_derivative(atoms, run):
    """Also that of a slab along its plane, as training gave it; without a cell there is none."""
    slab = ase.build.fcc111("Cu", (1, 1, 3), vacuum=5.0)
    slab.pbc = (True, True, False)
    slab.rattle(0.05, seed=0)
    slab.calc = eqfuse.Calculator(run)
    for one, components in ((atoms, range(6)), (slab, [0])):
        stress = one.get_stress()[components]
        expected = calculate_numerical_stress(one, eps=1e-5)[components]
        assert stress == pytest.approx(expected, abs=1e-7, rel=1e-5)
        assert np.abs(stress).max() > 1e-4
    slab.set_cell(slab.cell.array * [[1], [1], [0]])
    with pytest.raises(PropertyNotImplementedError):
        slab.get_stress()


def test_stress_is_computed_when_it_is_asked_for(atoms):
    """Energies and stresses of the atoms add up, and those of equal atoms are equal."""
    energies = atoms.get_potential_energies()
    assert energies.sum() == pytest.approx(atoms.get_potential_energy())
    atoms.get_forces()
    assert "stress" not in atoms.calc.results
    found = atoms.calc._found
    stress, stresses = atoms.get_stress(), atoms.get_stresses()
    assert atoms.calc._found is found
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
    monkeypatch.setattr("eqfuse.data.neighbors.LARGE", 2)
    atoms.rattle(0.3, seed=3)
    found = eqfuse.hessian(atoms)
    assert (np.diff(atoms.calc._evaluator.listed.order) < 0).any()
    for atom, axis in ((0, 0), (1, 2), (3, 1)):
        slope = slope_of_forces(atoms, atom, axis)
        np.testing.assert_allclose(found[atom, axis], slope, rtol=0, atol=1e-5)
        assert np.abs(slope).max() > 1e-2
    np.testing.assert_allclose(found, found.transpose(2, 3, 0, 1), rtol=0, atol=1e-9)
    atoms.calc = EMT()
    with pytest.raises(TypeError, match=r"needs an eqfuse\.Calculator, got EMT"):
        eqfuse.hessian(atoms)


@pytest.mark.parametrize("copied", [copy.copy, lambda atoms: pickle.loads(pickle.dumps(atoms))])
def test_the_hessian_of_copies(atoms, copied):
    """They have the results of before, and no neighbour list."""
    atoms.get_potential_energy()
    expected = eqfuse.hessian(atoms)
    atoms.calc = copied(atoms.calc)
    assert "energy" in atoms.calc.results
    np.testing.assert_allclose(eqfuse.hessian(atoms), expected, rtol=0, atol=1e-9)


@pytest.mark.parametrize("shared", [True, False])
def test_threads_get_what_belongs_to_their_atoms(atoms, run, shared, rng):
    """Four threads, with one calculator or with one each; the programs are shared in both."""
    structures = [atoms.copy() for _ in range(4)]
    for structure in structures:
        structure.positions += rng.normal(scale=0.05, size=atoms.positions.shape)
    expected = [atoms.calc.get_forces(s) for s in structures]
    compiled = atoms.calc.num_compilations

    def forces(structure):
        structure.calc, start = atoms.calc if shared else eqfuse.Calculator(run), structure.copy()
        found = []
        for _ in range(5):
            structure.rattle(1e-3, seed=1)
            structure.get_forces()
            structure.positions = start.positions
            found.append(structure.get_forces())
        return found

    with ThreadPoolExecutor(4) as pool:
        for found, reference in zip(pool.map(forces, structures), expected, strict=True):
            np.testing.assert_allclose(found, [reference] * 5, rtol=0, atol=1e-10)
    assert atoms.calc.num_compilations == compiled


def test_threads_share_a_committee(atoms, committee):
    """They ended by a KeyError."""
    calculator, structures = eqfuse.Committee(committee), [atoms.copy() for _ in range(4)]
    for k, structure in enumerate(structures):
        structure.rattle(0.05, seed=k)
    expected = [calculator.get_potential_energy(s) for s in structures]
    assert np.ptp(expected) > 1e-4

    def energies(structure):
        return [calculator.get_potential_energy(structure.copy()) for _ in range(20)]

    with ThreadPoolExecutor(4) as pool:
        for found, reference in zip(pool.map(energies, structures), expected, strict=True):
            np.testing.assert_allclose(found, [reference] * 20, rtol=0, atol=1e-9)


def test_the_example_draws_the_drift(atoms, run, tmp_path, monkeypatch, capsys):
    example = str(Path(__file__).parents[2] / "examples" / "nve.py")

    def ended(*arguments):
        monkeypatch.setattr("sys.argv", [example, *map(str, arguments)])
        runpy.run_path(example, run_name="__main__")

    start, picture, trajectory = (tmp_path / name for name in ("start.xyz", "nve.png", "nve.xyz"))
    ase.io.write(start, atoms, format="extxyz")
    ended(run, start, "--picture", picture, "--trajectory", trajectory, "--steps", 120)
    assert picture.read_bytes().startswith(b"\x89PNG")
    drift = re.match(r"drift (-?[\d.]+) meV/atom/ps over 0.06 ps", capsys.readouterr().out)[1]
    assert abs(float(drift)) < 1.0
    frames = ase.io.read(trajectory, ":")
    assert len(frames) == 12
    np.testing.assert_allclose(frames[0].positions, atoms.positions, atol=1e-7)
    assert np.abs(frames[1].get_forces() - frames[0].get_forces()).max() > 1e-4
    with pytest.raises(SystemExit, match="2"):
        ended(tmp_path, start)
    assert "no checkpoint" in capsys.readouterr().err


@pytest.mark.parametrize(
    "copied", [copy.copy, copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))]
)
def test_a_copy_computes_the_same(atoms, copied):
    forces = atoms.get_forces()
    compiled = atoms.calc.num_compilations
    other = ase.build.bulk("Cu", cubic=True)
    other.calc = copied(atoms.calc)
    other.positions = atoms.positions
    np.testing.assert_array_equal(other.get_forces(), forces)
    assert other.calc.num_compilations == compiled
    unmoved = other.copy()
    unmoved.calc = copied(other.calc)
    other.positions[0] += 0.1
    assert other.get_potential_energy() != unmoved.get_potential_energy()
    np.testing.assert_allclose(unmoved.get_stress(), atoms.get_stress(), rtol=0, atol=1e-12)
    atoms.positions[1] += 0.1
    assert other.get_potential_energy() != atoms.get_potential_energy()


def far(z):
    return ase.Atoms("Cu2", [[0, 0, 0], [0, 0, z]])


CRYSTAL = ase.build.bulk("Cu", cubic=True)
WIDE = r"4 atoms in a cell .* pairs within 1e\+06 Å, .* \(a calculator adds its skin to it\)"


@pytest.mark.parametrize(
    ("atoms", "options", "message"),
    [
        (far(np.nan), {}, "has diverged"),
        (far(2e6), {}, r"apart, .* 0 × 0 × 2e\+06 Å, .* has diverged"),
        (ase.Atoms("Cu", pbc=True), {}, "need linearly independent lattice vectors"),
        (ase.Atoms(), {}, "no atoms"),
        (ase.build.molecule("H2O"), {}, "H, O not among the model's species"),
        (CRYSTAL, {"skin": 1e6}, WIDE),
    ],
)
def test_calculator_refuses_atoms_that_cannot_be(run, atoms, options, message):
    with pytest.raises(DataError, match=message):
        eqfuse.Calculator(run, **options).get_forces(atoms)


def test_prediction_refuses_too_many_pairs(run):
    """A cell of a tenth of an Å took all memory there was."""
    atoms = Structure(CRYSTAL.numbers, CRYSTAL.positions, 0.1 * np.eye(3), True)
    with pytest.raises(DataError, match=r"^structure 0: 4 atoms in a cell of .* pairs within"):
        eqfuse.predict(run, [atoms])


@pytest.mark.slow
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


@pytest.mark.parametrize(
    ("argument", "error", "message"),
    [
        ({"default_dtype": "float64", "dtype": "float32"}, TypeError, "are one thing"),
        ({"device": "cuda"}, ValueError, "device=cuda is not that of JAX, cpu; set JAX_PLATFORMS"),
        ({"enable_cueq": True}, TypeError, "enable_cueq; the fused ops are always used"),
        ({"damping": "bj"}, TypeError, "damping: with dispersion=True"),
        ({"skinn": 3}, TypeError, "no argument skinn; nearest: skin"),
        (
            {"run": None, "model_paths": ["a", "b"]},
            TypeError,
            "model_paths must be .*; eqfuse.Committee",
        ),
        ({"run": None, "models": 3}, TypeError, "models must be a file, folder or name"),
        ({"zzz": 1}, TypeError, "no argument zzz; it has run, skin, which, dtype"),
        ({"zz": 1, "skinn": 3}, TypeError, "argument zz; .*; Calculator has no argument skinn"),
        ({"run": ["a", "b"]}, TypeError, r"the path of one run, .* see eqfuse\.Committee"),
        ({"run": None}, TypeError, "Calculator needs a run: its folder, the name"),
        ({"run": "nowhere"}, CheckpointError, "no checkpoint"),
        ({"run": "several"}, CheckpointError, "it holds runs: name one, such as .*seed=0"),
        ({"dtype": "float16"}, ValueError, "dtype must be float32 or float64, got 'float16'"),
        ({"backend": "trito"}, ValueError, "backend 'trito' is unknown"),
        ({"which": "foo"}, ValueError, "which='foo' is unknown"),
        *(
            ({"skin": s}, ValueError, f"or more Å, and finite, got {s}")
            for s in (-1.0, np.inf, np.nan)
        ),
    ],
)
def test_unknown_or_impossible_arguments_are_refused_by_name(
    run, argument, error, message, tmp_path, monkeypatch
):
    (tmp_path / "several" / "seed=0" / "checkpoints").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(error, match=message):
        eqfuse.Calculator(**{"run": run} | argument)


def test_arguments_of_other_programs(run):
    """What users of mace and sevenn type gives the calculator that they mean."""
    calculator = eqfuse.Calculator(model_paths=[str(run)], device="cpu", default_dtype="float32")
    assert calculator.network.dtype == "float32"
    assert calculator.dispersion is None
    pytest.importorskip("dftd3")
    asked = {"dispersion": True, "damping": "zero", "dispersion_xc": "pbe", "default_dtype": ""}
    calculator = eqfuse.Calculator(model=run, modal=None, device="auto", **asked)
    assert str(calculator.dispersion) == "d3(zero,pbe)"
    assert calculator.network.dtype == "float64"
    assert eqfuse.Calculator(run, dispersion=False).dispersion is None


def test_calculator_says_what_it_is(run):
    text = f"<Calculator {run}: Cu, cutoff 3.6 Å, float64, backend llvm>"
    assert repr(eqfuse.Calculator(run, backend="llvm")) == text
    assert "Name used for all files" not in pydoc.render_doc(eqfuse.Calculator)  # ASE's
    for given in (run, f"{run}/", f"{run}/checkpoints/best.safetensors"):
        assert eqfuse.Calculator(given).name == run.name  # which ASE's databases keep
    pytest.importorskip("dftd3")
    text = f"<Calculator {run}: Cu, cutoff 3.6 Å, float32, backend xla, d3(bj,pbe)>"
    calculator = eqfuse.Calculator(run, backend="xla", dtype="float32", dispersion=True)
    assert (repr(calculator), calculator.name) == (text, f"{run.name}, d3(bj,pbe)")


def test_arguments_of_ase_calculators(run, tmp_path):
    atoms = CRYSTAL.copy()
    calculator = eqfuse.Calculator(run, atoms=atoms, directory=tmp_path, label="copper")
    assert atoms.calc is calculator
    assert calculator.directory == str(tmp_path)
    assert calculator.label == f"{tmp_path}/copper"


def test_calculator_says_once_what_no_network_reads(run):
    atoms, message = CRYSTAL.copy(), "^charge, initial magnetic moments of the"
    atoms.calc = eqfuse.Calculator(run)
    atoms.get_potential_energy()  # neutral and a singlet: silent
    atoms.info["charge"] = 1
    atoms.set_initial_magnetic_moments([0.5] * 4)
    atoms.set_cell(1.001 * atoms.cell.array, scale_atoms=True)
    with pytest.warns(UserWarning, match=message):
        atoms.get_potential_energy()
    atoms.set_cell(1.002 * atoms.cell.array, scale_atoms=True)
    atoms.get_potential_energy()
    with pytest.warns(UserWarning, match=message):
        eqfuse.predict(run, atoms)


def test_a_crystal_without_a_cell_is_said_where_frames_were_periodic(run, untrained):
    """A network that was converted does not know what it was trained on."""
    crystal = CRYSTAL.repeat((2, 1, 1))
    crystal.calc = eqfuse.Calculator(run)
    crystal.get_potential_energy()
    bare = ase.Atoms(crystal.numbers, crystal.positions, calculator=crystal.calc)
    with pytest.warns(UserWarning, match="trained on periodic cells only: atoms have"):
        bare.get_potential_energy()
    bare.rattle(0.01)
    bare.get_potential_energy()
    bare.calc = eqfuse.Calculator(untrained())
    bare.get_potential_energy()
    crystal.pbc = False
    with pytest.warns(UserWarning, match="^atoms 0 has a lattice and pbc F F F: should it be"):
        crystal.get_potential_energy()


@pytest.mark.filterwarnings("ignore:initial magnetic moments of the atoms are not read")
def test_databases_have_the_results_of_atoms_with_other_moments(atoms, tmp_path):
    """ASE writes none where it takes what no network reads for a change."""
    with ase.db.connect(tmp_path / "rows.db") as database:
        for number in range(2):
            atoms.rattle(0.01, seed=number)
            atoms.set_initial_magnetic_moments(np.full(4, number + 1.0))
            energy = atoms.get_potential_energy()
            assert database.get(database.write(atoms)).energy == energy
