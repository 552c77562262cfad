"""An example: a network learns the eight Tetris shapes, and shows what equivariance means.

    python train.py model=nequip layers=3

It writes no folder: with data, `eqfuse train` does.
"""

import dataclasses
import time

import e3nn_jax as e3nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
from scipy.spatial.transform import Rotation

from eqfuse import data, models
from eqfuse.data.tetris import FACES, SHAPE_NAMES
from eqfuse.graph import Graph
from eqfuse.train.flat import Flat
from eqfuse.train.run.stopping import TrainingFailed
from eqfuse.train.run.terminal import backend_report, network_report
from eqfuse.train.settings.config import Config
from eqfuse.train.settings.schema import ConfigError
from eqfuse.train.step import compiled_step, initial_parameters

IRREPS_OUT = "0o+7x0e"
DEFAULT_STEPS, ROTATIONS = 100, 10
# float32, through a few layers of sums: errors stay near ten times 1.2e-7.
ROTATION_TOLERANCE = 1e-5


def run(config: Config, *_) -> None:
    """Train on the shapes and demonstrate, with the network, optimizer's rate and seed of `config`.

    Raises:
      ConfigError: a network that cannot distinguish mirror images.
      TrainingFailed: not all shapes are learned, or the network is not equivariant.
    """
    start, name = time.monotonic(), config.model.name
    # A cube that sees three cubes in a plane cannot distinguish the hands.
    graph, labels = data.tetris(config.model.cutoff if name == "allegro" else FACES)
    graph = jax.tree.map(lambda a: a.astype(config.dtype) if a.dtype == np.float32 else a, graph)
    fields = config.model.model_fields(graph.edges.num_edges / graph.species.shape[0])
    fields |= {"irreps_out": IRREPS_OUT, "num_species": 1}
    module = models.build(name, **fields, backend=config.backend)
    _check_reach(module)
    params = initial_parameters(module, config.seed, graph, config.dtype)
    print(f"data       8 Tetris shapes, {len(graph.species)} nodes, {graph.edges.num_edges} edges")
    print(f"backend    {backend_report(config.backend, config.dtype)}")
    print(network_report(module, params, graph, config.verbose), flush=True)
    params = _train(config, module, params, graph, labels)
    rotated, error, mirrored = demonstrate(module, params, graph, labels, seed=config.seed)
    print(
        f"\n{ROTATIONS} random rotations: accuracy {rotated:.0%}, largest relative difference of a "
        f"logit {error:.1e} (at most {ROTATION_TOLERANCE:.0e})"
    )
    for shape, predicted in zip(SHAPE_NAMES, mirrored, strict=True):
        if predicted != shape:
            print(f"mirrored {shape} is predicted to be {predicted}")
    as_expected = mirrored == [*SHAPE_NAMES[1::-1], *SHAPE_NAMES[2:]]
    if as_expected:
        print("the other mirrored shapes keep their class")
    if not (as_expected and rotated == 1.0 and error <= ROTATION_TOLERANCE):
        raise TrainingFailed("the trained network is not equivariant to the tolerance above")
    print(f"done in {time.monotonic() - start:.1f} s; data=FILE trains on energies and forces")


def _check_reach(module) -> None:
    """Refuse a network that cannot distinguish mirror images; name one that can."""

    def error_of(module) -> ValueError | None:
        try:
            module.layer_irreps()
        except ValueError as error:
            return error
        return None

    if error := error_of(module):
        enough = next((n for n in range(1, 6) if not error_of(module.clone(layers=n))), None)
        hint = "" if enough is None else f" (layers={enough} is enough)"
        raise ConfigError(
            f"the shapes cannot be distinguished from their mirror images: {error}{hint}"
        ) from error


def logits(module, params, graph: Graph) -> jax.Array:
    """Return [n_graphs, 8] logits of the shapes."""
    out = module.apply(params, graph.vectors, graph.species, graph.edges)
    return tetris_logits(out, graph)


