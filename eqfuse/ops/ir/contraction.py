"""MACE's product basis as a form, in which A occurs several times.

Every element of e3nn's basis of symmetric maps is a path with its own weight, and its terms are
monomials of the components of A, each once: A_i A_j and A_j A_i are one term. Making pairs of A in
a first form and coupling them with A in a second would have less than half of the terms where there
are many (MACE with l <= 3 to l <= 2: 585 instead of 1301), but two launches for one, and an array
of pairs in memory.
"""

import collections
import functools

import e3nn_jax as e3nn
import numpy as np

from eqfuse.ops.ir.form import Form
from eqfuse.ops.ir.operands import Operand, Path, Role, Segment, SegmentRef

ZERO = 1e-10
"""Coefficients of e3nn's bases below this are rounding."""


def symmetric_basis(irs, ir_out: e3nn.Irrep, degree: int) -> e3nn.IrrepsArray:
    """Return symmetric maps of `degree` factors of irreps to one.

    Their shape is [d, ..., d, number of maps x ir_out].
    """
    irreps = e3nn.Irreps([(1, ir) for ir in irs])
    # e3nn-jax fails where there is no map at all; to the highest l there always is one
    top = max(irs, key=lambda ir: ir.l)
    keep = [ir_out, e3nn.Irrep(degree * top.l, top.p**degree)]
    maps = e3nn.reduced_symmetric_tensor_product_basis(irreps, degree, keep_ir=keep)
    return maps.filter(keep=[ir_out])


@functools.cache
def basis(irs: tuple[e3nn.Irrep, ...], ir_out: e3nn.Irrep, degree: int) -> np.ndarray:
    """Return e3nn's basis of symmetric maps: [d, ..., d, number of maps, ir_out.dim], float64."""
    maps = symmetric_basis(irs, ir_out, degree)
    return np.asarray(maps.array, np.float64).reshape(*maps.shape[:-1], -1, ir_out.dim)


@functools.cache
def contraction(irs, irs_out, mul: int, correlation: int) -> Form:
    """Return the form of a contraction: inputs x and w, output out, by rows.

    Args:
      irs, irs_out: irreps of x and of the output, each of `mul` channels.
      mul, correlation: as in `symmetric_contraction`.
    """
    paths, number = [], 0
    for out, ir in enumerate(irs_out):
        for degree in range(1, correlation + 1):
            maps = basis(irs, ir, degree)
            for k in range(maps.shape[-2]):
                for blocks, terms in _polynomials(irs, maps[..., k, :]).items():
                    factors = (*(SegmentRef(0, s) for s in blocks), SegmentRef(1, number))
                    paths.append(Path(factors, SegmentRef(0, out), terms))
                number += 1
    x = _operand("x", irs, mul, Role.LEFT)
    w = _operand("w", (e3nn.Irrep("0e"),) * number, mul, Role.OTHER)
    out = _operand("out", irs_out, mul, Role.OUTPUT)
    return Form((x, w), (out,), tuple(paths)).merged()


def _polynomials(irs, coefficients: np.ndarray):
    """Return terms of a map [d, ..., d, dim], by the blocks of x in increasing order.

    Weights have one component.
    """
    block = [(s, i) for s, ir in enumerate(irs) for i in range(ir.dim)]
    result = collections.defaultdict(collections.Counter)
    for *places, component in np.argwhere(abs(coefficients) > ZERO).tolist():
        factors = [block[place] for place in sorted(places)]
        key = (*(i for _, i in factors), 0, component)
        result[tuple(s for s, _ in factors)][key] += float(coefficients[*places, component])
    return {blocks: tuple(terms.items()) for blocks, terms in result.items()}


def _operand(name: str, irs, mul: int, role: Role) -> Operand:
    starts = np.cumsum([0, *(mul * ir.dim for ir in irs)]).tolist()
    segments = [Segment(s, mul, ir.dim, ir.dim) for s, ir in zip(starts, irs, strict=False)]
    return Operand(name, starts[-1], tuple(segments), channels=True, role=role)
