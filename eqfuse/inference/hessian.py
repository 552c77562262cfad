"""The second derivatives of the energy, from a calculator."""

import functools

import jax
import jax.numpy as jnp
import numpy as np

from eqfuse.inference.calculator import Calculator
from eqfuse.inference.program import Described


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
    calculator = atoms.calc
    if not isinstance(calculator, Calculator):
        raise TypeError(
            f"the Hessian needs an eqfuse.Calculator, got {type(calculator).__name__}: "
            "set atoms.calc = eqfuse.Calculator(RUN)"
        )
    evaluated, species, order = calculator.evaluated_for(atoms)
    network = calculator.network
    with jax.enable_x64(True), jax.default_matmul_precision("highest"):
        compiled = _compiled(Described.of(network._potential), network.dtype)
        columns = np.asarray(compiled(network._params, evaluated, species, len(order)))
    out = np.empty((len(order), 3, len(order), 3))
    out[order[:, None], :, order[None]] = columns[:, :, : len(order)].transpose(0, 2, 1, 3)
    return out


@functools.lru_cache(maxsize=32)
def _compiled(described: Described, dtype: str):
    return jax.jit(functools.partial(_columns, described.potential, dtype), static_argnums=3)


def _columns(potential, dtype, params, evaluated, species, count: int):
    """Return the derivatives of the gradient by each coordinate, [count, 3, n_nodes, 3]."""
    edges, real = evaluated.edges, (evaluated.vectors != 0).any(axis=1)[:, None]

    def energy(moves):
        vectors = evaluated.vectors + moves[edges.senders] - moves[edges.receivers]
        vectors = jnp.where(real, vectors, 0).astype(dtype)
        return jnp.sum(potential.apply(params, vectors, species, edges)[:count])

    zero = jnp.zeros_like(evaluated.forces)
    gradient = jax.grad(energy)

    def column(number):
        direction = zero.reshape(-1).at[number].set(1).reshape(zero.shape)
        return jax.jvp(gradient, (zero,), (direction,))[1]

    columns = jax.lax.map(column, jnp.arange(3 * count))
    return columns.reshape(count, 3, *zero.shape)