def tetris_logits(node_out: e3nn.IrrepsArray, graph: Graph) -> jax.Array:
    """Return the logits of the shapes, from the sum of the node features of each graph.

        [o e_1, -o e_1, e_2, ..., e_7]

    with o the pseudoscalar and e_1 ... e_7 the scalars. A mirror flips o alone, and so swaps the
    first two: the two chiral shapes. The result is [n_graphs, 8].

    References: e3nn-jax, examples/tetris_point_jraph.py.
    """
    values = jnp.where(graph.node_mask[:, None], node_out.array, 0)
    members = graph.graph_index == jnp.arange(graph.num_graphs)[:, None]
    pooled = jnp.sum(jnp.where(members[:, :, None], values, 0), axis=1)  # [n_graphs, 8]
    chiral = pooled[:, :1] * pooled[:, 1:2]
    return jnp.concatenate([chiral, -chiral, pooled[:, 2:]], axis=1)


def cross_entropy(values, labels):
    """Return the mean cross-entropy of logits [n, classes]."""
    targets = jax.nn.one_hot(labels, values.shape[1], dtype=values.dtype)
    return jnp.sum(optax.softmax_cross_entropy(values, targets) / len(labels))


def training_step(module, flat: Flat, labels, *, lr: float):
    """Return a step of Adam on the cross-entropy, and its optimizer, of parameters in one array.

    The step returns the new parameters and state, and the logits [n_graphs, 8] before it.
    """
    optimizer = optax.adam(lr)

    def loss(params, graph):
        values = logits(module, flat.unflatten(params), graph)
        return cross_entropy(values, labels), values

    def step(params, state, graph):
        gradient, values = jax.grad(loss, has_aux=True)(params, graph)
        with jax.named_scope("optimizer"):
            updates, state = optimizer.update(gradient, state, params)
            params = optax.apply_updates(params, updates)
        return params, state, values

    return step, optimizer


def _train(config: Config, module, params, graph, labels):
    """Return the parameters that classify all shapes right."""
    flat, limit = Flat.of(params), config.steps or DEFAULT_STEPS
    step, optimizer = training_step(module, flat, labels, lr=config.training.lr)
    step = compiled_step(step, config, reports=True)
    params = flat.flatten(params)
    state = optimizer.init(params)
    for count in range(limit + 1):
        # Loss and accuracy are those of the parameters before the step.
        new_params, state, values = step(params, state, graph)
        loss = float(cross_entropy(values, labels))
        accuracy = float((np.argmax(values, axis=1) == labels).mean())
        if not np.isfinite(loss):
            raise TrainingFailed(f"the loss became {loss} in step {count}; try a smaller lr=")
        done = accuracy == 1.0
        if count % 10 == 0 or done:
            print(f"step {count:4d}   loss {loss:8.4f}   accuracy {accuracy:6.1%}", flush=True)
        if done:
            return flat.unflatten(params)
        params = new_params
    raise TrainingFailed(
        f"accuracy did not reach 100% in {limit} steps; try steps={2 * limit}, another seed= or lr="
    )


def demonstrate(module, params, graph: Graph, labels, *, seed: int):
    """Return what a trained network makes of rotated and of mirrored shapes.

    They are the fraction of random rotations, chosen by the seed, that are classified right; the
    largest change of a logit by them, as a fraction of the largest logit; and the names that the
    mirrored shapes are given.
    """

    @jax.jit
    def logits_at(params, positions):
        return logits(module, params, dataclasses.replace(graph, positions=positions))

    def moved(matrix):
        # Rotated in float64: the matrix is orthogonal to well below what the network resolves.
        positions = graph.positions.astype(np.float64) @ matrix.T
        return np.asarray(logits_at(params, positions.astype(graph.positions.dtype)))

    rotations = Rotation.random(ROTATIONS, seed).as_matrix()
    reference, rotated = moved(np.eye(3)), np.stack([moved(matrix) for matrix in rotations])
    mirrored = moved(np.diag([-1, 1, 1])).argmax(-1)
    return (
        float((rotated.argmax(-1) == labels).mean()),
        float(np.abs(rotated - reference).max() / np.abs(reference).max()),
        [SHAPE_NAMES[shape] for shape in mirrored],
    )
