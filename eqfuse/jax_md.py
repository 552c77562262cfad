"""A trained network as an energy function of jax-md, https://github.com/jax-md/jax-md.

    displacement, shift = jax_md.space.periodic(box)
    neighbor_fn, energy_fn = eqfuse.jax_md.neighbor_list(displacement, box, "runs/first")
    neighbors = neighbor_fn.allocate(R)
    energy_fn(R, neighbors)

It needs jax-md: pip install "eqfuse[jaxmd]".
"""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np

from eqfuse.data import COINCIDENT, species_index
from eqfuse.inference import Network
from eqfuse.ops import Edges


def neighbor_list(
    displacement,
    box,
    run,
    *,
    numbers=None,
    dr_threshold: float = 0.5,
    fractional_coordinates: bool = False,
    per_particle: bool = False,
    reference_energies: bool = False,
    dtype: str | None = None,
    backend: str | None = None,
    dispersion: str | None = None,
    charge: float = 0.0,
    **neighbor_kwargs,
):
    """Return a neighbour function and an energy function, as those of `jax_md.energy`.

    Lengths are in Å, energies in eV and forces, `-jax.grad(energy_fn)`, in eV/Å, also with
    fractional coordinates (jax-md differentiates by the positions in space). Each evaluation sorts
    the edges; `eqfuse.md` does so only where a list is new, and is faster.

    A box that changes is passed to `allocate`, `update` and the energy as `box=`. Each such update
    makes a new list, since jax-md compares fractional positions only. In a periodic box narrower
    than twice the cutoff, jax-md does not see all images: `update` sets `did_buffer_overflow`,
    `allocate` raises, and the energy is NaN.

    Latent charges are summed in float64 over the images of `box`. A box that grows so far, by 5% or
    more, that waves would be missing has the energy NaN: begin with the largest.

    Args:
      displacement: of `jax_md.space`; further arguments of the energy, such as `box`, are passed
        to it.
      box: Å, a length, three, or a matrix whose columns are lattice vectors, as for jax-md.
      run: the folder of a run, or a file of its network (.safetensors).
      numbers: [n_atoms] atomic numbers; None if the network knows one element.
      dr_threshold: Å, the skin of the list.
      fractional_coordinates, neighbor_kwargs: as in `jax_md.partition.neighbor_list`.
      per_particle: whether the energy function returns the energy of each atom.
      reference_energies: whether they are in the energy, as in that of `eqfuse.Calculator`; without
        them, float32 resolves more.
      dtype: "float64" or "float32", of the network; None for that of the run.
      backend: see `eqfuse.ops`.
      dispersion: "none" for a run with `data.dispersion`, whose network alone is computed here.
      charge: the total charge, e, of a network that reads one (`data.charge_key`).
    Returns:
      (neighbor_fn, energy_fn); energy_fn(R, neighbor, **kwargs).
    Raises:
      ImportError: jax-md is not there.
      ValueError: numbers are needed, a list of another format, a periodic box narrower than twice
        the cutoff, float64 (networks with latent charges need it) where JAX has it disabled, or a
        charge that the network does not read.
      DataError: an element that the network does not know, or latent charges in a box that is
        periodic along one or two directions.
      CheckpointError: no readable network.
    """
    try:
        from jax_md import partition, space
    except ImportError as error:
        raise ImportError('eqfuse.jax_md needs jax-md: pip install "eqfuse[jaxmd]"') from error

    network = Network(run, dtype=dtype, backend=backend, dispersion=dispersion)
    _check(network, numbers, charge)
    if neighbor_kwargs.setdefault("format", partition.Sparse) is not partition.Sparse:
        raise ValueError("the list must have format=jax_md.partition.Sparse, with both directions")
    is_periodic = _periodic_directions(displacement, box, fractional_coordinates)
    narrow = functools.partial(_excess, is_periodic, network.cutoff)
    _require_wide(narrow(box), network.cutoff)
    neighbor_kwargs["fractional_coordinates"] = fractional_coordinates
    neighbor_fn = _neighbor_fn(
        partition, narrow, (displacement, box, network.cutoff), dr_threshold, neighbor_kwargs
    )
    index = None if numbers is None else species_index(numbers, network.species)
    transform = space.transform if fractional_coordinates else lambda _, R: R
    far = _charges(network, (np.asarray(box, float), is_periodic), transform, charge)

    def energy_fn(R, neighbor, **kwargs):
        species = np.zeros(len(R), np.int32) if index is None else index
        if len(species) != len(R):
            raise ValueError(f"there are {len(R)} positions and {len(species)} numbers")
        difference = jax.vmap(functools.partial(displacement, **kwargs))
        vectors, edges, wrong = _edges(R, neighbor, difference, network)
        wrong |= jnp.any(narrow(kwargs.get("box", box)) > 0)
        vectors *= jnp.where(wrong, jnp.nan, 1)  # and forces with them
        with jax.default_matmul_precision("highest"):
            energies = network.module.potential.apply(network.params, vectors, species, edges)
        if far is not None:
            energies, scalars = energies
            energies += far(scalars, R, **kwargs)
        energies += jnp.where(wrong, jnp.nan, 0)  # tables are finite for NaN
        if reference_energies:
            energies += network.references[species]
        return energies if per_particle else jnp.sum(energies)

    return neighbor_fn, energy_fn


