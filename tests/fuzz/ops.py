"""Ops against e3nn-jax on random irreps, up to the third order, in transformations of JAX."""

import warnings

import e3nn_jax as e3nn
import jax
import jax.numpy as jnp
import numpy as np

from eqfuse import ops
from eqfuse.fuse.moves import STRICT
from tests.fuzz.checks import FailureError

IRREPS = ("0e", "0o", "1e", "1o", "2e", "2o")
NODES, EDGES = 3, 6


def within(name: str, function):
    """Return a function of one array, computed within a transformation."""
    return {
        "none": function,
        "jit": jax.jit(function),
        "checkpoint": jax.checkpoint(function),
        "vmap": lambda x: jax.vmap(function)(jnp.stack([x, 2 * x])),
        "scan": lambda x: jax.lax.scan(lambda c, f: (c, function(c * f)), x, jnp.arange(3.0))[1],
        "cond": lambda x: jax.lax.cond(x.sum() > 0, function, lambda x: 2 * function(x), x),
    }[name]


TRANSFORMATIONS = ("none", "jit", "checkpoint", "vmap", "scan", "cond")


def derivative(function, order: int):
    """Return a number that has derivatives of this order of a function of one array in it."""

    def number(x):
        out = function(x)
        return jnp.sum(jnp.cos(jnp.arange(out.size)) * jnp.ravel(out) ** 2)

    def raised(f, n):
        def gradient(x):
            return jnp.sum(jnp.sin(jnp.arange(x.size) + n) * jnp.ravel(jax.grad(f)(x)))

        return gradient

    for n in range(order):
        number = raised(number, n)
    return number


def linear(cls, out):
    """Return a function that applies a Linear of flax, whose parameters are known numbers."""

    def apply(a):
        module = cls(out)
        shapes = jax.eval_shape(lambda: module.init(jax.random.key(0), a))
        values = jax.tree.map(lambda s: jnp.cos(jnp.arange(s.size)).reshape(s.shape), shapes)
        return module.apply(values, a)

    return apply


class Cases:
    """Random products, Linears and layers, ours and e3nn's, of the same operands."""

    seconds = 600.0

    def __init__(self, folder):
        STRICT.set(True)  # faults of `ops.fuse` are failures
        self.references_failed = 0

    def prepare(self, seed: int):
        """Return what is compared, and the comparison, which raises where results differ."""
        rng = np.random.default_rng(seed)

        def irreps(most: int = 3) -> e3nn.Irreps:
            names = rng.choice(IRREPS, rng.integers(1, most + 1))
            return e3nn.Irreps([(int(rng.integers(0, 4)), str(ir)) for ir in names])

        x, y, out = irreps(), irreps(2), irreps()
        op = str(rng.choice(["product", "Linear", "product, Linear", "layer"]))
        keep = [None, [ir for _, ir in out]][rng.integers(2)]
        transformation, order = str(rng.choice(TRANSFORMATIONS)), int(rng.integers(0, 4))
        zero = bool(rng.integers(4) == 0) and len(x) > 1
        of_x, of_y = (rng.normal(size=s) for s in ((NODES, x.dim), (EDGES, y.dim)))
        senders, receivers = rng.integers(0, NODES, (2, EDGES))
        weight = rng.normal(size=(EDGES, 1))

        def function(module, flax):
            """Return the number that is compared, by e3nn-jax's names or by ours."""

            def compute(array):
                a, b = e3nn.IrrepsArray(x, array), e3nn.IrrepsArray(y, jnp.asarray(of_y))
                if zero:
                    a = e3nn.from_chunks(x, [None, *a.chunks[1:]], a.shape[:-1], a.dtype)
                if op == "Linear":
                    return linear(flax.Linear, out)(a).array
                m = module.tensor_product(a[senders], b, filter_ir_out=keep)
                if op == "product":
                    return m.array
                m = m * weight
                m = linear(flax.Linear, out)(m) if op == "product, Linear" else m
                m = e3nn.scatter_sum(m, dst=receivers, output_size=NODES)
                return linear(flax.Linear, out)(m).array if op == "layer" else m.array

            return derivative(within(transformation, compute), order)

        def case() -> str:
            ours, theirs = function(ops, ops), function(e3nn, e3nn.flax)
            sides = {"ops": ours, "fuse": ops.fuse(ours), "patch": ops.fuse(theirs, patch=True)}
            with jax.enable_x64(True), warnings.catch_warnings():
                warnings.simplefilter("ignore")
                array = jnp.asarray(of_x)
                try:
                    expected = jax.jit(theirs)(array)
                except Exception as error:
                    self.references_failed += 1
                    return f"reference {self.references_failed} failed: {type(error).__name__}"
                for name, computed in sides.items():
                    try:
                        found = jax.jit(computed)(array)
                    except Exception as error:
                        raise FailureError(f"{name}: {type(error).__name__}: {error}") from error
                    if not abs(found - expected) <= 1e-10 * max(1.0, abs(expected)):
                        raise FailureError(f"{name}: {found} where e3nn-jax has {expected}")
            return "same"

        what = f"{op} of {x}, {y} to {out}, keep {keep}, order {order} in {transformation}"
        return what + (", first block zero" if zero else ""), case
