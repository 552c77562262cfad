"""Contraction against the definition of a path, and what is kept from path to path."""

import math

import e3nn_jax as e3nn
import numpy as np
import pytest

from eqfuse.ops.ir import contraction, products
from eqfuse.ops.ir.form import derivatives


class Numbers(contraction.Contraction):
    """Computes values of one channel of one row as numbers, and counts products of two of them."""

    def __init__(self, form, arrays):
        super().__init__(form)
        self.arrays, self.products = arrays, 0

    def load(self, *name):
        return self.arrays[name]

    def number(self, number):
        if isinstance(number, float):
            return number
        return sum(c * math.prod(self.arrays[name] for name in names) for names, c in number)

    def multiply(self, a, b):
        self.products += 1
        return a * b

    def scaled(self, scale, value):
        return scale if value is None else scale * value

    def total(self, parts):
        return sum(n * (1.0 if a is None else a) * (1.0 if b is None else b) for n, a, b in parts)


class Together(Numbers):
    TOGETHER, NUMBERS = 2, False


def irreps(text):
    return tuple(ir for _, ir in e3nn.Irreps(text))


FORMS = {
    "weighted": products.tensor_product(
        *map(e3nn.Irreps, ("2x0e+2x1o+2x2e", "0e+1o+2e")), None, "component", weighted=True
    ).form,
    "of-channels": products.channelwise_tensor_product(
        *map(e3nn.Irreps, ("2x1o+2x2e", "2x1o+2x2e")), None, "component"
    ).form,
    "three-factors": products.contraction(irreps("0e+1o+2e"), irreps("0e+1o"), 2, 3),
}


@pytest.mark.parametrize("kind", [Numbers, Together])
@pytest.mark.parametrize("order", ["forward", "backward", "double"])
@pytest.mark.parametrize("name", FORMS)
def test_values_are_those_of_the_terms(name, order, kind):
    form, rng = derivatives(FORMS[name])[order], np.random.default_rng(0)
    arrays = {
        (o, s, k): rng.normal()
        for o, operand in enumerate(form.inputs)
        for s, segment in enumerate(operand.segments)
        for k in range(segment.dim)
    }
    computed = kind(form, arrays)
    for path in form.paths:
        expected = {}
        for (*components, k), c in path.terms:
            pairs = zip(path.factors, components, strict=True)
            term = c * math.prod(arrays[r.operand, r.segment, i] for r, i in pairs)
            expected[k] = expected.get(k, 0.0) + term
        factor, values = computed.values(path)
        factor = 1.0 if factor is None else factor
        result = {k: factor * v for k, v in values.items()}
        assert result == pytest.approx(expected, rel=1e-12, abs=1e-13)


def test_products_are_shared_by_paths_to_other_outputs():
    """The nine products of two vectors serve the scalar, the vector and the tensor of them."""
    form = products.channelwise_tensor_product(
        e3nn.Irreps("1o"), e3nn.Irreps("1o"), None, "component"
    ).form
    computed = Together(form, dict.fromkeys([(o, 0, k) for o in (0, 1) for k in range(3)], 1.0))
    for path in form.paths:
        computed.values(path)
    assert (len(form.paths), computed.products) == (3, 9)
