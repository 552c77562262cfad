"""Programs of the process before are found on disk, by all that they were made of."""

import os

import pytest

from tests.child import run_python
from tests.lammps.untrained import untrained_run

CODE = """
import sys
import tempfile
import ase.build
import eqfuse
from eqfuse import md
from eqfuse.models import Potential
calls, apply = [], Potential.apply
Potential.apply = lambda *args, **kwargs: calls.append(1) or apply(*args, **kwargs)
atoms = ase.build.bulk("Al", cubic=True) * 2
atoms.rattle(0.1, seed=0)
if sys.argv[2] == "md":
    folder = tempfile.mkdtemp() + "/md"
    last = md.run(sys.argv[1], atoms, run=folder, steps=2, temperature=300.0, seed=1)
    print(repr(float(last.positions.sum())), len(calls), 1)
else:
    atoms.calc = eqfuse.Calculator(sys.argv[1], radial="network")
    print(repr(atoms.get_potential_energy()), len(calls), atoms.calc.num_compilations)
"""


@pytest.fixture(scope="module")
def answer(tmp_path_factory):
    """Return a function that computes in a new process: a number, traces and programs."""
    folder = tmp_path_factory.mktemp("programs")
    run = untrained_run(folder)
    inherited = {k: v for k, v in os.environ.items() if not k.startswith("JAX_")}
    inherited |= {"EQFUSE_CACHE_DIR": str(folder / "cache"), "JAX_PLATFORMS": "cpu"}

    def answer(task="calculator", **variables):
        done = run_python("-c", CODE, run, task, env=inherited | variables)
        energy, traces, programs = done.stdout.splitlines()[-1].split()
        return float(energy), int(traces), int(programs)

    answer.cache = folder / "cache"
    return answer


EAGER = {"JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0"}  # JAX's cache would take them all


@pytest.mark.parametrize("task", ["calculator", "md"])
def test_the_second_process_traces_nothing(answer, task):
    found, traces, programs = answer(task, **EAGER)
    assert (traces > 0, programs) == (True, 1)
    assert answer(task) == (found, 0, 1)


@pytest.mark.slow
def test_programs_that_are_damaged_or_of_other_things_are_not_taken(answer):
    energy, *_ = answer(**EAGER)
    assert answer(EQFUSE_FUSED="never")[1] > 0  # made of other things
    for file in answer.cache.glob("programs/*/eqfuse-*-cache"):  # damaged
        content = bytearray(file.read_bytes())
        content[100] ^= 1
        file.write_bytes(content)
    assert answer(**EAGER)[0] == energy
    assert answer() == (energy, 0, 1)  # XLA cannot store what it has read from JAX's cache
