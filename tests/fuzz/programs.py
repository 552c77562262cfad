"""Random e3nn-jax networks, fused by `ops.fuse` and as they are: values and two derivatives.

A program is a number of choices, each of them made apart from the others; what is unlike the
plainest one (`x[s]`, a product, `scatter_sum`) is in its description.
"""

import contextlib
import dataclasses
import importlib.util
import io
import warnings

import e3nn_jax as e3nn
import jax
import jax.numpy as jnp
import numpy as np

from eqfuse import ops
from eqfuse.fuse.moves import STRICT
from tests.fuzz.checks import FailureError
from tests.fuzz.networks import Parameters, layer, linear, readout
from tests.ops.parity import UNOPTIMIZED

OPTIONAL = [name for name in ("haiku", "equinox") if importlib.util.find_spec(name)]
EPSILON = np.finfo(np.float64).eps
LINEARS = " ".join(["flax", "functional", *OPTIONAL])
PADDING = {  # senders and receivers of the last edges, and whether these are multiplied by zero
    "none": (None, None, False),
    "receivers_N": (None, "N", False),
    "senders_N": ("N", None, False),
    "both_N": ("N", "N", False),
    "both_N_masked": ("N", "N", True),
    "both_0_masked": (0, 0, True),
    "both_-1": (-1, -1, False),
}
OF_NETWORK = {  # the first of each is the plainest
    "layers": "1 2 3",
    "padding": " ".join(PADDING),
    "index": "traced numpy int64 constant sorted",
    "readout": "nodes sum mean rows axis squares hand vdot dot norm max segments nel mlp Linear "
    "two product",
    "inside": "none forces gradient both",
    "within": "none jit remat remat_layers cond scan vmap_x vmap_positions vmap_edges vmap_all",
    "outside": "none vmap remat",
}
OF_LAYER = {
    "chunks": "none gate scalars norms concatenate scale",
    "up": f"none {LINEARS}",
    "gather": "[] array take get onehot slice clip fill wrap get-fill get-clip promise",
    "ends": "sender difference sum",
    "y": "harmonics radial joined twice",
    "product": "product product product product swapped axis elementwise square none",
    "filter": "keep all",
    "beside": "none regroup concatenate",
    "weights": "none mlp edge shared where exp",
    "message": "none none none none scalars Linear",
    "sum": "scatter_sum nel mean at.add drop index_add segment_sum onehot dense mapped",
    "scale": "none average nodes",
    "down": f"{LINEARS} none",
    "skip": "none add concatenate",
}
IRREPS = ["0e", "0o", "1o", "1e", "2e", "2o"]


@dataclasses.dataclass(frozen=True)
class Program:
    """The choices of a network, and those of each of its layers, with their irreps."""

    network: dict
    layers: list[dict]
    x: e3nn.Irreps
    nodes: int
    edges: int

    @classmethod
    def random(cls, rng) -> "Program":
        def choices(options, plain):
            words = {name: of.split() for name, of in options.items()}
            return {k: of[0] if rng.random() < plain else rng.choice(of) for k, of in words.items()}

        def irreps() -> e3nn.Irreps:
            names = rng.permutation(IRREPS)[: rng.integers(1, 4)]
            mul = int(rng.choice([1, 3, 5, 8]))
            same = rng.random() < 0.6
            muls = [mul if same else int(rng.choice([1, 3, 5, 8])) for _ in names]
            return e3nn.Irreps([(m, str(ir)) for m, ir in zip(muls, names, strict=True)])

        def layer() -> dict:
            chosen = choices(OF_LAYER, 0.55)
            return chosen | {"out": irreps(), "sh": rng.choice(["0e+1o", "1o", "0e+1o+2e"])}

        network = choices(OF_NETWORK, 0.4)
        layers = [layer() for _ in range(int(network["layers"]))]
        if any(of["sum"] == "nel" for of in layers):
            network |= {"index": "sorted", "padding": "none"}
        sizes = int(rng.integers(3, 9)), int(rng.integers(10, 21))
        return cls(network, layers, irreps(), *sizes)

    def __str__(self) -> str:
        def unlike(options, chosen):
            return [f"{k} {chosen[k]}" for k, of in options.items() if chosen[k] != of.split()[0]]

        parts = [f"{self.x}, {self.nodes} nodes, {self.edges} edges"]
        parts += unlike(OF_NETWORK, self.network)
        for of in self.layers:
            parts.append(f"| {of['sh']} -> {of['out']}")
            parts += unlike(OF_LAYER, of)
        return ", ".join(parts).replace(", |", " |")


