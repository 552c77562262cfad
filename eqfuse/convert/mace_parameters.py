"""The parameters of a network of mace as those of MACE of this package.

Both compute the same functions with other conventions. What differs, and is taken into account:

- e3nn multiplies a path of a Linear with its `path_weight`; here it is 1/sqrt(rows).
- e3nn-jax makes silu's second moment one by quadrature, and e3nn by a million random numbers, of
  which the file keeps the constant: the ratio goes into the matrix after the activation.
- e3nn couples with sqrt(2l+1) in `path_weight`, e3nn-jax with coefficients that have it. The
  coefficients and the spherical harmonics themselves are the same where the parities are natural.
- A is divided by n there, and the harmonics by sqrt(n) here.
- Weights of the tensor product lie by its output there; here by irrep, then by factors.
- The product basis is another one of the same space, see `eqfuse.convert.product_basis`.

Vectors run from sender to receiver there and the other way here. That needs nothing: all parities
are natural, so that the inversion of all vectors changes no energy.
"""

import math

import e3nn_jax as e3nn
import numpy as np

from eqfuse.convert.irreps_matrices import named_biases
from eqfuse.convert.mace_description import Description, mlp_layers
from eqfuse.convert.mace_linears import by_path, irreps, linear_blocks, ratio_of
from eqfuse.convert.mace_nonlinear import columns_of, interaction
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
    result = {"radial": {}}
    [(_, embedding)] = linear_blocks(network.get("node_embedding.linear"))
    result["embedding"] = embedding[order]
    for k, (irreps_basis, irreps_out) in enumerate(layers):
        block, product = network.get(f"interactions.{k}"), network.get(f"products.{k}")
        paths = _paths(block, irreps_basis)
        contraction = projected(product.get("symmetric_contractions"), irreps_basis, irreps_out)
        layer = {
            "linear_up": _linear(block.get("linear_up")),
            "contraction": contraction if fields["agnostic_product"] else contraction[order],
            "linear_down": _of_outputs(_linear(product.get("linear")), irreps_out),
        }
        result[f"layer_{k}"] = layer
        if fields["nonlinear"]:
            layer["interaction"] = interaction(block, paths, irreps_basis, order)
            layer["skip_linear"] = _of_outputs(_linear(block.get("skip_tp")), irreps_out)
            continue
        result["radial"][f"layer_{k}"] = _radial(mlp_layers(network, k), paths)
        layer["linear_basis"] = _basis(block, paths, irreps_basis, fields)
        skip = _species_linear(block.get("skip_tp"), order)
        if k > 0 or fields["first_skip"]:
            layer["skip"] = _of_outputs(skip, irreps_out)
        else:
            layer["species_linear"] = _of_outputs(skip, irreps_basis)
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


def _name(i: int, o: int, rows: int, columns: int, ir: e3nn.Irrep) -> str:
    return f"w[{i},{o}] {rows}x{ir},{columns}x{ir}"


def _linear(linear: Record) -> dict:
    """Return the parameters of a Linear whose irreps are sorted and each occur once."""
    irreps_in = irreps(linear.get("irreps_in"))
    return {
        _name(i, o, *w.shape, irreps_in[i].ir): w * math.sqrt(len(w))
        for (i, o), w in linear_blocks(linear)
    }


def _of_outputs(matrices: dict, irreps_out: e3nn.Irreps) -> dict:
    """Return the matrices of a Linear to these irreps; a file may have others, which nobody reads.

    With `keep_last_layer_irreps`, the last layer of mace has more than the readout reads.
    """
    kept = {f"{mul}x{ir}" for mul, ir in irreps_out}
    return {name: w for name, w in matrices.items() if name.split(",")[-1] in kept}


def _species_linear(tp: Record, order) -> dict:
    """Return a tensor product with one-hot elements as parameters of a Linear for each element."""
    irreps_in, result = irreps(tp.get("irreps_in1")), {}
    flat, at = np.asarray(tp.get("weight"), np.float64), 0
    for instruction in tp.get("instructions"):
        i, _, o, _, _, weight, shape = instruction.args
        ir, count = irreps_in[i].ir, math.prod(shape)
        w = flat[at : at + count].reshape(shape)  # [rows, elements, columns]
        at += count
        scale = float(weight) / math.sqrt(ir.dim) * math.sqrt(shape[0])
        result[_name(i, o, shape[0], shape[2], ir)] = np.moveaxis(w, 1, 0)[order] * scale
    return result


