"""Allegro: a strictly local equivariant potential (Musaelian et al. 2023)."""

import math

import e3nn_jax as e3nn
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from eqfuse import ops
from eqfuse.models.allegro_irreps import Paths, tensor_paths
from eqfuse.models.irreps import SCALAR, require_positive
from eqfuse.models.mlp import MLP, normalized
from eqfuse.models.radial import edge_geometry

UPDATE = 0.5
"""a in the residual update of the latents."""


def times(channels: int, irs) -> e3nn.Irreps:
    """Return irreps with `channels` copies of each irrep."""
    return e3nn.Irreps([(channels, ir) for ir in irs])


class EnvironmentProduct(nn.Module):
    """Edge features times the environment of their centre, channel by channel, and a Linear.

        out_ij = Linear(V_ij (x) env_i),    env_i = sum_k (W x_ik) Y_ik / sqrt(n)

    The sum is over the edges of the centre i, so that out_ij does not depend on atoms further away.

    Attributes:
      paths: irreps of V, env and their product.
      parts: irreps of the output, one array for each.
      channels: multiplicity of each irrep of V and env.
      avg_num_neighbors: n.
      backend: see `eqfuse.ops`.
    References: Musaelian et al. 2023, Nature Communications 14, 579.
    """

    paths: Paths
    parts: tuple[e3nn.Irreps, ...]
    channels: int
    avg_num_neighbors: float
    backend: str | None

    @nn.compact
    def __call__(self, x, v, sh, edges):
        """Return the product, mixed by the Linear.

        Args:
          x: latents, [n_edges, latent_dim].
          v: V, IrrepsArray [n_edges, channels x paths.inputs].
          sh: spherical harmonics, IrrepsArray [n_edges, irreps_sh].
          edges: `eqfuse.ops.Edges`.
        Returns:
          IrrepsArray [n_edges, irreps] for each of the parts.
        """
        irs = self.paths.environment
        widths = (self.channels * len(irs),)
        weights = MLP(widths, None, self.backend, name="weights")(x)
        factor = 1 / math.sqrt(self.avg_num_neighbors)  # cheaper here than over the edges
        factors = jnp.full((edges.num_nodes, self.channels), factor, x.dtype)
        environment = ops.graph_tensor_product(
            e3nn.IrrepsArray(times(self.channels, [SCALAR]), factors),
            sh.filter(keep=irs),
            weights,
            edges,
            backend=self.backend,
        )  # [n_nodes, channels x irs]
        return ops.TensorProductLinear(
            e3nn.Irreps([mul_ir for part in self.parts for mul_ir in part]),
            force_irreps_out=True,
            filter_ir_out=self.paths.products,
            channelwise=True,
            split=self.parts,
            backend=self.backend,
            name="linear",
        )(v, environment, edges=edges)


class AllegroLayer(nn.Module):
    """One layer: a product with the environment, new latents, new edge features.

        T_ij = V_ij (x) env_i
        x_ij <- (x_ij + a u_ij MLP(x_ij, scalars of T_ij)) / sqrt(1 + a^2),    a = 1/2
        V_ij <- Linear(T_ij)

    The first matrix of the MLP is one of x, and one of the scalars, which is part of the Linear: so
    T itself is not in memory on a CPU, nor on a GPU where it is large.

    Attributes:
      paths: irreps of V, env and T.
      features: irreps of V after the layer; none after the last layer of an energy.
      channels: multiplicity of each irrep.
      latent_layers: matrices of the MLP, of the width of x.
      latent_activation: silu between them, or nothing.
      avg_num_neighbors: n of `EnvironmentProduct`.
      backend: see `eqfuse.ops`.
    References: Musaelian et al. 2023, Nature Communications 14, 579.
    """

    paths: Paths
    features: tuple[e3nn.Irrep, ...]
    channels: int
    latent_layers: int
    latent_activation: bool
    avg_num_neighbors: float
    backend: str | None

    @nn.compact
    def __call__(self, x, v, sh, envelope, edges):
        """Return latents and edge features after the layer.

        Args:
          x, v, sh, edges: as in `EnvironmentProduct`.
          envelope: u, [n_edges].
        Returns:
          The new x, [n_edges, latent_dim], and v, IrrepsArray [n_edges, channels x features].
        """
        latents = e3nn.Irreps([(x.shape[-1], SCALAR)])
        features = times(self.channels, self.features)
        scalars, v = EnvironmentProduct(
            self.paths,
            (latents, features),
            self.channels,
            self.avg_num_neighbors,
            self.backend,
            name="product",
        )(x, v, sh, edges)  # [n_edges, latents], [n_edges, features]
        new = self._latents(x, scalars.array)
        x = (x + UPDATE * envelope[:, None] * new) / math.sqrt(1 + UPDATE**2)
        return x, v

    def _latents(self, x, mixed):
        """Return the MLP of x and of the scalars, [n_edges, width], whose Linear is `mixed`."""
        width = x.shape[-1]
        scalars = self.channels * self.paths.num_scalars
        # each is normalised by its own number of columns, and the matrix by that of all
        own, other = (math.sqrt(n / (width + scalars)) for n in (width, scalars))
        new = own * MLP((width,), None, self.backend, name="latents")(x) + other * mixed
        if self.latent_layers == 1:
            return new
        act = jax.nn.silu if self.latent_activation else None
        widths = (width,) * (self.latent_layers - 1)
        return MLP(widths, act, self.backend, name="mlp")(normalized(act)(new))