def network(program: Program, parameters, positions, features, ends, shifts, mask):
    """Return what the readout of a network has of positions and features."""
    of = program.network
    s, r = ends
    vectors = positions[s] - positions[r] + shifts
    lengths = jnp.linalg.norm(vectors, axis=1, keepdims=True)

    def one(number, x, parameters):
        chosen, name = program.layers[number], f"layer {number}"
        y = e3nn.spherical_harmonics(chosen["sh"], vectors, normalize=True)
        if chosen["y"] == "joined":
            y = e3nn.concatenate([e3nn.IrrepsArray("0e", jnp.ones((len(lengths), 1))), y])
        y = y * jnp.exp(-lengths) if chosen["y"] == "radial" else y
        y = e3nn.concatenate([y, lengths * y]).regroup() if chosen["y"] == "twice" else y
        return layer(chosen, x, lengths, y, ends, mask, parameters, name)

    x = e3nn.IrrepsArray(program.x, features)
    for number in range(len(program.layers)):
        if of["within"] == "remat_layers" and parameters.values is not None:
            compute = jax.checkpoint(lambda x, p, number=number: one(number, x, Parameters(p)))
            x = compute(x, parameters.values)
        else:
            x = one(number, x, parameters)
    if of["within"] == "scan":  # over a layer that has features of one kind on either side

        def again(features, scale):
            m = one(0, e3nn.IrrepsArray(program.x, scale * features), parameters)
            m = linear("flax", m, program.x, parameters, "again", force=True)
            return features + m.array, m.array

        last, rows = jax.lax.scan(again, features, jnp.array([0.5, -0.3, 0.2]))
        return (*readout(of["readout"], x, parameters), last, rows[0])
    return readout(of["readout"], x, parameters)


def function_of(program: Program, index, shifts, mask, shapes: dict):
    """Return the function of (parameters, positions, features, index) that is fused.

    `shapes` gets those of its parameters.
    """
    of = program.network

    def compute(values, positions, features, given):
        ends = given if of["index"] in ("traced", "int64", "sorted") else index
        ends = tuple(jnp.asarray(e) for e in ends) if of["index"] == "constant" else tuple(ends)

        def one(positions, features, ends):
            parameters = Parameters(values)
            out = network(program, parameters, positions, features, ends, shifts, mask)
            shapes.update(parameters.shapes)
            return out

        def number(positions, features):
            return sum(jnp.sum(jnp.sin(a)) for a in one(positions, features, ends))

        if of["inside"] == "both":
            return jax.value_and_grad(number, (0, 1))(positions, features)
        if of["inside"] != "none":
            by = int(of["inside"] == "gradient")
            return jax.value_and_grad(number, by)(positions, features)
        two = jax.tree.map(lambda a: jnp.stack([a, 0.9 * a]), (positions, features))
        both = jnp.stack([jnp.stack(ends), jnp.stack(ends)[:, ::-1]])
        if of["within"].startswith("vmap"):
            axes = {"x": (None, 0, None), "positions": (0, None, None), "edges": (None, None, 0)}
            axes = axes.get(of["within"][5:], (0, 0, 0))
            both = (*two, both) if axes[2] == 0 else (*two, ends)
            alone = (positions, features, ends)
            operands = [b if a == 0 else c for a, b, c in zip(axes, both, alone, strict=True)]
            return jax.vmap(one, axes)(*operands)
        if of["within"] == "cond":
            branches = one, lambda *a: jax.tree.map(lambda b: 2.0 * b, one(*a))
            return jax.lax.cond(features.sum() > 0, *branches, positions, features, ends)
        wrap = {"jit": jax.jit, "remat": jax.checkpoint}.get(of["within"], lambda f: f)
        return wrap(one)(positions, features, ends)

    return compute


def outside(kind: str, function):
    """Return a function within a transformation of its caller's."""
    if kind == "vmap":
        stacked = jax.vmap(function, (None, 0, None, None))
        return lambda p, a, b, index: stacked(p, jnp.stack([a, 1.1 * a]), b, index)
    return jax.checkpoint(function) if kind == "remat" else function


def derivatives(function, second: bool):
    """Return a function of operands and an index: values, gradients and gradients of these."""

    def number(tree):
        terms = (
            jnp.cos(jnp.arange(a.size) + a.ndim) * (a + a**2 / 2).ravel()
            for a in jax.tree.leaves(tree)
        )
        return sum(map(jnp.sum, terms))

    def everything(operands, index):
        def value(operands):
            out = function(*operands, index)
            return number(out), out

        def gradient(operands):
            [_, out], gradients = jax.value_and_grad(value, has_aux=True)(operands)
            return number(gradients), (out, gradients)

        if not second:
            return gradient(operands)[1]
        gradients, both = jax.grad(gradient, has_aux=True)(operands)
        return *both, gradients

    return jax.jit(everything, compiler_options=UNOPTIMIZED)


