"""The examples in the docstrings of the public ops run, and print what they say."""

import doctest

import e3nn_jax as e3nn
import jax
import jax.numpy as jnp
import pytest

from eqfuse import ops

WITHOUT = {"BACKENDS", "TF32X3", "availability", "compile_ahead", "resolve_here"}
WITHOUT |= {"tensor_product_linear_gate"}  # as tensor_product_linear
WITHOUT |= {"FunctionalFullyConnectedTensorProduct", "FunctionalTensorProduct"}
"""Public names without an example: constants, those of e3nn-jax, what depends on the machine."""
NAMES = sorted(set(ops.__all__) - WITHOUT)


@pytest.mark.parametrize("name", NAMES)
def test_examples(name):
    names = {"e3nn": e3nn, "jax": jax, "jnp": jnp, "ops": ops}
    public = getattr(ops, name)
    examples = doctest.DocTestParser().get_doctest(public.__doc__, names, name, None, None)
    assert examples.examples, f"{name} has no example"
    said = []
    doctest.DocTestRunner(optionflags=doctest.ELLIPSIS).run(examples, out=said.append)
    assert not said, "".join(said)
