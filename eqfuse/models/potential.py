"""From a model of atoms to energies, forces and stress."""

import dataclasses
import functools
from typing import NamedTuple

import e3nn_jax as e3nn
import flax.linen as nn
import jax
import jax.numpy as jnp

from eqfuse import ops
from eqfuse.graph import Graph
from eqfuse.models import heads as of_heads
from eqfuse.models.ewald import Geometry, LatentEwald
from eqfuse.models.pairs import ZBL
from eqfuse.models.radial import lengths_and_directions, polynomial_cutoff
from eqfuse.ops import Edges


class Potential(nn.Module):
    """Energies of the atoms: the model's scalar, scaled and shifted by species.

        E_i = scale_z * model_i + shift_z

    If the reference energies are those of isolated atoms, `binds_within` makes the relative energy
    of an isolated atom zero and hardly changes the energies of molecules and solids:

        E_i = (1 - exp(-4 sum_j u(d_ij))) (scale_z * model_i + shift_z)

    with the polynomial cutoff u of the distances of its neighbours. The factor differs from one by
    2e-2 for an atom with one neighbour at the length of a bond, by 4e-4 for two and by less than
    float32 resolves for five.

    The repulsion of nuclei is added to this, if there is one. The energy of latent charges depends
    on all atoms, and `energy_and_gradient` adds it.

    Attributes:
      model: a module that maps (vectors, species, edges) to an IrrepsArray [n_nodes, 0e]; with
        charges to scalars, of which the first is the energy.
      scale: eV, one number per species.
      shift: eV, one number per species.
      trainable_scale_shift: whether gradients reach the parameters `scale` and `shift`.
      binds_within: where u is zero, the cutoff of the model, Å; None: no factor.
      repulsion: of near atoms, eV; None for none. It acts within the cutoff of the model.
      long_range: the energy of latent charges; None for none.
    References: Batzner et al. 2022 (methods: scale and shift by species); Gasteiger et al. 2020,
      arXiv:2003.03123, eq. 8 (u).
    """

    model: nn.Module
    scale: tuple[float, ...]
    shift: tuple[float, ...]
    trainable_scale_shift: bool = False
    binds_within: float | None = None
    repulsion: ZBL | None = None
    long_range: LatentEwald | None = None

    def narrow(self, variables: dict, keep) -> tuple["Potential", dict]:
        """Return this potential and its variables for some species, with the same predictions.

        Their numbers are `keep` [n], in their new order.
        """
        params = variables["params"]
        model, of_model = self.model.narrow(params["model"], keep)
        smaller = self.clone(
            model=model,
            scale=tuple(self.scale[k] for k in keep),
            shift=tuple(self.shift[k] for k in keep),
            repulsion=None if self.repulsion is None else self.repulsion.narrow(keep),
        )
        own = {name: params[name][keep] for name in ("scale", "shift")}
        return smaller, {"params": {**own, "model": of_model}}

    @classmethod
    def from_plain(cls, model: nn.Module, plain: dict) -> "Potential":
        """Return the potential of a model with the settings that `to_plain` returned."""

        def tuples(plain: dict) -> dict:
            return {name: tuple(v) if isinstance(v, list) else v for name, v in plain.items()}

        parts = {"repulsion": ZBL, "long_range": LatentEwald}
        made = {n: kind(**tuples(plain[n])) for n, kind in parts.items() if plain.get(n)}
        return cls(model, **tuples(plain) | made)

    def to_plain(self) -> dict:
        """Return its settings besides the model, as plain values for JSON."""
        return {
            "scale": list(self.scale),
            "shift": list(self.shift),
            "trainable_scale_shift": self.trainable_scale_shift,
            "binds_within": self.binds_within,
            "repulsion": self.repulsion and dataclasses.asdict(self.repulsion),
            "long_range": self.long_range and dataclasses.asdict(self.long_range),
        }

    @nn.compact
    def __call__(self, vectors, species=None, edges=None):
        """Return the energy of each node, [n_nodes] eV.

        Operands are those of `NequIP`, or one `eqfuse.graph.Graph`, such as that of a batch.
        With charges, this is the energy without theirs, and the scalars that they are read from,
        [n_nodes, charges].

        Raises:
          ValueError: a model that does not predict these scalars, or scale and shift of unlike
            length.
        """
        if len(self.scale) != len(self.shift):
            raise ValueError(
                "scale and shift need one number per species each, "
                f"got {len(self.scale)} and {len(self.shift)}"
            )
        if isinstance(vectors, Graph):
            vectors, species, edges = vectors.vectors, vectors.species, vectors.edges
        out = self.model(vectors, species, edges)
        wanted = irreps_out(self.long_range)
        if e3nn.Irreps(wanted) != out.irreps:
            raise ValueError(
                f"a potential needs a model with irreps_out='{wanted}', got {out.irreps}"
            )
        dtype = out.array.dtype
        scale = self.param("scale", lambda _: jnp.asarray(self.scale, dtype))
        shift = self.param("shift", lambda _: jnp.asarray(self.shift, dtype))
        if not self.trainable_scale_shift:
            scale, shift = jax.lax.stop_gradient((scale, shift))
        species_of = edges.of_receivers(species)
        energies = scale[species_of] * out.array[:, 0] + shift[species_of]
        if self.binds_within is not None:
            energies *= _bound(vectors, edges, self.binds_within)
        if self.repulsion is not None:
            energies += self.repulsion(vectors, species, edges)
        return energies if self.long_range is None else (energies, out.array[:, 1:])


