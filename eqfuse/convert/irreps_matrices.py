"""Weights of e3nn for PyTorch as a matrix for each irrep, and matrices as parameters of eqfuse.

A Linear mixes the channels of each irrep with one matrix. Programs keep its blocks one after the
other in a flat array and multiply them with a number; the matrices here have that number in them,
and their rows and columns are the channels in the order in which the irreps list them.
"""

import math

import e3nn_jax as e3nn
import numpy as np

from eqfuse.convert.errors import ConvertError
from eqfuse.models.irreps import SCALAR

Matrices = dict[e3nn.Irrep, np.ndarray]


def linear_matrices(flat, irreps_in, irreps_out, extra: int = 0) -> tuple[Matrices, np.ndarray]:
    """Return the matrices of an `e3nn.o3.Linear` without biases.

    Args:
      flat: its weights.
      irreps_in, irreps_out: those that it was made with.
      extra: number of even scalars that are added to the input, after it.
    Returns:
      [rows, columns] for each irrep, and the rows [extra, columns of 0e] of those scalars.
    Raises:
      ConvertError: another number of weights.
    """
    irreps_in, irreps_out = e3nn.Irreps(irreps_in), e3nn.Irreps(irreps_out)
    flat = np.asarray(flat, np.float64).ravel()
    shapes = [(mul, ir) for mul, ir in irreps_in] + [(extra, SCALAR)] * (extra > 0)
    blocks = _blocks(flat, shapes, irreps_out, ())
    result = _joined(blocks, shapes, irreps_out)
    matrices = {ir: w / math.sqrt(len(w)) for ir, w in result.items()}
    if not extra:
        return matrices, np.zeros((0, irreps_out.count(SCALAR)))
    rest = matrices[SCALAR][-extra:]
    matrices[SCALAR] = matrices[SCALAR][:-extra]
    return {ir: w for ir, w in matrices.items() if w.size}, rest


def one_hot_matrices(flat, irreps_in, count: int, irreps_out) -> Matrices:
    """Return the matrices of a `FullyConnectedTensorProduct` with scalars, a set for each scalar.

    Args:
      flat: its weights.
      irreps_in, irreps_out: those that it was made with.
      count: number of scalars of the second factor.
    Returns:
      [count, rows, columns] for each irrep: what the first factor is multiplied with where the
      second one is one for that scalar and zero for the others.
    """
    irreps_in, irreps_out = e3nn.Irreps(irreps_in), e3nn.Irreps(irreps_out)
    flat = np.asarray(flat, np.float64).ravel()
    shapes = [(mul, ir) for mul, ir in irreps_in]
    blocks = _blocks(flat, shapes, irreps_out, (count,))
    result = _joined(blocks, shapes, irreps_out)
    return {ir: np.moveaxis(w, 1, 0) / math.sqrt(w.shape[0] * count) for ir, w in result.items()}


def _blocks(flat, shapes, irreps_out, middle: tuple[int, ...]) -> dict:
    """Return the block [rows, *middle, columns] of each place of the input and of the output."""
    at, result = 0, {}
    for i, (rows, ir) in enumerate(shapes):
        for o, (columns, ir_out) in enumerate(irreps_out):
            if ir == ir_out:
                size = rows * math.prod(middle) * columns
                result[i, o] = flat[at : at + size].reshape(-1, *middle, columns)
                at += size
    if at != len(flat) or any(block.shape[0] != shapes[i][0] for (i, _), block in result.items()):
        raise ConvertError(
            f"{len(flat)} weights do not fit a Linear of {e3nn.Irreps(shapes)} to {irreps_out}, "
            f"which has {at}"
        )
    return result


def _joined(blocks, shapes, irreps_out) -> Matrices:
    """Return the blocks of an irrep side by side."""
    result = {}
    for ir in {ir for _, ir in irreps_out}:
        rows = [i for i, (_, other) in enumerate(shapes) if other == ir]
        columns = [o for o, (_, other) in enumerate(irreps_out) if other == ir]
        if rows:
            parts = [np.concatenate([blocks[i, o] for o in columns], axis=-1) for i in rows]
            result[ir] = np.concatenate(parts, axis=0)
    return result


def scaled(matrices: Matrices, factors: dict[e3nn.Irrep, float]) -> Matrices:
    """Return matrices of features that come multiplied with a factor for each irrep."""
    return {ir: w * factors.get(ir, 1.0) for ir, w in matrices.items()}


def named(matrices: Matrices, irreps_in, irreps_out) -> dict[str, np.ndarray]:
    """Return parameters of `eqfuse.ops.Linear`, which divides by the square root of its rows.

    Args:
      matrices: [..., rows, columns] for each irrep, of at least those of both sides.
      irreps_in: of the input; blocks of one irrep are one.
      irreps_out: of the output; adjacent blocks of one irrep are one.
    """
    result = {}
    outputs = list(e3nn.Irreps(irreps_out).simplify())
    for i, (rows, ir) in enumerate(e3nn.Irreps(irreps_in).regroup()):
        first = 0
        for o, (columns, ir_out) in enumerate(outputs):
            if ir == ir_out:
                w = matrices[ir][..., first : first + columns]
                assert w.shape[-2:] == (rows, columns), (ir, w.shape, rows, columns)
                result[f"w[{i},{o}] {rows}x{ir},{columns}x{ir}"] = w * math.sqrt(rows)
                first += columns
    return result


def named_biases(values: np.ndarray, irreps_out) -> dict[str, np.ndarray]:
    """Return biases of `eqfuse.ops.Linear` for the even scalars of its output.

    Args:
      values: [even scalars].
      irreps_out: of the output.
    """
    result, first = {}, 0
    for o, (mul, ir) in enumerate(e3nn.Irreps(irreps_out).simplify()):
        if ir == SCALAR:
            result[f"b[{o}] {mul}x{ir}"] = values[first : first + mul]
            first += mul
    return result
