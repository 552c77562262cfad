"""The Tetris run: learn eight shapes, then show what equivariance means."""

import contextlib
import dataclasses
import time

import jax
import jax.numpy as jnp
import numpy as np
import optax

from eqfuse import data, models
from eqfuse.data.tetris import SHAPE_NAMES
from eqfuse.graph import Graph
from eqfuse.train.device.parallel import Devices
from eqfuse.train.device.profiling import profile
from eqfuse.train.device.sequences import compiled_step
from eqfuse.train.flat import Flat
from eqfuse.train.initial import initial_parameters
from eqfuse.train.run.runs import RunFolder
from eqfuse.train.run.saving import Checkpoints
from eqfuse.train.run.stopping import Interrupted, StopRequest, TrainingFailed
from eqfuse.train.settings.config import Config, ConfigError

DEFAULT_STEPS = 100
# float32, through a few layers of sums: errors stay near ten times 1.2e-7.
ROTATION_TOLERANCE = 1e-5
MIRROR_CLASS = np.array([1, 0, 2, 3, 4, 5, 6, 7])


@dataclasses.dataclass(frozen=True)
class Demonstration:
    """The trained network on shapes that it has not seen.

    Attributes:
      rotated_accuracy: fraction of randomly rotated shapes that are told right.
      rotation_error: largest difference of a logit from that of the shape not rotated, as a
        fraction of the largest logit.
      mirrored: [8] class that each mirrored shape is told to be.
    """

    rotated_accuracy: float
    rotation_error: float
    mirrored: np.ndarray

    @property
    def holds(self) -> bool:
        """Check that rotations change nothing, and a mirror swaps the chiral shapes and nothing
        else.
        """
        rotated = self.rotated_accuracy == 1.0 and self.rotation_error <= ROTATION_TOLERANCE
        return rotated and bool((self.mirrored == MIRROR_CLASS).all())


def model_fields(config: Config, graph: Graph) -> dict:
    """Return the settings of the network that classifies the shapes."""
    fields = {"irreps_out": "0o+7x0e"}
    if config.model.name == "tetris":
        return fields
    settings = dataclasses.asdict(config.model)
    for name in ("name", "trainable_scale_shift", "zbl"):
        settings.pop(name)
    if settings["avg_num_neighbors"] is None:
        settings["avg_num_neighbors"] = graph.edges.num_edges / graph.species.shape[0]
    return {**fields, "num_species": 1, **settings}


def _check_reach(module) -> None:
    """Refuse a network that cannot tell a shape from its mirror image, and say what could.

    Raises:
      ConfigError: the network does not reach the pseudoscalar.
    """
    try:
        module.layer_irreps()
    except ValueError as error:
        enough = next(filter(lambda n: _reaches(module.clone(layers=n)), range(1, 6)), None)
        hint = "" if enough is None else f" (layers={enough} is enough)"
        raise ConfigError(
            f"the shapes cannot be told from their mirror images: {error}{hint}"
        ) from error


def _reaches(module) -> bool:
    try:
        module.layer_irreps()
    except ValueError:
        return False
    return True


def logits(module, params, graph: Graph) -> jax.Array:
    """Return [n_graphs, 8] logits of the shapes."""
    out = module.apply(params, graph.vectors, graph.species, graph.edges)
    return models.tetris_logits(out, graph)


def cross_entropy(values, labels):
    """Mean over rows of logits [n, classes]."""
    targets = jax.nn.one_hot(labels, values.shape[1], dtype=values.dtype)
    return jnp.sum(optax.softmax_cross_entropy(values, targets) / len(labels))


