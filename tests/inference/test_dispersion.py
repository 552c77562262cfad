"""DFT-D3 of the D3 project's library, added to what a network computes."""

import sys

import ase.build
import ase.io
import numpy as np
import pytest
from ase.calculators.calculator import PropertyNotImplementedError
from ase.calculators.mixing import SumCalculator

import eqfuse
from eqfuse.cli import main
from eqfuse.data import DataError, Structure
from eqfuse.inference.dispersion import Dispersion
from eqfuse.train.settings.schema import ConfigError

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


def test_predictions_of_several_structures_have_it(run, atoms):
    others = [atoms.copy(), ase.build.molecule("N2")]
    others[1].numbers[:] = 29
    others[1].positions *= 2
    predicted = eqfuse.predict(run, others, dispersion="d3(bj)")
    for one, found in zip(others, predicted, strict=True):
        one.calc = by_hand(run)
        assert found.energy == pytest.approx(one.get_potential_energy(), abs=1e-9)
        np.testing.assert_allclose(found.forces, one.get_forces(), rtol=0, atol=1e-9)
    assert predicted[1].stress is None
    np.testing.assert_allclose(
        predicted[0].stress, others[0].get_stress(voigt=False), rtol=0, atol=1e-10
    )


def test_commands_name_it_in_what_they_write(run, atoms, tmp_path, capsys):
    source, out = tmp_path / "in.xyz", tmp_path / "out.xyz"
    ase.io.write(source, atoms.copy())
    assert main(["predict", str(run), str(source), str(out), "--dispersion", "d3(bj)"]) == 0
    assert "dispersion d3(bj,pbe), by dftd3 on the CPU" in capsys.readouterr().out
    frame = ase.io.read(out)
    assert frame.info["dispersion"] == "d3(bj,pbe)"
    atoms.calc = eqfuse.Calculator(run, dispersion="d3(bj)")
    assert frame.get_potential_energy() == pytest.approx(atoms.get_potential_energy())
    relaxed = tmp_path / "relaxed.xyz"
    main(["relax", str(run), str(source), str(relaxed), "dispersion=d3(bj)", "fmax=0.1"])
    assert "with d3(bj,pbe)" in capsys.readouterr().out
    assert ase.io.read(relaxed).info["dispersion"] == "d3(bj,pbe)"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("d4", "must be d3"),
        ("d3(foo)", "of the damping bj, zero"),
        ("d3(bj,nothing)", "No entry for 'nothing'"),
    ],
)
def test_others_are_refused(run, text, message):
    with pytest.raises(ConfigError, match=message):
        eqfuse.Calculator(run, dispersion=text)


def test_elements_without_parameters_are_refused():
    """The library would end the process."""
    one = Structure([104], np.zeros((1, 3)), np.zeros((3, 3)), np.zeros(3, bool))
    with pytest.raises(DataError, match="no parameters beyond the element 103"):
        Dispersion.parse("d3(bj)").of(one)


def test_the_extra_is_named_where_it_is_missing(monkeypatch):
    monkeypatch.setitem(sys.modules, "dftd3", None)
    with pytest.raises(ConfigError, match=r"needs dftd3: pip install 'eqfuse\[dispersion\]'"):
        Dispersion.parse("d3(bj)")
