"""Output of VASP: which energy, steps that did not converge, and names of files."""

import gzip
import re

import ase
import numpy as np
import pytest
from ase.calculators.singlepoint import SinglePointCalculator

from eqfuse.data import DataError, Keys, read_structures
from tests.data.readers.conftest import vasprun

HEADER = """ vasp.6.4.2 20Jul23 (build ...) complex
 POTCAR:    PAW_PBE Cu 22Jun2005
 POTCAR:    PAW_PBE Cu 22Jun2005
   ISPIN  =      1    spin polarized calculation?
   ions per type =               2
   NELM   =     {most};   NELMIN=  2; NELMDL= -5     # of ELM steps
"""
STEP = """  FORCE on cell =-STRESS in cart. coord.  units (eV):
  in kB      10.0    20.0    30.0     1.0     2.0     3.0
      direct lattice vectors                 reciprocal lattice vectors
     4.0 0.0 0.0   0.25 0.0 0.0
     0.0 4.0 0.0   0.0 0.25 0.0
     0.0 0.0 4.0   0.0 0.0 0.25
 POSITION                                       TOTAL-FORCE (eV/Angst)
 -----------------------------------------------------------------------------------
      0.00000      0.00000      0.00000         0.100000      0.000000      0.000000
      0.00000      2.00000      {y}         -0.100000      0.000000      0.000000
 -----------------------------------------------------------------------------------
  FREE ENERGIE OF THE ION-ELECTRON SYSTEM (eV)
  ---------------------------------------------------
  free  energy   TOTEN  =       {energy} eV

  energy  without entropy=       -7.000  energy(sigma->0) =       -6.500
"""
REACHED = "----------- aborting loop because EDIFF is reached -----------\n"
ABORTED = "----------- aborting loop EDIFF was not reached (unconverged) -----------\n"


def outcar(*steps: tuple[int, str], most: int = 6) -> str:
    """Return an OUTCAR of steps: the number of electronic ones, and how they ended."""
    text = HEADER.format(most=most)
    for number, (count, end) in enumerate(steps, start=1):
        for k in range(1, count + 1):
            text += f"--------------- Iteration {number:>6}({k:>4})  ---------------\n"
        text += end + STEP.format(y=f"2.0{number}", energy=-8.0 - number)
    return text


@pytest.mark.parametrize("name", ["OUTCAR", "OUTCAR_1", "run.OUTCAR.gz", "step1.out", "first.gz"])
def test_outcar_by_names_and_contents(tmp_path, name):
    """`energy` is the free energy, whose derivatives the forces are."""
    path, data = tmp_path / name, outcar((3, REACHED), (4, REACHED)).encode()
    path.write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
    read = read_structures(path)
    assert [s.energy for s in read] == [-9, -10]
    assert [s.energy for s in read_structures(path, keys=Keys("energy_zero"))] == [-6.5, -6.5]
    for structure, y in zip(read, (2.01, 2.02), strict=True):
        np.testing.assert_array_equal(structure.numbers, [29, 29])
        np.testing.assert_allclose(structure.positions[1], [0, 2, y])
        np.testing.assert_array_equal(structure.forces[:, 0], [0.1, -0.1])
        np.testing.assert_array_equal(structure.cell, 4 * np.eye(3))
        assert structure.stress[0, 0] == pytest.approx(-10 / 1602.1766, rel=1e-6)
        assert not structure.unread


@pytest.mark.parametrize(
    ("steps", "most", "kept"),
    [
        (((3, REACHED), (6, ""), (6, REACHED)), 6, [0, 2]),
        (((3, ABORTED), (2, REACHED)), 6, [1]),
        (((6, REACHED), (5, "")), 6, [0, 1]),
        (((1, ""), (1, "")), 1, [0, 1]),  # NELM=1 asks for one step
        (((6, ""),), 6, []),
    ],
)
def test_outcar_unconverged_steps_are_left_out(tmp_path, capsys, steps, most, kept):
    path = tmp_path / "OUTCAR"
    path.write_text(outcar(*steps, most=most))
    if kept:
        read = read_structures(path)
        assert [s.energy for s in read] == [-9.0 - k for k in kept]
        assert [s.origin for s in read] == [f"{path}, frame {k}" for k in kept]
    else:
        with pytest.raises(DataError, match="OUTCAR has no frames"):
            read_structures(path)
    left = len(steps) - len(kept)
    said = f"{path}: {left} step left out, as the electrons did not converge within NELM\n"
    assert capsys.readouterr().err.removeprefix("warning: ") == (said if left else "")


