"""The layers of a network like NequIP, in matrices and plain functions, as parameters of ours.

What the programs write differently is undone where a file is read: a `Layer` has every constant in
its matrices, activations are as they are, without normalisation, and the order of channels is that
of the irreps that it lists.
"""

import dataclasses
import math

import e3nn_jax as e3nn
import jax
import numpy as np

from eqfuse.convert.e3nn_torch import Matrices, Path
from eqfuse.models.irreps import SCALAR, gated
from eqfuse.ops.backends.activations import normalization


@dataclasses.dataclass(frozen=True)
class Layer:
    """One interaction, whose features have each irrep once.

    The columns of `down` are those of the gate: scalars, then gates in the order of `after`, then
    the others. With a `table`, `up` is the embedding of the species.
    """

    after: e3nn.Irreps
    up: Matrices  # before the convolution
    paths: list[Path]
    radial: list[np.ndarray]  # matrices, between which is silu
    down: Matrices  # after the convolution
    skip: Matrices | None = None  # [rows, columns], or [species, rows, columns]
    table: np.ndarray | None = None  # [species, even scalars], the skip of one-hots
    norm: Matrices | None = None  # weights of a normalisation
    up_bias: np.ndarray | None = None  # of even scalars
    down_bias: np.ndarray | None = None


def one_or_each(texts: list[str]) -> str:
    """Return a setting of all layers: one text where all agree, else all of them with commas."""
    return texts[0] if len(set(texts)) == 1 else ",".join(texts)


def hidden_setting(features: list[e3nn.Irreps]) -> str:
    """Return the setting `hidden` of layers with these features: one where they agree."""
    union = {ir: mul for irreps in features for mul, ir in irreps}
    if any(mul != union[ir] for irreps in features for mul, ir in irreps):
        return ",".join(str(e3nn.Irreps(irreps)) for irreps in features)
    return str(e3nn.Irreps([(union[ir], ir) for ir in sorted(union)]))


def interactions(layers: list[Layer], ours: list[e3nn.Irreps]) -> dict:
    """Return the parameters of interactions, and of the radial networks, between our features."""
    params = {"radial": {}}
    for k, layer in enumerate(layers):
        params[f"layer_{k}"], radial = _interaction(layer, ours[k], ours[k + 1])
        params["radial"][f"layer_{k}"] = radial
    return params


def _interaction(layer: Layer, before: e3nn.Irreps, after: e3nn.Irreps) -> tuple[dict, dict]:
    # the features in a file may have irreps that nobody reads, and those here are sorted
    gate = gated(after)
    columns = gate_columns(layer.after, after)
    paths = our_paths(layer.paths, before, gate)
    result = {"linear_down": after_convolution(narrowed(layer.down, columns), paths, gate)}
    if layer.table is None:
        result["linear_up"] = named(layer.up, before, before)
    else:
        result["skip"] = layer.table[:, columns]
    if layer.up_bias is not None:
        result["linear_up"] |= named_biases(layer.up_bias, before)
    if layer.down_bias is not None:
        result["linear_down"] |= named_biases(layer.down_bias[columns], gate)
    if layer.skip is not None:
        by_species = next(iter(layer.skip.values())).ndim == 3
        name = "skip" if by_species else "skip_linear"
        result[name] = named(narrowed(layer.skip, columns), before, gate)
    if layer.norm is not None:
        norm = narrowed(layer.norm, columns)
        result["norm"] = {"weight": np.concatenate([norm[ir] for _, ir in gate.regroup()])}
    return result, radial_layers(layer.radial, paths)


def our_paths(paths: list[Path], before, after) -> list[Path]:
    """Return the paths between irreps that are here: sorted by product, features and harmonic."""
    reads, keeps = ({ir for _, ir in irreps} for irreps in (before, after))
    kept = [path for path in paths if path.ir in keeps and path.ir_in in reads]
    return sorted(kept, key=lambda p: (p.ir, p.ir_in, p.l))


def after_convolution(matrices: Matrices, paths: list[Path], irreps_out) -> dict[str, np.ndarray]:
    """Return the parameters of the Linear after a convolution, from those of the program's."""
    mid = e3nn.Irreps([(path.mul, path.ir) for path in paths])
    rows = {
        ir: np.concatenate([p.row + np.arange(p.mul) for p in paths if p.ir == ir])
        for ir in {path.ir for path in paths}
    }
    down = {ir: w[rows[ir]] for ir, w in matrices.items() if ir in rows}
    return named(down, mid, irreps_out)


def gate_columns(theirs: e3nn.Irreps, ours: e3nn.Irreps) -> np.ndarray:
    """Return the columns of their even scalars that our gate reads."""
    at = theirs.count(SCALAR)
    columns, gates = [np.arange(at)], {}
    for mul, ir in theirs:
        if ir.l > 0:
            gates[ir] = at + np.arange(mul)
            at += mul
    wanted = sorted(ir for _, ir in ours if ir.l > 0)
    return np.concatenate([*columns, *(gates[ir] for ir in wanted)])


def narrowed(matrices: Matrices, columns: np.ndarray) -> Matrices:
    """Return matrices with these columns of even scalars, see `gate_columns`."""
    return {ir: w[..., columns] if ir == SCALAR else w for ir, w in matrices.items()}


def radial_layers(matrices: list[np.ndarray], paths: list[Path]) -> dict:
    """Return the parameters of a radial network, its output in the order of the paths."""
    return dense_layers([*matrices[:-1], of_paths(matrices[-1], paths)])


def of_paths(weights: np.ndarray, paths: list[Path]) -> np.ndarray:
    """Return the last columns of a radial network in the order of paths, times their factors."""
    columns = np.concatenate([p.start + np.arange(p.mul) for p in paths])
    factors = np.concatenate([np.full(p.mul, p.factor) for p in paths])
    return weights[..., columns] * factors


def dense_layers(matrices: list[np.ndarray]) -> dict:
    """Return the parameters of an `eqfuse.models.mlp.MLP` with these matrices and plain silu.

    Ours divide by the square root of their rows, and normalise silu.
    """
    return {
        f"Dense_{k}": {"kernel": w * math.sqrt(len(w)) / (normalized_by("silu") if k else 1.0)}
        for k, w in enumerate(matrices)
    }


def scaled(matrices: Matrices, factors: dict[e3nn.Irrep, float]) -> Matrices:
    """Return matrices of features that come multiplied with a factor for each irrep."""
    return {ir: w * factors.get(ir, 1.0) for ir, w in matrices.items()}


def named(matrices: Matrices, irreps_in, irreps_out) -> dict[str, np.ndarray]:
    """Return parameters of `eqfuse.ops.Linear`, which divides by the square root of its rows.

    Blocks of one irrep are one in the input, and adjacent ones in the output.
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
    """Return biases of `eqfuse.ops.Linear` for the even scalars of its output."""
    result, first = {}, 0
    for o, (mul, ir) in enumerate(e3nn.Irreps(irreps_out).simplify()):
        if ir == SCALAR:
            result[f"b[{o}] {mul}x{ir}"] = values[first : first + mul]
            first += mul
    return result


def normalized_by(name: str) -> float:
    """Return the factor with which e3nn-jax normalises an activation of `jax.nn`."""
    return 1 / normalization(getattr(jax.nn, name), x64=True)
