"""The Tetris network of e3nn-jax, with its parameters: small, without a radial network."""

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

    The sum of the products and the sum of x are taken apart and joined per node, where e3nn-jax
    joins them per edge: the same number, without an array of edges times products.

    Attributes:
      target: node features after the layer.
      backend: see `eqfuse.ops`.
    """

    target: str
    backend: str | None

    @nn.compact
    def __call__(self, x, sh, real, edges):
        """One layer.

        Args:
          x: node features, IrrepsArray [n_nodes, irreps_in].
          sh: spherical harmonics, IrrepsArray [n_edges, irreps_sh], zero for padding.
          real: [n_edges, 1], 0 for padding edges and 1 for others.
          edges: `eqfuse.ops.Edges`.
        Returns:
          IrrepsArray [n_nodes, irreps].
        """
        target = e3nn.Irreps(self.target)
        keep = sorted({ir for _, ir in target})
        products = ops.graph_tensor_product(
            x, sh, None, edges, filter_ir_out=keep, backend=self.backend
        )
        neighbors = e3nn.scatter_sum(
            x[edges.senders] * real, dst=edges.receivers, output_size=edges.num_nodes
        )
        m = e3nn.concatenate([neighbors, products]).regroup() / DENOMINATOR
        m = e3nn.flax.Linear(target, name="linear_pre")(m)
        m = e3nn.scalar_activation(m)
        m = e3nn.flax.Linear(target, name="linear_post")(m)
        return m + e3nn.flax.Linear(m.irreps, force_irreps_out=True, name="shortcut")(x)


class TetrisNet(nn.Module):
    """e3nn-jax's Tetris example: three layers on scalars of one, no species, no lengths.

    It reads the directions of the edges only, and is not smooth at a cutoff: a benchmark and a
    lesson in equivariance, not a potential.

    Attributes:
      irreps_out: node features of the last layer.
      backend: see `eqfuse.ops`; the parameters are the same for all.
    References: e3nn-jax, examples/tetris_point_jraph.py.
    """

    irreps_out: str = "0o + 7x0e"
    backend: str | None = None

    def layer_irreps(self) -> list[e3nn.Irreps]:
        """The node features that go into the network and those after each of its three layers."""
        sh = e3nn.Irreps([(1, (l, (-1) ** l)) for l in range(1, LMAX + 1)])
        irreps = [e3nn.Irreps("0e")]
        for target in (HIDDEN, HIDDEN, self.irreps_out):
            reachable = irreps[-1] + e3nn.tensor_product(irreps[-1], sh)
            irreps.append(e3nn.Irreps(target).filter(keep=reachable))
        return irreps

    @nn.compact
    def __call__(self, vectors, species, edges):
        """Predict `irreps_out` for each node.

        Args:
          vectors: [n_edges, 3], from receiver to sender.
          species: [n_nodes], not used: all nodes are alike.
          edges: `eqfuse.ops.Edges`.
        Returns:
          IrrepsArray [n_nodes, irreps_out], dtype of vectors.
        """
        _, directions, real = lengths_and_directions(vectors)
        real = real[:, None].astype(vectors.dtype)
        # e3nn-jax's example takes its vectors from sender to receiver.
        sh = spherical_harmonics(-directions, range(1, LMAX + 1)) * real

        irreps_in, *targets = self.layer_irreps()
        x = e3nn.IrrepsArray(irreps_in, jnp.ones((edges.num_nodes, 1), vectors.dtype))
        for k, target in enumerate(targets):
            x = TetrisLayer(str(target), self.backend, name=f"layer_{k}")(x, sh, real, edges)
        return x
