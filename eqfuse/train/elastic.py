"""Elastic weights: parameters that the network's past depends on are held near what they were.

    penalty = weight * sum_k F_k (p_k - p0_k)^2,    F_k = mean over frames of (d/dp_k v . f)^2

f are the energy per atom, forces and stress of a frame in the units of the loss, and v normal
random numbers: F is the diagonal of the Gauss-Newton matrix of the loss on these frames, if they
were labelled by the network itself.

References: Kirkpatrick et al. 2017, PNAS 114, 3521 (there F is of classes).
"""

import jax
import jax.numpy as jnp
import numpy as np
import optax

from eqfuse.data import Batcher
from eqfuse.models import predict
from eqfuse.train.flat import Flat
from eqfuse.train.metrics import Loss
from eqfuse.train.replay import Network


def stiffness(network: Network, frames, layout: Flat, loss: Loss, seed: int) -> jax.Array:
    """Return F for frames of the past of a network, [layout.size].

    Args:
      network: as it is before the training.
      frames: at least one `Structure`, of its elements.
      layout: of its parameters in one array.
      loss: whose weights and force scale say what an error of each quantity is worth.
      seed: of the random numbers.
    """

    def projected(params, graph, v):
        found = predict(network.potential, layout.unflatten(params), graph, stress=loss.stress > 0)
        total = loss.energy**0.5 * v["energy"] * found.energy[0]
        total += loss.forces**0.5 * (v["forces"] * found.forces).sum()
        if found.stress is not None:
            total += loss.stress**0.5 * (v["stress"] * found.stress[0]).sum()
        return total / loss.force_scale

    gradient, rng = jax.jit(jax.grad(projected)), np.random.Generator(np.random.PCG64((seed, 23)))
    params, total = layout.flatten(network.params), 0.0
    batcher = Batcher(network.samples(frames), 1, dtype=network.dtype, max_shapes=1)
    for sample, batch in zip(batcher.samples, batcher.batches(shuffle=False), strict=True):
        mask, count = batch.graph.node_mask[:, None], sample.num_atoms
        v = {  # of means over atoms and components
            "energy": rng.normal() / count,
            "forces": rng.normal(size=(len(mask), 3)) * mask / (3 * count) ** 0.5,
            "stress": rng.normal(size=(3, 3)) / 3,
        }
        total = total + gradient(params, batch.graph, v) ** 2
    return total / len(frames)


def held(weight: float, stiff: jax.Array) -> optax.GradientTransformation:
    """Return the transformation that adds the gradient of the penalty to that of the loss.

    F and the parameters at the start are in its state, so that a resumed run has them.
    """

    def update(gradient, state, params):
        stiff, anchor = state
        return gradient + (2 * weight * stiff * (params - anchor)).astype(gradient.dtype), state

    return optax.GradientTransformation(lambda params: (stiff, jnp.asarray(params)), update)
