"""Programs of the process before are found on disk, by all that they were made of."""

import os

import pytest

from eqfuse.inference.programs import Kept
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
calculator = eqfuse.Calculator(sys.argv[1], radial="network")
print(repr(calculator.get_potential_energy(atoms)), len(calls), calculator.num_compilations)
if sys.argv[2:]:
    calls.clear()
    folder = tempfile.mkdtemp() + "/md"
    last = md.run(sys.argv[1], atoms, run=folder, steps=2, temperature=300.0, seed=1)
    print(repr(float(last.positions.sum())), len(calls), 1)
"""


@pytest.fixture(scope="module")
def answer(tmp_path_factory):
    """Return a function that computes in a new process: numbers, traces and programs."""
    folder = tmp_path_factory.mktemp("programs")
    run = untrained_run(folder)
    inherited = {k: v for k, v in os.environ.items() if not k.startswith("JAX_")}
    inherited |= {"EQFUSE_CACHE_DIR": str(folder / "cache"), "JAX_PLATFORMS": "cpu"}

    def answer(*tasks, **variables):
        lines = run_python("-c", CODE, run, *tasks, env=inherited | variables).stdout.splitlines()
        rows = [line.split() for line in (lines[0], lines[-1])]
        answers = [(float(number), int(traces), int(count)) for number, traces, count in rows]
        return answers if tasks else answers[0]

    answer.cache = folder / "cache"
    return answer


EAGER = {"JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0"}  # JAX's cache would take them all


def test_the_second_process_traces_nothing(answer):
    """For a calculator, nor for dynamics."""
    first = answer("md", **EAGER)
    assert [(traces > 0, programs) for _, traces, programs in first] == [(True, 1)] * 2
    assert answer("md") == [(found, 0, 1) for found, _, _ in first]


def test_only_kept_programs_have_their_name():
    """XLA cannot store what it read from JAX's cache, where those that are not kept may be."""
    names = {Kept(lambda x: x, made_of)._function.__name__ for made_of in ("text", None)}
    assert len(names) == 2


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
