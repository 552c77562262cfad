"""TensorProductLinear and TensorProductLinearGate as modules. Results: test_fused.py."""

import pathlib
import re
import runpy

import e3nn_jax as e3nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from eqfuse import ops
from eqfuse.ops import TensorProductLinear, TensorProductLinearGate
from tests.ops import tiers
from tests.ops.fused_cases import CASES, NODES, Problem


def test_no_rows_and_no_channels_in_common():
    """Zero rows give zero rows; what the Linear cannot reach is zero."""
    for backend in ("xla", "llvm", "triton"):
        module = TensorProductLinear("3x0e+2x2o", force_irreps_out=True, backend=backend)
        x, y = (
            e3nn.normal("2x0e", jax.random.key(0), (4,)),
            e3nn.normal("0e", jax.random.key(1), (4,)),
        )
        params = module.init(jax.random.key(2), x, y)
        out = module.apply(params, x, y)
        assert not out.filter(keep="2o").array.any()
        assert out.filter(keep="0e").array.any()
        assert module.apply(params, x[:0], y[:0]).shape == (0, 13)


@pytest.mark.parametrize("backend", tiers.KERNELS)
@pytest.mark.parametrize("normalization", tiers.slow_unless(["norm"], "component", "norm", "none"))
def test_normalizations_filters_and_broadcasting(backend, normalization):
    x = e3nn.normal("3x0e+2x1o", jax.random.key(0), (2, 1))
    y = e3nn.normal("0e+1o", jax.random.key(1), (3,))
    options = {"irrep_normalization": normalization, "filter_ir_out": ["0e", "1o", "1e"]}
    results = []
    for b in (backend, "e3nn"):
        module = TensorProductLinear("4x0e+2x1o", backend=b, **options)
        params = module.init(jax.random.key(2), x, y)
        results.append(module.apply(params, x, y).array)
    assert results[0].shape == (2, 3, 10)
    np.testing.assert_allclose(*results, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("backend", ["llvm", "e3nn"])
def test_split_gives_an_array_for_each_part(backend):
    parts = ("4x0e", "", "3x0e+1x1o", "2x1o+4x1e")
    problem = Problem(CASES["rows-split"], np.float32)
    module = problem.module(backend).clone(split=parts)
    found = module.apply(problem.params, *problem.arguments(problem.arrays))
    whole = problem.apply("e3nn", problem.params, problem.arrays).array
    expected = np.split(whole, [4, 4, 10], axis=1)
    assert [a.irreps for a in found] == [e3nn.Irreps(part) for part in parts]
    for a, b in zip(found, expected, strict=True):
        np.testing.assert_allclose(a.array, b, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("split", [None, ("",)])
def test_gradients_of_an_empty_output_are_zero(split):
    def total(x):
        module = TensorProductLinear("5x3e", split=split, backend="xla")
        y = e3nn.IrrepsArray("0e+1o", x[:, :4])
        out = module.apply({}, e3nn.IrrepsArray("4x0e+3x1o", x), y)
        return sum(jnp.sum(a) for a in jax.tree.leaves(out))

    np.testing.assert_array_equal(jax.grad(total)(jnp.ones((4, 13))), 0)


@pytest.mark.parametrize("backend", tiers.NATIVELY)
def test_without_edges_only_the_skip_is_left(backend):
    problem = Problem(CASES["graph-gate-skip"], np.float32)
    problem.edges = ops.Edges.from_arrays([], [], NODES)
    problem.arrays |= {n: problem.arrays[n][:0] for n in ("y", "weights")}
    skip = e3nn.IrrepsArray(problem.case.out, problem.arrays["skip"])
    got = problem.apply(backend, problem.params, problem.arrays).array
    np.testing.assert_allclose(got, e3nn.gate(skip).array, rtol=1e-5, atol=1e-6)


def test_errors_of_split():
    problem = Problem(CASES["rows-linear"], np.float32)
    x, y, *_ = problem.arguments(problem.arrays)
    skip, two = e3nn.IrrepsArray("3x0e", jnp.zeros((NODES, 3))), ("2x0e", "1x0e")
    for out, split, more, cls, message in (
        ("3x0e", two, {"skip": skip}, TensorProductLinear, "without a gate and without a skip"),
        ("3x0e", two, {}, TensorProductLinearGate, "without a gate and without a skip"),
        ("4x0e", two, {}, TensorProductLinear, r"split \[2x0e, 1x0e\] must be .* output, 4x0e"),
        ("3x0e", "3x0e", {}, TensorProductLinear, "split needs a tuple of irreps, got '3x0e'"),
    ):
        with pytest.raises(ValueError, match=message):
            cls(out, split=split, backend="xla").init(jax.random.key(0), x, y, **more)


def test_errors():
    problem = Problem(CASES["graph-gate-skip"], np.float32)
    x, y, weights, edges, _, skip = problem.arguments(problem.arrays)

    def init(*operands, **options):
        module = TensorProductLinear("3x0e", backend="xla", **options)
        return module.init(jax.random.key(0), *operands)

    with pytest.raises(ValueError, match=r"skip must be \[5, 3x0e\]"):
        init(x, y, weights, edges, None, skip, filter_ir_out=["0e", "0o", "1o"])
    with pytest.raises(ValueError, match="give edges as well"):
        init(x, y, weights)
    with pytest.raises(ValueError, match="index is needed with num_indexed_weights"):
        init(x, x, None, None, jnp.zeros(NODES, int))
    with pytest.raises(ValueError, match="input_precision 'half' is unknown"):
        init(x, x, input_precision="half")


@pytest.mark.slow
def test_the_example_of_a_fused_layer_runs(capsys):
    """With e3nn's parameters; its largest difference from e3nn is of float32."""
    example = pathlib.Path(__file__).parents[2] / "examples" / "fuse_a_layer.py"
    runpy.run_path(str(example))["main"]()
    said = capsys.readouterr().out
    found = re.search(r"32x0e\+16x1o, largest difference (\S+)", said)
    assert float(found[1]) < 1e-4, said
