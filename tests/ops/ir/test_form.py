"""Forms are pure algebra: their terms, derivatives, names and counts, checked with numpy."""

import dataclasses
import itertools
import math

import e3nn_jax as e3nn
import numpy as np
import pytest

from benchmarks.gpu.cases import CASES
from eqfuse.ops.ir import contraction, products
from eqfuse.ops.ir.form import Form, Index, Operand, Path, Segment, SegmentRef, derivatives
from tests.ops.cases import product_form


def evaluate(form: Form, arrays: dict, senders=None, receivers=None, num_nodes=0):
    """Return the outputs of a form by its definition, term by term, in float64 numpy."""
    rows = {Index.ROW: slice(None), Index.SENDER: senders, Index.RECEIVER: receivers}
    rows[Index.SHARED] = slice(None)  # of one row, which numpy takes for all
    num_rows = max(len(a) for a in arrays.values()) if senders is None else len(senders)
    outputs = {o.name: np.zeros((num_rows, o.size)) for o in form.outputs}
    for path in form.paths:
        operands = [form.inputs[s.operand] for s in path.factors]
        operands.append(form.outputs[path.output.operand])
        refs = (*path.factors, path.output)
        segments = [o.segments[s.segment] for o, s in zip(operands, refs, strict=True)]
        mul = max(s.mul for o, s in zip(operands, segments, strict=True) if o.channels)
        for (components, value), u in itertools.product(path.terms, range(mul)):
            places = [
                s.element(u if o.channels else 0, i)
                for o, s, i in zip(operands, segments, components, strict=True)
            ]
            product = value
            for o, place in zip(operands[:-1], places, strict=False):
                product = product * arrays[o.name][rows[o.index]][:, place]
            outputs[operands[-1].name][:, places[-1]] += product
    for operand in form.outputs:
        if operand.index is Index.SHARED:
            outputs[operand.name] = outputs[operand.name].sum(axis=0, keepdims=True)
        elif operand.index is not Index.ROW:
            summed = np.zeros((num_nodes, operand.size))
            np.add.at(summed, rows[operand.index], outputs[operand.name])
            outputs[operand.name] = summed
    return outputs


IRREPS = [e3nn.Irrep(l, p) for l in range(4) for p in (1, -1)]


@pytest.mark.parametrize("normalization", ["component", "norm", "none"])
def test_coefficients_are_those_of_e3nn(normalization):
    """Every path up to l = 3 has the non-zero coefficients of e3nn, and no other term."""
    for ir1, ir2 in itertools.product(IRREPS, repeat=2):
        for ir_out in ir1 * ir2:
            scales = {"component": ir_out.dim, "norm": ir1.dim * ir2.dim, "none": 1}
            cg = np.asarray(e3nn.clebsch_gordan(ir1.l, ir2.l, ir_out.l), np.float64)
            nonzero = {i: cg[i] for i in np.ndindex(cg.shape) if abs(cg[i]) > 1e-12}
            irreps = e3nn.Irreps([ir1]), e3nn.Irreps([ir2])
            product = products.tensor_product(*irreps, (ir_out,), normalization)
            [path] = product.form.paths
            scale = math.sqrt(scales[normalization])
            assert dict(path.terms) == {i: c * scale for i, c in nonzero.items()}


@pytest.mark.parametrize(
    ("name", "paths", "terms"),
    [("nequip-64-l2", 30, 274), ("mace-large", 17, 215), ("nequip-benzene-64-l3", 68, 1222)],
)
def test_counts_are_the_published_ones(name, paths, terms):
    form = CASES[name].product().form
    assert len(form.paths) == paths
    assert form.num_terms == terms


def test_paths_of_the_same_factors_are_merged():
    """The derivative of 3 a a is 6 a t_a: one path, whose terms are added."""
    a = Operand("a", 1, (Segment(0, 1, 1, 1),), channels=True)
    square = Path((SegmentRef(0, 0), SegmentRef(0, 0)), SegmentRef(0, 0), (((0, 0, 0), 3.0),))
    form = Form((a,), (dataclasses.replace(a, name="out"),), (square,))
    [path] = form.jvp((True,)).paths
    assert path.terms == (((0, 0, 0), 6.0),)
    opposite = dataclasses.replace(square, terms=(((0, 0, 0), -3.0),))
    assert dataclasses.replace(form, paths=(square, opposite)).merged().paths == ()


SMALL = "2x0e+3x1o", "1o+0e"


def test_equal_products_have_equal_forms():
    """Built apart, they compare and hash alike, so that kernels are found again."""
    products.tensor_product.cache_clear()
    first = [*derivatives(product_form(*SMALL)).values()]
    products.tensor_product.cache_clear()
    second = [*derivatives(product_form(*SMALL)).values()]
    for one, other in zip(first, second, strict=True):
        assert one is not other
        assert one == other
        assert hash(one) == hash(other)
    assert first[0] != product_form(*SMALL, weighted=False)
    assert len({*first, *second}) == 3


A = Operand("a", 6, (Segment(0, 2, 3, 3),), channels=True)
B = Operand("b", 3, (Segment(0, 1, 3, 3),), channels=False)
WIDE = Operand("c", 9, (Segment(0, 3, 3, 3),), channels=True)


@pytest.mark.parametrize(
    ("inputs", "output", "terms", "message"),
    [
        ((A, A), B, (), r"distinct names, got \['a', 'a', 'b'\]"),
        ((A, B), WIDE, (((0, 0, 0), 1.0),), r"joins segments of \[2, 3\] channels"),
        ((B,), A, (((0, 0), 1.0),), "has channels, but no input of its path has"),
        ((A,), B, (((0, 3), 1.0),), r"components \(0, 3\) lie outside segments"),
    ],
)
def test_forms_that_do_not_fit_are_refused(inputs, output, terms, message):
    path = Path(tuple(SegmentRef(n, 0) for n in range(len(inputs))), SegmentRef(0, 0), terms)
    with pytest.raises(ValueError, match=message):
        Form(inputs, (output,), (path,))


class Products(contraction.Contraction):
    """Counts products of two components, for kernels in which sums leave two vectors together."""

    TOGETHER, NUMBERS, count = 2, False, 0

    def load(self, *name):
        return 1.0

    def multiply(self, a, b):
        self.count += 1
        return a * b

    def number(self, number):
        return number

    def scaled(self, scale, value):
        return scale

    def total(self, parts):
        return 1.0


def test_products_are_shared_by_paths_to_other_outputs():
    """The nine products of two vectors serve the scalar, the vector and the tensor of them."""
    vector = e3nn.Irreps("1o")
    form = products.channelwise_tensor_product(vector, vector, None, "component").form
    computed = Products(form)
    for path in form.paths:
        computed.values(path)
    assert (len(form.paths), computed.count) == (3, 9)
