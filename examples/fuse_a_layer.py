"""An e3nn-jax layer, and the same layer fused: two lines change, parameters and results do not.

python examples/fuse_a_layer.py
"""

import e3nn_jax as e3nn
import flax.linen as nn
import jax
import jax.numpy as jnp

from eqfuse import ops


class Layer(nn.Module):
    """Product of features with the harmonics of a direction, Linear, gate."""

    irreps: str

    @nn.compact
    def __call__(self, x, y):
        product = e3nn.tensor_product(x, y)
        return e3nn.gate(e3nn.flax.Linear(self.irreps, name="linear")(product))


class FusedLayer(nn.Module):
    """The same: the product and the Linear are a kernel each on a GPU, forward and backward."""

    irreps: str
    backend: str | None = None

    @nn.compact
    def __call__(self, x, y):
        fused = ops.TensorProductLinearGate(self.irreps, name="linear", backend=self.backend)
        return fused(x, y)


def main():
    """Compare the two on random features."""
    x = e3nn.normal("32x0e + 32x1o", jax.random.key(0), (100,))
    y = e3nn.spherical_harmonics("0e + 1o + 2e", e3nn.normal("1o", jax.random.key(1), (100,)), True)
    layer, fused = Layer("32x0e + 16x0e + 16x1o"), FusedLayer("32x0e + 16x0e + 16x1o")
    params = layer.init(jax.random.key(2), x, y)
    a, b = layer.apply(params, x, y), fused.apply(params, x, y)
    assert a.irreps == b.irreps
    print(f"{a.irreps}, largest difference {jnp.abs(a.array - b.array).max():.1e}")


if __name__ == "__main__":
    main()
