"""Parts of e3nn for PyTorch as matrices: Linears, products, dense networks, paths of convolutions.

A Linear mixes the channels of each irrep with one matrix. Programs keep its blocks one after the
other in a flat array and multiply them with a number; the matrices here have that number in them,
and their rows and columns are the channels in the order in which the irreps list them.
"""

import dataclasses
import math

import e3nn_jax as e3nn
import numpy as np

from eqfuse.convert.converted import ConvertError, refuse
from eqfuse.convert.records import Record
from eqfuse.models.irreps import SCALAR

Matrices = dict[e3nn.Irrep, np.ndarray]
# e3nn for PyTorch estimates them with a million random numbers, of seed 0; they are in no file
SILU = 1.6791767923989418
TANH = 1.5937334472592695


def irreps_of(item) -> e3nn.Irreps:
    """Return irreps of a record of e3nn's, of pairs of a multiplicity and (l, p), or of text."""
    if isinstance(item, str):
        return e3nn.Irreps(item)

    def plain(part):
        part = part.args[0] if isinstance(part, Record) else part
        return tuple(plain(p) if isinstance(p, Record | tuple | list) else p for p in part)

    return e3nn.Irreps(list(plain(item)))


def linear_of(linear: Record) -> Matrices:
    """Return the matrices of an `e3nn.o3.Linear`, without its biases."""
    before, after = (irreps_of(linear.get(f"irreps_{side}")) for side in ("in", "out"))
    return linear_matrices(linear.get("weight"), before, after)


def product_of(product: Record) -> Matrices:
    """Return the matrices of a product with scalars, [scalars, rows, columns]."""
    before, scalars, after = (
        irreps_of(product.get(f"irreps_{name}")) for name in ("in1", "in2", "out")
    )
    return one_hot_matrices(product.get("weight"), before, scalars.dim, after)


def linear_matrices(flat, irreps_in, irreps_out) -> Matrices:
    """Return the matrices [rows, columns] of the weights of an `e3nn.o3.Linear`."""
    matrices = _blocks(flat, e3nn.Irreps(irreps_in), e3nn.Irreps(irreps_out))
    return {ir: w / math.sqrt(len(w)) for ir, w in matrices.items()}


def one_hot_matrices(flat, irreps_in, count: int, irreps_out) -> Matrices:
    """Return the matrices [count, rows, columns] of a product with `count` scalars.

    They are what the first factor of a `FullyConnectedTensorProduct` is multiplied with where the
    second one is one for that scalar and zero for the others.
    """
    matrices = _blocks(flat, e3nn.Irreps(irreps_in), e3nn.Irreps(irreps_out), count)
    return {ir: np.moveaxis(w, 1, 0) / math.sqrt(w.shape[0] * count) for ir, w in matrices.items()}


def _blocks(flat, irreps_in, irreps_out, *middle: int) -> Matrices:
    """Return the weights [rows, *middle, columns] of each irrep, whose blocks lie side by side."""
    flat = np.asarray(flat, np.float64).ravel()
    at, rows, fits = 0, {}, True
    for mul, ir in irreps_in:
        columns = []
        for mul_out, ir_out in irreps_out:
            if ir == ir_out:
                size = mul * math.prod(middle) * mul_out
                columns.append(flat[at : at + size].reshape(-1, *middle, mul_out))
                fits &= len(columns[-1]) == mul
                at += size
        if columns and fits:
            rows.setdefault(ir, []).append(np.concatenate(columns, axis=-1))
    if at != len(flat) or not fits:
        raise ConvertError(
            f"{len(flat)} weights do not fit a Linear of {irreps_in} to {irreps_out}, "
            f"which has {at}"
        )
    return {ir: np.concatenate(parts) for ir, parts in rows.items()}


def constant_of(activation: Record) -> float:
    """Return the factor of an activation in an `e3nn.math.normalize2mom`."""
    return 1.0 if activation.get("_is_id") else float(activation.get("cst"))


def e3nn_gate(irreps) -> dict[e3nn.Irrep, float]:
    """Return the factor of each irrep after e3nn's gate with silu, and tanh for odd scalars."""
    return {ir: TANH if (ir.l == 0 and ir != SCALAR) else SILU for _, ir in irreps}


