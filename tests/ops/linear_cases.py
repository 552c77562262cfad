"""The fused ops that are checked against e3nn's product, Linear and gate, and their operands."""

import dataclasses

import e3nn_jax as e3nn
import jax
import jax.numpy as jnp
import numpy as np

from eqfuse import ops
from eqfuse.ops import TensorProductLinear, TensorProductLinearGate

NODES, EDGES, SPECIES = 5, 7, 3


@dataclasses.dataclass(frozen=True)
class Case:
    """One op: over rows, or on a graph with node 3 and 4 isolated."""

    cls: type
    graph: bool
    x: str
    y: str
    out: str
    weighted: bool = True
    indexed: bool = False
    skip: bool = False
    options: tuple = ()


CASES = {
    "graph-linear": Case(TensorProductLinear, True, "5x0e+5x1o", "0e+1o", "7x0e+3x1o+4x1e"),
    "rows-linear": Case(TensorProductLinear, False, "5x0e+5x1o", "0e+1o", "7x0e+3x1o+4x1e"),
    "rows-gate": Case(
        TensorProductLinearGate, False, "5x0e+5x1o+2x0o", "0e+1o", "7x0e+3x0o+2x0e+4x1o+1x1e"
    ),
    "graph-gate-skip": Case(
        TensorProductLinearGate,
        True,
        "5x0e+5x1o+2x0o",
        "0e+1o",
        "5x0e+3x0o+7x0e+4x1o+3x1e",
        skip=True,
        options=(("force_irreps_out", True),),
    ),
    "graph-scalar-activation-indexed-bias": Case(
        TensorProductLinearGate,
        True,
        "5x0e+5x1o+2x0o",
        "0e+1o",
        "7x0e+3x0o+4x1o",
        weighted=False,
        indexed=True,
        options=(("biases", True), ("gated", False)),
    ),
    "rows-indexed-bias": Case(
        TensorProductLinear,
        False,
        "5x0e+5x1o+2x0o",
        "2x0e+1o",
        "7x0e+3x0o+4x1o",
        indexed=True,
        options=(("biases", True), ("path_normalization", "path")),
    ),
    "rows-fully-connected": Case(
        TensorProductLinear, False, "5x0e+5x1o+2x0o", "6x0e+5x1o", "7x0e+3x0o+4x1o"
    ),
    "rows-channelwise": Case(
        TensorProductLinear,
        False,
        "5x0e+5x1o",
        "5x0e+5x1o",
        "7x0e+3x1o+4x1e",
        options=(("channelwise", True),),
    ),
    "graph-channelwise": Case(
        TensorProductLinear,
        True,
        "5x0e+5x1o+5x1e",
        "5x0e+5x1o",
        "7x0e+3x1o+4x1e",
        weighted=False,
        options=(("channelwise", True), ("force_irreps_out", True)),
    ),
    "rows-split": Case(
        TensorProductLinear,
        False,
        "5x0e+5x1o",
        "0e+1o",
        "7x0e+3x1o+4x1e",
        options=(("split", ("4x0e", "3x0e+1x1o", "2x1o+4x1e")),),
    ),
    "graph-channelwise-split": Case(
        TensorProductLinear,
        True,
        "5x0e+5x1o+5x1e",
        "5x0e+5x1o",
        "7x0e+3x1o+4x1e+2x2o",
        weighted=False,
        options=(
            ("channelwise", True),
            ("force_irreps_out", True),
            ("split", ("", "6x0e", "1x0e+3x1o+4x1e+2x2o")),
        ),
    ),
    "graph-indexed-bias-split": Case(
        TensorProductLinear,
        True,
        "5x0e+3x1o",
        "0e+1o",
        "4x0e+3x1o",
        indexed=True,
        options=(("biases", True), ("split", ("1x0e", "3x0e", "3x1o"))),
    ),
    "rows-many-columns": Case(
        TensorProductLinear,
        False,
        "36x0e+33x1o",
        "0e+1o",
        "150x0e+40x1o",
        options=(("biases", True),),
    ),
    "rows-many-channels": Case(
        TensorProductLinearGate, False, "140x0e+33x1o", "0e+1o", "20x0e+4x1o"
    ),
    "graph-one-channel": Case(
        TensorProductLinearGate, True, "1x0e+1x1o", "0e+1o+2e", "3x0e+1x1o+1x2e", weighted=False
    ),
    "graph-scalar-first": Case(
        TensorProductLinear,
        True,
        "5x0e+3x1o",
        "0e+1o",
        "2x0e+3x1o",
        weighted=False,
        options=(("scalar_first", True),),
    ),
}


class Problem:
    """The operands of a case, random, and the op on a backend as a function of all of them."""

    def __init__(self, case: Case, dtype=np.float64):
        self.case, self.rng, self.dtype = case, np.random.default_rng(0), dtype
        senders, receivers = self.rng.integers(0, 3, (2, EDGES))
        self.edges = ops.Edges.from_arrays(senders, receivers, NODES) if case.graph else None
        keep = sorted({ir for _, ir in e3nn.Irreps(case.out)})
        irreps = e3nn.tensor_product(case.x, case.y, filter_ir_out=keep)
        rows = [NODES, EDGES if case.graph else NODES]
        rows = rows[::-1] if dict(case.options).get("channelwise") else rows
        self.arrays = {
            name: self.normal(n, e3nn.Irreps(i).dim)
            for name, n, i in zip("xy", rows, (case.x, case.y), strict=True)
        }
        if case.graph and case.weighted:
            self.arrays["weights"] = self.normal(EDGES, irreps.num_irreps)
        if case.skip:
            self.arrays["skip"] = self.normal(NODES, e3nn.Irreps(case.out).dim)
        self.index = jnp.asarray(self.rng.integers(0, SPECIES, NODES)) if case.indexed else None
        shapes = jax.eval_shape(lambda: self.init("e3nn"))
        self.params = jax.tree.map(lambda p: self.normal(*p.shape), shapes)

    def normal(self, *shape):
        return jnp.asarray(self.rng.normal(size=shape).astype(self.dtype))

    def normal_like(self, tree):
        return jax.tree.map(lambda a: self.normal(*a.shape), tree)

    def module(self, backend: str):
        number = SPECIES if self.case.indexed else None
        options = dict(self.case.options)
        return self.case.cls(self.case.out, num_indexed_weights=number, backend=backend, **options)

    def arguments(self, arrays):
        skip = arrays.get("skip")
        return (
            e3nn.IrrepsArray(self.case.x, arrays["x"]),
            e3nn.IrrepsArray(self.case.y, arrays["y"]),
            arrays.get("weights"),
            self.edges,
            self.index,
            None if skip is None else e3nn.IrrepsArray(self.case.out, skip),
        )

    def init(self, backend: str):
        return self.module(backend).init(jax.random.PRNGKey(0), *self.arguments(self.arrays))

    def apply(self, backend: str, params, arrays):
        """Return the output, joined where it is split; e3nn's is never split."""
        module = self.module(backend)
        if backend == "e3nn":
            return module.clone(split=None).apply(params, *self.arguments(arrays))
        out = module.apply(params, *self.arguments(arrays))
        return e3nn.concatenate(out).simplify() if isinstance(out, tuple) else out