def _check(network: Network, numbers, charge: float):
    """Refuse a network that cannot be computed, or not of these numbers and this charge."""
    network.require_no_dispersion("eqfuse.jax_md")
    is_charged = network.module.potential.long_range is not None
    if (network.dtype == "float64" or is_charged) and not jax.config.jax_enable_x64:
        raise ValueError(
            f"the network {'sums charges' if is_charged else 'computes'} in float64, which JAX has "
            "disabled: set jax_enable_x64" + ("" if is_charged else ', or give dtype="float32"')
        )
    if charge and network.charge_key is None:
        raise ValueError(f"the network reads no total charge, got charge={charge:g}")
    if numbers is None and len(network.species) > 1:
        raise ValueError(f"give numbers=: the network knows several elements, {network.species}")


def _charges(network: Network, of_cell: tuple, transform, charge: float):
    """Return a function to the energies of latent charges, [n] eV, which add up to theirs.

    It takes their scalars, R, and the `box` and `perturbation` that jax-md gives to displacements.
    None is returned for a network without them.
    """
    first, is_periodic = of_cell
    if (les := network.module.potential.long_range) is None:
        return None
    reach = network.reach(_lattice_vectors(first)[None], is_periodic, [1])  # refuses slabs

    def energies(scalars, R, box=first, perturbation=1.0, **_):
        count, deform = len(R), _lattice_vectors(jnp.asarray(perturbation, float))
        x = transform(box, R).astype(float) @ deform
        cell = _lattice_vectors(jnp.asarray(box, float)) @ deform
        cells = jnp.where(is_periodic.all(), cell, 0)[None]
        index = jnp.zeros(count, jnp.int32)
        totals = jnp.full(1, charge)
        charges = les.charges_of(scalars.astype(float), index, index == 0, 1, totals)

        def total(charges):
            own = dataclasses.replace(reach, atoms=count)
            return jnp.sum(les.energies(charges, x, cells, index, own))

        each = jnp.sum(charges * jax.grad(total)(charges), axis=1) / 2  # quadratic in charges
        return each * jnp.where(les.covers(cells, reach), 1, jnp.nan)  # and forces with them

    return energies


def _edges(R, neighbor, difference, network: Network) -> tuple[jax.Array, Edges, jax.Array]:
    """Return vectors [n, 3] Å of a list, zero beyond the cutoff and for padding, and edges.

    The last is whether two atoms are at one place, which has no energy.
    """
    count = R.shape[0]
    receivers, senders = neighbor.idx
    padding = receivers >= count
    # spread over the atoms: the edges of one are summed one after the other
    loops = jnp.arange(len(receivers), dtype=receivers.dtype) * count // len(receivers)
    receivers, senders = (jnp.where(padding, loops, end) for end in (receivers, senders))
    vectors = difference(R[senders], R[receivers])
    squares = jnp.sum(vectors**2, axis=1)
    near = ~padding & (squares < network.cutoff**2)
    vectors = jnp.where(near[:, None], vectors, 0)
    vectors = vectors.astype(network.dtype)
    touching = jnp.any(near & (squares < COINCIDENT**2))
    return vectors, Edges.from_arrays(senders, receivers, count), touching


def _neighbor_fn(partition, narrow, of_list: tuple, dr_threshold: float, options: dict):
    """Return jax-md's neighbour function, whose lists of a changed box are right or flagged."""
    displacement, box, cutoff = of_list
    kept = partition.neighbor_list(*of_list, dr_threshold, **options)
    anew = partition.neighbor_list(displacement, box, cutoff + dr_threshold, 0.0, **options)
    overflow = partition.PartitionErrorCode.NEIGHBOR_LIST_OVERFLOW

    def allocate(position, extra_capacity: int = 0, **kwargs):
        _require_wide(narrow(kwargs.get("box", box)), cutoff)
        made = kept.allocate(position, extra_capacity, **kwargs)
        return dataclasses.replace(made, update_fn=update)

    def update(position, neighbors, **kwargs):
        if "box" not in kwargs:
            return kept.update(position, neighbors, **kwargs)
        made = anew.update(position, neighbors, **kwargs)
        lacks = jnp.any(narrow(kwargs["box"]) > 0) | (made.cell_size_too_small > 0)
        return dataclasses.replace(made, error=made.error.update(overflow, lacks))

    return partition.NeighborListFns(allocate, update)


def _periodic_directions(displacement, box, fractional: bool) -> np.ndarray:
    """Test whether the displacement of each lattice vector is zero, [3] bool."""
    vectors = _lattice_vectors(np.asarray(box, float))
    lattice = jnp.asarray(np.eye(3) if fractional else vectors)
    apart = [np.linalg.norm(displacement(one, jnp.zeros(3))) for one in lattice]
    return np.array(apart) < 0.1 * np.asarray(_heights(vectors))


def _lattice_vectors(box):
    return box.T if jnp.ndim(box) == 2 else jnp.eye(3) * box


def _heights(vectors):
    """Return the widths of a cell, [3] Å, between opposite faces."""
    return 1 / jnp.linalg.norm(jnp.linalg.inv(vectors), axis=0)


def _excess(is_periodic, cutoff: float, box):
    """Return how much a box is narrower than twice the cutoff, [3] Å; negative for wider ones."""
    heights = _heights(_lattice_vectors(jax.lax.stop_gradient(jnp.asarray(box, float))))
    return jnp.where(is_periodic, 2 * cutoff - heights, -jnp.inf)


def _require_wide(excess, cutoff: float):
    """Refuse a periodic box in which an atom has several images within the cutoff of another."""
    k = int(np.argmax(excess))
    if excess[k] > 0:
        raise ValueError(
            f"the box is {2 * cutoff - excess[k]:.4g} Å wide along direction {k}, less than twice "
            f"the cutoff of {cutoff:g} Å, so that jax-md would miss images of atoms; repeat the "
            "cell, or use eqfuse.md or eqfuse.Calculator, which take cells of any size"
        )
