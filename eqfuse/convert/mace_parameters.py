"""The parameters of a network of mace as those of MACE of this package.

Both compute the same functions with other conventions. What differs, and is taken into account:

- e3nn-jax makes silu's second moment one by quadrature, and e3nn by a million random numbers, of
  which the file keeps the constant: the ratio goes into the matrix after the activation.
- e3nn couples with sqrt(2l+1) in `path_weight`, e3nn-jax with coefficients that have it. The
  coefficients and the spherical harmonics themselves are the same where the parities are natural.
- A is divided by n there, and the harmonics by sqrt(n) here.
- Weights of the tensor product lie by its output there; here by irrep, then by factors. Up to
  version 0.3.8, mace simplifies the irreps that the Linear after it reads: the rows are the same.
- Readouts of latent charges are columns beside those of energies here: of the last ones, the hidden
  layers are side by side, and the matrix after them has two blocks.
- The product basis is another one of the same space. Both are symmetric maps of several factors A
  to one irrep. Those of mace come from trees of couplings and depend on each other (23 of three
  factors to 0e for l <= 3); here they are an orthonormal basis (8). Symmetrised, each of mace's is
  a sum of these, whatever the couplings.

Vectors run from sender to receiver there and the other way here. That needs nothing: all parities
are natural, so that the inversion of all vectors changes no energy.
"""

import itertools
import math

import e3nn_jax as e3nn
import jax
import numpy as np
import scipy.linalg

from eqfuse.convert.converted import Converted, ConvertError, refuse
from eqfuse.convert.e3nn_torch import (
    Path,
    constant_of,
    irreps_of,
    linear_of,
    network_of,
    paths_of,
    product_of,
)
from eqfuse.convert.layers import (
    after_convolution,
    gate_columns,
    named,
    named_biases,
    narrowed,
    normalized_by,
    of_paths,
    our_paths,
    radial_layers,
    scaled,
)
from eqfuse.convert.records import Record, value
from eqfuse.models import MACE
from eqfuse.models.irreps import SCALAR, gated
from eqfuse.ops.ir.products import symmetric_basis

_LARGEST_RESIDUAL = 1e-5
"""Largest part of mace's maps that may lie outside the basis; those of float32 files have 1e-7."""


def parameters(network: Record, described: Converted) -> dict:
    """Return the parameters of `MACE(**described.fields)`, float64 arrays."""
    order, fields = order_of(network), described.fields
    head = head_of(network, described.choice)
    layers = MACE(**fields).basis_and_feature_irreps()
    embedding = linear_of(network.get("node_embedding.linear"))[SCALAR]
    result = {"radial": {}, "embedding": embedding[order]}
    for k, (irreps_basis, irreps_out) in enumerate(layers):
        block, product = network.get(f"interactions.{k}"), network.get(f"products.{k}")
        before, sent = (irreps_of(block.get(f"linear_up.irreps_{side}")) for side in ("in", "out"))
        sent = sent.filter(keep=before)  # others are zero
        paths = our_paths(paths_of(block.get("conv_tp")), sent, irreps_basis)
        contraction = _projected(product.get("symmetric_contractions"), irreps_basis, irreps_out)
        layer = {
            "linear_up": named(linear_of(block.get("linear_up")), before, sent),
            "contraction": contraction if fields["agnostic_product"] else contraction[order],
            "linear_down": named(linear_of(product.get("linear")), irreps_out, irreps_out),
        }
        result[f"layer_{k}"] = layer
        if fields["nonlinear"]:
            layer["interaction"] = _interaction(block, paths, irreps_basis, order)
            layer["skip_linear"] = named(linear_of(block.get("skip_tp")), before, irreps_out)
            continue
        radial = network_of(block.get("conv_tp_weights").children())
        result["radial"][f"layer_{k}"] = radial_layers(radial, paths)
        divisor = 1 if fields["density_normalization"] else math.sqrt(fields["avg_num_neighbors"])
        down = {ir: w / divisor for ir, w in linear_of(block.get("linear")).items()}
        layer["linear_basis"] = after_convolution(down, paths, irreps_basis)
        skip = {ir: w[order] for ir, w in product_of(block.get("skip_tp")).items()}
        if k > 0 or fields["first_skip"]:
            layer["skip"] = named(skip, before, irreps_out)
        else:
            layer["species_linear"] = named(skip, irreps_basis, irreps_basis)
        if fields["density_normalization"]:
            [dense] = block.get("density_fn").children()
            layer["density"] = np.asarray(dense.get("weight"), np.float64)[:, 0]
    *others, last = network.get("readouts").children()
    charges = charge_readouts(network)
    for k, readout in enumerate(others):
        both = [readout, *charges[k : k + 1]]
        w = [_of_head(linear_of(one.get("linear"))[SCALAR], head, 1) for one in both]
        result[f"readout_{k}"] = _scalars(np.concatenate(w, axis=1))
    result[f"readout_{len(layers) - 1}"] = _readout([last, *charges[-1:]], head)
    if fields["nonlinear"]:
        del result["radial"]
    return result


