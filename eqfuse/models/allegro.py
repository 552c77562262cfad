"""Allegro: a strictly local equivariant potential (Musaelian et al. 2023, Tan et al. 2025)."""

import math
from typing import Literal

import e3nn_jax as e3nn
import flax.linen as nn
import jax
import jax.numpy as jnp

from eqfuse import ops
from eqfuse.models.allegro_layers import (
    AllegroLayer,
    Paths,
    environment,
    times,
    weighted_channels,
)
from eqfuse.models.irreps import SCALAR, allowed, harmonics, products, unreachable
from eqfuse.models.mlp import MLP, Kernels, dense, normalized
from eqfuse.models.network import Network
from eqfuse.models.radial import spline_basis
from eqfuse.models.radial_table import Point, RadialTable, SpeciesPairs, kept


class Allegro(Network):
    """Allegro: latents and equivariant features of each edge, which see its centre's edges only.

        x_ij, w_ij = MLP(embedding(z_i, z_j, d_ij)),    V_ij = (W x_ij) Y_ij,    then the layers,
        E_i = sum_j MLP(all latents of ij) / sqrt(n)

    What is predicted for an atom depends on the atoms within the cutoff of it and on no others,
    whatever the number of layers. Edges of zero length (padding) and edges beyond the cutoff
    contribute exactly zero.

    It is the network of nequip-allegro since 2024, but for weights that begin as normal, and not
    uniform, numbers of variance 1. That program predicts energies; other irreps are a Linear of one
    product more with an environment.

    Attributes:
      layers: number of layers; an energy of L layers is a sum over (L + 2)-tuples of atoms, in the
        features, and of all orders in the latents.
      channels: multiplicity of each irrep of V.
      lmax: largest l of V and of the spherical harmonics.
      parity: V of both parities (`o3_full`), or of natural parity (-1)^l only (`o3_restricted`).
        SO(3) alone would distinguish a molecule from its mirror image.
      latent_dim: width of the latents of each layer.
      two_body: what the first MLP reads: the product of embeddings of both species and a Linear of
        the Bessel functions; or splines of the distance for each pair.
      embedding_dim: width of the product or of the splines; None: `latent_dim`.
      num_splines: number of splines.
      spline_span: with how many others a spline overlaps on each side.
      two_body_layers: matrices of the first MLP, between which is silu, as in all MLPs here.
      two_body_hidden: width inside the first MLP; None: `latent_dim`.
      latent_layers: matrices of the MLP of each layer.
      latent_hidden: width inside the MLP of each layer; None: `latent_dim`.
      readout_layers: matrices of the last MLP.
      readout_hidden: width inside the last MLP.
      trainable_bessel: the frequencies of the Bessel functions are parameters.
      species_neighbors: mean number of neighbours for each species of the centre, in place of
        `avg_num_neighbors`; None for that.
      pair_cutoffs: a cutoff for each species of receiver and sender, at most `cutoff`, Å; None for
        one cutoff.
    References: Musaelian et al. 2023, Nature Communications 14, 579; Tan et al. 2025,
      arXiv:2504.16068.
    """

    layers: int = 2
    channels: int = 32
    lmax: int = 2
    parity: bool = True
    latent_dim: int = 64
    two_body: Literal["product", "spline"] = "product"
    embedding_dim: int | None = None
    num_splines: int = 16
    spline_span: int = 12
    two_body_layers: int = 2
    two_body_hidden: int | None = None
    latent_layers: int = 2
    latent_hidden: int | None = None
    readout_layers: int = 2
    readout_hidden: int = 32
    trainable_bessel: bool = False
    species_neighbors: tuple[float, ...] | None = None
    pair_cutoffs: tuple[tuple[float, ...], ...] | None = None

    positive = "latent_dim", "two_body_layers", "latent_layers", "readout_layers", "readout_hidden"
    of_species = ("center", "neighbor", "spline")

    def layer_irreps(self) -> list[e3nn.Irreps]:
        """Return latents and features of an edge before and after each layer, and the readout."""
        inputs = []
        for k, paths in enumerate(self.paths()):
            latents = e3nn.Irreps([(self.latent_dim * (k + 1), SCALAR)])
            inputs.append(latents + times(self.channels, paths.inputs))
        return [*inputs, e3nn.Irreps(self.irreps_out)]

    def num_pairs(self) -> int:
        """Return the number of pairs of species, which have radial functions of their own."""
        return self.num_species**2

    def narrow(self, params: dict, keep) -> tuple["Allegro", dict]:
        smaller, params = super().narrow(params, keep)
        if "spline" in params:
            params = {**params, "spline": params["spline"][:, keep]}
        return smaller, params

    def paths(self) -> list[Paths]:
        """Return the paths of each layer's product, and of the readout of irreps other than 0e.

        The first features are spherical harmonics; those after a layer are irreps of its product. A
        product has the scalars, which the latents read, and the irreps that can still become
        scalars, or one of `irreps_out`, in the layers that are left. All others are zero or unused.
        The last of the `layers + 1` Paths is empty where `irreps_out` is 0e only.
        """
        layers, lmax, parity = self.layers, self.lmax, self.parity
        sh, within = harmonics(lmax), allowed(lmax, parity)
        wanted = {ir for _, ir in e3nn.Irreps(self.irreps_out)} - {SCALAR}

        reachable = [set(sh)]
        for _ in range(layers):
            reachable.append(within & products(reachable[-1], sh))
        if missing := wanted - products(reachable[-1], sh):
            raise unreachable(self.irreps_out, missing, layers=layers, lmax=lmax, parity=parity)
        paths, needed = [], wanted
        for irs in reversed(reachable):
            inputs = {ir for ir in irs if products([ir], sh) & needed}
            environment = {y for y in sh if products(inputs, [y]) & needed}
            paths.append(Paths(*(tuple(sorted(irs)) for irs in (inputs, environment, needed))))
            needed = inputs | {SCALAR}
        return paths[::-1]

    @nn.compact
    def __call__(self, vectors, species, edges):
        """Predict `irreps_out` for each node; operands, result and errors are those of `NequIP`."""
        self.check()
        *layers, last = self.paths()
        pairs = species[edges.receivers] * self.num_species + species[edges.senders]
        pairs = SpeciesPairs(pairs, self.num_pairs())
        sh, basis, _, lengths = self.edge_functions(vectors, species, edges, pairs)
        x = self._two_body_latents(basis, lengths, pairs.index)  # [n_edges, latent_dim]
        first = layers[0].inputs
        weights = MLP((self.channels * len(first),), None, self.backend, name="first_features")(x)
        v = weighted_channels(sh.filter(keep=first), weights)  # [n_edges, channels x first]
        around = sh  # for sums that are divided by sqrt(n)
        divisor = mean = math.sqrt(self.avg_num_neighbors)
        if self.species_neighbors is not None:
            counts = jnp.asarray(self.species_neighbors, sh.dtype)
            divisor = jnp.sqrt(counts)[species][:, None]
            around = sh * (mean / divisor)[edges.receivers]
        counts = [len(paths.environment) for paths in layers]
        widths = (self.latent_dim + self.channels * counts[0],)
        x = MLP(widths, None, self.backend, name="first_latents")(x)
        x, weights = jnp.split(x, [self.latent_dim], axis=1)
        inside = (self.latent_hidden or self.latent_dim,) * (self.latent_layers - 1)
        for k, paths in enumerate(layers):
            layer = AllegroLayer(
                paths,
                [*layers, last][k + 1].inputs,
                self.channels,
                (*inside, self.latent_dim),
                [*counts, 0][k + 1],
                self.avg_num_neighbors,
                self.backend,
                name=f"layer_{k}",
            )
            x, weights, v = layer(x, weights, v, around, edges)
        out = self._readout(x, v, around, edges, last)  # [n_edges, irreps_out]
        out = e3nn.scatter_sum(out, dst=edges.receivers, output_size=edges.num_nodes)
        return out / divisor

    def check(self):
        super().check()
        size, count = self.embedding_dim or self.latent_dim, self.num_splines
        if self.two_body == "product" and size % 2:
            raise ValueError(f"two_body='product' needs an even embedding_dim, got {size}")
        if self.two_body == "spline" and not 0 <= self.spline_span <= count:
            raise ValueError(
                f"spline_span must be between 0 and num_splines, {count}, got {self.spline_span}"
            )

    def _two_body_latents(self, basis, lengths, pairs):
        """Return the latents of the two atoms of each edge, [n_edges, latent_dim].

        They are an MLP of an embedding of the pair, and vanish with it. The basis is
        [n_edges, num_bessel], zero at the cutoff and for padding, or a `RadialTable` of all pairs
        of species; lengths are the cutoff or more for padding.
        """
        embed = self._pair_embedding(basis.dtype)
        inside = (self.two_body_hidden or self.latent_dim,) * (self.two_body_layers - 1)
        sizes = self.embedding_dim or self.latent_dim, *inside, self.latent_dim
        *hidden, last = Kernels(sizes, name="two_body")(basis.dtype)
        act = normalized(jax.nn.silu)

        def before_last(point: Point, backend):
            x = embed(point, *jnp.divmod(point.pairs, self.num_species), backend)
            for kernel in hidden:
                x = act(dense(x, kernel.astype(x.dtype), backend))
            return x

        if not isinstance(basis, RadialTable):
            x = before_last(Point(basis, lengths, pairs), self.backend)
            return dense(x, last, self.backend)

        def make():
            return basis.table(lambda point: before_last(point, "xla"), last)

        return basis.of_edges([kept(self, "two_body_table", make)])[0]

    def _pair_embedding(self, dtype):
        """Return what the first MLP reads: a function of a `Point`, both species and a backend."""
        count, size = self.num_species, self.embedding_dim or self.latent_dim
        if self.two_body == "spline":
            shape = (count, count, size, self.num_splines)
            init = nn.initializers.normal(1 / math.sqrt(max(self.spline_span, 1)))
            table = self.param("spline", init, shape, dtype)

            def spline(point, centers, neighbors, backend):
                x = point.lengths / self.cutoff
                bumps = spline_basis(x, self.num_splines, self.spline_span)
                of_pairs = table[centers, neighbors].astype(bumps.dtype)
                return jax.lax.dot_general(of_pairs, bumps, (((2,), (1,)), ((0,), (0,))))

            return spline
        init, shape = nn.initializers.normal(1.0), (count, size // 2)
        first, second = (self.param(name, init, shape, dtype) for name in ("center", "neighbor"))
        [kernel] = Kernels((self.num_bessel, size), name="radial")(dtype)

        def product(point, centers, neighbors, backend):
            dtype = point.basis.dtype
            of_species = (p[n].astype(dtype) for p, n in ((first, centers), (second, neighbors)))
            radial = dense(point.basis, kernel.astype(dtype), backend)
            return jnp.concatenate([*of_species], axis=1) * radial

        return product

    def _readout(self, x, v, sh, edges, paths: Paths):
        """Return the contribution of each edge to the output, IrrepsArray [n_edges, irreps_out]."""
        irreps_out = e3nn.Irreps(self.irreps_out)
        scalars, tensors = (
            e3nn.Irreps([(mul, ir) for mul, ir in irreps_out if (ir == SCALAR) == is_scalar])
            for is_scalar in (True, False)
        )
        chunks = {True: [], False: []}  # of even scalars, and of others
        if scalars:
            widths = (*(self.readout_hidden,) * (self.readout_layers - 1), scalars.dim)
            energies = MLP(widths, jax.nn.silu, self.backend, name="readout")(x)
            chunks[True] = e3nn.IrrepsArray(scalars, energies).chunks
        if tensors:
            widths = (self.channels * len(paths.environment),)
            weights = MLP(widths, None, self.backend, name="readout_weights")(x)
            linear = ops.TensorProductLinear(
                tensors,
                force_irreps_out=True,
                filter_ir_out=paths.products,
                channelwise=True,
                backend=self.backend,
                fused=self.fused,
                name="tensor_readout",
            )
            around = environment(self, paths, weights, sh, edges)
            chunks[False] = linear(v, around, edges=edges).chunks
        parts = {is_scalar: iter(found) for is_scalar, found in chunks.items()}
        ordered = [next(parts[ir == SCALAR]) for _, ir in irreps_out]
        return e3nn.from_chunks(irreps_out, ordered, (x.shape[0],), x.dtype)
