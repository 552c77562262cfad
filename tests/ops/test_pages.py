"""What docstrings and pages about the ops show is what happens, and the reference has all ops."""

import doctest
import operator
import re
from pathlib import Path

import e3nn_jax as e3nn
import jax
import jax.numpy as jnp
import pytest

from eqfuse import ops

DOCS = Path(__file__).parents[2] / "docs"
CONSTANTS = {"BACKENDS", "TF32X3"}
WITHOUT = CONSTANTS | {"availability", "compile_ahead", "resolve_here"}
"""Public names without an example: constants, and what depends on the machine."""


OF_FRAMEWORKS = ["haiku.Linear", "haiku.SymmetricTensorProduct", "equinox.Linear"]


@pytest.mark.parametrize("name", [*sorted(set(ops.__all__) - WITHOUT), *OF_FRAMEWORKS])
def test_examples_of_docstrings(name):
    if name in OF_FRAMEWORKS:
        pytest.importorskip(name.split(".")[0])
    names = {"e3nn": e3nn, "jax": jax, "jnp": jnp, "ops": ops}
    public = operator.attrgetter(name)(ops)
    examples = doctest.DocTestParser().get_doctest(public.__doc__, names, name, None, None)
    assert examples.examples, f"{name} has no example"
    said = []
    doctest.DocTestRunner(optionflags=doctest.ELLIPSIS).run(examples, out=said.append)
    assert not said, "".join(said)


def test_the_page_about_kernels_prints_what_it_shows():
    options = {"module_relative": False, "optionflags": doctest.ELLIPSIS, "encoding": "utf-8"}
    results = doctest.testfile(str(DOCS / "explanation" / "kernels.md"), **options)
    assert results.attempted > 10
    assert results.failed == 0


def test_the_reference_lists_all_of_ops():
    text = (DOCS / "reference" / "ops.md").read_text(encoding="utf-8")
    listed = re.findall(r"`(\w+)`", "".join(re.findall(r"(?m)^\| ([^|]*) \|", text)))
    assert sorted(listed) == sorted(set(ops.__all__) - CONSTANTS)
