"""DFT-D3 of the D3 project's library, added to what a network computes."""

import sys

import ase.build
import ase.io
import numpy as np
import pytest
from ase.calculators.calculator import PropertyNotImplementedError
from ase.calculators.mixing import SumCalculator

import eqfuse
from eqfuse.data import DataError, Structure
from eqfuse.runs.errors import ConfigError
from eqfuse.train.dispersion import Dispersion
from tests.inference.conftest import slope_of_forces
from tests.ops import tiers

dftd3 = pytest.importorskip("dftd3.ase")


def by_hand(run, method="pbe", damping="d3bj"):
    """Return the sum of the calculators of the network and of dftd3."""
    return SumCalculator([eqfuse.Calculator(run), dftd3.DFTD3(method=method, damping=damping)])


@pytest.mark.parametrize(
    ("text", "theirs"),
    [("d3(bj)", {}), ("D3(zero, tpss)", {"method": "tpss", "damping": "d3zero"})],
)
@pytest.mark.parametrize("pbc", [True, False])
def test_it_is_what_the_library_adds(run, atoms, text, theirs, pbc):
    """Both are sums of float64; the network is that of the same calculator."""
    if not pbc:
        atoms.pbc, atoms.cell = False, None
    expected = atoms.copy()
    expected.calc = by_hand(run, **theirs)
    plain = atoms.get_potential_energy()
    atoms.calc = eqfuse.Calculator(run, dispersion=text)
    assert atoms.get_potential_energy() == pytest.approx(expected.get_potential_energy(), abs=1e-9)
    assert abs(atoms.get_potential_energy() - plain) > 0.01
    np.testing.assert_allclose(atoms.get_forces(), expected.get_forces(), rtol=0, atol=1e-9)
    assert atoms.get_potential_energies().sum() == pytest.approx(atoms.get_potential_energy())
    if pbc:
        np.testing.assert_allclose(atoms.get_stress(), expected.get_stress(), rtol=0, atol=1e-10)
    with pytest.raises(PropertyNotImplementedError):
        atoms.get_stresses()


@pytest.fixture
def dimer():
    """Return two atoms of copper without a cell."""
    return ase.Atoms("Cu2", 2 * ase.build.molecule("N2").positions)


@pytest.mark.parametrize("given", ["d3(bj)", True])
def test_predictions_of_several_structures_have_it(given, run, atoms, dimer):
    predicted = eqfuse.predict(run, [atoms.copy(), dimer], dispersion=given)
    for one, found in zip((atoms, dimer), predicted, strict=True):
        one.calc = by_hand(run)
        assert found.energy == pytest.approx(one.get_potential_energy(), abs=1e-9)
        np.testing.assert_allclose(found.forces, one.get_forces(), rtol=0, atol=1e-9)
    assert predicted[1].stress is None
    expected = atoms.get_stress(voigt=False)
    np.testing.assert_allclose(predicted[0].stress, expected, rtol=0, atol=1e-10)


def test_commands_name_it_in_what_they_write(run, atoms, tmp_path, command):
    source, out, relaxed = (tmp_path / f"{name}.xyz" for name in ("in", "out", "relaxed"))
    ase.io.write(source, atoms.copy())
    printed = command("predict", run, source, out, "--dispersion", "d3(bj)").out
    assert "dispersion d3(bj,pbe), by dftd3 on the CPU" in printed
    frame = ase.io.read(out)
    assert frame.info["dispersion"] == "d3(bj,pbe)"
    atoms.calc = eqfuse.Calculator(run, dispersion="d3(bj)")
    assert frame.get_potential_energy() == pytest.approx(atoms.get_potential_energy())
    printed = command("relax", run, source, relaxed, "dispersion=d3(bj)", "fmax=0.1").out
    assert "with d3(bj,pbe)" in printed
    assert ase.io.read(relaxed).info["dispersion"] == "d3(bj,pbe)"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("d4", "must be d3"),
        ("d3(foo)", "of the damping bj, zero"),
        ("d3(bj,nothing)", "No entry for 'nothing'"),
        ("d3(bj)", r"needs dftd3: pip install 'eqfuse\[dispersion\]'"),
    ],
)
def test_others_and_a_missing_library_are_refused(run, text, message, monkeypatch):
    if text == "d3(bj)":
        monkeypatch.setitem(sys.modules, "dftd3", None)
    with pytest.raises(ConfigError, match=message):
        eqfuse.Calculator(run, dispersion=text)