def _paths(block: Record, irreps_basis: e3nn.Irreps) -> list[dict]:
    """Return the paths of a convolution in this package's order, and where their weights are."""
    tp, features = block.get("conv_tp"), irreps(block.get("linear_up.irreps_in"))
    irreps_in1, irreps_out = (irreps(tp.get(name)) for name in ("irreps_in1", "irreps_out"))
    kept, result, at = [ir for _, ir in irreps_basis], [], 0
    for instruction in tp.get("instructions"):
        i1, i2, o, _, _, weight, _ = instruction.args
        mul, ir = irreps_in1[i1].mul, irreps_out[o].ir
        path = {"i1": i1, "i2": i2, "out": o, "ir": ir, "start": at, "mul": mul}
        path["scale"] = float(weight) / math.sqrt(ir.dim)
        at += mul
        # irreps on edges that the features before do not have are zero
        if ir in kept and features.count(irreps_in1[i1].ir):
            result.append(path)
    return sorted(result, key=lambda path: (kept.index(path["ir"]), path["i1"], path["i2"]))


def _radial(layers: list[Record], paths: list[dict]) -> dict:
    """Return the dense layers of a radial network, with outputs in the order of the paths."""
    result, before = {}, 1.0
    for k, layer in enumerate(layers):
        kernel = np.asarray(layer.get("weight"), np.float64) * before
        kernel = kernel / math.sqrt(layer.get("var_in"))
        if layer.get("act") is None:
            kernel = kernel * math.sqrt(layer.get("var_out"))
        else:
            before = ratio_of(layer.get("act")) * math.sqrt(layer.get("var_out"))
        result[f"Dense_{k}"] = {"kernel": kernel}
    last = result[f"Dense_{len(layers) - 1}"]
    last["kernel"] = last["kernel"][:, columns_of(paths)]
    return result


def _basis(block: Record, paths: list[dict], irreps_basis: e3nn.Irreps, fields: dict) -> dict:
    """Return the parameters of the Linear after the convolution."""
    blocks = by_path(block)
    neighbors = fields["avg_num_neighbors"]
    scale = 1.0 if fields["density_normalization"] else 1 / math.sqrt(neighbors)
    result = {}
    for j, (_, ir) in enumerate(irreps_basis):
        w = np.concatenate([blocks[p["out"]] * p["scale"] for p in paths if p["ir"] == ir])
        result[_name(j, j, *w.shape, ir)] = w * (scale * math.sqrt(len(w)))
    return result


def _of_head(w: np.ndarray, head: tuple[int, int], axis: int) -> np.ndarray:
    """Return the part of a matrix that belongs to one of several heads, which are side by side."""
    return np.split(w, head[1], axis=axis)[head[0]]


def _linear_readout(readout: Record, head: tuple[int, int]) -> dict:
    [(_, w)] = linear_blocks(readout.get("linear"))
    return {_name(0, 0, len(w), 1, SCALAR): _of_head(w, head, 1) * math.sqrt(len(w))}


def _readout(readout: Record, head: tuple[int, int]) -> dict:
    """Return the parameters of the last readout; each layer has a part for each head."""
    ratio, result = ratio_of(readout.get("non_linearity.acts.0")), {}
    names = ["in", "out"] if readout.get("linear_mid") is None else ["in", "mid", "out"]
    for k, name in enumerate(names):
        linear = readout.get({"in": "linear_1", "mid": "linear_mid", "out": "linear_2"}[name])
        [(_, w)] = linear_blocks(linear)
        w = _of_head(w, head, 1)
        if k:
            w = _of_head(w, head, 0) * ratio
        parameters = {_name(0, 0, *w.shape, SCALAR): w * math.sqrt(len(w))}
        bias = np.asarray(linear.get("bias", ()), np.float64)
        if bias.size:
            parameters |= named_biases(_of_head(bias, head, 0), [(w.shape[1], SCALAR)])
        result[f"linear_{name}"] = parameters
    return result
