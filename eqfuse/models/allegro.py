"""Allegro: a strictly local equivariant potential (Musaelian et al. 2023)."""

import functools
import math
from collections.abc import Callable
from typing import Literal

import e3nn_jax as e3nn
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from eqfuse.models.allegro_layers import (
    AllegroLayer,
    DenseLayer,
    EnvironmentProduct,
    Paths,
    times,
    weighted_channels,
)
from eqfuse.models.irreps import (
    SCALAR,
    allowed,
    harmonics,
    products,
    require_at_least,
    require_positive,
    unreachable,
)
from eqfuse.models.mlp import MLP, Kernels, dense, normalized
from eqfuse.models.radial import (
    lengths_and_directions,
    network_basis,
    polynomial_cutoff,
    spherical_harmonics,
    spline_basis,
)
from eqfuse.models.radial_table import Point, RadialTable, SpeciesPairs, kept, radial_basis
from eqfuse.models.species import (
    check_species_settings,
    narrow_settings,
    reduced_lengths,
    take_species,
)

TWO_BODY = ("concatenate", "product", "spline")


class Allegro(nn.Module):
    """Allegro: latents and equivariant features of each edge, which see its centre's edges only.

        x_ij = u_ij MLP(z_i, z_j, B_ij),    V_ij = (W x_ij) Y_ij,    then the layers, then
        E_i = sum_j MLP(x_ij) / sqrt(n)

    What is predicted for an atom depends on the atoms within the cutoff of it and on no others,
    whatever the number of layers. Edges of zero length (padding) and edges beyond the cutoff
    contribute exactly zero.

    Where the published program and the paper differ, the defaults are the paper: species and
    lengths are concatenated, channels are mixed by a full Linear, the new latents are weighted by
    1/2 of the old ones. Differences from both: the frequencies of the Bessel functions are not
    trained (as in `NequIP`), and weights are normal, not uniform, numbers of variance 1. The paper
    predicts energies; other irreps are a Linear of one product more with an environment.

    `dense` with `two_body="product"` or `"spline"` is the network of nequip-allegro since 2024. The
    settings after `avg_num_neighbors` are those of its networks.

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
      two_body_layers: matrices of the first MLP, whose widths double up to `latent_dim`, or are
        `two_body_hidden` before it.
      latent_layers: matrices of the MLP of each layer.
      latent_activation: silu between them, or nothing.
      readout_hidden: width inside the last MLP, which is linear without `readout_activation`.
      cutoff: radius of the neighbourhood, Å.
      num_bessel: number of Bessel functions of the edge length.
      poly_power: p of the polynomial cutoff.
      avg_num_neighbors: mean number of neighbours in the training data, a normalisation.
      dense: layers have a weight for each path of the product and channel, and latents beside those
        of all layers before, see `eqfuse.models.allegro_layers.DenseLayer`.
      two_body: what the first MLP reads: species and basis, concatenated; the product of embeddings
        of both species and a Linear of the basis; or splines of the distance for each pair.
      embedding_dim: width of the product or of the splines; None: `latent_dim`.
      num_splines: number of splines.
      spline_span: with how many others a spline overlaps on each side.
      two_body_hidden: width inside the first MLP; None: see `two_body_layers`.
      latent_hidden: width inside the MLP of each layer; None: `latent_dim`.
      readout_layers: matrices of the last MLP.
      readout_activation: silu between them, or nothing.
      trainable_bessel: the frequencies of the Bessel functions are parameters.
      species_neighbors: mean number of neighbours for each species of the centre, in place of
        `avg_num_neighbors`; None for that.
      pair_cutoffs: a cutoff for each species of receiver and sender, at most `cutoff`, Å; None for
        one cutoff.
      radial: how functions of lengths are computed: by networks for each edge, or from a table of
        them that every step makes anew; auto is a table for many edges.
      radial_knots: number of knots of a table, whose forces are the networks' to about 1e-7 with
        128; their errors fall with the fifth power of it.
      backend: see `eqfuse.ops`; the parameters are the same for all.
      fused: "auto", "always", "never", or None: see `eqfuse.ops.resolve_fused`.
    References: Musaelian et al. 2023, Nature Communications 14, 579; Tan et al. 2025,
      arXiv:2504.16068 (`dense`).
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
    dense: bool = False
    two_body: Literal["concatenate", "product", "spline"] = "concatenate"
    embedding_dim: int | None = None
    num_splines: int = 16
    spline_span: int = 12
    two_body_hidden: int | None = None
    latent_hidden: int | None = None
    readout_layers: int = 2
    readout_activation: bool = False
    trainable_bessel: bool = False
    species_neighbors: tuple[float, ...] | None = None
    pair_cutoffs: tuple[tuple[float, ...], ...] | None = None
    radial: Literal["auto", "network", "table"] = "auto"
    radial_knots: int = 128
    backend: str | None = None
    fused: str | None = None

    def layer_irreps(self) -> list[e3nn.Irreps]:
        """Return latents and features of an edge before and after each layer, and the readout."""
        inputs = []
        for k, paths in enumerate(self.paths()):
            latents = e3nn.Irreps([(self.latent_dim * (k + 1 if self.dense else 1), SCALAR)])
            inputs.append(latents + times(self.channels, paths.inputs))
        return [*inputs, e3nn.Irreps(self.irreps_out)]

    def num_pairs(self) -> int:
        """Return the number of pairs of species, which have radial functions of their own."""
        return self.num_species**2

    def narrow(self, params: dict, keep) -> tuple["Allegro", dict]:
        """Return this network and its parameters for the species `keep` [n], in their new order."""
        smaller = self.clone(**narrow_settings(self, keep))
        if self.two_body != "concatenate":
            params = take_species(params, keep, ("center", "neighbor", "spline"))
            if "spline" in params:
                params = {**params, "spline": params["spline"][:, keep]}
            return smaller, params
        count, kernel = self.num_species, params["two_body"]["Dense_0"]["kernel"]
        # its rows: the species of the two atoms, one-hot, then the radial basis
        rows = np.concatenate([keep, count + np.asarray(keep), np.arange(2 * count, len(kernel))])
        # a dense layer divides by the square root of its rows
        kernel = (kernel[rows] * np.sqrt(len(rows) / len(kernel))).astype(kernel.dtype)
        two_body = {**params["two_body"], "Dense_0": {"kernel": kernel}}
        return smaller, {**params, "two_body": two_body}

    def paths(self) -> list[Paths]:
        """Return the paths of each layer's product, and of the readout of irreps other than 0e.

        The first features are spherical harmonics; those after a layer are irreps of its product. A
        product has the scalars, which the latents read, and the irreps that can still become
        scalars, or one of `irreps_out`, in the layers that are left. All others are zero or unused.
        The last of the `layers + 1` Paths is empty where `irreps_out` is 0e only.
        """
        layers, lmax, parity = self.layers, self.lmax, self.parity
        require_at_least(layers=(layers, 1), lmax=(lmax, 0))
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
        self._check()
        first, *_, readout = self.paths()
        lengths, directions, real = lengths_and_directions(vectors)
        envelope = functools.partial(polynomial_cutoff, cutoff=self.cutoff, power=self.poly_power)
        function = network_basis(self, lengths.dtype, envelope)
        reduced = reduced_lengths(self, lengths, species, edges)
        ends = species[edges.receivers], species[edges.senders]
        pairs = SpeciesPairs(ends[0] * self.num_species + ends[1], self.num_species**2)
        # [n_edges, num_bessel] or a table, [n_edges]
        basis, envelope = radial_basis(self, reduced, real, function, (self.cutoff,), pairs)
        sh = spherical_harmonics(directions, range(self.lmax + 1))  # [n_edges, irreps_sh]
        reduced = jnp.where(real, reduced, self.cutoff)
        x = self._two_body_latents(basis, envelope, reduced, pairs.index)
        widths = (self.channels * len(first.inputs),)
        weights = MLP(widths, None, self.backend, name="first_features")(x)
        harmonics_read = sh.filter(keep=first.inputs)
        # [n_edges, channels x first.inputs]
        v = weighted_channels(harmonics_read, weights)
        around, divisor = self._normalized(sh, species, edges)
        if self.dense:
            x, v = self._dense_layers(x, v, around, edges)
        else:
            for k in range(self.layers):
                layer = AllegroLayer(**self._settings(k), fused=self.fused)
                x, v = layer(x, v, around, envelope, edges)
        out = self._readout(x, v, around, edges, readout)  # [n_edges, irreps_out]
        out = e3nn.scatter_sum(out, dst=edges.receivers, output_size=edges.num_nodes)
        return out / divisor

    def _check(self):
        positive = ("num_species", "channels", "latent_dim", "two_body_layers", "latent_layers")
        positive += ("readout_layers", "readout_hidden", "avg_num_neighbors", "cutoff")
        positive += ("num_bessel", "poly_power")
        require_positive(**{name: getattr(self, name) for name in positive})
        check_species_settings(self)
        if self.two_body not in TWO_BODY:
            known = ", ".join(TWO_BODY)
            raise ValueError(f"two_body must be one of {known}, got {self.two_body!r}")
        size = self.embedding_dim or self.latent_dim
        if self.two_body == "product" and size % 2:
            raise ValueError(f"two_body='product' needs an even embedding_dim, got {size}")
        if self.two_body == "spline":
            require_positive(num_splines=self.num_splines)
            if not 0 <= self.spline_span <= self.num_splines:
                raise ValueError(
                    f"spline_span must be between 0 and num_splines, {self.num_splines}, got "
                    f"{self.spline_span}"
                )

    def _two_body_latents(self, basis, envelope, lengths, pairs):
        """Return the latents of the two atoms of each edge, [n_edges, latent_dim].

            x_ij = u_ij MLP(z_i, z_j, B_ij), or MLP of an embedding of the pair, which vanishes
            with it

        The basis is [n_edges, num_bessel], zero at the cutoff and for padding, or a `RadialTable`
        of all pairs of species, (receiver, sender) in the order of rows; lengths are the cutoff or
        more for padding.
        """
        embed, columns = self._pair_embedding(basis.dtype)
        count, width = self.two_body_layers, self.two_body_hidden
        widths = [width or max(1, self.latent_dim >> k) for k in reversed(range(1, count))]
        like = jax.ShapeDtypeStruct((1, columns), basis.dtype)
        *hidden, last = Kernels((*widths, self.latent_dim), name="two_body")(like)
        act = normalized(jax.nn.silu)

        def before_last(point: Point, backend):
            centers, neighbors = jnp.divmod(point.pairs, self.num_species)
            x = embed(point, centers, neighbors, backend)
            for kernel in hidden:
                x = act(dense(x, kernel.astype(x.dtype), backend))
            return x

        def with_envelope(x, envelope):  # or else it vanishes with the embedding
            return envelope[:, None] * x if self.two_body == "concatenate" else x

        if not isinstance(basis, RadialTable):
            x = before_last(Point(basis, envelope, lengths, pairs), self.backend)
            return with_envelope(dense(x, last, self.backend), envelope)

        def make():
            return basis.table(
                lambda point: with_envelope(before_last(point, "xla"), point.envelope), last
            )

        return basis.of_edges([kept(self, "two_body_table", make)])[0]

    def _pair_embedding(self, dtype) -> tuple[Callable, int]:
        """Return the input of the first MLP and its width.

        It is a function of a `Point`, the species of both atoms, and a backend.
        """
        count, size = self.num_species, self.embedding_dim or self.latent_dim
        if self.two_body == "concatenate":

            def concatenate(point, centers, neighbors, backend):
                z = jnp.eye(count, dtype=point.basis.dtype)
                return jnp.concatenate([z[centers], z[neighbors], point.basis], axis=1)

            return concatenate, 2 * count + self.num_bessel
        if self.two_body == "spline":
            shape = (count, count, size, self.num_splines)
            init = nn.initializers.normal(1 / math.sqrt(max(self.spline_span, 1)))
            table = self.param("spline", init, shape, dtype)

            def spline(point, centers, neighbors, backend):
                x = point.lengths / self.cutoff
                bumps = spline_basis(x, self.num_splines, self.spline_span)
                of_pairs = table.astype(bumps.dtype)[centers, neighbors]
                return jax.lax.dot_general(of_pairs, bumps, (((2,), (1,)), ((0,), (0,))))

            return spline, size
        init, shape = nn.initializers.normal(1.0), (count, size // 2)
        first, second = (self.param(name, init, shape, dtype) for name in ("center", "neighbor"))
        like = jax.ShapeDtypeStruct((1, self.num_bessel), dtype)
        [kernel] = Kernels((size,), name="radial")(like)

        def product(point, centers, neighbors, backend):
            dtype = point.basis.dtype
            of_species = first.astype(dtype)[centers], second.astype(dtype)[neighbors]
            radial = dense(point.basis, kernel.astype(dtype), backend)
            return jnp.concatenate(of_species, axis=1) * radial

        return product, size

    def _normalized(self, sh, species, edges):
        """Return sh for sums that are divided by sqrt(n), and what the last sum is divided by."""
        mean = math.sqrt(self.avg_num_neighbors)
        if self.species_neighbors is None:
            return sh, mean
        counts = jnp.asarray(self.species_neighbors, sh.dtype)
        of_nodes = jnp.sqrt(counts)[species][:, None]
        return sh * (mean / of_nodes)[edges.receivers], of_nodes

    def _settings(self, k: int) -> dict:
        """Return the fields that layer k has, dense or not."""
        paths, after = self.paths()[k : k + 2]
        inside = (self.latent_hidden or self.latent_dim,) * (self.latent_layers - 1)
        return {
            "paths": paths,
            "features": after.inputs,
            "channels": self.channels,
            "latent_widths": (*inside, self.latent_dim),
            "latent_activation": self.latent_activation,
            "avg_num_neighbors": self.avg_num_neighbors,
            "backend": self.backend,
            "name": f"layer_{k}",
        }

    def _dense_layers(self, x, v, sh, edges):
        counts = [len(paths.environment) for paths in self.paths()[:-1]]
        widths = (self.latent_dim + self.channels * counts[0],)
        first = MLP(widths, None, self.backend, name="first_latents")(x)
        x, weights = jnp.split(first, [self.latent_dim], axis=1)
        for k, count in enumerate([*counts[1:], 0]):
            layer = DenseLayer(**self._settings(k), environment=count)
            x, weights, v = layer(x, weights, v, sh, edges)
        return x, v

    def _readout(self, x, v, sh, edges, paths: Paths):
        """Return the contribution of each edge to the output, IrrepsArray [n_edges, irreps_out]."""
        irreps_out = e3nn.Irreps(self.irreps_out)
        count = irreps_out.count(SCALAR)
        scalars, chunks = None, []
        if count:
            widths = (*(self.readout_hidden,) * (self.readout_layers - 1), count)
            act = jax.nn.silu if self.readout_activation else None
            mlp = MLP(widths, act, self.backend, name="readout")
            scalars = mlp(x)[:, :, None]
        tensors = [(mul, ir) for mul, ir in irreps_out if ir != SCALAR]
        if tensors:
            [out] = EnvironmentProduct(
                paths,
                (e3nn.Irreps(tensors),),
                self.channels,
                self.avg_num_neighbors,
                self.backend,
                self.fused,
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
        return e3nn.from_chunks(irreps_out, ordered, (x.shape[0],), x.dtype)