@pytest.mark.parametrize(
    ("parts", "alone"),
    [("mdmdmd", ""), ("mdmmddm", "2 steps"), ("mmmddd", "2 steps"), ("ddmmd", "1 step")],
)
def test_outcar_steps_of_a_force_field_alone_are_left_out(tmp_path, capsys, parts, alone):
    """A step has m, what the force field predicts, and d, where electrons are computed, in turn."""
    predicted = STEP.format(y="1.50", energy=-0.5)
    for text in ("FREE ENERGIE", "energy  without", "FORCE on cell", "energy("):
        predicted = predicted.replace(text, f"ML {text}")
    predicted = predicted.replace("energy   TOTEN", "energy ML TOTEN")
    whole = outcar((4, REACHED), (6, ""), (5, REACHED))
    header, *steps = re.split(r"(?m)^(?=-+ Iteration +\d+\(   1\))", whole)
    texts = iter(steps)
    text = header + "".join(predicted if part == "m" else next(texts) for part in parts)
    (path := tmp_path / "OUTCAR").write_text(text)
    first, third = read_structures(path)
    assert (first.energy, third.energy) == (-9, -11)
    np.testing.assert_allclose(
        (first.positions[1], third.positions[1]), [[0, 2, 2.01], [0, 2, 2.03]]
    )
    said = capsys.readouterr().err
    assert f"{path}: 1 step left out, as the electrons did not converge" in said
    why = "left out, which only VASP's force field computed"
    assert [line for line in said.splitlines() if why in line] == (
        [f"warning: {path}: {alone} {why}"] if alone else []
    )


@pytest.mark.parametrize("name", ["vasprun.xml", "vasprun_2.xml", "vasprun.xml.gz", "other.xml"])
def test_vasprun_unconverged_steps_are_left_out(tmp_path, capsys, name):
    frames = []
    for k in (1, 2, 3):
        atoms = ase.Atoms("Cu", [[0, 0, 0.2 * k]], cell=2 * np.eye(3), pbc=True)
        results = {"energy": -k, "forces": [[0, 0, k]], "stress": np.zeros(6)}
        atoms.calc = SinglePointCalculator(atoms, **results)
        frames.append(atoms)
    data = vasprun(frames, (2, 3, 1), most=3).encode()
    (tmp_path / name).write_bytes(gzip.compress(data) if name.endswith("gz") else data)
    first, third = read_structures(tmp_path / name)
    assert (first.energy, third.energy) == (-1, -3)
    np.testing.assert_allclose(third.forces, [[0, 0, 3]])
    np.testing.assert_allclose(third.positions, [[0, 0, 0.6]])
    assert "1 step left out" in capsys.readouterr().err
    [zero, _] = read_structures(tmp_path / name, keys=Keys("energy_zero"))
    assert zero.energy == pytest.approx(-1.2)


def test_vasprun_that_was_cut_off_in_an_unconverged_step(tmp_path, capsys):
    """After its energy, where ASE reads it, such as in the eigenvalues."""
    atoms = ase.Atoms("Cu", cell=2 * np.eye(3), pbc=True)
    results = {"energy": -1.0, "forces": [[0, 0, 1]], "stress": np.zeros(6)}
    atoms.calc = SinglePointCalculator(atoms, **results)
    text = vasprun([atoms, atoms], (2, 3), most=3)
    (tmp_path / "vasprun.xml").write_text(text[: text.rindex("</calculation>")])
    assert len(read_structures(tmp_path / "vasprun.xml")) == 1
    assert "1 step left out" in capsys.readouterr().err
