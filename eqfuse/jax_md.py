"""A trained network as an energy function of jax-md, https://github.com/jax-md/jax-md.

    displacement, shift = jax_md.space.periodic(box)
    neighbor_fn, energy_fn = eqfuse.jax_md.neighbor_list(displacement, box, "runs/first")
    neighbors = neighbor_fn.allocate(R)
    energy_fn(R, neighbors)

It needs jax-md: pip install "eqfuse[jaxmd]".
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np

from eqfuse.data.neighbors import COINCIDENT
from eqfuse.data.samples import species_index
from eqfuse.inference.network import Network
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
    **neighbor_kwargs,
):
    """Return a neighbour function and an energy function, as those of `jax_md.energy`.

    Lengths are in Å, energies in eV and forces, `-jax.grad(energy_fn)`, in eV/Å, also with
    fractional coordinates (jax-md differentiates by the positions in space). Each evaluation sorts
    the edges; `eqfuse.md` does so only where a list is new, and is faster.

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
    Returns:
      (neighbor_fn, energy_fn); energy_fn(R, neighbor, **kwargs).
    Raises:
      ImportError: jax-md is not there.
      ValueError: numbers are needed, a list of another format, a periodic box narrower than twice
        the cutoff, in which jax-md does not see all images, or float64 where JAX has it disabled.
      DataError: an element that the network does not know.
      CheckpointError: no readable network.
    """
    try:
        from jax_md import partition
    except ImportError as error:
        raise ImportError('eqfuse.jax_md needs jax-md: pip install "eqfuse[jaxmd]"') from error

    network = _network(run, dtype, backend)
    if numbers is None and len(network.species) > 1:
        raise ValueError(f"give numbers=: the network knows several elements, {network.species}")
    if neighbor_kwargs.setdefault("format", partition.Sparse) is not partition.Sparse:
        raise ValueError("the list must have format=jax_md.partition.Sparse, with both directions")
    _require_wide(displacement, box, network.cutoff, fractional_coordinates)
    neighbor_fn = partition.neighbor_list(
        displacement,
        box,
        network.cutoff,
        dr_threshold,
        fractional_coordinates=fractional_coordinates,
        **neighbor_kwargs,
    )
    index = None if numbers is None else species_index(numbers, network.species)

    def energy_fn(R, neighbor, **kwargs):
        count = R.shape[0]
        species = np.zeros(count, np.int32) if index is None else index
        if len(species) != count:
            raise ValueError(f"there are {count} positions and {len(species)} numbers")
        difference = jax.vmap(functools.partial(displacement, **kwargs))
        vectors, edges = _edges(R, neighbor, difference, network)
        with jax.default_matmul_precision("highest"):
            energies = network.module.potential.apply(network.params, vectors, species, edges)
        if reference_energies:
            energies += network.references[species]
        return energies if per_particle else jnp.sum(energies)

    return neighbor_fn, energy_fn


def _network(run, dtype: str | None, backend: str | None) -> Network:
    """Read a network; refuse one of float64 where JAX has it disabled."""
    network = Network(run, dtype=dtype, backend=backend)
    if network.dtype == "float64" and not jax.config.jax_enable_x64:
        raise ValueError(
            "the network computes in float64, which JAX has disabled: set jax_enable_x64, or give "
            'dtype="float32"'
        )
    return network


def _edges(R, neighbor, difference, network: Network) -> tuple[jax.Array, Edges]:
    """Return vectors [n, 3] Å of a list, zero beyond the cutoff and for padding, and edges.

    Those of two atoms at one place are NaN.
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
    # two atoms at one place have no energy
    vectors = jnp.where((near & (squares < COINCIDENT**2))[:, None], jnp.nan, vectors)
    vectors = vectors.astype(network.dtype)
    return vectors, Edges.from_arrays(senders, receivers, count)


def _require_wide(displacement, box, cutoff: float, fractional: bool):
    """Refuse a periodic box in which an atom has several images within the cutoff of another."""
    box = np.asarray(box, float)
    vectors = box.T if box.ndim == 2 else np.eye(3) * box
    heights = 1 / np.linalg.norm(np.linalg.inv(vectors), axis=0)
    origin = jnp.zeros(3)
    for k in range(3):
        lattice = jnp.asarray(np.eye(3)[k] if fractional else vectors[k])
        apart = np.linalg.norm(displacement(lattice, origin))
        if apart < 0.1 * heights[k] and heights[k] < 2 * cutoff:
            raise ValueError(
                f"the box is {heights[k]:.4g} Å wide along direction {k}, less than twice the "
                f"cutoff of {cutoff:g} Å, so that jax-md would miss images of atoms; repeat the "
                "cell, or use eqfuse.md or eqfuse.Calculator, which take cells of any size"
            )
