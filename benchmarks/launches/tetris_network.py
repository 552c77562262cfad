"""The network of e3nn-jax's Tetris example, with its parameters, on our ops."""

import e3nn_jax as e3nn
import flax.linen as nn
import jax.numpy as jnp

from eqfuse import ops
from eqfuse.models.radial import lengths_and_directions, spherical_harmonics

HIDDEN = "32x0e + 32x0o + 8x1e + 8x1o + 8x2e + 8x2o"
LMAX = 3
DENOMINATOR = 1.5


class TetrisLayer(nn.Module):
    """Product with the spherical harmonics, sum to the receivers, two linears and an activation.

        m = sum_j regroup(x_j ++ x_j (x) Y_ij) / 1.5
        x <- linear_post(activation(linear_pre(m))) + shortcut(x)

    x_j ++ x_j (x) Y is the product of x_j with 1 ++ Y.
    """

    target: str  # node features after the layer
    backend: str | None
    fused: str | None = None

    @nn.compact
    def __call__(self, x, y, edges):
        """Return the node features after the layer; y is (1 ++ Y) / 1.5, zero for padding."""
        m = ops.TensorProductLinearGate(
            self.target,
            gated=False,
            scalar_first=True,
            backend=self.backend,
            fused=self.fused,
            name="linear_pre",
        )(x, y, edges=edges)
        last = ops.LinearSum(self.target, ("linear_post", "shortcut"), backend=self.backend)
        nn.share_scope(self, last)
        return last(m, x)


class TetrisNet(nn.Module):
    """e3nn-jax's Tetris example: three layers on scalars of one, no species, no lengths.

    It reads the directions of the edges only, and is not smooth at a cutoff: a benchmark and a
    lesson in equivariance, not a potential.

    Attributes:
      irreps_out: node features of the last layer.
      backend: see `eqfuse.ops`; the parameters are the same for all.
      fused: "auto", "always", "never", or None: see `eqfuse.ops.resolve_fused`.
    References: e3nn-jax, examples/tetris_point_jraph.py.
    """

    irreps_out: str = "0o + 7x0e"
    backend: str | None = None
    fused: str | None = None

    def layer_irreps(self) -> list[e3nn.Irreps]:
        """Return the irreps of the input and of the node features after each layer."""
        sh = e3nn.Irreps([(1, (l, (-1) ** l)) for l in range(1, LMAX + 1)])
        irreps = [e3nn.Irreps("0e")]
        for target in (HIDDEN, HIDDEN, self.irreps_out):
            reachable = irreps[-1] + e3nn.tensor_product(irreps[-1], sh)
            irreps.append(e3nn.Irreps(target).filter(keep=reachable))
        return irreps

    @nn.compact
    def __call__(self, vectors, species, edges):
        """Predict `irreps_out` for each node, as `NequIP` does; all species are alike."""
        _, directions, real = lengths_and_directions(vectors)
        real = real[:, None].astype(vectors.dtype)
        # e3nn-jax's example takes its vectors from sender to receiver.
        sh = spherical_harmonics(-directions, range(1, LMAX + 1)) * real
        y = e3nn.concatenate([e3nn.IrrepsArray("0e", real), sh]) / DENOMINATOR

        irreps_in, *targets = self.layer_irreps()
        x = e3nn.IrrepsArray(irreps_in, jnp.ones((edges.num_nodes, 1), vectors.dtype))
        for k, target in enumerate(targets):
            layer = TetrisLayer(str(target), self.backend, self.fused, name=f"layer_{k}")
            x = layer(x, y, edges)
        return x
