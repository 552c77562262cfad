"""Parts of e3nn for PyTorch, as records of a file: irreps, Linears, products, dense networks."""

import math
from collections.abc import Callable

import e3nn_jax as e3nn
import numpy as np

from eqfuse.convert.errors import ConvertError
from eqfuse.convert.irreps_matrices import Matrices, linear_matrices, one_hot_matrices
from eqfuse.convert.nequip_layers import Path, coupling_factor
from eqfuse.convert.pickled import Record


def irreps_of(item) -> e3nn.Irreps:
    """Return irreps of a record of e3nn's, of pairs of a multiplicity and (l, p), or of text."""
    if isinstance(item, str):
        return e3nn.Irreps(item)

    def plain(part):
        return plain_tuple(part.args[0]) if isinstance(part, Record) else plain_tuple(part)

    def plain_tuple(parts):
        return tuple(plain(p) if isinstance(p, Record | tuple | list) else p for p in parts)

    return e3nn.Irreps(list(plain(item)))


def linear_of(linear: Record) -> Matrices:
    """Return the matrices of an `e3nn.o3.Linear`, without its biases."""
    before, after = (irreps_of(linear.get(f"irreps_{side}")) for side in ("in", "out"))
    return linear_matrices(linear.get("weight"), before, after)[0]


def product_of(product: Record) -> Matrices:
    """Return the matrices of a product with scalars, [scalars, rows, columns]."""
    before, scalars, after = (
        irreps_of(product.get(f"irreps_{name}")) for name in ("in1", "in2", "out")
    )
    return one_hot_matrices(product.get("weight"), before, scalars.dim, after)


def network_of(
    layers: list[Record], constant: Callable[[Record], float], first: float = 1.0
) -> list[np.ndarray]:
    """Return the matrices of an `e3nn.nn.FullyConnectedNet`, between which is plain silu.

    Args:
      layers: its layers.
      constant: by what the activation of a layer is multiplied.
      first: what the input is multiplied with.
    """
    *hidden, last = layers
    matrices = []
    for layer in hidden:
        matrices.append(_dense(layer, first))
        first = constant(layer) * math.sqrt(layer.get("var_out"))
    return [*matrices, _dense(last, first) * math.sqrt(last.get("var_out"))]


def _dense(layer: Record, factor: float) -> np.ndarray:
    weight = np.asarray(layer.get("weight"), np.float64) * factor
    return weight / math.sqrt(len(weight) * layer.get("var_in"))


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
            raise ConvertError(f"the network has a convolution of the mode {mode}")
        degrees = (ir_in.l, l, ir.l)
        stored = product.get("_compiled_main_left_right._w3j_{}_{}_{}".format(*degrees))
        factor = coupling_factor(stored, degrees) * float(weight) / math.sqrt(ir.dim)
        paths.append(Path(ir_in, l, ir, start, rows[o], mul, factor))
        start += mul
    return paths
