"""The layers of a network like NequIP, in matrices and plain functions, as parameters of ours.

What the programs write differently is undone where a file is read: a `Layer` has every constant in
its matrices, activations are as they are, without normalisation, and the order of channels is that
of the irreps that it lists.
"""

import dataclasses
import math

import e3nn_jax as e3nn
import numpy as np

from eqfuse.convert.activations import normalized_by
from eqfuse.convert.errors import ConvertError
from eqfuse.convert.irreps_matrices import Matrices, named, named_biases
from eqfuse.models.irreps import SCALAR, gated


@dataclasses.dataclass(frozen=True)
class Path:
    """A path of a convolution: channels of one irrep times one spherical harmonic.

    Attributes:
      ir_in, l, ir: irreps of the features, degree of the harmonic, irrep of the product.
      start: place of its first weight in the output of the radial network.
      row: place of its first channel in what the next Linear reads of this irrep.
      mul: number of channels.
      factor: of the program's coupling coefficients, in units of e3nn-jax's.
    """

    ir_in: e3nn.Irrep
    l: int
    ir: e3nn.Irrep
    start: int
    row: int
    mul: int
    factor: float = 1.0


@dataclasses.dataclass(frozen=True)
class Layer:
    """One interaction.

    Attributes:
      before, after: features; each irrep once.
      up, down: matrices before and after the convolution; `up` None for none. The columns of
        `down` are those of the gate: scalars, then gates in the order of `after`, then the others.
      paths: of the convolution.
      radial: matrices of the radial network, between which is silu.
      skip: matrices [rows, columns], or [species, rows, columns], by irrep, or None.
      table: [species, even scalars]: the skip of one-hots, or None.
      norm: weights of a normalisation, by irrep, or None.
      up_bias, down_bias: of even scalars, or None.
    """

    before: e3nn.Irreps
    after: e3nn.Irreps
    up: Matrices | None
    paths: list[Path]
    radial: list[np.ndarray]
    down: Matrices
    skip: Matrices | None = None
    table: np.ndarray | None = None
    norm: Matrices | None = None
    up_bias: np.ndarray | None = None
    down_bias: np.ndarray | None = None


def convolution_paths(before, harmonics, keeps, *, sort_weights: bool = False, sign=None):
    """Return the paths of a convolution, as nequip and SevenNet list them.

    Args:
      before: features, in the program's order.
      harmonics: irreps of the spherical harmonics.
      keeps: whether the program computes an irrep.
      sort_weights: whether weights are in the order of the outputs, and not of the factors.
      sign: gives the sign of a coupling for (l1, l2, l3).
    """
    listed = [
        (mul, ir_in, ir_sh.l, ir)
        for mul, ir_in in before
        for _, ir_sh in harmonics
        for ir in sorted(ir_in * ir_sh, key=lambda ir: ir.l)
        if keeps(ir)
    ]
    if len(set(listed)) < len(listed):
        raise ConvertError(f"the features {before} have an irrep twice, which is not supported")
    by_output = sorted(listed, key=lambda path: (path[3].l, path[3].p))  # stable; as torch's e3nn
    starts, at = {}, 0
    for path in by_output if sort_weights else listed:
        starts[path] = at
        at += path[0]
    rows, result = {}, []
    for path in by_output:
        mul, ir_in, l, ir = path
        degrees = (ir_in.l, l, ir.l)
        result.append(
            Path(ir_in, l, ir, starts[path], rows.get(ir, 0), mul, sign(degrees) if sign else 1.0)
        )
        rows[ir] = rows.get(ir, 0) + mul
    return result


def gate_in_torch(after) -> e3nn.Irreps:
    """Return what e3nn's gate for PyTorch reads to give some features, sorted as it sorts them.

    Args:
      after: features, each irrep once.
    """
    gates = sum(mul for mul, ir in after if ir.l > 0)
    parts = [(mul + gates if ir == SCALAR else mul, ir) for mul, ir in after]
    return e3nn.Irreps(sorted(parts, key=lambda part: (part[1].l, part[1].p)))


def coupling_factor(stored: np.ndarray | None, degrees) -> float:
    """Return the sign of coupling coefficients of a file, in units of e3nn-jax's.

    Args:
      stored: [2 l1 + 1, 2 l2 + 1, 2 l3 + 1], or None: they are not in the file.
      degrees: l1, l2, l3.
    Raises:
      ConvertError: numbers that are no such couplings.
    """
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