def d3_of(numbers, positions, cell=None, pbc=None):
    return Dispersion.parse("d3(bj)").of(Structure(numbers, positions, cell, pbc))


@pytest.mark.parametrize("seed", tiers.slow_unless(range(32), *range(300)))
def test_slabs_and_wires_are_those_of_a_large_cell(seed):
    """Whatever is given along directions without images, and wherever the atoms are.

    Atoms in a skewed cell have the D3 of those with 90 Å between images.
    """
    rng, pbc = np.random.default_rng(seed), np.array(np.unravel_index(seed % 8, (2, 2, 2)), bool)
    full = np.eye(3) * rng.uniform(3, 6, 3) + rng.uniform(-1.5, 1.5, (3, 3)) * (1 - np.eye(3))
    count = int(rng.integers(2, 7))
    numbers = rng.choice([1, 6, 14, 29, 79], count)
    places = rng.uniform(-1.5, 1.5, (count, 3))
    positions, cell, large = places @ full, full.copy(), full.copy()
    large[~pbc] = 100 * np.linalg.svd(full[pbc])[2][pbc.sum() :] if pbc.any() else 100 * np.eye(3)
    others = np.zeros((3, 3)), 0.1 * full, full[[1, 2, 0]] + full, 5 * full
    cell[~pbc] = others[seed // 8 % 4][~pbc]
    found = d3_of(numbers, positions, cell, pbc)
    expected = d3_of(numbers, positions, large, [True] * 3)
    size = max(1.0, np.abs(expected.forces).max())
    assert found.energy == pytest.approx(expected.energy, rel=1e-8)
    np.testing.assert_allclose(found.forces, expected.forces, rtol=0, atol=1e-8 * size)
    np.testing.assert_allclose(found.strain, expected.strain, rtol=0, atol=1e-7 * size)


def test_dispersion_refuses_what_the_library_cannot_compute(monkeypatch):
    """Elements without parameters would end the process."""
    with pytest.raises(DataError, match="no parameters beyond the element 103"):
        d3_of([104], np.zeros((1, 3)))
    found = {"energy": np.nan, "gradient": np.zeros((2, 3)), "virial": np.zeros((3, 3))}
    monkeypatch.setattr(Dispersion, "_computed", lambda *_, **__: found)
    with pytest.raises(DataError, match="energy or force that is not finite"):
        d3_of([6, 6], np.eye(2, 3))


def test_energies_of_atoms_are_computed_where_they_are_asked_for(run, atoms, monkeypatch):
    calls = []
    plain = Dispersion.energies_of_atoms
    monkeypatch.setattr(Dispersion, "energies_of_atoms", lambda *a: calls.append(1) or plain(*a))
    atoms.calc = eqfuse.Calculator(run, dispersion="d3(bj)")
    energy, _, _ = atoms.get_potential_energy(), atoms.get_forces(), atoms.get_stress()
    assert not calls
    assert atoms.get_potential_energies().sum() == pytest.approx(energy, abs=1e-9)
    assert len(calls) == 1


def test_a_committee_has_the_mean_of_them(committee, atoms):
    atoms.calc = eqfuse.Committee(committee)
    plain, spread = atoms.get_potential_energy(), atoms.calc.results["energies_spread"]
    atoms.calc = eqfuse.Committee(committee, dispersion="d3(bj)")
    added = d3_of(atoms.numbers, atoms.positions, atoms.cell.array, atoms.pbc).energy
    assert atoms.get_potential_energy() == pytest.approx(plain + added, abs=1e-9)
    np.testing.assert_allclose(atoms.calc.results["energies_spread"], spread, rtol=1e-6)
    with pytest.raises(PropertyNotImplementedError):
        atoms.get_stresses()


def test_the_hessian_has_it(run, dimer):
    """It is that of the differences of all forces."""
    dimer.calc = eqfuse.Calculator(run, dispersion="d3(bj)", dtype="float64", radial="network")
    found = eqfuse.hessian(dimer)
    for k in np.ndindex(2, 3):
        expected = slope_of_forces(dimer, *k, step=1e-3)
        np.testing.assert_allclose(found[k], expected, rtol=0, atol=2e-5)
    assert np.abs(found - eqfuse.hessian(run, dimer)).max() > 1e-3
