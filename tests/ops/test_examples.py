"""e3nn-jax's documented examples of its products print the same through ours."""

import doctest
import types

import e3nn_jax as e3nn
import jax.numpy as jnp
import numpy as np
import pytest

from eqfuse import ops
from tests.ops.parity import BACKENDS

NAMES = ["tensor_product", "elementwise_tensor_product"]


def examples(name: str) -> doctest.DocTest:
    """Return the examples of e3nn-jax's function `name`, as its installed version documents them.

    They import e3nn_jax under the name that holds our products; that line is left out.
    """
    text = getattr(e3nn, name).__doc__
    found = doctest.DocTestParser().get_doctest(text, {}, name, None, None)
    found.examples = [e for e in found.examples if e.source.strip() != "import e3nn_jax as e3nn"]
    return found


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", NAMES)
def test_examples_print_the_same(name, backend):
    calls = []

    def ours(*arguments, **keywords):
        calls.append(arguments)
        return getattr(ops, name)(*arguments, **keywords, backend=backend)

    replaced = types.SimpleNamespace(**{**vars(e3nn), name: ours})
    test = examples(name)
    test.globs = {"jnp": jnp, "e3nn": replaced}
    assert test.examples, f"e3nn-jax documents no examples of {name} any more"
    report = []
    with np.printoptions():
        result = doctest.DocTestRunner(verbose=False).run(test, out=report.append)
    assert result.failed == 0, "".join(report)
    assert result.attempted == len(test.examples)
    assert calls
