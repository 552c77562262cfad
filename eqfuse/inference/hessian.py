"""The second derivatives of the energy, from a calculator."""

import jax
import jax.numpy as jnp
import numpy as np

from eqfuse.inference.calculator import Calculator
from eqfuse.inference.evaluator import near_edges


def hessian(atoms) -> np.ndarray:
    """Return the second derivatives of the energy by the positions of atoms.

        H[a, i, b, j] = d^2 E / dr_ai dr_bj

    It is the exact derivative of the forces, computed on the device one column after the other.
    `ase.vibrations.VibrationsData(atoms, eqfuse.hessian(atoms))` has frequencies and modes.

    Args:
      atoms: `ase.Atoms` with an `eqfuse.Calculator`.
    Returns:
      [n_atoms, 3, n_atoms, 3] eV/Å^2, in float64 of what the precision of the network gives.
    Raises:
      TypeError: another calculator.
      DataError: see `eqfuse.Calculator`.
    """
    calculator, count = atoms.calc, len(atoms)
    if not isinstance(calculator, Calculator):
        raise TypeError(
            f"the Hessian needs an eqfuse.Calculator, got {type(calculator).__name__}: "
            "set atoms.calc = eqfuse.Calculator(RUN)"
        )
    columns, order = calculator.apply(_columns, atoms, count=count)
    columns = columns.reshape(count, 3, -1, 3)[:, :, :count]
    out = np.empty((count, 3, count, 3))
    out[order[:, None], :, order[None]] = columns.transpose(0, 2, 1, 3)
    return out


def _columns(module, params, pairs, geometry, size, *, count: int):
    """Return the derivatives of the gradient by each coordinate, [3 count, n_nodes, 3]."""
    near = near_edges(module.cutoff, pairs, geometry, size)
    edges = near.edges

    def energy(moves):
        vectors = near.vectors + moves[edges.senders] - moves[edges.receivers]
        vectors = jnp.where(near.real, vectors, 0).astype(module.dtype)
        energies = module.potential.apply(params, vectors, geometry.species, edges)
        return jnp.sum(energies[:count])

    zero = jnp.zeros_like(geometry.positions)
    gradient = jax.grad(energy)

    def column(number):
        direction = zero.reshape(-1).at[number].set(1).reshape(zero.shape)
        return jax.jvp(gradient, (zero,), (direction,))[1]

    return jax.lax.map(column, jnp.arange(3 * count)), near.num_edges
