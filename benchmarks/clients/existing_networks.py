"""Layers as public JAX code writes them, on e3nn-jax or with two imports swapped; and rewritten.

`lib` is what a layer takes its product and its Linear from: `E3NN`, or `SWAPPED`, of eqfuse. The
rewritten layers have the same parameters by the same names.

References: nequip-jax, mace-jax, allegro-jax and the Tetris example of e3nn-jax, for their style.
"""

from __future__ import annotations

import types

import e3nn_jax as e3nn
import e3nn_jax.legacy
import flax.linen as nn
import jax
import jax.numpy as jnp

from eqfuse import ops

E3NN = types.SimpleNamespace(
    tensor_product=e3nn.tensor_product,
    Linear=e3nn.flax.Linear,
    FunctionalTensorProduct=e3nn.legacy.FunctionalTensorProduct,
)
SWAPPED = types.SimpleNamespace(
    tensor_product=ops.tensor_product,
    Linear=ops.Linear,
    FunctionalTensorProduct=ops.FunctionalTensorProduct,
)
CUTOFF, NEIGHBOURS, SPECIES = 4.0, 20.0, 4
ACTS = {"even_act": jax.nn.silu, "odd_act": jax.nn.tanh, "even_gate_act": jax.nn.silu}


class Radial(nn.Module):
    """Weights from Bessel functions of the lengths, by two hidden layers."""

    size: int

    @nn.compact
    def __call__(self, lengths):
        x = e3nn.bessel(lengths, 8, CUTOFF) * e3nn.poly_envelope(5, 2, CUTOFF)(lengths)[:, None]
        return e3nn.flax.MultiLayerPerceptron(
            (64, 64, self.size), act=jax.nn.silu, output_activation=False
        )(x)


def irreps_of_gate(irreps) -> e3nn.Irreps:
    """Return the irreps that `e3nn.gate` takes to give these."""
    irreps = e3nn.Irreps(irreps)
    gates = sum(mul for mul, ir in irreps if ir.l > 0)
    return e3nn.Irreps(f"{irreps.count('0e') + gates}x0e") + irreps.filter(drop="0e")


def harmonics(vectors, lmax: int):
    return e3nn.spherical_harmonics(range(1, lmax + 1), vectors, True, normalization="component")


def with_one(y):
    one = e3nn.IrrepsArray("0e", jnp.ones((y.shape[0], 1), y.dtype))
    return e3nn.concatenate([one, y])


class NequIPLayer(nn.Module):
    """A layer in the style of nequip-jax."""

    irreps: str
    lmax: int
    lib: object

    @nn.compact
    def __call__(self, x, vectors, species, senders, receivers, edges):
        gate = irreps_of_gate(self.irreps)
        skip = self.lib.Linear(
            gate, num_indexed_weights=SPECIES, force_irreps_out=True, name="skip"
        )(species, x)
        y = harmonics(vectors, self.lmax)
        x = self.lib.Linear(x.irreps, name="up")(x)
        keep = sorted({ir for _, ir in gate})
        whole = e3nn.Irreps(e3nn.tensor_product(x.irreps, y.irreps, filter_ir_out=keep))
        size = (x.irreps.filter(keep=keep) + whole).num_irreps
        weights = Radial(size, name="radial")(e3nn.norm(vectors).array[:, 0])
        if edges is not None:
            out = ops.TensorProductLinearGate(
                gate,
                filter_ir_out=keep,
                scalar_first=True,
                force_irreps_out=True,
                name="down",
                **ACTS,
            )
            return out(x, with_one(y), weights / jnp.sqrt(NEIGHBOURS), edges, skip=skip)
        messages = x[senders]
        messages = e3nn.concatenate(
            [
                messages.filter(keep=keep),
                self.lib.tensor_product(messages, y, filter_ir_out=keep),
            ]
        ).regroup()
        messages = messages * weights
        zeros = e3nn.zeros(messages.irreps, (x.shape[0],), messages.dtype)
        x = zeros.at[receivers].add(messages) / jnp.sqrt(NEIGHBOURS)
        x = self.lib.Linear(gate, force_irreps_out=True, name="down")(x) + skip
        return e3nn.gate(x, **ACTS)


