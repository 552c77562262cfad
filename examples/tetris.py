"""A network learns the eight Tetris shapes, and shows what equivariance means.

    python train.py model=nequip layers=3

Settings are model= (nequip, allegro, mace, or tetris, which is e3nn-jax's), those of the network,
and seed, steps, lr, backend, dtype and verbose. It writes no file: `eqfuse train data=FILE` does.

References: Thomas et al. 2018, arXiv:1802.08219; e3nn-jax, examples/tetris_point_jraph.py.
"""

import contextlib
import dataclasses
import difflib
import json
import sys
import time

import e3nn_jax as e3nn
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
from scipy.spatial.transform import Rotation

from eqfuse import data, models, ops
from eqfuse.graph import Graph
from eqfuse.models.radial import lengths_and_directions, spherical_harmonics
from eqfuse.runs.errors import TrainingFailed
from eqfuse.runs.process import keep_programs
from eqfuse.train.flat import Flat
from eqfuse.train.step import initial_parameters

SHAPES = {
    "chiral1": ((0, 0, 0), (0, 0, 1), (1, 0, 0), (1, 1, 0)),
    "chiral2": ((1, 1, 1), (1, 1, 2), (2, 1, 1), (2, 0, 1)),
    "square": ((0, 0, 0), (1, 0, 0), (0, 1, 0), (1, 1, 0)),
    "line": ((0, 0, 0), (0, 0, 1), (0, 0, 2), (0, 0, 3)),
    "corner": ((0, 0, 0), (0, 0, 1), (0, 1, 0), (1, 0, 0)),
    "L": ((0, 0, 0), (0, 0, 1), (0, 0, 2), (0, 1, 0)),
    "T": ((0, 0, 0), (0, 0, 1), (0, 0, 2), (0, 1, 1)),
    "zigzag": ((0, 0, 0), (1, 0, 0), (1, 1, 0), (2, 1, 0)),
}
"""Centres of the cubes. The first two shapes are mirror images of each other."""
NAMES = [*SHAPES]
FACES = 1.1
"""Cubes that share a face are closer than this."""
SETTINGS = {"model": "nequip", "seed": 0, "steps": 100, "lr": 0.01, "backend": None}
SETTINGS |= {"dtype": "float32", "verbose": False}
SMALL = {  # logits, and their rounding, grow with channels and with products of products
    "nequip": {"channels": 16},
    "allegro": {"channels": 16, "latent_dim": 64},
    "mace": {"channels": 16, "correlation": 2, "parity": True, "lr": 0.003},
    "tetris": {},
}
IRREPS_OUT = e3nn.Irreps("0o + 7x0e")
ROTATIONS, TOLERANCE = 10, 1e-5  # float32, through a few layers of sums


