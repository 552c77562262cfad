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
from tests.fuzz.networks import OPTIONS, Parameters, gathered, layer, linear, readout
from tests.ops.parity import UNOPTIMIZED

OPTIONAL = [name for name in ("haiku", "equinox") if importlib.util.find_spec(name)]
LINEARS = " ".join(["flax", "functional", *OPTIONAL, "einsum", *OPTIONS])
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
    "dtype": "float64 float32 bfloat16",
    "features": "given [] onehot",
    "layers": "1 1 1 2 3",
    "padding": " ".join(PADDING),
    "index": "traced numpy int64 uint8 constant sorted",
    "readout": "nodes sum mean rows axis squares hand vdot dot norm max segments nel mlp Linear "
    "two product dict logsumexp covariance",
    "inside": "none forces gradient both jvp",
    "within": "none jit remat remat_layers cond scan scan_remat vmap_x vmap_positions "
    "vmap_edges vmap_all",
    "outside": "none vmap remat",
}
OF_LAYER = {
    "chunks": "none gate scalars norms concatenate scale sort simplify regroup axis square "
    "batch_norm",
    "up": f"none {LINEARS}",
    "gather": "[] array take get onehot slice clip fill wrap get-fill get-clip promise vmap "
    "slices chunks",
    "ends": "sender difference sum",
    "sh": "0e+1o 1o 0e+1o+2e 1o+3o",
    "y": "harmonics radial joined twice reversed",
    "product": "product product product product swapped axis elementwise square none vmap "
    "e3nn_vmap harmonics norm twice chunks",
    "filter": "keep all",
    "beside": "none regroup concatenate norms",
    "weights": "none mlp edge shared where exp relu bessel clipped chunks constant stopped species",
    "message": "none none none none scalars Linear slice norms",
    "sum": "scatter_sum nel mean at.add drop index_add segment_sum onehot dense mapped ones "
    "argsort wide chunks max softmax",
    "scale": "none average nodes counts",
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
            known = IRREPS if rng.random() < 0.7 else [*IRREPS, "3e", "3o", "4e"]
            names = rng.choice(known, rng.integers(1, 4), replace=rng.random() < 0.3)
            mul = int(rng.choice([1, 3, 5, 8]))
            same = rng.random() < 0.6
            muls = [mul if same else int(rng.choice([0, 1, 3, 5, 8])) for _ in names]
            muls[0] = muls[0] or 2
            return e3nn.Irreps([(m, str(ir)) for m, ir in zip(muls, names, strict=True)])

        def layer() -> dict:
            return choices(OF_LAYER, 0.7) | {"out": irreps()}

        network = choices(OF_NETWORK, 0.5)
        layers = [layer() for _ in range(int(network["layers"]))]
        if any(of["sum"] == "nel" for of in layers):
            network |= {"index": "sorted", "padding": "none"}
        sizes = int(rng.integers(1, 9)), int(rng.choice([0, 1, *range(10, 21)]))
        return cls(network, layers, irreps(), *sizes)

    def __str__(self) -> str:
        def unlike(options, chosen):
            return [f"{k} {chosen[k]}" for k, of in options.items() if chosen[k] != of.split()[0]]

        parts = [f"{self.x}, {self.nodes} nodes, {self.edges} edges"]
        parts += unlike(OF_NETWORK, self.network)
        for of in self.layers:
            parts.append(f"| {of['out']}")
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
        sh = [ir for _, ir in e3nn.Irreps(chosen["sh"])][:: -1 if chosen["y"] == "reversed" else 1]
        y = e3nn.spherical_harmonics(sh, e3nn.IrrepsArray("1o", vectors), normalize=True)
        if chosen["y"] == "joined":
            y = e3nn.concatenate([e3nn.IrrepsArray("0e", jnp.ones_like(lengths)), y])
        y = y * jnp.exp(-lengths) if chosen["y"] == "radial" else y
        y = e3nn.concatenate([y, lengths * y]).regroup() if chosen["y"] == "twice" else y
        return layer(chosen, x, lengths, y, ends, mask, parameters, name)

    x = e3nn.IrrepsArray(program.x, features)
    if of["features"] != "given":
        table = e3nn.IrrepsArray(program.x, parameters("table", 3, program.x.dim))
        x = x + gathered(of["features"], table, jnp.arange(len(features)) % 3)
    for number in range(len(program.layers)):
        if of["within"] == "remat_layers" and parameters.values is not None:
            compute = jax.checkpoint(lambda x, p, n=number: one(n, x, Parameters(p)))
            x = compute(x, parameters.values)
        else:
            x = one(number, x, parameters)
    if of["within"].startswith("scan"):  # over a layer of features of one kind on either side

        def again(features, scale):
            m = one(0, e3nn.IrrepsArray(program.x, scale * features), parameters)
            m = linear("flax", m, program.x, parameters, "again", force=True)
            return features + m.array, m.array

        again = jax.checkpoint(again) if of["within"] == "scan_remat" else again
        last, rows = jax.lax.scan(again, features, jnp.array([0.5, -0.3, 0.2], x.dtype))
        return (*readout(of["readout"], x, parameters), last, rows[0])
    return readout(of["readout"], x, parameters)


def function_of(program: Program, index, shifts, mask, shapes: dict):
    """Return the function of (parameters, positions, features, index) that is fused.

    `shapes` gets those of its parameters.
    """
    of = program.network

    def compute(values, positions, features, given):
        ends = index if of["index"] in ("numpy", "constant") else given
        ends = tuple(jnp.asarray(e) for e in ends) if of["index"] == "constant" else tuple(ends)

        def one(positions, features, ends):
            parameters = Parameters(values)
            out = network(program, parameters, positions, features, ends, shifts, mask)
            shapes.update(parameters.shapes)
            return out

        def number(positions, features):
            out = one(positions, features, ends)
            return sum(jnp.sum(jnp.sin(a)) for a in jax.tree.leaves(out))

        if of["inside"] == "jvp":
            tangents = jnp.cos(positions), features
            return jax.jvp(lambda *a: one(*a, ends), (positions, features), tangents)

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
            return jax.lax.cond(features[0, 0] > 0, *branches, positions, features, ends)
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

    options = UNOPTIMIZED | {"xla_allow_excess_precision": False}  # one rounding for each primitive
    return jax.jit(everything, compiler_options=options)


def apart(a, b) -> float:
    """Return the largest difference of two arrays where it is finite."""
    difference = np.abs(np.asarray(a, float) - np.asarray(b, float))
    return np.max(difference[np.isfinite(difference)], initial=0.0)


def unfused(plain, operands, index, rng):
    """Return results as they are, in float64, and how far those of a fused function may be apart.

    Operands that are one rounding apart, and with them the two sides of a maximum or a jump, are
    right alike. The unfused function rounds after each primitive, and the fused one less often: its
    error is another draw of one that is not larger, at most 4 times the largest of 8 draws. What
    cancels exactly as it is written may leave one rounding of the largest operand.
    """

    def draw(a):
        return (a * (1 + jnp.finfo(a.dtype).eps * rng.normal(size=a.shape))).astype(a.dtype)

    exact = plain(jax.tree.map(lambda a: a.astype(float), operands), index)
    draws = [operands, *(jax.tree.map(draw, operands) for _ in range(7))]
    rounded = [plain(of, index) for of in draws]
    least = max(jnp.finfo(a.dtype).eps * abs(a).max() for a in jax.tree.leaves(operands) if a.size)

    def limit(a, *of):
        return 4 * max(apart(b, a) for b in of) or least * (not np.any(a))

    limits = jax.tree.map(limit, exact, *rounded)
    return rounded[0], exact, limits


def check_same(found, expected, exact, limits) -> None:
    """Raise where results differ from the exact ones by more than rounding, or have NaN elsewhere.

    A second derivative of three layers is a sum of about 1e4 terms that are up to 1e2 times as
    large as it is, each rounded to 1e-16 of itself: 1e-10 of the largest element at most. Results
    that depend on their operands more than that have `limits`, and all are rounded at the end.
    """
    for order, trees in enumerate(zip(found, expected, exact, limits, strict=True)):
        ours, theirs, right, limit = (jax.tree.leaves(tree) for tree in trees)
        largest = max(apart(a, np.zeros_like(a)) for a in right)
        for number, (a, b, c) in enumerate(zip(ours, theirs, right, strict=True)):
            where = f"order {order}, array {number} of {len(ours)}"
            if a.shape != b.shape or a.dtype != b.dtype:
                raise FailureError(f"{where}: {a.dtype}{a.shape} for {b.dtype}{b.shape}")
            if (np.isfinite(a) != np.isfinite(b)).any():
                counts = (~np.isfinite(a)).sum(), (~np.isfinite(b)).sum()
                raise FailureError(f"{where}: {counts[0]} of {a.size} not finite for {counts[1]}")
            last = jnp.finfo(a.dtype).eps * apart(c, np.zeros_like(c))
            if apart(a, c) > max(1e-9 * max(largest, 1e-3), limit[number], last):
                raise FailureError(f"{where}: off by {apart(a, c):.1e} of {largest:.1e}")


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
    index = index.astype(of["index"] if "int" in of["index"] else np.int32)
    dtype = jnp.dtype(str(of["dtype"]))
    shifts = (rng.normal(size=(program.edges, 3)) + 1.0).astype(dtype)
    mask = (np.arange(program.edges) < program.edges - 3).astype(dtype)
    mask = mask if PADDING[of["padding"]][2] else None
    sizes = (count, 3), (count, program.x.dim)
    positions, features = (rng.normal(size=size).astype(dtype) for size in sizes)
    # else the function has a gradient in it, or second derivatives are little but rounding
    second = of["inside"] == "none" and of["dtype"] == "float64"
    shapes: dict = {}
    function = function_of(program, index, shifts, mask, shapes)
    index = jnp.asarray(index)
    plain = derivatives(outside(of["outside"], function), second)
    try:
        jax.eval_shape(function, None, positions.astype(float), features.astype(float), index)
        values = {k: rng.normal(size=shape).astype(dtype) for k, shape in shapes.items()}
        operands = values, positions, features
        expected = unfused(plain, operands, index, rng)
    except FailureError:  # out of time
        raise
    except Exception as error:
        return f"e3nn fails: {type(error).__name__}"
    report = io.StringIO()
    try:
        with contextlib.redirect_stdout(report):
            fused = outside(of["outside"], ops.fuse(function, patch=True, report=True))
            found = derivatives(fused, second)(operands, index)
        check_same(found, *expected)
    except FailureError:
        raise
    except Exception as error:
        raise FailureError(f"{type(error).__name__}: {error}") from error
    return f"same, {'some' if 'all of it is' in report.getvalue() else 'nothing'} fused"
