"""`eqfuse convert mace FILE RUN`, and the run that it writes."""

import sys

import ase
import numpy as np
import pytest

import eqfuse
from eqfuse.convert.command import main
from eqfuse.data import Structure
from eqfuse.inference.network import Network
from eqfuse.inference.predict import predict


def test_it_prints_what_the_network_is(model_file, tmp_path, capsys):
    assert main(["mace", str(model_file("density")), str(tmp_path / "run")]) == 0
    out = capsys.readouterr().out
    for text in ("3: H C O", "float64", "channels=3", "cutoff=4.5", "ZBL", "licence", "scale 0.8"):
        assert text in out, text
    assert "torch" not in sys.modules
    assert "mace" not in sys.modules


def test_nothing_is_overwritten(model_file, run, capsys):
    assert main(["mace", str(model_file("small")), str(run("small"))]) == 2
    assert "exists already" in capsys.readouterr().err


def test_a_head_is_asked_for(model_file, tmp_path, capsys):
    arguments = ["mace", str(model_file("two_heads")), str(tmp_path / "run")]
    assert main(arguments) == 2
    assert "one, two; give one of them by --head" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()
    assert main([*arguments, "--head", "one"]) == 0


def test_the_run_is_a_calculator_of_either_precision_and_is_evaluated(run, expected):
    arrays = expected("two_heads")
    numbers, positions, cell = (
        arrays[f"periodic_{name}"] for name in ("numbers", "positions", "cell")
    )
    energy, forces = arrays["periodic_two_energy"], arrays["periodic_two_forces"]
    for dtype, bound in ((None, 1e-10), ("float64", 1e-10), ("float32", 1e-5)):
        atoms = ase.Atoms(numbers, positions, cell=cell, pbc=True)
        atoms.calc = eqfuse.Calculator(run("two_heads"), dtype=dtype)
        assert atoms.get_potential_energy() == pytest.approx(energy, rel=bound)
        error = abs(atoms.get_forces() - forces).max() / abs(forces).max()
        assert error <= bound
        # single precision is not double, and double is not single
        assert (error > 1e-9) == (dtype == "float32")
    [found] = predict(
        Network(run("two_heads")), [Structure(numbers, positions, cell, np.full(3, True))]
    )
    assert found.energy == pytest.approx(energy, rel=1e-10)


def test_another_dtype_is_refused(run):
    with pytest.raises(ValueError, match="dtype must be float32 or float64, got 'float16'"):
        eqfuse.Calculator(run("small"), dtype="float16")
