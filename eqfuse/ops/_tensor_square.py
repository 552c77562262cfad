"""`tensor_square`: e3nn-jax's tensor product of an array with itself, each pair once."""

import functools
import math

import e3nn_jax as e3nn
import numpy as np

from eqfuse.ops._backend import resolve
from eqfuse.ops._tensor_product import are_irreps, evaluate_rows, normalization, operands
from eqfuse.ops.ir.form import Form
from eqfuse.ops.ir.operands import Index, Path, Segment
from eqfuse.ops.ir.product_parts import (
    OUT,
    Columns,
    Operands,
    Product,
    X,
    Y,
    columns_of,
    coupling,
    groups,
    regrouped,
    renumbered,
)


def tensor_square(
    input,
    *,
    irrep_normalization: str | None = None,
    normalized_input: bool = False,
    regroup_output: bool = True,
    backend: str | None = None,
):
    """Compute `e3nn_jax.tensor_square`, an array times itself, its products in one kernel.

        out[..., (u, v), k] = sum over i, j:  c * cg[i, j, k] * input[..., u, i] * input[..., v, j]

    for channels u < v of a block, all of them of two blocks, and u = v where l is even; c makes the
    result normalised for normal input. The pairs of channels are written to memory.

    Args:
      input: IrrepsArray [..., irreps]; or irreps, to get the irreps of the square.
      irrep_normalization: "component" (default of e3nn-jax), "norm" or "none".
      normalized_input: the input has norms of one ("norm") or of the square root of its dimension
        ("component") exactly, and not on average.
      regroup_output: sort and merge irreps of the input and the output.
      backend: see `tensor_product`.
    Returns:
      IrrepsArray [..., irreps_out] of the dtype of the input; the Irreps if irreps were given.
    Raises:
      ValueError: a backend that cannot run here, or an unknown normalisation.
    References: e3nn-jax 0.21.
    """
    op = "" if are_irreps(input) else "tensor_square"
    backend = resolve(backend, op, input)
    irrep_normalization = normalization(irrep_normalization)
    if irrep_normalization not in ("component", "norm", "none"):
        raise ValueError(
            f"irrep_normalization={irrep_normalization!r} is not supported; "
            "choose 'component', 'norm' or 'none'"
        )
    if backend == "e3nn":
        return e3nn.tensor_square(
            input,
            irrep_normalization=irrep_normalization,
            normalized_input=normalized_input,
            regroup_output=regroup_output,
        )
    build = functools.partial(
        _build,
        normalization=irrep_normalization,
        normalized=bool(normalized_input),
        regroup=bool(regroup_output),
    )
    if are_irreps(input):
        return build(e3nn.Irreps(input)).irreps_out
    [x] = operands("tensor_square", input)
    return evaluate_rows(build(x.irreps, zero=x.zero_flags), x, x, backend)


@functools.cache
def _build(
    irreps: e3nn.Irreps,
    normalization: str,
    normalized: bool,
    regroup: bool,
    zero: tuple[bool, ...] | None = None,
) -> Product:
    """Return the form of all pairs of channels; its inputs are columns for each pair."""
    blocks = []  # (irrep, columns of x, columns of y, terms, zero)
    of = groups(irreps, zero or (False,) * len(irreps), regroup)
    for n, left in enumerate(of):
        for right in of[n:]:
            for ir in left.ir * right.ir:
                for same, pairs in _pairs(left, right, ir):
                    c = math.sqrt(_square(left.ir, right.ir, ir, same, normalization, normalized))
                    terms = coupling(left.ir, right.ir, ir, "none")
                    terms = tuple((index, c * value) for index, value in terms)
                    sides = [columns_of(g)[p] for g, p in zip((left, right), pairs, strict=True)]
                    blocks.append((ir, *sides, terms, left.zero or right.zero))
    blocks.sort(key=lambda block: block[0])  # stably, as e3nn sorts

    used, paths, chosen, sizes, offset = Operands(), [], ([], []), [0, 0], 0
    for ir, x, y, terms, is_zero in blocks:
        mul = len(x)
        if mul and not is_zero:
            refs = []
            for side, which in ((X, x), (Y, y)):
                dim = which.shape[1]
                refs.append(used.ref(side, Segment(sizes[side], mul, dim, dim)))
                chosen[side].append(Columns(which))
                sizes[side] += which.size
            out = used.ref(OUT, Segment(offset, mul, ir.dim, ir.dim))
            paths.append(Path(tuple(refs), out, terms))
        offset += mul * ir.dim
    irreps_out = e3nn.Irreps([(len(x), ir) for ir, x, *_ in blocks])
    inputs = tuple(used.operand(s, sizes[s], True, Index.ROW) for s in (X, Y))
    output = used.operand(OUT, irreps_out.dim, True, Index.ROW)
    form = renumbered(Form(inputs, (output,), ()), paths)
    zeros = tuple(block[-1] for block in blocks)
    if regroup:
        irreps_out, zeros = regrouped(irreps_out, zeros)
    return Product(form, irreps_out, zeros, tuple(map(tuple, chosen)))


def _pairs(left, right, ir: e3nn.Irrep):
    """Yield (whether of a channel with itself, (channels of left, of right)) in e3nn's order."""
    if left is not right:
        yield False, tuple(n.ravel() for n in np.indices((left.mul, right.mul)))
        return
    if left.mul > 1:
        yield False, np.triu_indices(left.mul, 1)
    if ir.l % 2 == 0:
        yield True, (np.arange(left.mul),) * 2


def _square(ir1, ir2, ir_out, same: bool, normalization: str, normalized: bool) -> float:
    """Return the square of the factor of the Clebsch-Gordan coefficients."""
    d1, d2, d_out = ir1.dim, ir2.dim, ir_out.dim
    if normalization == "none":
        return 1.0
    if not normalized:
        square = d_out if normalization == "component" else d1 * d2
        return square / ((d1 + 2 if ir_out.l == 0 else 2) if same else 1)
    square = d_out if normalization == "component" else 1
    if not same:
        return d1 * d2 * square
    return d1 * d_out if ir_out.l == 0 else d1 * (d1 + 2) / 2 * square