class Allegro(nn.Module):
    """Allegro: latents and equivariant features of each edge, which see its centre's edges only.

        x_ij = u_ij MLP(z_i, z_j, B_ij),    V_ij = (W x_ij) Y_ij,    then the layers, then
        E_i = sum_j MLP(x_ij) / sqrt(n)

    What is predicted for an atom depends on the atoms within the cutoff of it and on no others,
    whatever the number of layers. Edges of zero length (padding) and edges beyond the cutoff
    contribute exactly zero.

    Where the published program and the paper differ, this is the paper: species and lengths are
    concatenated, channels are mixed by a full Linear, the new latents are weighted by 1/2 of the
    old ones. Differences from both: the frequencies of the Bessel functions are not trained (as in
    `NequIP`), and weights are normal, not uniform, numbers of variance 1. The paper predicts
    energies; other irreps are a Linear of one product more with an environment.

    Attributes:
      irreps_out: what is predicted per node; "0e" for an energy.
      num_species: number of species.
      layers: number of layers; an energy of L layers is a sum over (L + 2)-tuples of atoms, in the
        features, and of all orders in the latents.
      channels: multiplicity of each irrep of V.
      lmax: largest l of V and of the spherical harmonics.
      parity: V of both parities (`o3_full`), or of natural parity (-1)^l only (`o3_restricted`).
        SO(3) alone, as in the program, would distinguish a molecule from its mirror image.
      latent_dim: width of the latents.
      two_body_layers: matrices of the first MLP, whose widths double up to `latent_dim`.
      latent_layers: matrices of the MLP of each layer.
      latent_activation: silu between them, or nothing.
      readout_hidden: width inside the last MLP, which is linear.
      cutoff: radius of the neighbourhood, Å.
      num_bessel: number of Bessel functions of the edge length.
      poly_power: p of the polynomial cutoff.
      avg_num_neighbors: mean number of neighbours in the training data, a normalisation.
      backend: see `eqfuse.ops`; the parameters are the same for all.
    References: Musaelian et al. 2023, Nature Communications 14, 579.
    """

    irreps_out: str = "0e"
    num_species: int = 1
    layers: int = 2
    channels: int = 32
    lmax: int = 2
    parity: bool = True
    latent_dim: int = 128
    two_body_layers: int = 3
    latent_layers: int = 2
    latent_activation: bool = True
    readout_hidden: int = 32
    cutoff: float = 5.0
    num_bessel: int = 8
    poly_power: int = 6
    avg_num_neighbors: float = 1.0
    backend: str | None = None

    def layer_irreps(self) -> list[e3nn.Irreps]:
        """Return latents and features of an edge before and after each layer, and the readout."""
        latents = e3nn.Irreps([(self.latent_dim, SCALAR)])
        inputs = [latents + times(self.channels, paths.inputs) for paths in self._paths()]
        return [*inputs, e3nn.Irreps(self.irreps_out)]

    def narrow(self, params: dict, keep) -> tuple["Allegro", dict]:
        """Return this network for some of its species, with the same predictions for them.

        Args:
          params: its parameters.
          keep: [n] numbers of the species that stay, in their new order.
        """
        count, kernel = self.num_species, params["two_body"]["Dense_0"]["kernel"]
        # its rows: the species of the two atoms, one-hot, then the radial basis
        rows = np.concatenate([keep, count + np.asarray(keep), np.arange(2 * count, len(kernel))])
        # a dense layer divides by the square root of its rows
        kernel = (kernel[rows] * np.sqrt(len(rows) / len(kernel))).astype(kernel.dtype)
        two_body = {**params["two_body"], "Dense_0": {"kernel": kernel}}
        return self.clone(num_species=len(keep)), {**params, "two_body": two_body}

    def _paths(self) -> list[Paths]:
        return tensor_paths(self.irreps_out, layers=self.layers, lmax=self.lmax, parity=self.parity)

    @nn.compact
    def __call__(self, vectors, species, edges):
        """Predict `irreps_out` for each node.

        Args:
          vectors: [n_edges, 3] Å, from receiver (centre) to sender (neighbour).
          species: [n_nodes] int32, in [0, num_species).
          edges: `eqfuse.ops.Edges`.
        Returns:
          IrrepsArray [n_nodes, irreps_out], dtype of vectors.
        Raises:
          ValueError: settings out of range, or `irreps_out` that cannot be reached.
        """
        self._check()
        *layers, readout = self._paths()
        sh, basis, envelope = edge_geometry(
            vectors, self.lmax, self.cutoff, self.num_bessel, self.poly_power
        )  # [n_edges, irreps_sh], [n_edges, num_bessel], [n_edges]
        x = self._two_body_latents(basis, envelope, species, edges)
        v = self._first_features(x, sh, layers[0].inputs)
        for k, paths in enumerate(layers):
            x, v = AllegroLayer(
                paths,
                (*layers, readout)[k + 1].inputs,
                self.channels,
                self.latent_layers,
                self.latent_activation,
                self.avg_num_neighbors,
                self.backend,
                name=f"layer_{k}",
            )(x, v, sh, envelope, edges)
        out = self._readout(x, v, sh, edges, readout)  # [n_edges, irreps_out]
        out = e3nn.scatter_sum(out, dst=edges.receivers, output_size=edges.num_nodes)
        return out / math.sqrt(self.avg_num_neighbors)

    def _check(self):
        positive = ("num_species", "channels", "latent_dim", "two_body_layers", "latent_layers")
        positive += ("readout_hidden", "avg_num_neighbors")
        require_positive(**{name: getattr(self, name) for name in positive})

    def _two_body_latents(self, basis, envelope, species, edges):
        """Return the latents x of the two atoms of each edge, [n_edges, latent_dim]."""
        z = jax.nn.one_hot(species, self.num_species, dtype=basis.dtype)
        widths = [self.latent_dim >> k for k in reversed(range(self.two_body_layers))]
        widths = tuple(max(1, width) for width in widths)
        x = jnp.concatenate([z[edges.receivers], z[edges.senders], basis], axis=1)
        x = MLP(widths, jax.nn.silu, self.backend, name="two_body")(x)
        return envelope[:, None] * x

    def _first_features(self, x, sh, irs):
        """Return V, the weighted spherical harmonics, IrrepsArray [n_edges, channels x irs]."""
        widths = (self.channels * len(irs),)
        weights = MLP(widths, None, self.backend, name="first_features")(x)
        return ops.weighted_channels(sh.filter(keep=irs), weights, backend=self.backend)

    def _readout(self, x, v, sh, edges, paths: Paths):
        """Return what each edge adds to the output, IrrepsArray [n_edges, irreps_out]."""
        irreps_out = e3nn.Irreps(self.irreps_out)
        count = irreps_out.count(SCALAR)
        scalars, chunks = None, []
        if count:
            mlp = MLP((self.readout_hidden, count), None, self.backend, name="readout")
            scalars = mlp(x)[:, :, None]
        tensors = [(mul, ir) for mul, ir in irreps_out if ir != SCALAR]
        if tensors:
            [out] = EnvironmentProduct(
                paths,
                (e3nn.Irreps(tensors),),
                self.channels,
                self.avg_num_neighbors,
                self.backend,
                name="tensor_readout",
            )(x, v, sh, edges)
            chunks = list(out.chunks)
        ordered = []
        for mul, ir in irreps_out:
            if ir == SCALAR:
                ordered.append(scalars[:, :mul])
                scalars = scalars[:, mul:]
            else:
                ordered.append(chunks.pop(0))
        return e3nn.from_chunks(irreps_out, ordered, (len(x),), x.dtype)
