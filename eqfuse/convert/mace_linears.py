"""Linears and activations of e3nn for PyTorch in files of mace, as matrices and factors."""

import math

import e3nn_jax as e3nn
import jax
import numpy as np

from eqfuse.convert.irreps_matrices import Matrices
from eqfuse.convert.pickled import Record


def irreps(record) -> e3nn.Irreps:
    """Return irreps from a record of e3nn's for PyTorch or from text."""
    if isinstance(record, str):
        return e3nn.Irreps(record)
    pairs = []
    for part in record.args[0]:
        mul, ir = part.args[0]
        pairs.append((int(mul), tuple(int(n) for n in ir.args[0])))
    return e3nn.Irreps(pairs)


def activation_ratio(cst: float) -> float:
    """Return the ratio of e3nn's normalised silu to e3nn-jax's.

    Args:
      cst: the constant by which e3nn multiplies, as the file has it.
    """
    return cst / normalised("silu")


def normalised(name: str) -> float:
    """Return by what e3nn-jax multiplies an activation of `jax.nn`, to normalise it."""
    act = getattr(jax.nn, name)
    with jax.enable_x64(True):
        return float(e3nn.normalize_function(act)(1.0) / act(1.0))


def ratio_of(activation: Record) -> float:
    """Return `activation_ratio` of an activation of a file."""
    return activation_ratio(1.0 if activation.get("_is_id") else float(activation.get("cst")))


def linear_blocks(linear: Record) -> list[tuple[tuple[int, int], np.ndarray]]:
    """Return input, output and scaled matrix of each path of a Linear."""
    flat, at, result = np.asarray(linear.get("weight"), np.float64), 0, []
    for instruction in linear.get("instructions"):
        i, o, shape, weight = instruction.args
        if i < 0:  # a bias
            continue
        count = math.prod(shape)
        result.append(((i, o), flat[at : at + count].reshape(shape) * float(weight)))
        at += count
    return result


def matrices_of(linear: Record) -> Matrices:
    """Return the matrix of each irrep of a Linear, in both of whose irreps each occurs once."""
    irreps_in = irreps(linear.get("irreps_in"))
    return {irreps_in[i].ir: w for (i, _), w in linear_blocks(linear)}


def by_path(block: Record, name: str = "linear") -> dict[int, np.ndarray]:
    """Return the matrices of the Linear after the convolution, by the output of the convolution.

    Up to version 0.3.8, mace simplifies the irreps that this Linear reads: outputs of one irrep
    that lie side by side are one input of it, and share a matrix by its rows.
    """
    linear, outputs = block.get(name), irreps(block.get("conv_tp.irreps_out"))
    matrices = {i: w for (i, _), w in linear_blocks(linear)}
    inputs = irreps(linear.get("irreps_in"))
    starts = dict(
        zip(np.cumsum([0, *(mul for mul, _ in inputs)]), range(len(inputs)), strict=False)
    )
    found, at, number, first = {}, 0, 0, 0
    for o, (mul, _) in enumerate(outputs):
        if at in starts:
            number, first = starts[at], at
        if number in matrices:  # not one of an irrep that A has no use for
            found[o] = matrices[number][at - first : at - first + mul]
        at += mul
    return found