def main(arguments: list[str]) -> int:
    """Train as the arguments, such as "layers=3", say; return 0, 1 if it failed, 2 if refused."""
    keep_programs()
    try:
        settings, fields = read_settings(arguments)
        x64 = jax.enable_x64(settings["dtype"] == "float64")
        with x64, jax.default_matmul_precision("highest"):
            run(settings, fields)
    except (TrainingFailed, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1 if isinstance(error, TrainingFailed) else 2
    return 0


def read_settings(arguments: list[str]) -> tuple[dict, dict]:
    """Return the settings of the training, and those of the network by the fields of its class."""
    given = {}
    for argument in arguments:
        name, _, text = argument.partition("=")
        given[name.rpartition(".")[2]] = text  # model.lmax and training.lr are lmax and lr
        with contextlib.suppress(ValueError):
            given[name.rpartition(".")[2]] = json.loads(text)
    name = given.get("model", SETTINGS["model"])
    if name not in SMALL:
        raise ValueError(f"model={name} is unknown; choose from: {', '.join(SMALL)}")
    # flax adds parent and name; the others follow from the shapes
    fixed = "parent", "name", "irreps_out", "num_species", "avg_num_neighbors", "backend"
    network = {f.name: f.default for f in dataclasses.fields(network_class(name))}
    defaults = {k: v for k, v in network.items() if k not in fixed} | SETTINGS
    for key, value in given.items():
        if key not in defaults:
            near = difflib.get_close_matches(key, defaults, n=1)
            hint = f"did you mean {near[0]}?" if near else f"choose from: {', '.join(defaults)}"
            raise ValueError(
                f"{key} is not a setting of the Tetris example, which runs without data=; {hint}"
            )
        kind = type(SETTINGS["model"] if defaults[key] is None else defaults[key])
        number = kind is float and type(value) is int
        if type(value) is not kind and not number and value != defaults[key]:
            raise ValueError(f"{key}={value} is impossible: it must be of type {kind.__name__}")
    ours = SETTINGS | SMALL[name] | given
    if ours["dtype"] not in ("float32", "float64"):
        raise ValueError(f"dtype={ours['dtype']} is impossible: it must be float32 or float64")
    return (
        {key: ours[key] for key in SETTINGS},
        {key: value for key, value in ours.items() if key not in SETTINGS},
    )


def network_class(name: str) -> type[nn.Module]:
    """Return the class of a network."""
    return TetrisNet if name == "tetris" else models.MODELS[name]


def run(settings: dict, fields: dict):
    """Train on the shapes and show what the network has learned.

    Raises:
      ValueError: a network that cannot distinguish mirror images.
      TrainingFailed: not all shapes are learned, or the network is not equivariant.
    """
    start, network = time.monotonic(), network_class(settings["model"])
    # A cube that sees three cubes in a plane cannot distinguish the hands.
    local = settings["model"] == "allegro"
    graph, labels = shapes(fields.get("cutoff", network.cutoff) if local else FACES)
    floats = settings["dtype"]
    graph = jax.tree.map(lambda a: a.astype(floats) if a.dtype == np.float32 else a, graph)
    if network is not TetrisNet:
        neighbors = graph.edges.num_edges / len(graph.species)
        fields = fields | {"num_species": 1, "avg_num_neighbors": neighbors}
    module = network(irreps_out="0o+7x0e", backend=settings["backend"], **fields)
    check_reach(module)
    params = initial_parameters(module, settings["seed"], graph, floats)
    print(f"data       8 Tetris shapes, {len(graph.species)} nodes, {graph.edges.num_edges} edges")
    backend = f"{ops.resolve(settings['backend'])} on {jax.devices()[0].platform}"
    print(f"backend    {backend}; {floats}")
    summary = models.summary(module, params)
    if settings["verbose"]:
        print(f"{summary}\n{models.ops_summary(module, params, graph)}", flush=True)
    else:
        name, *_, size = summary.splitlines()
        print(f"network    {name}, {size.strip()}", flush=True)
    params = train(settings, module, params, graph, labels)
    rotated, error, mirrored = demonstrate(module, params, graph, labels, seed=settings["seed"])
    print(
        f"\n{ROTATIONS} random rotations: accuracy {rotated:.0%}, largest relative difference of a "
        f"logit {error:.1e} (at most {TOLERANCE:.0e})"
    )
    for shape, predicted in zip(NAMES, mirrored, strict=True):
        if predicted != shape:
            print(f"mirrored {shape} is predicted to be {predicted}")
    as_expected = mirrored == [*NAMES[1::-1], *NAMES[2:]]
    if as_expected:
        print("the other mirrored shapes keep their class")
    if not (as_expected and rotated == 1.0 and error <= TOLERANCE):
        raise TrainingFailed("the trained network is not equivariant to the tolerance above")
    print(f"done in {time.monotonic() - start:.1f} s; data=FILE trains on energies and forces")


def shapes(radius: float = FACES) -> tuple[Graph, np.ndarray]:
    """Return the eight shapes as one batch, without padding; and their labels, [8] int32.

    Args:
      radius: edges join the centres of cubes closer than this, in edges of a cube; by default
        those that share a face.
    Returns:
      a Graph of numpy arrays, float32, with 32 nodes, 50 edges (96 where all pairs are joined) and
      8 graphs, lengths in edges of a cube; and labels 0 to 7 in the order of `SHAPES`.
    """
    centres = np.array([*SHAPES.values()], np.float64)  # [8, 4, 3]
    num_graphs, per_graph = centres.shape[:2]
    senders, receivers = [], []
    for graph, positions in enumerate(centres):
        s, r, _ = data.neighbor_list(positions, np.zeros((3, 3)), np.zeros(3, bool), radius)
        senders.append(s + graph * per_graph)
        receivers.append(r + graph * per_graph)
    num_nodes = num_graphs * per_graph
    edges = ops.Edges.from_arrays(np.concatenate(senders), np.concatenate(receivers), num_nodes)
    graph = Graph(
        positions=centres.reshape(num_nodes, 3).astype(np.float32),
        species=np.zeros(num_nodes, np.int32),
        edges=edges,
        shifts=np.zeros((edges.num_edges, 3), np.float32),
        graph_index=np.repeat(np.arange(num_graphs, dtype=np.int32), per_graph),
        cells=np.zeros((num_graphs, 3, 3), np.float32),
        node_mask=np.ones(num_nodes, bool),
        graph_mask=np.ones(num_graphs, bool),
    )
    return graph, np.arange(num_graphs, dtype=np.int32)


def check_reach(module):
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
        raise ValueError(
            f"the shapes cannot be distinguished from their mirror images: {error}{hint}"
        ) from error


def shape_logits(node_out: e3nn.IrrepsArray, graph: Graph) -> jax.Array:
    """Return the logits of the shapes, [n_graphs, 8], from the sums of node features of graphs.

        [o e_1, -o e_1, e_2, ..., e_7]

    with o the pseudoscalar and e_1 ... e_7 the scalars. A mirror flips o alone, and so swaps the
    first two: the two chiral shapes.
    """
    if node_out.irreps != IRREPS_OUT:
        raise ValueError(f"the logits are made of {IRREPS_OUT}, got {node_out.irreps}")
    values = jnp.where(graph.node_mask[:, None], node_out.array, 0)
    members = graph.graph_index == jnp.arange(graph.num_graphs)[:, None]
    pooled = jnp.sum(jnp.where(members[:, :, None], values, 0), axis=1)  # [n_graphs, 8]
    chiral = pooled[:, :1] * pooled[:, 1:2]
    return jnp.concatenate([chiral, -chiral, pooled[:, 2:]], axis=1)


def logits(module, params, graph: Graph) -> jax.Array:
    """Return the logits of the shapes, [n_graphs, 8], that a network computes."""
    return shape_logits(module.apply(params, graph.vectors, graph.species, graph.edges), graph)


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


def train(settings: dict, module, params, graph: Graph, labels):
    """Return the parameters that classify all shapes right."""
    flat, limit = Flat.of(params), settings["steps"]
    step, optimizer = training_step(module, flat, labels, lr=settings["lr"])
    report = settings["verbose"] and (lambda text: print(f"sequence   {text}", flush=True))
    step = ops.sequence(step, report=report)  # on a CPU, one native call
    params = flat.flatten(jax.tree.map(np.asarray, params))  # a program for each leaf takes seconds
    state, loss_of = jax.jit(optimizer.init)(params), jax.jit(cross_entropy)
    for count in range(limit + 1):
        # Loss and accuracy are those of the parameters before the step.
        new_params, state, values = step(params, state, graph)
        loss = float(loss_of(values, labels))
        accuracy = float((np.argmax(values, axis=1) == labels).mean())
        if not np.isfinite(loss):
            raise TrainingFailed(f"the loss became {loss} in step {count}; try a smaller lr=")
        done = accuracy == 1.0
        if count % 10 == 0 or done:
            print(f"step {count:4d}   loss {loss:8.4f}   accuracy {accuracy:6.1%}", flush=True)
        if done:
            return flat.unflatten(np.asarray(params))
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
        [NAMES[shape] for shape in mirrored],
    )


