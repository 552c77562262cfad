"""Teachers: labels as the calculator gives them, and errors that do not end a distillation."""

import ase.build
import numpy as np
import pytest
from ase.calculators.calculator import CalculationFailed
from ase.calculators.emt import EMT
from ase.calculators.lj import LennardJones

from eqfuse.distill.teacher import labelled, open_teacher
from eqfuse.runs.errors import CheckpointError, ConfigError
from tests.small_runs import copper_cell

FAILING = "tests.distill.calculators:Failing(11.5, {!r})"


def copper(a=3.6):
    return ase.build.bulk("Cu", a=a).repeat((2, 1, 1))


def test_labels_are_those_of_the_calculator():
    atoms = copper_cell(seed=1)
    teacher = open_teacher("ase.calculators.emt:EMT()")
    frame = labelled(atoms, teacher)
    teacher.close()
    atoms.calc = EMT()
    assert frame.get_potential_energy() == atoms.get_potential_energy()
    assert (frame.get_forces() == atoms.get_forces()).all()
    assert (frame.get_stress() == atoms.get_stress()).all()


def test_labels_of_a_molecule_have_no_stress():
    frame = labelled(ase.Atoms("Ar2", [(0, 0, 0), (0, 0, 1.2)]), LennardJones())
    assert sorted(frame.calc.results) == ["energy", "forces"]


@pytest.mark.parametrize(
    ("how", "message"),
    [("raises", "no convergence"), ("nan", "not finite"), ("exits", "exit code 3")],
)
def test_teacher_that_fails_labels_the_next_frame(how, message):
    teacher = open_teacher(FAILING.format(how))
    with pytest.raises(CalculationFailed, match=message):
        labelled(copper(3.4), teacher)
    frame = labelled(copper(3.7), teacher)
    teacher.close()
    assert frame.get_potential_energy() == EMT().get_potential_energy(copper(3.7))


def test_teacher_is_a_run_or_a_file_of_its_network(untrained):
    run = untrained(numbers=(29,))
    file = run / "checkpoints" / "best.safetensors"
    of_run, of_file = (labelled(copper(), open_teacher(str(n))) for n in (run, file))
    assert np.isfinite(of_run.get_potential_energy())
    assert of_file.get_potential_energy() == of_run.get_potential_energy()


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("7net-00", {}, "no run, and no published network .nearest: 7net-0"),
        ("7net-0", {"python": "python3"}, "python= is for calculators"),
        ("ase.calculators.emt:EMT()", {"head": "PBE"}, "head=PBE is for networks"),
    ],
)
def test_teacher_that_is_none_is_refused(name, options, message):
    with pytest.raises((ConfigError, CheckpointError), match=message):
        open_teacher(name, **options)
