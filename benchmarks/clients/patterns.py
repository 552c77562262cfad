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
    CUTOFF,
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


def summed(m, receivers, nodes):
    return e3nn.scatter_sum(m, dst=receivers, output_size=nodes)


# the same with sums: of x, y, senders, receivers and vectors, with what a layer has


def linear_of_rows(x, y, senders, receivers, vectors, layer):
    """Write a Linear of the gathered rows, as `update_edge_fn` of jraph does."""
    m = layer.product(layer.linear(x.irreps, "rows")(x[senders]), with_one(y))
    return summed(m * layer.radial(m, vectors), receivers, len(x))


def edge_scalars(x, y, senders, receivers, vectors, layer):
    """Write scalars of edges beside the gathered features."""
    scalars = e3nn.bessel(e3nn.norm(vectors).array[:, 0], 8, CUTOFF)
    m = e3nn.concatenate([x[senders], e3nn.IrrepsArray("8x0e", scalars)]).regroup()
    m = layer.product(m, with_one(y))
    return summed(m * layer.radial(m, vectors), receivers, len(x))


def legacy(x, y, senders, receivers, vectors, layer):
    """Write a product by instructions, as the NequIPs of jax-md and mlip do."""
    y, keep = with_one(y), layer.keep
    paths = [
        (i, j, mul, ir)
        for i, (mul, ir_x) in enumerate(x.irreps)
        for j, (_, ir_y) in enumerate(y.irreps)
        for ir in ir_x * ir_y
        if ir in keep
    ]
    out, order, _ = e3nn.Irreps([(mul, ir) for *_, mul, ir in paths]).sort()
    paths = [(i, j, order[k], "uvu", True) for k, (i, j, *_) in enumerate(paths)]
    tp = layer.lib.FunctionalTensorProduct(x.irreps, y.irreps, out, paths)
    size = e3nn.Irreps([(out.num_irreps, "0e")])
    weights = layer.radial(e3nn.zeros(size, (1,)), vectors)
    m = e3nn.utils.vmap(tp.left_right)(weights, x[senders], y)
    return summed(m.regroup(), receivers, len(x))


class PatternLayer(nn.Module):
    """A layer whose message is written as `message` does, or whose sum as `nodes` does."""

    irreps: str
    message: object
    lib: object
    up: object
    nodes: object

    @property
    def keep(self) -> list:
        return sorted({ir for _, ir in irreps_of_gate(self.irreps)})

    @nn.nowrap
    def product(self, x, y):
        return self.lib.tensor_product(x, y, filter_ir_out=self.keep)

    @nn.nowrap
    def linear(self, irreps, name: str):
        return self.lib.Linear(irreps, name=name)

    @nn.nowrap
    def radial(self, m, vectors):
        return Radial(m.irreps.num_irreps, name="radial")(e3nn.norm(vectors).array[:, 0])

    @nn.compact
    def __call__(self, x, vectors, species, senders, receivers):
        gate = irreps_of_gate(self.irreps)
        skip = self.lib.Linear(
            gate, num_indexed_weights=SPECIES, force_irreps_out=True, name="skip"
        )(species, x)
        x = (self.up or self.lib.Linear)(x.irreps, name="up")(x)
        y = harmonics(vectors, 2)
        if self.nodes:
            x = self.nodes(x, y, senders, receivers, vectors, self)
        else:
            m = self.message(x, y, senders, receivers, self.lib.tensor_product, self.keep)
            x = summed(m * self.radial(m, vectors), receivers, x.shape[0])
        x = x / jnp.sqrt(NEIGHBOURS)
        x = self.lib.Linear(gate, force_irreps_out=True, name="down")(x) + skip
        return e3nn.gate(x, **ACTS)


class PatternNetwork(nn.Module):
    """Three layers, the last of scalars, and a readout; the energy of each node, [nodes]."""

    lib: object
    message: object = filtered
    up: object = None
    nodes: object = None

    @nn.compact
    def __call__(self, vectors, species, senders, receivers, edges=None):
        vectors = e3nn.IrrepsArray("1o", vectors)
        x = e3nn.IrrepsArray(
            f"{CHANNELS}x0e", nn.Embed(SPECIES, CHANNELS, name="embedding")(species)
        )
        whole = f"{CHANNELS}x0e + {CHANNELS}x1o + {CHANNELS}x2e"
        for n, irreps in enumerate((whole, whole, f"{CHANNELS}x0e")):
            layer = PatternLayer(
                irreps, self.message, self.lib, self.up, self.nodes, name=f"layer_{n}"
            )
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
    "Linear of gathered rows": network(nodes=linear_of_rows),
    "edge scalars beside x[s]": network(nodes=edge_scalars),
    "legacy uvu": network(nodes=legacy),
}
"""By name, what makes a network of a library."""
