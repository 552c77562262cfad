"""The argument `fused`: what it says, what it refuses, and that results do not depend on it."""

import dataclasses

import e3nn_jax as e3nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from eqfuse import models, ops
from eqfuse.ops import show
from eqfuse.ops.info import info
from eqfuse.ops.primitives import choice
from tests.ops import tiers
from tests.ops.linear_cases import CASES, Case, Problem
from tests.ops.linear_parity import orders, orders_of_e3nn, worst

ACTS = (("even_act", jnp.tanh), ("odd_act", jnp.tanh), ("even_gate_act", jnp.abs))
SMALL = Case(
    ops.TensorProductLinearGate,
    True,
    "2x0e+2x1o",
    "0e+1o",
    "3x0e+1x1o",
    weighted=False,
    skip=True,
    options=(("force_irreps_out", True),),
)
GATED = {
    "graph-small": SMALL,
    "rows-gate": CASES["rows-gate"],
    "graph-gate-skip": CASES["graph-gate-skip"],
    "graph-linear": CASES["graph-linear"],
    "rows-gate-skip": Case(
        ops.TensorProductLinearGate,
        False,
        "5x0e+5x1o+2x0o",
        "0e+1o",
        "5x0e+3x0o+7x0e+4x1o+3x1e",
        skip=True,
        options=(("force_irreps_out", True),),
    ),
    "rows-channels-of-both": Case(
        ops.TensorProductLinear, False, "2x0e+3x1o", "2x0e+2x1o", "5x0e+3x1o+2x2e"
    ),
    "rows-activation-bias": Case(
        ops.TensorProductLinearGate,
        False,
        "5x0e+5x1o+2x0o",
        "0e+1o",
        "7x0e+3x0o+4x1o",
        options=(("biases", True), ("gated", False)),
    ),
    "rows-other-activations": Case(
        ops.TensorProductLinearGate,
        False,
        "5x0e+5x1o+2x0o",
        "0e+1o",
        "7x0e+3x0o+9x0e+4x1o",
        options=ACTS,
    ),
    "graph-channelwise-gate": Case(
        ops.TensorProductLinearGate,
        True,
        "5x0e+5x1o",
        "5x0e+5x1o",
        "7x0e+3x1o+4x1e",
        weighted=False,
        options=(("channelwise", True), ("force_irreps_out", True)),
    ),
}
CORE = ("rows-gate-skip", "graph-small", "rows-channels-of-both")


def always(case: Case, dtype=np.float64, fused: str = "always") -> Problem:
    """Return the problem of a case, whose op is one kernel each way, or what `fused` says."""
    problem = Problem(case, dtype)  # its parameters are made by e3nn
    problem.case = dataclasses.replace(case, options=(*case.options, ("fused", fused)))
    return problem


@pytest.mark.parametrize("name", tiers.slow_unless(CORE, *GATED))
def test_native_calls_of_whole_ops_equal_e3nn_in_all_orders(name, x64):
    """Float64, 1e-12: sums of at most a few hundred products, each rounded to 1e-16."""
    got = orders(always(GATED[name]), "llvm")
    expected = orders_of_e3nn(GATED[name])
    for order, a, b in zip(("value", "jvp", "vjp", "vjp of vjp"), got, expected, strict=True):
        assert worst(a, b) < 1e-12, order


@pytest.mark.parametrize("name", CORE)
def test_gradients_of_a_loss_on_forces(name, x64):
    def gradients(problem, backend):
        def energy(operands, params, arrays):
            return jnp.sum(jnp.sin(problem.apply(backend, params, arrays | operands).array))

        def loss(params, arrays):
            forces = jax.grad(energy)({n: arrays[n] for n in "xy"}, params, arrays)
            return sum(jnp.sum(jnp.cos(force)) for force in jax.tree.leaves(forces))

        return jax.tree.leaves(jax.jit(jax.grad(loss, (0, 1)))(problem.params, problem.arrays))

    got = gradients(always(GATED[name]), "llvm")
    for a, b in zip(got, gradients(Problem(GATED[name]), "e3nn"), strict=True):
        np.testing.assert_allclose(a, b, rtol=0, atol=1e-12 * np.abs(b).max())