def order_of(network: Record) -> list[int]:
    """Return the places of a file's elements, sorted by atomic number."""
    numbers = [int(value(z)) for z in network.get("atomic_numbers")]
    return [int(k) for k in np.argsort(numbers)]


def head_of(network: Record, head: str | None) -> tuple[int, int]:
    """Return the number of the head that is asked for, and the number of heads."""
    heads = network.get("heads", ["Default"])
    return (heads.index(head) if len(heads) > 1 else 0), len(heads)


def degrees_of(contraction: Record) -> list[int]:
    """Return the numbers of factors of which a part of a symmetric contraction has couplings."""
    return [nu for nu in range(1, 10) if contraction.get(f"U_matrix_{nu}") is not None]


def _of_head(w: np.ndarray, head: tuple[int, int], axis: int) -> np.ndarray:
    """Return the part of a matrix that belongs to one of several heads, which are side by side."""
    return np.split(w, head[1], axis=axis)[head[0]]


def _scalars(w: np.ndarray) -> dict:
    return named({SCALAR: w}, *([(size, SCALAR)] for size in w.shape))


def charge_readouts(network: Record) -> list[Record]:
    """Return the readouts of the latent charges of a MACELES; none of another network."""
    readouts = network.get("les_readouts")
    return [] if readouts is None else readouts.children()


def _readout(readouts: list[Record], head: tuple[int, int]) -> dict:
    """Return the parameters of the last readout of energies, and of charges beside it.

    Each layer has a part for each head; only a readout of energies alone has biases.
    """
    result, last = {}, readouts[0]
    for name, theirs in {"in": "linear_1", "mid": "linear_mid", "out": "linear_2"}.items():
        if (linear := last.get(theirs)) is None:
            continue
        each = [_of_head(linear_of(one.get(theirs))[SCALAR], head, 1) for one in readouts]
        w = np.concatenate(each, axis=1)
        if result:
            acts = [constant_of(one.get("non_linearity.acts.0")) for one in readouts]
            pairs = zip(each, acts, strict=True)
            each = [_of_head(w, head, 0) * (act / normalized_by("silu")) for w, act in pairs]
            w = scipy.linalg.block_diag(*each)
        result[f"linear_{name}"] = _scalars(w)
        bias = np.asarray(linear.get("bias", ()), np.float64)
        if bias.size:
            bias = named_biases(_of_head(bias, head, 0), [(w.shape[1], SCALAR)])
            result[f"linear_{name}"] |= bias
    return result


def _interaction(block: Record, paths: list[Path], irreps_basis, order) -> dict:
    """Return the parameters of `eqfuse.models.mace_layers.NonlinearBasis`."""
    gate, whole = gated(irreps_basis), irreps_of(block.get("irreps_out"))
    columns = gate_columns(whole, irreps_basis)
    first, residual = (
        narrowed(linear_of(block.get(name)), columns) for name in ("linear_1", "linear_res")
    )
    scalars, gates = _gate_ratios(block.get("equivariant_nonlin"))
    ratios = {ir: scalars if ir == SCALAR else gates for _, ir in irreps_basis}
    after = scaled(linear_of(block.get("linear_2")), ratios)
    tables = {
        name: linear_of(block.get(f"{name}_embedding"))[SCALAR][order]
        for name in ("source", "target")
    }
    sent = irreps_of(block.get("linear_res.irreps_in"))
    return tables | {
        "weights": _pair_mlp(block.get("conv_tp_weights"), paths),
        "density": _pair_mlp(block.get("density_fn")),
        "alpha": np.asarray(block.get("alpha"), np.float64).reshape(()),
        "beta": np.asarray(block.get("beta"), np.float64).reshape(()),
        "linear_basis": after_convolution(first, paths, gate),
        "linear_residual": named(residual, sent, gate),
        "linear_gated": named(after, irreps_basis, irreps_basis),
    }


