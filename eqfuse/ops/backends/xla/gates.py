"""e3nn's gate in jax.numpy, and as data with the functions that kernels know."""

import jax.numpy as jnp

from eqfuse.ops.backends.xla.activations import activation, apply
from eqfuse.ops.ir import gates
from eqfuse.ops.ir.gates import Gate, Part
from eqfuse.ops.ir.linears import Linear


def scalar_activation(linear: Linear, *, normalize_act: bool, **functions) -> Gate:
    """Return `e3nn.scalar_activation` of a row; `functions` as there.

    Raises:
      UnknownActivationError: a function that kernels do not know.
    """
    return gates.scalar_activation(linear, _activations(functions, normalize_act))


def gate(linear: Linear, *, normalize_act: bool, **functions) -> Gate:
    """Return `e3nn.gate` of a row; `functions` as there.

    Raises:
      UnknownActivationError: a function that kernels do not know.
      ValueError: fewer scalars than irreps to gate.
    """
    return gates.gate(linear, _activations(functions, normalize_act))


def _activations(functions, normalize: bool) -> gates.Activations:
    """Return what finds an activation when it is needed: those that are not may be any function."""

    def find(kind: str, parity: int):
        return activation(functions[f"{'even' if parity == 1 else 'odd'}_{kind}"], normalize)

    return find


def apply_gate(gate: Gate, linear: Linear, z):
    """Return the output row of a pre-activation z [rows, linear.size_out]."""
    columns = [
        _read(linear, t.part, z) * apply(t.act, _read(linear, t.gate, z))
        if t.gate
        else apply(t.act, _read(linear, t.part, z))
        for t in gate.tiles
    ]
    columns = [c.reshape(z.shape[0], c.shape[1] * c.shape[2]) for c in columns]
    return jnp.concatenate([*columns, jnp.zeros((z.shape[0], 0), z.dtype)], axis=1)


def _read(linear: Linear, part: Part, z):
    block = linear.blocks_out[part.block]
    start = block.offset + part.first * block.dim
    return z[:, start : start + part.mul * block.dim].reshape(-1, part.mul, block.dim)