HIDDEN = "32x0e + 32x0o + 8x1e + 8x1o + 8x2e + 8x2o"
LMAX, DENOMINATOR = 3, 1.5


class TetrisLayer(nn.Module):
    """Product with the spherical harmonics, sum to the receivers, two Linears and an activation.

        m = sum_j regroup(x_j ++ x_j (x) Y_ij) / 1.5
        x <- linear_post(activation(linear_pre(m))) + shortcut(x)

    x_j ++ x_j (x) Y is the product of x_j with 1 ++ Y.
    """

    target: str  # node features after the layer
    backend: str | None

    @nn.compact
    def __call__(self, x, y, edges):
        """Return the node features after the layer; y is (1 ++ Y) / 1.5, zero for padding."""
        product = ops.TensorProductLinearGate(
            self.target, gated=False, scalar_first=True, backend=self.backend, name="linear_pre"
        )
        m = product(x, y, edges=edges)

        def linear(name):
            return ops.Linear(self.target, force_irreps_out=True, backend=self.backend, name=name)

        return linear("linear_post")(m) + linear("shortcut")(x)


class TetrisNet(nn.Module):
    """The network of e3nn-jax's example: three layers on scalars of one, no species, no lengths.

    It reads the directions of the edges only, and is not smooth at a cutoff: a lesson in
    equivariance, not a potential. Its parameters are those of e3nn-jax's.
    """

    irreps_out: str = "0o + 7x0e"
    backend: str | None = None

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
        """Predict `irreps_out` for each node, as `models.NequIP` does; all species are alike."""
        _, directions, real = lengths_and_directions(vectors)
        real = real[:, None].astype(vectors.dtype)
        # e3nn-jax's example takes its vectors from sender to receiver.
        sh = spherical_harmonics(-directions, range(1, LMAX + 1)) * real
        y = e3nn.concatenate([e3nn.IrrepsArray("0e", real), sh]) / DENOMINATOR
        irreps_in, *targets = self.layer_irreps()
        x = e3nn.IrrepsArray(irreps_in, jnp.ones((edges.num_nodes, 1), vectors.dtype))
        for k, target in enumerate(targets):
            x = TetrisLayer(str(target), self.backend, name=f"layer_{k}")(x, y, edges)
        return x