def training_step(module, flat: Flat, labels, *, lr: float):
    """Return a step of Adam on the cross entropy, of all parameters as one array, and its
    optimizer.

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


def demonstrate(module, params, graph: Graph, labels, *, rotations: int, seed: int):
    """Show the trained network the shapes rotated and mirrored.

    Args:
      rotations: how many random rotations.
      seed: of the rotations.
    Returns:
      `Demonstration`.
    """

    @jax.jit
    def logits_at(params, positions):
        return logits(module, params, dataclasses.replace(graph, positions=positions))

    def moved(matrix):
        # Rotated in float64: the matrix is orthogonal to well below what the network resolves.
        positions = graph.positions.astype(np.float64) @ matrix.T
        return np.asarray(logits_at(params, positions.astype(graph.positions.dtype)))

    rng = np.random.default_rng(seed)
    reference = moved(np.eye(3))
    rotated = np.stack([moved(_random_rotation(rng)) for _ in range(rotations)])
    return Demonstration(
        rotated_accuracy=float((rotated.argmax(-1) == labels).mean()),
        rotation_error=float(np.abs(rotated - reference).max() / np.abs(reference).max()),
        mirrored=moved(np.diag([-1, 1, 1])).argmax(-1),
    )


def _random_rotation(rng: np.random.Generator) -> np.ndarray:
    """Return [3, 3] float64, uniform over rotations (Mezzadri 2007)."""
    q, r = np.linalg.qr(rng.normal(size=(3, 3)))
    q = q * np.sign(np.diag(r))
    return q * np.linalg.det(q)


def run(config: Config, devices: Devices) -> None:
    """Train and demonstrate; prints as it goes.

    A run to go on with begins again, which takes seconds and ends in the same numbers.

    Raises:
      ConfigError: several devices, or a network that cannot tell the shapes.
      TrainingFailed: 100% not reached, or the demonstration does not hold.
      Interrupted: by Ctrl-C; the checkpoint is written.
    """
    if devices.count > 1:
        raise ConfigError("the eight Tetris shapes are one small batch; leave devices= out")
    start = time.monotonic()
    graph, labels = data.tetris(config.data.radius)
    graph = jax.tree.map(lambda a: a.astype(config.dtype) if a.dtype == np.float32 else a, graph)
    fields = model_fields(config, graph)
    module = models.build(config.model.name, **fields, backend=config.backend)
    _check_reach(module)
    params = initial_parameters(module, config.seed, graph, config.dtype)
    with contextlib.closing(RunFolder(config)) as folder:
        if config.resume is not None:
            print("resume     from the beginning: a Tetris run takes seconds")
            folder.forget()
        _train(config, module, params, graph, labels, fields, folder)
        print(f"done in {time.monotonic() - start:.1f} s; parameters in {folder.path}")


def _train(config, module, params, graph, labels, fields, folder: RunFolder):
    """Train, then demonstrate."""
    print(f"data       8 Tetris shapes, {graph.species.size} nodes, {graph.edges.num_edges} edges")
    print(f"run        {folder.path}")
    print(models.summary(module, params))
    print(models.ops_summary(module, params, graph), flush=True)
    metadata = {
        "config": dataclasses.asdict(config),
        "model": config.model.name,
        "model_fields": fields,
        "irreps": [str(irreps) for irreps in module.layer_irreps()],
        "potential": None,
        "task": "tetris",
    }
    checkpoints = Checkpoints(folder.checkpoints, metadata)
    limit = min(n for n in (config.steps, config.epochs, np.inf) if n is not None)
    limit = DEFAULT_STEPS if limit == np.inf else limit
    params, reached = _fit(config, module, params, graph, labels, folder, checkpoints, limit)
    if not reached:
        raise TrainingFailed(
            f"accuracy did not reach 100% in {limit} steps; try steps={2 * limit}, another seed= "
            f"or lr=. The parameters are in {folder.path}"
        )
    shown = demonstrate(
        module, params, graph, labels, rotations=config.training.rotations, seed=config.seed
    )
    _report(shown, config.training.rotations)
    if not shown.holds:
        raise TrainingFailed("the trained network is not equivariant to the tolerance: see above")


def _fit(config, module, params, graph, labels, folder, checkpoints, limit):
    """Train until all shapes are told apart, or for `limit` steps."""
    flat = Flat.of(params)
    step, optimizer = training_step(module, flat, labels, lr=config.training.lr)
    step, params = compiled_step(step, config, print), flat.flatten(params)
    state = optimizer.init(params)
    if config.profile:
        print(profile(step, (params, state, graph), folder.profile), flush=True)
    deadline = time.monotonic() + 60 * (config.max_minutes or np.inf)
    with StopRequest() as stop:
        for count in range(limit + 1):
            # Loss and accuracy are those of the parameters before the step.
            new_params, state, values = step(params, state, graph)
            loss = float(cross_entropy(values, labels))
            accuracy = float((np.argmax(values, axis=1) == labels).mean())
            folder.log({"step": count, "loss": loss, "accuracy": accuracy})
            last = accuracy == 1.0 or count == limit or not np.isfinite(loss)
            last = last or stop.signum is not None or time.monotonic() > deadline
            if count % 10 == 0 or last:
                print(f"step {count:4d}   loss {loss:8.4f}   accuracy {accuracy:6.1%}", flush=True)
            if last:
                break
            params = new_params
        if not np.isfinite(loss):
            raise TrainingFailed(f"the loss became {loss} in step {count}; try a smaller lr=")
        for name in ("best", "last"):
            progress = {"loss": loss, "accuracy": accuracy}
            checkpoints.offer(name, count, lambda: flat.unflatten(params), progress)
        checkpoints.flush()
        if stop.signum is not None and accuracy < 1.0:
            raise Interrupted(
                stop.signum, f"interrupted in step {count}; go on with resume={folder.path}"
            )
    return flat.unflatten(params), accuracy == 1.0


def _report(shown: Demonstration, rotations: int):
    print(
        f"\n{rotations} random rotations: accuracy {shown.rotated_accuracy:.0%}, largest relative "
        f"difference of a logit {shown.rotation_error:.1e} (at most {ROTATION_TOLERANCE:.0e})"
    )
    names = SHAPE_NAMES
    for shape, told in enumerate(shown.mirrored):
        right = (
            "" if told == MIRROR_CLASS[shape] else f"  WRONG, expected {names[MIRROR_CLASS[shape]]}"
        )
        if right or shape != told:
            print(f"mirrored {names[shape]} is told to be {names[told]}{right}")
    if (shown.mirrored[2:] == MIRROR_CLASS[2:]).all():
        print("the other mirrored shapes keep their class")
