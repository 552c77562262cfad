import ase.build
import ase.io
import numpy as np
import pytest
from ase.constraints import FixAtoms, FixCom
from ase.filters import UnitCellFilter
from ase.optimize import FIRE

import eqfuse
from eqfuse import cli, md
from eqfuse.data import DataError


@pytest.fixture
def run(trained):
    return trained


@pytest.fixture
def frames():
    """Return cells of several sizes."""
    crystal = ase.build.bulk("Cu", cubic=True)
    made = [crystal.copy(), crystal.repeat((2, 1, 1)), crystal.copy()]
    made[2].set_cell(1.03 * crystal.cell.array, scale_atoms=True)
    for seed, atoms in enumerate(made):
        atoms.rattle(0.08, seed=seed)
    return made


@pytest.mark.parametrize("cell", [False, True])
def test_every_structure_takes_the_steps_of_ase(cell, run, frames):
    """All are relaxed at once, and end after different numbers of steps where ASE's FIRE ends."""
    if not cell:
        frames[1].set_constraint(FixAtoms([0, 3]))
        cluster = frames[0].copy()
        cluster.pbc, cluster.cell = False, None
        frames.append(cluster)
    settings = {"cell": cell, "fmax": 0.02, "steps": 60, "skin": 0.2}
    settings |= {"pressure": 1.0} if cell else {}
    outcomes = md.relax(run, frames, **settings)
    taken = set()
    for atoms, outcome in zip(frames, outcomes, strict=True):
        reference = atoms.copy()
        reference.calc = eqfuse.Calculator(run)
        assert outcome.first_energy == pytest.approx(reference.get_potential_energy(), abs=1e-9)
        scalar = 1.0 * ase.units.GPa
        relaxed = UnitCellFilter(reference, scalar_pressure=scalar) if cell else reference
        optimizer = FIRE(relaxed, logfile=None)
        assert optimizer.run(fmax=0.02, steps=60) == outcome.is_relaxed
        assert outcome.steps == optimizer.get_number_of_steps()
        taken.add(outcome.steps)
        np.testing.assert_allclose(outcome.atoms.positions, reference.positions, rtol=0, atol=1e-7)
        np.testing.assert_allclose(outcome.atoms.cell, reference.cell, rtol=0, atol=1e-7)
        energy = reference.get_potential_energy()
        assert outcome.atoms.get_potential_energy() == pytest.approx(energy, abs=1e-8)
        assert energy < outcome.first_energy - 1e-4
        if atoms.pbc.all():
            stress = reference.get_stress()
            np.testing.assert_allclose(outcome.atoms.get_stress(), stress, rtol=0, atol=1e-8)
    assert len(taken) > 1


def test_groups_give_what_one_batch_gives(run, frames):
    settings = {"steps": 3, "fmax": 1e-9}
    together = md.relax(run, frames, **settings)
    apart = md.relax(run, frames, batch_atoms=8, **settings)
    for one, other in zip(together, apart, strict=True):
        np.testing.assert_allclose(one.atoms.positions, other.atoms.positions, rtol=0, atol=1e-9)


def test_the_command_writes_what_is_relaxed(run, frames, tmp_path, capsys):
    source = tmp_path / "frames.xyz"
    ase.io.write(source, frames[:2], format="extxyz")
    assert cli.main(["relax", str(run), str(source), "fmax=0.05", "steps=100"]) == 0
    relaxed = ase.io.read(tmp_path / "frames_relaxed.xyz", ":")
    assert [len(atoms) for atoms in relaxed] == [4, 8]
    assert all(np.linalg.norm(a.get_forces(), axis=1).max() < 0.05 for a in relaxed)
    assert "2 structures in" in capsys.readouterr().out
    assert cli.main(["relax", str(run), str(source)]) == 2
    assert "exists" in capsys.readouterr().err
    target = str(tmp_path / "other.xyz")
    assert cli.main(["relax", str(run), str(source), target, "fmax=1e-9", "steps=1"]) == 1
    assert "2 of 2 structures are not relaxed after 1 steps" in capsys.readouterr().err
    assert len(ase.io.read(target, ":")) == 2


def test_what_cannot_be_relaxed_is_refused(run, frames, tmp_path, capsys):
    good = frames[0]
    for change, cell, message in (
        (lambda a: a.positions.__setitem__(1, a.positions[0] + 0.1), False, "frame 1: .* overlap"),
        (lambda a: a.positions.__setitem__((1, 0), np.nan), False, "frame 1: positions"),
        (lambda a: a.set_atomic_numbers([29, 29, 29, 79]), False, "frame 1: Au not among"),
        (lambda a: a.set_cell(None), False, "frame 1: .*lattice"),
        (lambda a: a.set_constraint(FixCom()), False, "only FixAtoms"),
        (lambda a: a.set_pbc((True, True, False)), True, "three periodic directions"),
        (lambda a: a.set_constraint(FixAtoms([0])), True, "remove the constraints"),
    ):
        atoms = good.copy()
        change(atoms)
        with pytest.raises(DataError, match=message):
            md.relax(run, [good, atoms], cell=cell)
    for arguments, message in (
        (["nothing"], "are needed"),
        (["nothing", "nowhere", "fmaxx=1"], "nearest: fmax"),
        ([str(run), str(tmp_path / "no.xyz")], "cannot be read"),
    ):
        assert cli.main(["relax", *arguments]) == 2
        assert message in capsys.readouterr().err