def test_many_rows_in_parts(x64):
    """Float64, 1e-12: rows are cut into parts, whose sums of the gradients of weights are added."""
    rng = np.random.default_rng(0)
    x, y = (
        e3nn.IrrepsArray(i, jnp.asarray(rng.normal(size=(601, e3nn.Irreps(i).dim))))
        for i in ("3x0e+2x1o", "0e+1o")
    )
    module = ops.TensorProductLinearGate("3x0e+2x0e+2x1o", fused="always", backend="llvm")
    params = module.init(jax.random.key(0), x, y)

    def gradients(module):
        def energy(params, x, y):
            return jnp.sum(module.apply(params, x, y).array ** 2)

        return jax.jit(jax.grad(energy, (0, 1, 2)))(params, x, y)

    assert worst(gradients(module), gradients(module.clone(backend="e3nn", fused=None))) < 1e-12


REFUSED = {
    "xla": (CASES["rows-linear"], "xla", np.float32, "computes op by op"),
    "e3nn": (CASES["rows-linear"], "e3nn", np.float32, "computes op by op"),
    "bfloat16": (CASES["rows-linear"], "llvm", jnp.bfloat16, "of float32 and float64"),
    "indexed": (CASES["rows-indexed-bias"], "llvm", np.float32, "by an index"),
    "channels": (
        Case(ops.TensorProductLinear, True, "257x0e", "0e", "2x0e", weighted=False),
        "triton",
        np.float32,
        "at most 256 channels, and these are 257",
    ),
    "factors": (
        Case(ops.TensorProductLinear, False, "65x0e+65x3o", "0e+3o", "65x0e+65x3o"),
        "triton",
        np.float32,
        "would hold 224 factors of matmuls",
    ),
    "an activation": (
        dataclasses.replace(CASES["rows-gate"], options=(("even_act", lambda x: x**2),)),
        "llvm",
        np.float32,
        "do not know an activation",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_always_is_refused_where_there_is_no_such_kernel(name):
    case, backend, dtype, reason = REFUSED[name]
    if backend == "triton":
        pytest.importorskip("triton")
    problem = always(case, dtype)
    with pytest.raises(ValueError, match=f"fused='always' cannot be done here: .*{reason}"):
        problem.apply(backend, problem.params, problem.arrays)


def test_always_is_refused_for_a_product_of_several_kernels():
    """With l up to 3 and both parities, a product on a graph is two kernels on a GPU."""
    pytest.importorskip("triton")
    irreps = "8x0e+8x0o+8x1e+8x1o+8x2e+8x2o+8x3e+8x3o"
    edges = ops.Edges.from_arrays(np.array([0, 1]), np.array([1, 0]), 2)
    x = e3nn.IrrepsArray(irreps, jnp.ones((2, e3nn.Irreps(irreps).dim), jnp.float32))
    y = e3nn.IrrepsArray("0e+1o+2e+3o", jnp.ones((2, 16), jnp.float32))
    with pytest.raises(ValueError, match=r"are \d kernels forward, \d backward"):
        ops.graph_tensor_product(x, y, None, edges, backend="triton", fused="always")
    module = ops.TensorProductLinear(irreps, backend="triton", fused="always")
    with pytest.raises(ValueError, match=r"the sums of a node are \d kernels"):
        jax.eval_shape(lambda: module.init(jax.random.key(0), x, y, edges=edges))


def test_never_on_a_graph_gathers_and_sums(x64):
    edges = ops.Edges.from_arrays(np.array([0, 1, 2, 2]), np.array([1, 0, 0, 1]), 4)
    rng = np.random.default_rng(0)
    x = e3nn.IrrepsArray("3x0e+2x1o", jnp.asarray(rng.normal(size=(4, 9))))
    y = e3nn.IrrepsArray("0e+1o", jnp.asarray(rng.normal(size=(4, 4))))
    w = jnp.asarray(rng.normal(size=(4, e3nn.tensor_product(x.irreps, y.irreps).num_irreps)))

    def product(fused):
        return ops.graph_tensor_product(x, y, w, edges, backend="llvm", fused=fused).array

    assert "scatter" in str(jax.make_jaxpr(lambda: product("never"))())
    assert "scatter" not in str(jax.make_jaxpr(lambda: product("auto"))())
    np.testing.assert_allclose(product("never"), product("always"), rtol=0, atol=1e-13)


def test_the_environment_variable_is_what_none_means(monkeypatch):
    assert ops.resolve_fused(None) == "auto"
    monkeypatch.setenv("EQFUSE_FUSED", "never")
    assert ops.resolve_fused(None) == "never"
    assert ops.resolve_fused("always") == "always"
    monkeypatch.setenv("EQFUSE_FUSED", "sometimes")
    with pytest.raises(ValueError, match="EQFUSE_FUSED 'sometimes' is unknown; choose one of auto"):
        ops.resolve_fused(None)
    with pytest.raises(ValueError, match="fused 'yes' is unknown"):
        ops.resolve_fused("yes")


def test_what_was_chosen_is_reported(monkeypatch):
    rows = Problem(CASES["rows-linear"], np.float32)
    with ops.recorded() as calls:
        rows.apply("llvm", rows.params, rows.arrays)
    assert calls[-1].fused == "apart: fewer than 256 rows"
    with ops.recorded() as calls:
        problem = always(CASES["rows-linear"], np.float32)
        problem.apply("llvm", problem.params, problem.arrays)
    assert calls[-1].fused == "fused: 'always' was asked for"
    of_linear = {"target": "none", "backend": "llvm", "linear": "8x0e"}
    few, many = (show.show("8x0e", "0e", num_edges=n, **of_linear) for n in (255, 256))
    assert "\nwith a Linear to 8x0e, apart: fewer than 256 rows\n" in few
    assert "\nwith a Linear to 8x0e, fused: 256 rows or more\n" in many
    with pytest.raises(ValueError, match="fused='always' cannot be done here"):
        show.show("8x0e", "0e", fused="always", **of_linear | {"backend": "xla"})
    monkeypatch.setenv("EQFUSE_FUSED", "never")
    assert "None is 'never'" in info()
    for line in ops.fused_table():
        assert line in info()


@pytest.mark.parametrize("name", ["nequip", "allegro", "mace", "tetris"])
def test_models_pass_it_to_their_ops(name):
    fields = {} if name == "tetris" else {"num_species": 1, "avg_num_neighbors": 2.0, "layers": 1}
    module = models.build(name, backend="llvm", fused="never", **fields)
    edges = ops.Edges.from_arrays(np.array([0, 1]), np.array([1, 0]), 2)
    vectors = jnp.asarray([[1.0, 0, 0], [-1.0, 0, 0]])
    with ops.recorded() as calls:
        jax.eval_shape(
            lambda: module.init(jax.random.key(0), vectors, jnp.zeros(2, jnp.int32), edges)
        )
    chosen = {op.fused for op in calls if op.kind.startswith("tensor_product_linear")}
    assert chosen == {"apart: fused='never' was asked for"}


def test_auto_on_a_graph_on_a_gpu_fuses_gated_ops_of_few_nodes_and_small_matrices(monkeypatch):
    pytest.importorskip("triton")
    case = CASES["graph-gate-skip"]
    problem = Problem(case, np.float32)

    def chosen(problem):
        with ops.recorded() as calls:
            jax.eval_shape(lambda: problem.apply("triton", problem.params, problem.arrays).array)
        return calls[-1].fused.partition(":")[0]

    assert chosen(problem) == "fused"
    assert chosen(Problem(CASES["graph-linear"], np.float32)) == "apart"
    assert chosen(Problem(case, jnp.bfloat16)) == "apart"
    with monkeypatch.context() as patch:
        patch.setattr(choice, "FEW_NODES", 4)
        assert chosen(problem) == "apart"
    elements = sum(p.size for p in jax.tree.leaves(problem.params))
    for light, expected in ((5 * 4 * elements, "fused"), (5 * 4 * elements - 1, "apart")):
        monkeypatch.setattr(choice, "LIGHT", light)
        assert chosen(problem) == expected
