"""Normalisation of node features."""

import e3nn_jax as e3nn
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

EPSILON = 1e-12


class RMSNorm(nn.Module):
    """Divide a row by its root mean square, in which each irrep counts alike, and scale channels.

        out[u, m] = w[u] x[u, m] / sqrt(sum_uv x[u, m]^2 / (d_u^2 k) + epsilon)

    with d_u the dimension of the irrep of channel u, and k the number of irreps of the row.

    References: Koker et al. 2025 (Nequix), without centring; after Liao et al. 2024 (EquiformerV2).
    """

    @nn.compact
    def __call__(self, x: e3nn.IrrepsArray) -> e3nn.IrrepsArray:
        """Apply it to x [..., irreps]; the parameter `weight` has a number for each channel."""
        irreps = x.irreps
        dims = np.array([ir.dim for mul, ir in irreps for _ in range(mul)])
        kinds = len(irreps.regroup())
        weight = self.param("weight", nn.initializers.ones, (len(dims),), x.dtype)
        of_components = np.repeat(1 / (dims**2 * kinds), dims)
        squares = jnp.sum(x.array**2 * jnp.asarray(of_components, x.dtype), -1, keepdims=True)
        scaled = x.array * jnp.repeat(weight, dims, total_repeat_length=irreps.dim)
        return e3nn.IrrepsArray(irreps, scaled * jax.lax.rsqrt(squares + EPSILON))
