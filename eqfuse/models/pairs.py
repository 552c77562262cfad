"""Functions of a pair of elements: the Agnesi transform of its length, and ZBL repulsion."""

import dataclasses
import math

import jax
import jax.numpy as jnp
import numpy as np
from ase.data import covalent_radii

from eqfuse.models.radial import lengths_and_directions, polynomial_cutoff
from eqfuse.models.radial_table import ALONE, SpeciesPairs


def radii_of(atomic_numbers) -> tuple[float, ...]:
    """Return the covalent radius of each element, Å (Cordero et al. 2008, as in ASE)."""
    return tuple(float(covalent_radii[z]) for z in atomic_numbers)


def agnesi_transform(
    lengths: jax.Array, radii: jax.Array, constants: tuple[float, float, float]
) -> jax.Array:
    """Return edge lengths mapped to (0, 1], steepest where atoms form bonds.

        T(d) = 1 / (1 + a x^q / (1 + x^(q - p))),    x = d / r0

    with r0 the mean of the covalent radii of the two atoms, Å, and the constants q, p and a.

    References: Witt et al. 2023, J. Chem. Phys. 159, 164101 (ACEpotentials.jl).
    """
    q, p, a = constants
    x = lengths / radii
    return 1 / (1 + a * x**q / (1 + x ** (q - p)))


def soft_transform(lengths: jax.Array, radii: jax.Array, steepness: float) -> jax.Array:
    """Return edge lengths that fall no further than to 3/4 of the length of a bond.

        T(d) = p + (d - p) (1 + tanh(a (d - (p + q)/2) / (q - p))) / 2,    p = 3/4 b,    q = 4/3 b

    with b the sum of the covalent radii of the two atoms, Å, twice their mean, and the steepness a.

    References: mace-torch 0.3.16 (`SoftTransform`).
    """
    lower, upper = 3 / 2 * radii, 8 / 3 * radii
    weight = jnp.tanh(steepness / (upper - lower) * (lengths - (lower + upper) / 2))
    return lower + (lengths - lower) * (1 + weight) / 2


def length_transform(network, species, edges) -> tuple:
    """Return the transform of edge lengths that a MACE has, if any, and its `SpeciesPairs`.

    It is a function of lengths [n] and of pairs [n], which have no order.
    """
    if network.distance_transform is None:
        return None, ALONE
    kind = network.distance_transform
    radii, numbers = network.covalent_radii, network.atomic_numbers
    if radii is None and numbers is not None:
        radii = radii_of(numbers)
    if radii is None or len(radii) != network.num_species:
        raise ValueError(
            f"distance_transform={kind!r} needs atomic_numbers= or covalent_radii= of the "
            f"{network.num_species} species, got {numbers} and {network.covalent_radii}"
        )

    first, second = np.tril_indices(network.num_species)
    of_pairs = (np.asarray(radii)[first] + np.asarray(radii)[second]) / 2

    def transform(lengths, pairs):
        mean = jnp.asarray(of_pairs, lengths.dtype)[pairs]
        if kind == "soft":
            return soft_transform(lengths, mean, network.soft_steepness)
        return agnesi_transform(lengths, mean, tuple(network.transform_constants))

    ends = species[edges.senders], species[edges.receivers]
    larger, smaller = jnp.maximum(*ends), jnp.minimum(*ends)
    return transform, SpeciesPairs(larger * (larger + 1) // 2 + smaller, len(of_pairs))


@dataclasses.dataclass(frozen=True)
class ZBL:
    """Repulsion of the nuclei of near atoms, screened, by Ziegler, Biersack and Littmark.

        E_i = 1/2 sum_j u(d / (r_i + r_j)) C Z_i Z_j phi(d / s) / d,
        phi(x) = sum_k c_k exp(-b_k x),    s = S / (Z_i^e + Z_j^e)

    with the polynomial cutoff u, so that only atoms nearer than the sum of their covalent radii
    repel each other, or with `cutoff` those nearer than that. The default constants are the
    published ones.

    Attributes:
      atomic_numbers: Z of each species.
      covalent_radii: r of each species, Å.
      power: p of the cutoff, see `eqfuse.models.radial.polynomial_cutoff`.
      exponent, length: e, and S in Å.
      coefficients, decays: c_k and b_k, four.
      coulomb: C, eV Å.
      cutoff: in place of r_i + r_j, Å; None for these. At most that of the network.
    References: Ziegler, Biersack and Littmark 1985, The Stopping and Range of Ions in Solids.
    """

    atomic_numbers: tuple[int, ...]
    covalent_radii: tuple[float, ...]
    power: int = 6
    exponent: float = 0.23
    length: float = 0.8854 * 0.529177
    coefficients: tuple[float, ...] = (0.1818, 0.5099, 0.2802, 0.02817)
    coulomb: float = 14.399645
    decays: tuple[float, ...] = (3.2, 0.9423, 0.4028, 0.2016)
    cutoff: float | None = None

    @classmethod
    def of(cls, atomic_numbers) -> "ZBL":
        """Return the published potential between these elements."""
        return cls(tuple(int(z) for z in atomic_numbers), radii_of(atomic_numbers))

    def narrow(self, keep) -> "ZBL":
        """Return the potential between some of its species, `keep` [n]."""
        names = ("atomic_numbers", "covalent_radii")
        chosen = {name: tuple(getattr(self, name)[k] for k in keep) for name in names}
        return dataclasses.replace(self, **chosen)

    @jax.named_scope("zbl")
    def __call__(self, vectors: jax.Array, species: jax.Array, edges) -> jax.Array:
        """Return the repulsion energy of each node, [n_nodes] eV: half of each of its pairs."""
        lengths, _, real = lengths_and_directions(vectors)
        z = np.asarray(self.atomic_numbers, np.float64)
        powers, charges, radii = (
            jnp.asarray(values, lengths.dtype)[species]
            for values in (z**self.exponent, z, self.covalent_radii)
        )  # [n_nodes]
        ends = edges.senders, edges.receivers
        x = lengths / self.length * sum(powers[end] for end in ends)
        within = self.cutoff or sum(radii[end] for end in ends)
        phi = sum(
            c * jnp.exp(-b * x) for c, b in zip(self.coefficients, self.decays, strict=True)
        ) * polynomial_cutoff(lengths / within, 1.0, self.power)
        energies = self.coulomb / 2 * math.prod(charges[end] for end in ends) * phi / lengths
        energies = jnp.where(real, energies, 0)
        sums = jax.ops.segment_sum(energies, edges.receivers, edges.num_nodes)
        return edges.of_receivers(sums)