def network_of(layers: list[Record]) -> list[np.ndarray]:
    """Return the matrices of an `e3nn.nn.FullyConnectedNet`, between which is plain silu."""
    matrices, factor = [], 1.0
    for layer in layers:
        weight = np.asarray(layer.get("weight"), np.float64) * factor
        matrices.append(weight / math.sqrt(len(weight) * layer.get("var_in")))
        if layer is not layers[-1]:
            factor = constant_of(layer.get("act")) * math.sqrt(layer.get("var_out"))
    return [*matrices[:-1], matrices[-1] * math.sqrt(layers[-1].get("var_out"))]


@dataclasses.dataclass(frozen=True)
class Path:
    """A path of a convolution: channels of one irrep times one spherical harmonic."""

    ir_in: e3nn.Irrep
    l: int
    ir: e3nn.Irrep
    start: int  # of its weights in the output of the radial network
    row: int  # its first channel in what the next Linear reads of this irrep
    mul: int
    factor: float = 1.0  # of the program's coupling coefficients, in units of e3nn-jax's


def paths_of(product: Record) -> list[Path]:
    """Return the paths of a convolution, of which the file has a list."""
    factors, harmonics, outputs = (
        irreps_of(product.get(f"irreps_{name}")) for name in ("in1", "in2", "out")
    )
    rows, used = [], {}
    for mul, ir in outputs:
        rows.append(used.get(ir, 0))
        used[ir] = used.get(ir, 0) + mul
    paths, start = [], 0
    for instruction in product.get("instructions"):
        parts = instruction.args if isinstance(instruction, Record) else instruction
        i1, i2, o, mode, _, weight, _ = parts
        mul, ir_in = factors[i1]
        ir, l = outputs[o].ir, harmonics[i2].ir.l
        if mode != "uvu":
            refuse(f"a convolution of the mode {mode}")
        degrees = (ir_in.l, l, ir.l)
        stored = product.get("_compiled_main_left_right._w3j_{}_{}_{}".format(*degrees))
        factor = coupling_factor(stored, degrees) * float(weight) / math.sqrt(ir.dim)
        paths.append(Path(ir_in, l, ir, start, rows[o], mul, factor))
        start += mul
    return paths


def convolution_paths(before, harmonics, keeps, *, sort_weights: bool = False, couplings=None):
    """Return the paths of a convolution, as SevenNet and Nequix list them.

    `keeps` tests whether the program computes an irrep, and `couplings` gives those of the file for
    (l1, l2, l3). Weights are in the order of the factors, or sorted, in that of the outputs.
    """
    listed = [
        (mul, ir_in, ir_sh.l, ir)
        for mul, ir_in in before
        for ir_sh in harmonics
        for ir in sorted(ir_in * ir_sh, key=lambda ir: ir.l)
        if keeps(ir)
    ]
    if len(set(listed)) < len(listed):
        refuse(f"features with an irrep twice ({before})")
    by_output = sorted(listed, key=lambda path: (path[3].l, path[3].p))  # stable; as torch's e3nn
    starts, at = {}, 0
    for path in by_output if sort_weights else listed:
        starts[path] = at
        at += path[0]
    rows, result = {}, []
    for path in by_output:
        mul, ir_in, l, ir = path
        degrees = (ir_in.l, l, ir.l)
        factor = coupling_factor(couplings(degrees) if couplings else None, degrees)
        result.append(Path(ir_in, l, ir, starts[path], rows.get(ir, 0), mul, factor))
        rows[ir] = rows.get(ir, 0) + mul
    return result


def gate_in_torch(after) -> e3nn.Irreps:
    """Return the input of e3nn's gate for PyTorch, sorted as there, for an output `after`."""
    gates = sum(mul for mul, ir in after if ir.l > 0)
    parts = [(mul + gates if ir == SCALAR else mul, ir) for mul, ir in after]
    return e3nn.Irreps(sorted(parts, key=lambda part: (part[1].l, part[1].p)))


def coupling_factor(stored: np.ndarray | None, degrees) -> float:
    """Return the sign of a file's couplings of (l1, l2, l3), if it has any, to e3nn-jax's."""
    if stored is None:
        return 1.0
    ours = np.asarray(e3nn.clebsch_gordan(*degrees), np.float64)
    theirs = np.asarray(stored, np.float64)
    theirs = theirs * (np.linalg.norm(ours) / np.linalg.norm(theirs))
    sign = math.copysign(1.0, (theirs * ours).sum())
    if abs(theirs - sign * ours).max() > 1e-5:
        raise ConvertError(
            f"the file's couplings of {degrees} are not those of e3nn: is it damaged?"
        )
    return sign
