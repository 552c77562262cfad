"""Weights of mace's product basis in the product basis of this package.

Both are symmetric maps of several factors A to one irrep. Those of mace come from trees of
couplings and depend on each other (23 of three factors to 0e for l <= 3); here they are an
orthonormal basis (8). Symmetrised, each of mace's is a sum of these, whatever the couplings.
"""

import itertools

import e3nn_jax as e3nn
import jax
import numpy as np

from eqfuse.convert.e3nn_records import irreps_of
from eqfuse.convert.errors import ConvertError
from eqfuse.convert.pickled import Record
from eqfuse.ops.ir.products import symmetric_basis

RESIDUAL = 1e-5
"""Largest part of mace's maps that may lie outside the basis; those of float32 files have 1e-7."""


def projected(module: Record, irreps_basis: e3nn.Irreps, irreps_out: e3nn.Irreps) -> np.ndarray:
    """Return the weights of a symmetric contraction, [elements, paths, channels], float64.

    Args:
      module: mace's SymmetricContraction.
      irreps_basis: of A here; those of mace may have more, which reach no output.
      irreps_out: of the output.
    Raises:
      ConvertError: maps that are not of this basis.
    """
    theirs = irreps_of(module.get("irreps_in"))
    kept = [ir for _, ir in irreps_basis]
    components = np.concatenate(
        [
            np.full(ir.dim, ir in kept)
            for _, ir in theirs  # each irrep once, its components side by side
        ]
    )
    parts = module.get("contractions").children()
    outputs = irreps_of(module.get("irreps_out"))
    by_ir = {ir: part for part, (_, ir) in zip(parts, outputs, strict=True)}
    rows = [
        row
        for _, ir in irreps_out
        for row in _rows(by_ir[ir], ir, tuple(kept), np.flatnonzero(components))
    ]
    return np.concatenate(rows, axis=1)


def symmetric_components(maps: np.ndarray, degree: int, dim: int) -> np.ndarray:
    """Return the symmetric part of maps at sorted places, [places x dim, maps].

    Args:
      maps: [d, ..., d, maps, dim] with `degree` axes d.
      degree: number of factors.
      dim: of the output.
    """
    size = maps.shape[0]
    places = np.array(list(itertools.combinations_with_replacement(range(size), degree)))
    orders = list(itertools.permutations(range(degree)))
    result = sum(maps[tuple(places[:, order].T)] for order in orders) / len(orders)
    return np.moveaxis(result, 2, 1).reshape(len(places) * dim, -1)


def our_maps(kept: tuple[e3nn.Irrep, ...], ir: e3nn.Irrep, degree: int) -> np.ndarray:
    """Return this package's basis, [d, ..., d, maps, dim], float64."""
    with jax.enable_x64(True):
        basis = symmetric_basis(kept, ir, degree)
    return np.asarray(basis.array, np.float64).reshape(*basis.shape[:-1], -1, ir.dim)


def _rows(part: Record, ir: e3nn.Irrep, kept, components) -> list[np.ndarray]:
    """Return the weights of one output, for each number of factors."""
    degrees = [nu for nu in range(1, 10) if part.get(f"U_matrix_{nu}") is not None]
    weights = [part.get("weights_max"), *_in_order(part.get("weights"))]
    rows = []
    for nu in degrees:
        basis = our_maps(kept, ir, nu)
        if basis.shape[-2] == 0:
            continue
        theirs = np.asarray(part.get(f"U_matrix_{nu}"), np.float64)
        size = round((theirs.size / theirs.shape[-1] / ir.dim) ** (1 / nu))
        theirs = theirs.reshape(ir.dim, *[size] * nu, -1)[
            (slice(None), *np.ix_(*[components] * nu))
        ]
        theirs = np.moveaxis(theirs, 0, -1)  # [d, ..., d, maps, dim]
        ours = symmetric_components(basis, nu, ir.dim)
        wanted = symmetric_components(theirs, nu, ir.dim)
        change, *_ = np.linalg.lstsq(ours, wanted, rcond=None)
        rest = abs(ours @ change - wanted).max()
        if rest > RESIDUAL * abs(wanted).max():
            raise ConvertError(
                f"the couplings of {nu} factors to {ir} are not symmetric maps of these irreps "
                f"(residual {rest:.1e}); the file is damaged, or of another kind"
            )
        w = np.asarray(weights[degrees[-1] - nu], np.float64)  # [elements, maps, channels]
        rows.append(np.einsum("pk,sku->spu", change, w))
    return rows


def _in_order(weights: Record | None) -> list[np.ndarray]:
    """Return the arrays of a ParameterList."""
    result = []
    while weights is not None and weights.get(str(len(result))) is not None:
        result.append(weights.get(str(len(result))))
    return result
