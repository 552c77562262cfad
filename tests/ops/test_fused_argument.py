"""The argument `fused`: what it says, and what it refuses. Results: test_fused.py."""

import e3nn_jax as e3nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from eqfuse import models, ops
from eqfuse.ops.info import info
from eqfuse.ops.primitives import choice
from tests.ops.cases import GRAPH
from tests.ops.layers import LAYERS as CASES
from tests.ops.layers import NODES, Layer, bare

NAMED, FLOAT32 = CASES["rows-linear"], jnp.float32
MANY = bare("257x0e", "0e", "2x0e")
REFUSED = {
    "xla": (NAMED, "xla", FLOAT32, "computes op by op"),
    "e3nn": (NAMED, "e3nn", FLOAT32, "computes op by op"),
    "bfloat16": (NAMED, "llvm", jnp.bfloat16, "of float32 and float64"),
    "a sum by node": (CASES["graph-small"], "llvm", FLOAT32, "this product is summed by node"),
    "channels": (MANY, "triton", FLOAT32, "at most 256 channels, and these are 257"),
    "an activation": (CASES["rows-erf"], "llvm", FLOAT32, "kernels cannot compute an activation"),
}


def shape_of(case: Layer, backend: str, fused: str | None = None, dtype=FLOAT32):
    """Trace a case."""
    operands = [jax.ShapeDtypeStruct(shape, dtype) for shape in case.shapes()[:-1]]
    return jax.eval_shape(case.function(backend, fused), *operands)


@pytest.mark.parametrize("name", REFUSED)
def test_always_is_refused_where_there_is_no_such_kernel(name):
    case, backend, dtype, reason = REFUSED[name]
    if backend == "triton":
        pytest.importorskip("triton")
    with pytest.raises(ValueError, match=f"fused='always' cannot be done here: .*{reason}"):
        shape_of(case, backend, "always", dtype)


def test_always_is_refused_where_the_sums_of_a_node_are_several_kernels():
    """With l up to 3 and both parities, they are two kernels on a GPU."""
    pytest.importorskip("triton")
    irreps = "8x0e+8x0o+8x1e+8x1o+8x2e+8x2o+8x3e+8x3o"
    edges = ops.Edges.from_arrays(np.array([0, 1]), np.array([1, 0]), 2)
    x = e3nn.IrrepsArray(irreps, jnp.ones((2, e3nn.Irreps(irreps).dim), jnp.float32))
    y = e3nn.IrrepsArray("0e+1o+2e+3o", jnp.ones((2, 16), jnp.float32))
    module = ops.TensorProductLinear(irreps, backend="triton", fused="always")
    with pytest.raises(ValueError, match=r"the sums of a node are \d kernels"):
        jax.eval_shape(lambda: module.init(jax.random.key(0), x, y, edges=edges))


def test_never_on_a_graph_gathers_and_sums(x64):
    case = GRAPH["mul-5"]
    x, y, w = case.operands()

    def product(fused):
        operands = *case.irreps_arrays(x, y), w, case.graph.edges()
        return ops.graph_tensor_product(*operands, backend="llvm", fused=fused).array

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


def chosen(*arguments) -> str:
    with ops.recorded() as calls:
        shape_of(*arguments)
    return calls[-1].fused


def test_fused_choice_is_reported(monkeypatch):
    assert chosen(NAMED, "llvm") == "apart: fewer than 256 rows"
    assert chosen(NAMED, "llvm", "always") == "fused: 'always' was asked for"
    monkeypatch.setattr(choice, "FEWEST_ROWS", NODES)
    assert chosen(NAMED, "llvm") == f"fused: {NODES} rows or more"
    monkeypatch.setenv("EQFUSE_FUSED", "never")
    assert "None is 'never'" in info()


@pytest.mark.parametrize("name", ["nequip", "allegro", "mace"])
def test_models_pass_it_to_their_ops(name):
    fields = {"num_species": 1, "avg_num_neighbors": 2.0, "layers": 1}
    fields |= {"irreps_out": "1o"} if name == "allegro" else {}  # its energy needs no Linear
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

    def assert_chosen(expected, case=case, dtype=FLOAT32):
        assert chosen(case, "triton", None, dtype).partition(":")[0] == expected

    assert_chosen("fused")
    assert_chosen("apart", CASES["graph-linear"])
    assert_chosen("apart", dtype=jnp.bfloat16)
    with monkeypatch.context() as patch:
        patch.setattr(choice, "FEW_NODES", NODES - 1)
        assert_chosen("apart")
    of_weights = NODES * 4 * sum(p.size for p in jax.tree.leaves(case.parameters))
    for light, expected in ((of_weights, "fused"), (of_weights - 1, "apart")):
        monkeypatch.setattr(choice, "LIGHT", light)
        assert_chosen(expected)
