"""Born effective charges of atoms, from the latent charges of a trained network."""

import dataclasses
from functools import partial

import ase
import jax
import jax.numpy as jnp
import numpy as np

from eqfuse.inference.calculator import Calculator, of_each
from eqfuse.inference.evaluator import moved
from eqfuse.runs.errors import ConfigError


def born_charges(run, atoms=None, *, dielectric: float = 1.0) -> np.ndarray | list[np.ndarray]:
    """Return the Born effective charges: derivatives of the polarisation by positions.

        Z_i,ab = sqrt(dielectric) (q_i delta_ab + sum_j (r_j - r_i)_a dq_j / dr_i,b)

    The latent charges q, less their mean and with the total charge if the network reads one, are
    screened by electrons, whose dielectric constant is given. In a cell r_j is the image of atom j
    in the cell around atom i: this is exact where cells are twice as wide as charges depend on
    atoms, and there replaces the sine of the reference, which is exact for large cells alone.

    Args:
      run: the folder of a run, or a file of its network; or left out, for the `eqfuse.Calculator`
        that the atoms have.
      atoms: `ase.Atoms`, or several in any form, see `eqfuse.predict`.
      dielectric: of the electrons, the high-frequency one; 1 for molecules.
    Returns:
      [n_atoms, 3, 3] e, the direction of the polarisation first; a list of them unless one
      structure was given.
    Raises:
      ConfigError: a network without latent charges, or with several for each atom.
    References: Zhong, Kim, King and Cheng 2025, arXiv:2504.05169.
    """
    return of_each(partial(_born_charges, dielectric=dielectric), run, atoms)


def _born_charges(calculator: Calculator, atoms: ase.Atoms, dielectric: float) -> np.ndarray:
    long_range = calculator.network.module.potential.long_range
    if long_range is None or long_range.charges != 1:
        what = "no latent charges" if long_range is None else "several latent charges of each atom"
        raise ConfigError(
            f"born_charges: the network has {what}; train one with model.long_range=les and one "
            "charge of each atom"
        )
    count = len(atoms)
    found, order = calculator.apply(_born, atoms, count=count)
    out = np.empty((count, 3, 3))
    out[order] = np.sqrt(dielectric) * found.reshape(count, 3, 3)
    return out


def _born(module, params, near, geometry, *, count: int):
    """Return the charges of one structure, [count, 3, 3]."""
    positions, long_range = geometry.positions, module.potential.long_range
    shifted = dataclasses.replace(long_range, charge_key="charge")  # to the total, 0 if not read

    def charges_of(moves):
        vectors = moved(near, geometry, moves)[0].vectors.astype(module.dtype)
        _, scalars = module.potential.apply(params, vectors, geometry.species, near.edges)
        return shifted.charges_of(scalars, geometry)[:, 0]

    charges, back = jax.vjp(charges_of, jnp.zeros_like(positions))
    cell = geometry.cells[0]
    is_periodic = jnp.any(cell != 0)
    inverse = jnp.linalg.inv(jnp.where(is_periodic, cell, jnp.eye(3)))

    def add(born, j):
        [derivative] = back(jnp.zeros_like(charges).at[j].set(1))  # dq_j / dr_i, [n_nodes, 3]
        d = positions[j] - positions
        d -= jnp.where(is_periodic, jnp.round(d @ inverse) @ cell, 0)
        return born + d[:, :, None] * derivative[:, None], None

    born, _ = jax.lax.scan(add, charges[:, None, None] * jnp.eye(3), jnp.arange(count))
    return born[:count]