def irreps_out(long_range: LatentEwald | None) -> str:
    """Return what the model of a potential predicts: the energy, and charges if there are any."""
    return "0e" if long_range is None else f"{1 + long_range.charges}x0e"


@jax.named_scope("binding")
def _bound(vectors, edges, cutoff: float):
    """Return the binding of each atom, [n_nodes]: 0 without neighbours, close to 1 with them."""
    lengths, _, real = lengths_and_directions(vectors)
    near = jnp.where(real, polynomial_cutoff(lengths, cutoff, power=6), 0)
    count = jax.ops.segment_sum(near, edges.receivers, edges.num_nodes)
    return 1 - jnp.exp(-4 * edges.of_receivers(count))


class Derivatives(NamedTuple):
    """Energies of nodes and the derivatives of their sum, from which forces and stress follow.

    Attributes:
      node_energy: [n_receivers] eV; zero in the padding.
      gradient: [n_edges, 3] eV/Å, the derivative by the vectors of edges.
      charges: [n_nodes, charges] e, the latent ones; None without any, like the next two.
      by_positions: [n_nodes, 3] eV/Å, the derivative by positions besides, at the same vectors.
      by_strain: [n_graphs, 3, 3] eV, the same by r -> r + r e.
    """

    node_energy: jax.Array | None
    gradient: jax.Array
    charges: jax.Array | None = None
    by_positions: jax.Array | None = None
    by_strain: jax.Array | None = None

    def forces(self, edges: Edges) -> jax.Array:
        """Return the forces on the nodes, [n_nodes, 3] eV/Å; edges are sorted by receiver."""
        forces = jnp.zeros((edges.num_nodes, 3), self.gradient.dtype)
        forces = forces.at[edges.senders].add(-self.gradient)
        forces = forces.at[edges.receivers].add(self.gradient, indices_are_sorted=True)
        return forces if self.by_positions is None else forces - self.by_positions

    def strain(self, vectors, of_edges, num_graphs: int) -> jax.Array:
        """Return dE/de at e = 0 of r -> (1 + (e + e^T)/2) r, [n_graphs, 3, 3] eV: the virial.

        Args:
          vectors: [n_edges, 3] Å.
          of_edges: [n_edges] int32, the structure of each edge; not read of a single one.
          num_graphs: number of structures.
        """
        if num_graphs == 1:
            strain = (vectors.T @ self.gradient)[None]
        else:
            products = vectors[:, :, None] * self.gradient[:, None, :]
            strain = jax.ops.segment_sum(products, of_edges, num_graphs)
        if self.by_strain is not None:
            strain = strain.at[: len(self.by_strain)].add(self.by_strain)
        return (strain + jnp.swapaxes(strain, 1, 2)) / 2


def energy_and_gradient(
    potential: Potential,
    params,
    vectors,
    species,
    edges: Edges,
    atoms,
    geometry: Geometry | None = None,
    heads=None,
) -> Derivatives:
    """Return the energies of nodes, with that of latent charges, and their derivatives.

    The energy of charges is quadratic in them: an atom has half of its charge times the derivative.

    Args:
      potential: the module.
      params: its variables, or those of several heads together.
      vectors: [n_edges, 3] Å; zero for padding.
      species: [n_nodes] int32.
      edges: sorted by receiver.
      atoms: [n_receivers] bool, False for nodes without an energy.
      geometry: of a potential with charges, whose species and atoms are those that are given.
      heads: [n_nodes] int32, the head of each node; None for one head.
    """

    def total(vectors, positions=None, strain=None, change=None):
        found = of_heads.apply(potential, params, vectors, species, edges, heads)
        if geometry is None:
            energies = jnp.where(atoms, found, 0)
            return jnp.sum(energies), (energies, None)
        energies, charges = found[0], potential.long_range.charges_of(found[1], geometry)
        energies = jnp.where(atoms, energies, 0).astype(positions.dtype)
        cells, index = geometry.cells, geometry.index
        positions = positions + jnp.sum(positions[:, :, None] * strain[index], axis=1)
        moved = positions, cells + cells @ strain, index, geometry.reach
        far = potential.long_range.energies(charges + change, *moved)
        return jnp.sum(energies) + jnp.sum(far), (energies, charges)

    if geometry is None:
        gradient, (energies, _) = jax.grad(total, has_aux=True)(vectors)
        return Derivatives(energies, gradient)
    positions = geometry.positions
    no_change = jnp.zeros((len(species), potential.long_range.charges), positions.dtype)
    at = vectors, positions, jnp.zeros_like(geometry.cells), no_change
    derivatives, (energies, charges) = jax.grad(total, (0, 1, 2, 3), has_aux=True)(*at)
    gradient, by_positions, by_strain, by_charges = derivatives
    energies += jnp.sum(charges * by_charges, axis=1) / 2
    return Derivatives(energies, gradient, charges, by_positions, by_strain)


