"""What NequIP, Allegro and MACE share: settings, and the functions of edges that they read."""

import dataclasses
from collections.abc import Callable
from typing import Literal, get_args, get_origin

import flax.linen as nn
import jax
import jax.numpy as jnp

from eqfuse.models.radial import (
    bessel_basis,
    bessel_frequencies,
    lengths_and_directions,
    polynomial_cutoff,
    spherical_harmonics,
)
from eqfuse.models.radial_table import ALONE, SpeciesPairs, radial_basis

_OF_SPECIES = ("species_neighbors", "atomic_numbers", "covalent_radii")


class Network(nn.Module):
    """The settings and functions of edges that all networks have.

    Attributes:
      irreps_out: what is predicted per node; "0e" for an energy.
      num_species: number of species.
      cutoff: radius of the neighbourhood, Å.
      num_bessel: number of Bessel functions of the edge length.
      poly_power: p of the polynomial cutoff.
      avg_num_neighbors: mean number of neighbours in the training data, a normalisation.
      radial: how functions of lengths are computed: by networks for each edge, or from a table of
        them that every step makes anew; auto is a table for many edges.
      radial_knots: number of knots of a table, whose forces are the networks' to about 1e-7 with
        128; their errors fall with the fifth power of it.
      backend: see `eqfuse.ops`; the parameters are the same for all.
      fused: "auto", "always", "never", or None: see `eqfuse.ops.resolve_fused`.
      half_weights: round the weights of edges to bfloat16, which a GPU then reads as such; sums are
        in the dtype of the network. For NequIP, and for MACE without `nonlinear`.
    """

    irreps_out: str = "0e"
    num_species: int = 1
    cutoff: float = 5.0
    num_bessel: int = 8
    poly_power: int = 6
    avg_num_neighbors: float = 1.0
    radial: Literal["auto", "network", "table"] = "auto"
    radial_knots: int = 128
    backend: str | None = None
    fused: str | None = None
    half_weights: bool = False

    # settings that not every network has
    trainable_bessel = False
    apply_cutoff = True
    species_neighbors = None
    pair_cutoffs = None
    nonlinear = False
    positive = ()  # names of settings that are positive
    least = (("layers", 1), ("lmax", 0), ("radial_knots", 4))  # the least value of others
    of_species = ()  # parameters, or modules, whose first axis counts the species

    def num_pairs(self) -> int:
        """Return the number of pairs of species that have radial functions of their own."""
        return 1

    def breaks(self) -> tuple[float, ...]:
        """Return the lengths at which derivatives of the network jump, Å; the last: the cutoff."""
        return (float(self.cutoff),)

    def envelope(self, lengths: jax.Array) -> jax.Array:
        """Return the cutoff function of edge lengths, Å."""
        return polynomial_cutoff(lengths, self.cutoff, self.poly_power)

    def narrow(self, params: dict, keep) -> tuple["Network", dict]:
        """Return this network and its parameters for the species `keep` [n], in their new order."""
        settings = {n: v for n in _OF_SPECIES if (v := getattr(self, n, None)) is not None}
        settings = {name: tuple(values[k] for k in keep) for name, values in settings.items()}
        if self.pair_cutoffs is not None:
            settings["pair_cutoffs"] = tuple(
                tuple(self.pair_cutoffs[i][k] for k in keep) for i in keep
            )

        def taken(path, leaf):
            return leaf[keep] if any(key.key in self.of_species for key in path) else leaf

        smaller = self.clone(num_species=len(keep), **settings)
        return smaller, jax.tree.map_with_path(taken, params)

    def check(self):
        """Refuse settings that are out of range, by their names."""
        names = "num_species", "avg_num_neighbors", "cutoff", "num_bessel", "poly_power", "channels"
        for name in (*names, *self.positive):
            if (value := getattr(self, name)) <= 0:
                raise ValueError(f"{name} must be positive, got {value}")
        for name, least in self.least:
            if (value := getattr(self, name)) < least:
                raise ValueError(f"{name} must be at least {least}, got {value}")
        for field in dataclasses.fields(self):
            kinds, value = (field.type, *get_args(field.type)), getattr(self, field.name)
            words = [w for kind in kinds if get_origin(kind) is Literal for w in get_args(kind)]
            if words and value not in (known := words + [None] * (type(None) in kinds)):
                text = ", ".join(map(str, known))
                raise ValueError(f"{field.name} must be one of {text}, got {value!r}")
        if self.nonlinear and self.radial == "table":
            raise ValueError(
                "radial='table' is not for nonlinear=True, whose networks read species"
            )
        if self.half_weights and (self.nonlinear or not hasattr(self, "radial_hidden")):
            raise ValueError("half_weights=True is for NequIP, and for MACE without nonlinear=True")
        counts, cutoffs, n = self.species_neighbors, self.pair_cutoffs, self.num_species
        if counts is not None and (len(counts) != n or min(counts) <= 0):
            raise ValueError(f"species_neighbors must be {n} positive numbers, got {counts}")
        if cutoffs is not None and not (
            [len(row) for row in cutoffs] == [n] * n
            and all(0 < c <= self.cutoff for row in cutoffs for c in row)
        ):
            raise ValueError(
                f"pair_cutoffs must be {n} rows of as many cutoffs, positive and at most "
                f"{self.cutoff} Å, got {cutoffs}"
            )

    def edge_functions(
        self,
        vectors: jax.Array,
        species: jax.Array,
        edges,
        pairs: SpeciesPairs = ALONE,
        transform: Callable[[jax.Array, jax.Array], jax.Array] | None = None,
    ):
        """Return functions of edges, which are zero beyond the cutoff and for padding.

        Args:
          vectors, species, edges: operands of the network.
          pairs: the pair of species of each edge, if functions depend on it.
          transform: of lengths [n] and pairs [n], before the Bessel functions.
        Returns:
          sh, spherical harmonics up to lmax, IrrepsArray [n_edges, irreps_sh]; the Bessel functions
          [n_edges, num_bessel], times the cutoff function with `apply_cutoff`, or a `RadialTable`
          of them; the cutoff function [n_edges]; lengths [n_edges] Å, as if the cutoff of each pair
          were that of the network, which is the length of padding.
        """
        lengths, directions, real = lengths_and_directions(vectors)
        count, cutoff, trained = self.num_bessel, self.cutoff, None
        if self.trainable_bessel:
            start = bessel_frequencies(count, cutoff, lengths.dtype)
            trained = self.param("frequencies", lambda _: start)
        if self.pair_cutoffs is not None:
            table = jnp.asarray(self.pair_cutoffs, lengths.dtype) / cutoff
            lengths = lengths / table[species[edges.receivers], species[edges.senders]]

        def function(lengths, pairs):
            factor = self.envelope(lengths)
            lengths = lengths if transform is None else transform(lengths, pairs)
            basis = bessel_basis(lengths, count, cutoff, trained)
            return basis * factor[:, None] if self.apply_cutoff else basis, factor

        basis, factor = radial_basis(self, lengths, real, function, self.breaks(), pairs)
        sh = spherical_harmonics(directions, range(self.lmax + 1))
        return sh, basis, factor, jnp.where(real, lengths, cutoff)