class NequIP(nn.Module):
    """Two layers and a readout; the energy of each node, [nodes]."""

    lib: object
    irreps: str = "64x0e + 64x1o + 64x2e"
    lmax: int = 2

    @nn.compact
    def __call__(self, vectors, species, senders, receivers, edges=None):
        vectors = e3nn.IrrepsArray("1o", vectors)
        x = nn.Embed(SPECIES, 64, name="embedding")(species)
        x = e3nn.IrrepsArray("64x0e", x)
        for n, irreps in enumerate((self.irreps, self.irreps)):
            layer = NequIPLayer(irreps, self.lmax, self.lib, name=f"layer_{n}")
            x = layer(x, vectors, species, senders, receivers, edges)
        return self.lib.Linear("0e", name="readout")(x).array[:, 0]


class MACELayer(nn.Module):
    """An interaction and a product basis in the style of mace-jax."""

    irreps: str
    basis: str
    lmax: int
    lib: object
    backend: str | None

    @nn.compact
    def __call__(self, x, vectors, species, senders, receivers, edges):
        y = harmonics(vectors, self.lmax)
        basis = e3nn.Irreps(self.basis)
        keep = sorted({ir for _, ir in basis})
        skip = self.lib.Linear(
            self.irreps, num_indexed_weights=SPECIES, force_irreps_out=True, name="skip"
        )(species, x)
        x = self.lib.Linear(x.irreps, name="up")(x)
        whole = e3nn.Irreps(e3nn.tensor_product(x.irreps, y.irreps, filter_ir_out=keep))
        size = (x.irreps.filter(keep=keep) + whole).num_irreps
        weights = Radial(size, name="radial")(e3nn.norm(vectors).array[:, 0])
        if edges is not None:
            down = ops.TensorProductLinear(
                basis, filter_ir_out=keep, scalar_first=True, force_irreps_out=True, name="down"
            )
            a = down(x, with_one(y), weights / NEIGHBOURS, edges)
        else:
            messages = e3nn.concatenate(
                [
                    x[senders].filter(keep=keep),
                    self.lib.tensor_product(x[senders], y, filter_ir_out=keep),
                ]
            ).regroup()
            messages = messages * weights
            a = e3nn.scatter_sum(messages, dst=receivers, output_size=x.shape[0]) / NEIGHBOURS
            a = self.lib.Linear(basis, force_irreps_out=True, name="down")(a)
        paths = ops.symmetric_contraction_paths(basis, e3nn.Irreps(self.irreps), 2)
        shape = (SPECIES, sum(count for *_, count in paths), basis[0].mul)
        b = ops.symmetric_contraction(
            a,
            self.param("contraction", nn.initializers.normal(0.5), shape),
            species,
            irreps_out=e3nn.Irreps(self.irreps),
            correlation=2,
            backend=self.backend,
        )
        return self.lib.Linear(self.irreps, force_irreps_out=True, name="mix")(b) + skip


class MACE(nn.Module):
    """Two layers and a readout; the energy of each node, [nodes]."""

    lib: object

    @nn.compact
    def __call__(self, vectors, species, senders, receivers, edges=None):
        vectors = e3nn.IrrepsArray("1o", vectors)
        x = e3nn.IrrepsArray("64x0e", nn.Embed(SPECIES, 64, name="embedding")(species))
        backend = "e3nn" if self.lib is E3NN else None
        for n, irreps in enumerate(("64x0e + 64x1o", "64x0e")):
            basis = "64x0e + 64x1o + 64x2e"
            layer = MACELayer(irreps, basis, 2, self.lib, backend, name=f"layer_{n}")
            x = layer(x, vectors, species, senders, receivers, edges)
        return self.lib.Linear("0e", name="readout")(x).array[:, 0]


