"""Frames that several readers read."""

import ase.build
import ase.units
import pytest

from tests.small_runs import labelled


def vasprun(frames, steps=(), most: int = 9) -> str:
    """Return what the readers use of a vasprun.xml; the energy without smearing is another.

    Each frame has a number of electronic `steps`, one by default, of at `most` so many.
    """

    def rows(name, array):
        inside = "".join("<v>" + " ".join(f"{x:.12f}" for x in row) + "</v>" for row in array)
        return f'<varray name="{name}">{inside}</varray>'

    def structure(atoms, tag=""):
        basis = rows("basis", atoms.cell.array)
        places = rows("positions", atoms.cell.scaled_positions(atoms.positions))
        return f"<structure{tag}><crystal>{basis}</crystal>{places}</structure>"

    atoms = "".join(f"<rc><c>{s:<2}</c><c>1</c></rc>" for s in frames[0].get_chemical_symbols())
    text = '<?xml version="1.0"?><modeling><kpoints><varray name="kpointlist"><v>0 0 0</v></varray>'
    text += '<varray name="weights"><v>1</v></varray></kpoints><parameters><i type="int" '
    text += f'name="NELM">{most}</i></parameters><atominfo><array name="atoms"><set>{atoms}</set>'
    text += "</array></atominfo>" + structure(frames[0], ' name="initialpos"')
    for frame, count in zip(frames, steps or [1] * len(frames), strict=True):
        energy, stress = frame.get_potential_energy(), frame.get_stress(voigt=False)
        names = {"e_fr_energy": energy, "e_wo_entrp": energy - 0.4, "e_0_energy": energy - 0.2}
        energies = "".join(f'<i name="{name}">{x:.12f}</i>' for name, x in names.items())
        text += "<calculation>" + count * f"<scstep><energy>{energies}</energy></scstep>"
        text += structure(frame) + rows("forces", frame.get_forces())
        text += rows("stress", stress / (-0.1 * ase.units.GPa))
        text += f"<energy>{energies}</energy></calculation>"
    return text + "</modeling>"


@pytest.fixture
def frames(rng):
    """Return a molecule and a stretched crystal, with labels."""
    cell = ase.build.bulk("Cu", cubic=True)
    cell.set_cell(cell.cell.array * [[1.02], [1.0], [0.97]], scale_atoms=True)
    cell.positions += rng.normal(scale=0.05, size=(4, 3))
    names = ("energy", "forces", "stress")
    return [labelled(ase.build.molecule("H2O")), labelled(cell, names)]
