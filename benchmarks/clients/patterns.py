"""Layers in which public clients of e3nn-jax write a message in ways of their own.

All networks are alike but for the message: three layers, the last of scalars, with skip and gate.
"""

from __future__ import annotations

import e3nn_jax as e3nn
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.clients.existing_networks import (
    ACTS,
    NEIGHBOURS,
    SPECIES,
    Radial,
    harmonics,
    irreps_of_gate,
    with_one,
)

CHANNELS = 32


def filtered(x, y, senders, receivers, product, keep):
    """Write the features that are kept beside the product."""
    rows = x[senders]
    return e3nn.concatenate(
        [rows.filter(keep=keep), product(rows, y, filter_ir_out=keep)]
    ).regroup()


def with_a_one(x, y, senders, receivers, product, keep):
    """Write a one before the spherical harmonics."""
    return product(x[senders], with_one(y), filter_ir_out=keep)


def on_an_axis(x, y, senders, receivers, product, keep):
    """Write channels on an axis of their own."""
    return product(x.mul_to_axis(CHANNELS)[senders], y[:, None], filter_ir_out=keep).axis_to_mul()


def permuted(x, y, senders, receivers, product, keep):
    """Write vectors in the order of other libraries, from y, z, x."""
    order = [
        s.start + ir.dim * u + (i + 1) % 3 if ir.l == 1 else s.start + ir.dim * u + i
        for s, (mul, ir) in zip(x.irreps.slices(), x.irreps, strict=True)
        for u in range(mul)
        for i in range(ir.dim)
    ]
    rows = e3nn.IrrepsArray(x.irreps, x.array[senders][:, np.array(order)])
    return product(rows, with_one(y), filter_ir_out=keep)


def difference(x, y, senders, receivers, product, keep):
    """Write the difference of the features of both ends."""
    return product(x[senders] - x[receivers], with_one(y), filter_ir_out=keep)


def in_bfloat16(x, y, senders, receivers, product, keep):
    """Write the product in bfloat16, the sum in float32."""
    rows, y = x.astype(jnp.bfloat16)[senders], with_one(y).astype(jnp.bfloat16)
    return product(rows, y, filter_ir_out=keep).astype(jnp.float32)


def read_twice(x, y, senders, receivers, product, keep):
    """Write the product, and a weight of each message that is computed from it, as in attention."""
    m = product(x[senders], with_one(y), filter_ir_out=keep)
    score = jax.nn.sigmoid(jnp.mean(m.filter(keep="0e").array, axis=1, keepdims=True))
    return m * score


class PatternLayer(nn.Module):
    """A layer whose message is written as `message` does."""

    irreps: str
    message: object
    lib: object
    up: object

    @nn.compact
    def __call__(self, x, vectors, species, senders, receivers):
        gate = irreps_of_gate(self.irreps)
        skip = self.lib.Linear(
            gate, num_indexed_weights=SPECIES, force_irreps_out=True, name="skip"
        )(species, x)
        x = (self.up or self.lib.Linear)(x.irreps, name="up")(x)
        keep = sorted({ir for _, ir in gate})
        m = self.message(
            x, harmonics(vectors, 2), senders, receivers, self.lib.tensor_product, keep
        )
        m = m * Radial(m.irreps.num_irreps, name="radial")(e3nn.norm(vectors).array[:, 0])
        x = e3nn.scatter_sum(m, dst=receivers, output_size=x.shape[0]) / jnp.sqrt(NEIGHBOURS)
        x = self.lib.Linear(gate, force_irreps_out=True, name="down")(x) + skip
        return e3nn.gate(x, **ACTS)


class PatternNetwork(nn.Module):
    """Three layers, the last of scalars, and a readout; the energy of each node, [nodes]."""

    lib: object
    message: object = filtered
    up: object = None

    @nn.compact
    def __call__(self, vectors, species, senders, receivers, edges=None):
        vectors = e3nn.IrrepsArray("1o", vectors)
        x = e3nn.IrrepsArray(
            f"{CHANNELS}x0e", nn.Embed(SPECIES, CHANNELS, name="embedding")(species)
        )
        whole = f"{CHANNELS}x0e + {CHANNELS}x1o + {CHANNELS}x2e"
        for n, irreps in enumerate((whole, whole, f"{CHANNELS}x0e")):
            layer = PatternLayer(irreps, self.message, self.lib, self.up, name=f"layer_{n}")
            x = layer(x, vectors, species, senders, receivers)
        return self.lib.Linear("0e", name="readout")(x).array[:, 0]


def network(**options):
    """Return what makes a network of a library."""
    return lambda lib: PatternNetwork(lib, **options)


PATTERNS = {
    "filter, last layer of scalars": network(),
    "Linear of e3nn before": network(up=e3nn.flax.Linear),
    "one before the harmonics": network(message=with_a_one),
    "channels on an axis": network(message=on_an_axis),
    "components in another order": network(message=permuted),
    "x[s] - x[r]": network(message=difference),
    "bfloat16 product": network(message=in_bfloat16),
    "messages read twice": network(message=read_twice),
}
"""By name, what makes a network of a library."""
