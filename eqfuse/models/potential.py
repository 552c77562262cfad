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
from eqfuse.models.ewald import LatentEwald
from eqfuse.models.heads import node_energies
from eqfuse.models.pairs import ZBL
from eqfuse.models.radial import lengths_and_directions, polynomial_cutoff


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
    on all atoms, and `node_energies` of `eqfuse.models.heads` adds it.

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

    def total_energy(positions, strain):
        vectors = _strained_vectors(graph, positions, strain)
        charged = potential.long_range is not None
        places = _strained_places(graph, positions, strain) if charged else ()
        node_energy = node_energies(potential, params, vectors, graph, *places)
        node_energy = jnp.where(graph.node_mask, node_energy, 0)
        return jnp.sum(node_energy), node_energy

    strain = jnp.zeros((graph.num_graphs, 3, 3), graph.positions.dtype) if stress else None
    argnums = (0, 1) if stress else (0,)

    def gradients_at(positions):
        return jax.grad(total_energy, argnums, has_aux=True)(positions, strain)

    along = None
    if direction is None:
        gradients, node_energy = gradients_at(graph.positions)
    else:
        at = (graph.positions,), (direction,)
        (gradients, node_energy), ((along, *_), _) = jax.jvp(gradients_at, *at)
    energy = jax.ops.segment_sum(
        node_energy, graph.graph_index, graph.num_graphs, indices_are_sorted=True
    )
    stresses = None
    if stress:
        # the triple product, not jnp.linalg.det: exactly zero for a cell with a zero vector
        crossed = jnp.cross(graph.cells[:, 1], graph.cells[:, 2])
        volume = jnp.abs(jnp.sum(graph.cells[:, 0] * crossed, axis=-1))[:, None, None]
        stresses = jnp.where(volume > 0, gradients[1] / jnp.where(volume > 0, volume, 1), 0)
    return Prediction(energy, node_energy, -gradients[0], stresses, along)


def compile_predict(potential: Potential, *, stress: bool = False):
    """Return `predict` as a compiled function of (params, graph).

    On a CPU, small networks on few atoms are one native call, see `ops.sequence`.
    """
    return ops.sequence(functools.partial(predict, potential, stress=stress))


def _strained_vectors(graph: Graph, positions: jax.Array, strain) -> jax.Array:
    """Return edge vectors [n_edges, 3] Å under `strain`, [n_graphs, 3, 3] or None."""
    edges = graph.edges
    vectors = positions[edges.senders] + graph.shifts - positions[edges.receivers]
    if strain is None:
        return vectors
    symmetric = (strain + jnp.swapaxes(strain, 1, 2)) / 2
    of_edge = symmetric[graph.graph_index[edges.receivers]]  # [n_edges, 3, 3]
    # a sum, which is part of the launches and native calls around it, as a matmul is not
    return vectors + jnp.sum(vectors[:, :, None] * of_edge, axis=1)


def _strained_places(graph: Graph, positions: jax.Array, strain):
    """Return positions and cells under `strain`, [n_graphs, 3, 3] or None."""
    if strain is None:
        return positions, graph.cells
    symmetric = (strain + jnp.swapaxes(strain, 1, 2)) / 2
    moved = jnp.sum(positions[:, :, None] * symmetric[graph.graph_index], axis=1)
    return positions + moved, graph.cells + graph.cells @ symmetric