class Prediction(NamedTuple):
    """The predictions for a batch; zero in the padding.

    Attributes:
      energy: [n_graphs] eV, relative to the reference energies of the atoms.
      node_energy: [n_nodes] eV, the parts of `energy`.
      forces: [n_nodes, 3] eV/Å.
      stress: [n_graphs, 3, 3] eV/Å^3, positive under tension as in ASE; None if not asked for.
      along: [n_nodes, 3] eV/Å^2, the Hessians times a direction; None if not asked for.
    """

    energy: jax.Array
    node_energy: jax.Array
    forces: jax.Array
    stress: jax.Array | None
    along: jax.Array | None = None


def predict(
    potential: Potential, params, graph: Graph, *, stress: bool = False, direction=None
) -> Prediction:
    """Return energy, forces and stress of each structure of a batch.

        F_i = -dE/dr_i,    stress = (1/V) dE/de at e = 0, for the strain r -> (1 + (e + e^T)/2) r
        along_i = sum_j d^2 E / dr_i dr_j direction_j

    Args:
      potential: the module.
      params: its variables, as `potential.init(key, graph)` returns them; or those of several heads
        together, see `eqfuse.models.heads.stack_heads`, of a batch with the head of each graph.
      graph: the batch.
      stress: whether to compute the stress; zero for a cell without volume.
      direction: [n_nodes, 3], what the Hessians are multiplied by; None to compute no `along`.
    Returns:
      `Prediction`, in the dtype of `graph.positions` and `params`.
    References: Knuth et al. 2015 (strain derivative).
    """
    edges, index, heads = graph.edges, graph.graph_index, graph.heads
    heads = None if heads is None else heads[index]

    def forces_at(positions):
        vectors = positions[edges.senders] + graph.shifts - positions[edges.receivers]
        operands = vectors, graph.species, edges, graph.node_mask
        geometry = _geometry(potential, graph, positions)
        found = energy_and_gradient(potential, params, *operands, geometry, heads)
        return found.forces(edges), (found, vectors)

    along = None
    if direction is None:
        forces, (found, vectors) = forces_at(graph.positions)
    else:
        at = (graph.positions,), (direction,)
        forces, along, (found, vectors) = jax.jvp(forces_at, *at, has_aux=True)
        along = -along
    energy = jax.ops.segment_sum(
        found.node_energy, index, graph.num_graphs, indices_are_sorted=True
    )
    stresses = None
    if stress:
        strain = found.strain(vectors, index[edges.receivers], graph.num_graphs)
        # the triple product, not jnp.linalg.det: exactly zero for a cell with a zero vector
        crossed = jnp.cross(graph.cells[:, 1], graph.cells[:, 2])
        volume = jnp.abs(jnp.sum(graph.cells[:, 0] * crossed, axis=-1))[:, None, None]
        stresses = jnp.where(volume > 0, strain / jnp.where(volume > 0, volume, 1), 0)
    return Prediction(energy, found.node_energy, forces, stresses, along)


def _geometry(potential: Potential, graph: Graph, positions) -> Geometry | None:
    """Return the geometry of a batch at positions; None without charges."""
    if potential.long_range is None:
        return None
    if graph.reach is None:
        raise ValueError("a potential with charges needs batches of Batcher(long_range=...)")
    # the last graph is padding
    totals = None if graph.charges is None else graph.charges[:-1]
    of_nodes = graph.graph_index, graph.species, graph.node_mask
    return Geometry(positions, graph.cells[:-1], *of_nodes, totals, graph.reach)


def compile_predict(potential: Potential, *, stress: bool = False):
    """Return `predict` as a compiled function of (params, graph).

    On a CPU, small networks on few atoms are one native call, see `ops.sequence`.
    """
    return ops.sequence(functools.partial(predict, potential, stress=stress))
