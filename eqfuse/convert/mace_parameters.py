"""The parameters of a network of mace as those of MACE of this package.

Both compute the same functions with other conventions. What differs, and is taken into account:

- e3nn-jax makes silu's second moment one by quadrature, and e3nn by a million random numbers, of
  which the file keeps the constant: the ratio goes into the matrix after the activation.
- e3nn couples with sqrt(2l+1) in `path_weight`, e3nn-jax with coefficients that have it. The
  coefficients and the spherical harmonics themselves are the same where the parities are natural.
- A is divided by n there, and the harmonics by sqrt(n) here.
- Weights of the tensor product lie by its output there; here by irrep, then by factors. Up to
  version 0.3.8, mace simplifies the irreps that the Linear after it reads: the rows are the same.
- The product basis is another one of the same space, see `eqfuse.convert.product_basis`.

Vectors run from sender to receiver there and the other way here. That needs nothing: all parities
are natural, so that the inversion of all vectors changes no energy.
"""

import math

import numpy as np

from eqfuse.convert.activations import normalized_by
from eqfuse.convert.e3nn_records import irreps_of, linear_of, network_of, paths_of, product_of
from eqfuse.convert.irreps_matrices import named, named_biases
from eqfuse.convert.mace_description import Description, mlp_layers
from eqfuse.convert.mace_nonlinear import interaction
from eqfuse.convert.nequip_layers import after_convolution, our_paths, radial_layers
from eqfuse.convert.pickled import Record
from eqfuse.convert.product_basis import projected
from eqfuse.models import MACE
from eqfuse.models.irreps import SCALAR


def parameters(network: Record, description: Description) -> dict:
    """Return the parameters of `MACE(**description.fields)`, float64 arrays.

    Args:
      network: as `eqfuse.convert.pickled.read_module` returns it.
      description: of it.
    Raises:
      ConvertError: a product basis that is not the one of the irreps.
    """
    order, fields = list(description.order), description.fields
    layers = MACE(**fields).basis_and_feature_irreps()
    embedding = linear_of(network.get("node_embedding.linear"))[SCALAR]
    result = {"radial": {}, "embedding": embedding[order]}
    for k, (irreps_basis, irreps_out) in enumerate(layers):
        block, product = network.get(f"interactions.{k}"), network.get(f"products.{k}")
        before, sent = (irreps_of(block.get(f"linear_up.irreps_{side}")) for side in ("in", "out"))
        sent = sent.filter(keep=before)  # others are zero
        paths = our_paths(paths_of(block.get("conv_tp")), sent, irreps_basis)
        contraction = projected(product.get("symmetric_contractions"), irreps_basis, irreps_out)
        layer = {
            "linear_up": named(linear_of(block.get("linear_up")), before, sent),
            "contraction": contraction if fields["agnostic_product"] else contraction[order],
            "linear_down": named(linear_of(product.get("linear")), irreps_out, irreps_out),
        }
        result[f"layer_{k}"] = layer
        if fields["nonlinear"]:
            layer["interaction"] = interaction(block, paths, irreps_basis, order)
            layer["skip_linear"] = named(linear_of(block.get("skip_tp")), before, irreps_out)
            continue
        radial = network_of(mlp_layers(network, k), lambda layer: constant_of(layer.get("act")))
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
    for k, readout in enumerate(others):
        result[f"readout_{k}"] = _linear_readout(readout, description.head)
    result[f"readout_{len(layers) - 1}"] = _readout(last, description.head)
    if fields["nonlinear"]:
        del result["radial"]
    return result


def _of_head(w: np.ndarray, head: tuple[int, int], axis: int) -> np.ndarray:
    """Return the part of a matrix that belongs to one of several heads, which are side by side."""
    return np.split(w, head[1], axis=axis)[head[0]]


def _linear_readout(readout: Record, head: tuple[int, int]) -> dict:
    w = _of_head(linear_of(readout.get("linear"))[SCALAR], head, 1)
    return _scalars(w)


def _scalars(w: np.ndarray) -> dict:
    """Return the parameters of a Linear of scalars."""
    return named({SCALAR: w}, *([(size, SCALAR)] for size in w.shape))


def constant_of(activation: Record) -> float:
    """Return by what an activation of a file is multiplied."""
    return 1.0 if activation.get("_is_id") else float(activation.get("cst"))


def _readout(readout: Record, head: tuple[int, int]) -> dict:
    """Return the parameters of the last readout; each layer has a part for each head."""
    ratio = constant_of(readout.get("non_linearity.acts.0")) / normalized_by("silu")
    result = {}
    names = ["in", "out"] if readout.get("linear_mid") is None else ["in", "mid", "out"]
    for k, name in enumerate(names):
        linear = readout.get({"in": "linear_1", "mid": "linear_mid", "out": "linear_2"}[name])
        w = _of_head(linear_of(linear)[SCALAR], head, 1)
        if k:
            w = _of_head(w, head, 0) * ratio
        result[f"linear_{name}"] = _scalars(w)
        bias = np.asarray(linear.get("bias", ()), np.float64)
        if bias.size:
            bias = named_biases(_of_head(bias, head, 0), [(w.shape[1], SCALAR)])
            result[f"linear_{name}"] |= bias
    return result