def check_same(found, expected, nearby=None) -> None:
    """Raise where arrays differ by more than rounding in float64, or have NaN elsewhere.

    A second derivative of three layers is a sum of about 1e4 terms that are up to 1e2 times as
    large as it is, each rounded to 1e-16 of itself: 1e-10 of the largest element at most. Where
    results depend on their operands more than that, `nearby` are those of rounded operands.
    """
    for order, trees in enumerate(zip(found, expected, nearby or expected, strict=True)):
        ours, theirs, others = ([np.asarray(a) for a in jax.tree.leaves(tree)] for tree in trees)
        rounded = [
            np.max(np.abs(a - b)[np.isfinite(a - b)], initial=0.0)
            for a, b in zip(others, theirs, strict=True)
        ]
        largest = max([np.max(np.abs(a[np.isfinite(a)]), initial=0.0) for a in theirs])
        for number, (a, b) in enumerate(zip(ours, theirs, strict=True)):
            where = f"order {order}, array {number} of {len(ours)}"
            if a.shape != b.shape or a.dtype != b.dtype:
                raise FailureError(f"{where}: {a.dtype}{a.shape} for {b.dtype}{b.shape}")
            if (np.isfinite(a) != np.isfinite(b)).any():
                counts = (~np.isfinite(a)).sum(), (~np.isfinite(b)).sum()
                raise FailureError(f"{where}: {counts[0]} of {a.size} not finite for {counts[1]}")
            error = np.max(np.abs(a - b)[np.isfinite(b)], initial=0.0)
            if error > max(1e-9 * max(largest, 1e-3), 10 * rounded[number]):
                raise FailureError(f"{where}: off by {error:.1e} of {largest:.1e}")


class Cases:
    """Random programs, fused and as they are."""

    seconds = 600.0

    def __init__(self, folder):
        STRICT.set(True)  # faults of `ops.fuse` are failures

    def prepare(self, seed: int):
        """Return the description of a program, and its comparison."""
        rng = np.random.default_rng(seed)
        program = Program.random(rng)

        def case() -> str:
            with jax.enable_x64(True), warnings.catch_warnings():
                warnings.simplefilter("ignore")
                return compared(program, rng)

        return str(program), case


def compared(program: Program, rng) -> str:
    """Compare a program, and return how it went."""
    of, count = program.network, program.nodes
    index = rng.integers(0, count, (2, program.edges))
    if of["index"] == "sorted":
        index[1].sort()
    for number, end in enumerate(PADDING[of["padding"]][:2]):
        if end is not None:
            index[number, -3:] = count if end == "N" else end
    index = index.astype(np.int64 if of["index"] == "int64" else np.int32)
    shifts = jnp.asarray(rng.normal(size=(program.edges, 3)) + 1.0)
    mask = jnp.asarray(np.arange(program.edges) < program.edges - 3, float)
    mask = mask if PADDING[of["padding"]][2] else None
    positions, features = (jnp.asarray(rng.normal(size=(count, d))) for d in (3, program.x.dim))
    second = of["inside"] == "none"  # else the function has a gradient in it
    shapes: dict = {}
    function = function_of(program, index, shifts, mask, shapes)
    index = jnp.asarray(index)
    try:
        jax.eval_shape(function, None, positions, features, index)
        values = {k: jnp.asarray(rng.normal(size=shape)) for k, shape in shapes.items()}
        operands = values, positions, features
        expected = derivatives(outside(of["outside"], function), second)(operands, index)
    except Exception as error:
        return f"e3nn fails: {type(error).__name__}"
    try:
        fused = outside(of["outside"], ops.fuse(function, patch=True))
        found = derivatives(fused, second)(operands, index)
        try:
            check_same(found, expected)
        except FailureError:
            near = jax.tree.map(lambda a: a * (1 + EPSILON * rng.normal(size=a.shape)), operands)
            nearby = derivatives(outside(of["outside"], function), second)(near, index)
            check_same(found, expected, nearby)
    except FailureError:
        raise
    except Exception as error:
        raise FailureError(f"{type(error).__name__}: {error}") from error
    report = io.StringIO()
    with contextlib.redirect_stdout(report):
        jax.eval_shape(ops.fuse(function, patch=True, report=True), *operands, index)
    return f"same, {'some' if 'all of it is' in report.getvalue() else 'nothing'} fused"