def skip_setting(kinds: list[str]) -> str:
    """Return the setting `skip` of layers with these kinds of self-connection."""
    return kinds[0] if len(set(kinds)) == 1 else ",".join(kinds)


def hidden_setting(features: list[e3nn.Irreps]) -> str:
    """Return the setting `hidden` of layers with these features: one where they agree.

    Args:
      features: after each layer, each irrep once.
    """
    union = {}
    for irreps in features:
        for mul, ir in irreps:
            if union.setdefault(ir, mul) != mul:
                return ",".join(str(e3nn.Irreps(irreps)) for irreps in features)
    return str(e3nn.Irreps([(union[ir], ir) for ir in sorted(union)]))


def layer_parameters(layer: Layer, before: e3nn.Irreps, after: e3nn.Irreps) -> tuple[dict, dict]:
    """Return the parameters of an interaction, and of its radial network.

    Args:
      layer: as a file has it; its features may have irreps that nobody reads.
      before, after: features here, sorted.
    """
    gate = gated(after)
    columns = gate_columns(layer.after, after)

    def narrowed(matrices):
        """Take the irreps and gates that are here."""
        return {ir: w[..., columns] if ir == SCALAR else w for ir, w in matrices.items()}

    paths = our_paths(layer.paths, before, gate)
    result = {"linear_down": after_convolution(narrowed(layer.down), paths, gate)}
    if layer.up is not None:
        result["linear_up"] = named(layer.up, before, before)
        if layer.up_bias is not None:
            result["linear_up"] |= named_biases(layer.up_bias, before)
    if layer.down_bias is not None:
        result["linear_down"] |= named_biases(layer.down_bias[columns], gate)
    if layer.table is not None:
        result["skip"] = layer.table[:, columns]
    elif layer.skip is not None:
        by_species = next(iter(layer.skip.values())).ndim == 3
        name = "skip" if by_species else "skip_linear"
        result[name] = named(narrowed(layer.skip), before, gate)
    if layer.norm is not None:
        norm = narrowed(layer.norm)
        result["norm"] = {"weight": np.concatenate([norm[ir] for _, ir in gate.regroup()])}
    return result, radial_layers(layer.radial, paths)


def our_paths(paths: list[Path], before, after) -> list[Path]:
    """Return the paths between irreps that are here: sorted by product, features and harmonic."""
    reads, keeps = ({ir for _, ir in irreps} for irreps in (before, after))
    kept = [path for path in paths if path.ir in keeps and path.ir_in in reads]
    return sorted(kept, key=lambda p: (p.ir, p.ir_in, p.l))


def after_convolution(matrices: Matrices, paths: list[Path], irreps_out) -> dict[str, np.ndarray]:
    """Return the parameters of the Linear after a convolution, of whose matrices all rows are.

    Args:
      matrices: of the program's Linear.
      paths: in our order.
      irreps_out: of the Linear here.
    """
    mid = e3nn.Irreps([(path.mul, path.ir) for path in paths])
    rows = {
        ir: np.concatenate([p.row + np.arange(p.mul) for p in paths if p.ir == ir])
        for ir in {path.ir for path in paths}
    }
    down = {ir: w[rows[ir]] for ir, w in matrices.items() if ir in rows}
    return named(down, mid, irreps_out)


def gate_columns(theirs: e3nn.Irreps, ours: e3nn.Irreps) -> np.ndarray:
    """Return where the even scalars that our gate reads are among those of theirs."""
    at = theirs.count(SCALAR)
    columns, gates = [np.arange(at)], {}
    for mul, ir in theirs:
        if ir.l > 0:
            gates[ir] = at + np.arange(mul)
            at += mul
    wanted = sorted(ir for _, ir in ours if ir.l > 0)
    return np.concatenate([*columns, *(gates[ir] for ir in wanted)])


def radial_layers(matrices: list[np.ndarray], paths: list[Path]) -> dict:
    """Return the dense layers of a radial network, its output in the order of the paths."""
    columns = np.concatenate([p.start + np.arange(p.mul) for p in paths])
    factors = np.concatenate([np.full(p.mul, p.factor) for p in paths])
    return dense_layers([*matrices[:-1], matrices[-1][:, columns] * factors])


def dense_layers(matrices: list[np.ndarray]) -> dict:
    """Return the parameters of an `eqfuse.models.mlp.MLP` with these matrices and plain silu.

    Ours divide by the square root of their rows, and normalise silu.
    """
    return {
        f"Dense_{k}": {"kernel": w * math.sqrt(len(w)) / (normalized_by("silu") if k else 1.0)}
        for k, w in enumerate(matrices)
    }