class Tetris(nn.Module):
    """The network of e3nn-jax's Tetris example: three layers on scalars of one."""

    lib: object
    hidden: str = "32x0e + 32x0o + 8x1e + 8x1o + 8x2e + 8x2o"

    @nn.compact
    def __call__(self, vectors, species, senders, receivers, edges=None):
        y = harmonics(e3nn.IrrepsArray("1o", vectors), 3)
        x = e3nn.IrrepsArray("0e", jnp.ones((len(species), 1), vectors.dtype))
        for n, irreps in enumerate((self.hidden, self.hidden, "0o + 7x0e")):
            x = TetrisLayer(irreps, self.lib, name=f"layer_{n}")(x, y, senders, receivers, edges)
        return jnp.sum(x.array**2, axis=1)


class TetrisLayer(nn.Module):
    """A layer of e3nn-jax's Tetris example."""

    irreps: str
    lib: object

    @nn.compact
    def __call__(self, x, y, senders, receivers, edges):
        target = e3nn.Irreps(self.irreps)
        if edges is not None:
            m = ops.TensorProductLinearGate(target, gated=False, scalar_first=True, name="pre")(
                x, with_one(y) / 1.5, edges=edges
            )
        else:
            m = e3nn.concatenate([x[senders], self.lib.tensor_product(x[senders], y)]).regroup()
            m = e3nn.scatter_sum(m, dst=receivers, output_size=x.shape[0]) / 1.5
            m = e3nn.scalar_activation(self.lib.Linear(target, name="pre")(m))
        m = self.lib.Linear(target, name="post")(m)
        return m + self.lib.Linear(m.irreps, force_irreps_out=True, name="shortcut")(x)


class AllegroLayer(nn.Module):
    """A layer in the style of allegro-jax: features of edges, channels on an axis of their own."""

    irreps: str
    channels: int
    lib: object

    @nn.compact
    def __call__(self, x, v, y, senders, receivers, edges):
        weights = e3nn.flax.MultiLayerPerceptron((self.channels,), act=None, name="weights")(x)
        wy = e3nn.IrrepsArray(y.irreps, weights[:, :, None] * y.array[:, None, :])
        nodes = e3nn.scatter_sum(wy, dst=receivers, output_size=edges) / jnp.sqrt(NEIGHBOURS)
        keep = sorted({ir for _, ir in e3nn.Irreps(self.irreps)})
        v = self.lib.tensor_product(nodes[receivers], v, filter_ir_out=[*keep, e3nn.Irrep("0e")])
        scalars = v.filter(keep="0e").axis_to_mul().array
        x = e3nn.flax.MultiLayerPerceptron((128, 128), act=jax.nn.silu, name="latents")(
            jnp.concatenate([x, scalars], axis=1)
        )
        v = self.lib.Linear(self.channels * e3nn.Irreps(self.irreps), name="linear")(
            v.axis_to_mul()
        )
        return x, v.mul_to_axis(self.channels)


class Allegro(nn.Module):
    """Two layers and a readout; the energy of each edge's centre, [nodes]."""

    lib: object
    channels: int = 32

    @nn.compact
    def __call__(self, vectors, species, senders, receivers, edges=None):
        lengths = jnp.linalg.norm(vectors, axis=1)
        y = e3nn.spherical_harmonics("0e+1o+2e", e3nn.IrrepsArray("1o", vectors), True)
        x = Radial(128, name="radial")(lengths)
        x = x + nn.Embed(SPECIES, 128, name="embedding")(species)[senders]
        weights = e3nn.flax.MultiLayerPerceptron((self.channels,), act=None, name="first")(x)
        v = e3nn.IrrepsArray(y.irreps, weights[:, :, None] * y.array[:, None, :])
        for n, irreps in enumerate(("0e+1o+2e", "0e")):
            layer = AllegroLayer(irreps, self.channels, self.lib, name=f"layer_{n}")
            x, v = layer(x, v, y, senders, receivers, len(species))
        energies = e3nn.flax.MultiLayerPerceptron((1,), act=None, name="readout")(x)[:, 0]
        return jax.ops.segment_sum(energies, receivers, len(species))


NETWORKS = {"NequIP": NequIP, "MACE": MACE, "Tetris": Tetris, "Allegro": Allegro}
