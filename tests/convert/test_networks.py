"""Networks of other programs, against the programs' own energies, forces and stress.

The goldens are those of `scripts/mace_goldens.py`, small networks that mace-torch made, and those
of `scripts/network_goldens.py`. No trained weights are stored: networks of
`scripts/nequip_packages.py` and `scripts/sevennet_checkpoints.py` have random ones, and files of
trained networks are read in place: those of mace and nequix in the folder of published
data, those of SevenNet in an installed `sevenn` or in the copy that `eqfuse convert sevennet NAME
RUN` keeps.
"""

import ase
import numpy as np
import pytest

from eqfuse.convert import ConvertError, convert
from eqfuse.convert.registry import published
from eqfuse.inference.calculator import Calculator
from tests.convert.conftest import GOLDENS, SEVERAL_HEADS, expected, from_arrays, unpacked
from tests.convert.conftest import NAMES as OF_MACE
from tests.ops import tiers

NAMES = sorted(path.stem for path in (GOLDENS / "networks").glob("*.npz"))
QUICK = ["allegro_product", "allegro_spline", "mace_hcozr", "nequip_pair_cutoffs", "7net-0"]
QUICK.append("sevennet_both_parities")
# Couplings and constants are exact in both, but for couplings in mace's files of float32.
ROUNDED = {"mace_spice": 5e-6, "mace_hcozr": 1e-8}
EXACT = 1e-12

# float64: a few thousand operations of 1e-16 each. float32: the same of 6e-8, where mace's own
# forces in float32 are off by 4e-7 to 3e-6.
BOUNDS = {"float64": 1e-10, "float32": 1e-5}
SMALL = ["density", "edges", "first_without_residual", "nonlinear", "nonlinear_cutoff", "two_heads"]
DTYPES = tiers.slow_unless(["float64"], *BOUNDS)


@pytest.fixture(scope="module")
def converted(request, tmp_path_factory):
    """Golden and run of a network by its name; skips where its file is not to be had."""
    folder, made = tmp_path_factory.mktemp("networks"), {}

    def of(name):
        if name not in made:
            golden = expected(f"networks/{name}")
            program, file = str(golden["program"]), str(golden["network"])
            stored = GOLDENS / "networks" / f"{file}.xz"
            if stored.exists():
                path = unpacked(stored, folder)
            elif program == "sevennet":
                known = published()[name.partition("_P")[0].partition("_R")[0]]
                path = next((place for place in known.places() if place.is_file()), None)
                if path is None:
                    pytest.skip(f"{known.name} is not here")
            else:
                path = request.getfixturevalue("shared_data") / "networks" / file
                if not path.exists():
                    pytest.skip(f"{path} is not there; it is a published network of {program}")
            convert(program, path, folder / name, choice=str(golden["choice"]) or None)
            made[name] = golden, folder / name
        return made[name]

    return of


def results_of(calculator, atoms) -> dict:
    """Return energy, forces and stress (NaN without a cell) of atoms by a calculator."""
    atoms.calc = calculator
    stress = atoms.get_stress(voigt=False) if atoms.pbc.all() else np.full((3, 3), np.nan)
    energy, forces = atoms.get_potential_energy(), atoms.get_forces()
    return {"energy": energy, "forces": forces, "stress": stress}


def errors(ours, theirs) -> float:
    """Return the largest error of energy, forces and, where there is one, stress."""
    found = [np.max(abs(ours[q] - theirs[q])) / np.max(abs(theirs[q])) for q in theirs]
    return np.max([e for e in found if not np.isnan(e)])


@pytest.mark.parametrize("name", tiers.slow_unless(QUICK, *NAMES))
def test_energies_forces_and_stress_are_those_of_the_program(name, converted):
    golden, run = converted(name)
    calculator = Calculator(run, dtype="float64", radial="network")
    for k, atoms in enumerate(from_arrays(golden)):
        ours = results_of(calculator, atoms)
        theirs = {quantity: golden[f"{k}_{quantity}"] for quantity in ours}
        assert abs(theirs["forces"]).max() > 0.01
        assert errors(ours, theirs) <= ROUNDED.get(name, EXACT)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", tiers.slow_unless(SMALL, *OF_MACE))
def test_small_networks_are_those_of_mace(name, dtype, run):
    """Matrices of a file of float32 are rounded to 6e-8 there, where ours are exact."""
    arrays, head = expected(name), "_two" if name in SEVERAL_HEADS else ""
    calculator = Calculator(run(name), dtype=dtype, radial="network")
    for kind in ("periodic", "molecule"):
        fields = {f: arrays[f"{kind}_{f}"] for f in ("numbers", "positions", "cell")}
        ours = results_of(calculator, ase.Atoms(**fields, pbc=kind == "periodic"))
        theirs = {q: arrays[f"{kind}{head}_{q}"] for q in ours if f"{kind}{head}_{q}" in arrays}
        assert abs(theirs["forces"]).max() > 0.1
        assert ("stress" in theirs) >= (kind == "periodic")
        assert errors(ours, theirs) <= max(BOUNDS[dtype], 1e-6 * (name == "float32"))


def test_a_head_that_a_file_has_not_is_refused(tmp_path):
    path = unpacked(GOLDENS / "networks" / "sevennet_both_parities.pth.xz", tmp_path)
    with pytest.raises(ConvertError, match="the network has one head only, and no 'SCAN'"):
        convert("sevennet", path, tmp_path / "run", choice="SCAN")
    assert not (tmp_path / "run").exists()