def layers_of(network: Record) -> list[Record]:
    """Return the Linears of a `RadialMLP`; refuse other parts between than a norm and silu."""
    parts = network.get("net").children()
    kinds = [part.name for part in parts]
    count = kinds.count("Linear")
    if kinds != ["Linear", "LayerNorm", "SiLU"] * (count - 1) + ["Linear"]:
        refuse(f"a radial network of {kinds}")
    return parts[::3]


def _pair_mlp(network: Record, paths: list[Path] | None = None) -> dict:
    """Return the parameters of a `PairMLP`, whose output may be for some paths."""
    layers = [
        [np.asarray(layer.get(name), np.float64).T for name in ("weight", "bias")]
        for layer in layers_of(network)
    ]
    if paths is not None:
        layers[-1] = [of_paths(array, paths) for array in layers[-1]]
    result = {}
    for k, (kernel, bias) in enumerate(layers):
        dense = {"kernel": kernel, "bias": bias}
        result |= {f"Dense_{k}": dense} if k else dense
    norms = [part for part in network.get("net").children() if part.name == "LayerNorm"]
    for k, norm in enumerate(norms):
        scale, bias = (np.asarray(norm.get(n), np.float64) for n in ("weight", "bias"))
        result[f"norm_{k}"] = {"scale": scale, "bias": bias}
    return result


def _gate_ratios(gate: Record) -> tuple[float, float]:
    """Return the scalars and the gates of a file, relative to those here."""
    if gate.name == "Gate":  # e3nn's, before 0.3.15
        acts = [gate.get(f"{name}.acts.0") for name in ("act_scalars", "act_gates")]
        functions, constants = ([act.get(name) for act in acts] for name in ("f", "cst"))
    else:
        functions = [gate.get("_act_scalar"), gate.get("_act_gate")]
        constants = [gate.get("_scalar_cst"), gate.get("_gate_cst")]
    names = [getattr(f, "kind", "none").rpartition(".")[2] for f in functions]
    if names not in (["silu", "sigmoid"], ["silu", "none"]):
        refuse(f"a gate of {' and '.join(names)}, not silu and sigmoid")
    return tuple(
        float(constant) / normalized_by(name)
        for name, constant in zip(("silu", "sigmoid"), constants, strict=True)
    )


def _projected(module: Record, irreps_basis: e3nn.Irreps, irreps_out: e3nn.Irreps) -> np.ndarray:
    """Return the weights of mace's SymmetricContraction, [elements, paths, channels], float64.

    Its A may have more irreps than `irreps_basis`, which reach no output.
    """
    theirs = irreps_of(module.get("irreps_in"))
    kept = [ir for _, ir in irreps_basis]
    # each irrep once, its components side by side
    components = np.concatenate([np.full(ir.dim, ir in kept) for _, ir in theirs])
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
    """Return the symmetric part of maps [d, ..., d, maps, dim] at sorted places.

    There are `degree` axes d, and the result is [places x dim, maps].
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
    degrees, lower = degrees_of(part), part.get("weights")
    weights = [part.get("weights_max"), *(lower.arrays() if lower else ())]
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
        if rest > _LARGEST_RESIDUAL * abs(wanted).max():
            raise ConvertError(
                f"the couplings of {nu} factors to {ir} are not symmetric maps of these irreps "
                f"(residual {rest:.1e}); the file is damaged, or of another kind"
            )
        w = np.asarray(weights[degrees[-1] - nu], np.float64)  # [elements, maps, channels]
        rows.append(np.einsum("pk,sku->spu", change, w))
    return rows
