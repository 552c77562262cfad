"""The Tetris network as e3nn-jax's example writes it, on e3nn-jax alone, and its training step.

References: e3nn-jax, examples/tetris_point_jraph.py.
"""

import e3nn_jax as e3nn
import flax.linen as nn
import jax
import jax.numpy as jnp
import optax

from examples.tetris import HIDDEN


class ReferenceLayer(nn.Module):
    """Literal transcription of the layer of e3nn-jax's example: everything per edge."""

    target: str

    @nn.compact
    def __call__(self, x, positions, edges):
        vectors = positions[edges.receivers] - positions[edges.senders]
        vectors = e3nn.IrrepsArray("1o", vectors)
        sh = e3nn.spherical_harmonics([1, 2, 3], vectors, True, normalization="component")
        sender = x[edges.senders]
        m = e3nn.concatenate([sender, e3nn.tensor_product(sender, sh)]).regroup()
        m = e3nn.scatter_sum(m, dst=edges.receivers, output_size=edges.num_nodes) / 1.5
        target = e3nn.Irreps(self.target)
        m = e3nn.flax.Linear(target, name="linear_pre")(m)
        m = e3nn.scalar_activation(m)
        m = e3nn.flax.Linear(target, name="linear_post")(m)
        shortcut = e3nn.flax.Linear(m.irreps, name="shortcut", force_irreps_out=True)
        return m + shortcut(x)


class Reference(nn.Module):
    """The network: three layers on scalars of one."""

    @nn.compact
    def __call__(self, positions, edges):
        x = e3nn.IrrepsArray("0e", jnp.ones((len(positions), 1), positions.dtype))
        for k, target in enumerate((HIDDEN, HIDDEN, "0o + 7x0e")):
            x = ReferenceLayer(target, name=f"layer_{k}")(x, positions, edges)
        return x


def logits(params, graph):
    """Return the logits of the shapes, [n_graphs, 8], from sums over nodes."""
    out = Reference().apply(params, graph.positions, graph.edges)
    pooled = e3nn.scatter_sum(
        out.array, dst=graph.graph_index, output_size=graph.num_graphs
    )  # [n_graphs, 8]
    chiral = pooled[:, :1] * pooled[:, 1:2]
    return jnp.concatenate([chiral, -chiral, pooled[:, 2:]], axis=1)


def training_step(labels, *, lr: float):
    """Return a step of Adam, loss and accuracy, on the tree of parameters; and the optimizer."""
    optimizer = optax.adam(lr)

    def loss_of(params, graph):
        values = logits(params, graph)
        loss = optax.softmax_cross_entropy_with_integer_labels(values, labels).mean()
        return loss, (values.argmax(-1) == labels).mean()

    def step(params, state, graph):
        (loss, accuracy), gradient = jax.value_and_grad(loss_of, has_aux=True)(params, graph)
        with jax.named_scope("optimizer"):
            updates, state = optimizer.update(gradient, state)
            return optax.apply_updates(params, updates), state, loss, accuracy

    return step, optimizer
