"""The fused ops to measure: product, Linear and gate, and Linear alone."""

import e3nn_jax as e3nn
import jax
import jax.numpy as jnp

from eqfuse.ops.backends import activations
from eqfuse.ops.backends.triton import form, fused_rows
from eqfuse.ops.backends.triton import linear as linear_kernel
from eqfuse.ops.backends.triton import linear as linear_plan
from eqfuse.ops.backends.triton.spec import KernelSpec
from eqfuse.ops.ir import linear as linears
from eqfuse.ops.ir import products
from eqfuse.ops.ir.form import derivatives
from eqfuse.ops.ir.fused import Fused

BOTH_L2 = "0e+0o+1e+1o+2e+2o"


def _times(mul: int, irreps: str) -> str:
    return "+".join(f"{mul}x{ir}" for ir in irreps.split("+"))


def fused(
    x: str,
    y: str,
    out: str,
    *,
    on_graph: bool,
    weighted: bool = True,
    gated: bool = False,
    channelwise: bool = False,
    input_precision: str = "ieee",
):
    """Return a fused op, with a skip where it is gated; `input_precision` is as in `Form`."""
    keep = tuple(sorted({ir for _, ir in e3nn.Irreps(out)}))
    options = {"filter_ir_out": keep, "normalization": "component", "on_graph": on_graph}
    if channelwise:
        build = products.channelwise_tensor_product
    else:
        build = products.tensor_product
        options["weighted"] = weighted and on_graph
    product = build(e3nn.Irreps(x), e3nn.Irreps(y), **options)
    linear, _ = linears.for_product(
        product.irreps_out,
        product.zero_flags,
        product.irreps_out,
        out,
        force_irreps_out=True,
        input_precision=input_precision,
    )
    names = ("even_act", "odd_act", "even_gate_act", "odd_gate_act")
    acts = dict(zip(names, (jax.nn.silu, jnp.tanh) * 2, strict=True))
    gate = activations.gate(linear.irreps_out, **acts, normalize_act=True) if gated else None
    return Fused.build(product.form, linear, gate, gated)


TETRIS = "32x0e+32x0o+8x1e+8x1o+8x2e+8x2o"
SPECS = {
    "nequip-64-l2": {
        "x": _times(64, BOTH_L2),
        "y": "0e+1o+2e",
        "out": f"64x0e+64x0o+256x0e+{_times(64, '1e+1o+2e+2o')}",
        "on_graph": True,
        "gated": True,
    },
    "nequip-16-l1": {
        "x": _times(16, "0e+0o+1e+1o"),
        "y": "0e+1o",
        "out": "16x0e+16x0o+32x0e+16x1e+16x1o",
        "on_graph": True,
        "gated": True,
    },
    "mace-128": {
        "x": "128x0e+128x1o",
        "y": "0e+1o+2e+3o",
        "out": _times(128, "0e+1o+2e+3o"),
        "on_graph": True,
    },
    "rows-32-l2": {
        "x": _times(32, BOTH_L2),
        "y": "0e+1o+2e",
        "out": _times(32, BOTH_L2),
        "on_graph": False,
    },
    # more channels than a program has at a time
    "rows-64-l1": {
        "x": _times(64, "0e+1o"),
        "y": "0e+1o",
        "out": _times(64, "0e+1o"),
        "on_graph": False,
    },
    "rows-16-l1": {
        "x": _times(16, "0e+0o+1e+1o"),
        "y": "0e+1o",
        "out": _times(16, "0e+0o+1e+1o"),
        "on_graph": False,
    },
    "rows-gate-16-l1": {
        "x": _times(16, "0e+0o+1e+1o"),
        "y": "0e+1o",
        "out": "16x0e+16x0o+32x0e+16x1e+16x1o",
        "on_graph": False,
        "gated": True,
    },
    "tetris-2": {
        "x": TETRIS,
        "y": "0e+1o+2e+3o",
        "out": TETRIS,
        "on_graph": True,
        "weighted": False,
    },
    # the second layer of three: of features with the environment, to latents and features
    "allegro-64-l2": {
        "x": _times(64, "0e+1o+1e+2e+2o"),
        "y": _times(64, "0e+1o+2e"),
        "out": f"128x0e+{_times(64, '0e+1o+2e')}",
        "on_graph": True,
        "channelwise": True,
    },
    "allegro-128-l3": {
        "x": _times(128, "0e+1o+1e+2e+2o+3o+3e"),
        "y": _times(128, "0e+1o+2e+3o"),
        "out": f"1024x0e+{_times(128, '0e+1o+2e+3o')}",
        "on_graph": True,
        "channelwise": True,
    },
}
"""Arguments of `fused`."""

CASES = {name: fused(**spec) for name, spec in SPECS.items()}


MANY_ROWS = 160_000


def kernels(fused: Fused, dtype: str) -> dict[str, list[KernelSpec]]:
    """Return the kernels of an op by order.

    On a graph those of the product and of the Linear, of many rows; over rows the fused ones.
    """
    if not fused.summed:
        return _over_rows(fused, dtype)
    product, linear = (derivatives(f) for f in (fused.form, fused.linear.linear_form))
    tile = linear_plan.tile(fused.linear.linear_form, dtype, MANY_ROWS, 1)
    return {
        order: [
            linear_kernel.generate(linear[order], dtype, order != "forward", tile),
            *(kernel.spec for kernel in form.kernels(product[order], dtype)),
        ]
        for order in product
    }


def _over_rows(fused: Fused, dtype: str) -> dict[str, list[KernelSpec]]:
    inputs, matrices = fused.form.inputs, fused.linear.parameters
    given = (True,) * len(fused.sizes)
    backward = [
        fused_rows.backward(fused, (True,) * len(inputs), given, dtype).spec,
        fused_rows.gradients(fused, (True,) * len(matrices), dtype, True).spec,
    ]
    return {"forward": [fused_rows.forward(fused, dtype).spec], "backward": backward}


def mixing_kernels(irreps: e3nn.Irreps, num_sets: int, dtype: str) -> list[KernelSpec]:
    """Return the forward and the backward kernels of a square Linear."""
    linear = linears.linear(irreps, (False,) * len(irreps), irreps, num_sets=num_sets)
    orders = derivatives(linear.linear_form)
    return [linear_kernel.generate(orders[o], dtype, False) for o in ("forward", "backward")]
