"""What runs is what was asked for; only None may choose."""

import importlib.util

import e3nn_jax as e3nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from eqfuse import ops
from eqfuse.ops import _backend
from eqfuse.ops._backend import BACKENDS, Op, availability, recorded, resolve, resolve_here
from eqfuse.ops.info import info
from tests.child import run_python


@pytest.fixture
def machine(monkeypatch):
    """Return a machine with or without a GPU, triton, and llvmlite."""

    def make(gpu: bool, triton: bool, llvmlite: bool = True):
        find_spec = importlib.util.find_spec
        here = {"triton": triton, "llvmlite": llvmlite}
        monkeypatch.delenv("EQFUSE_BACKEND", raising=False)
        monkeypatch.setattr(jax, "default_backend", lambda: "gpu" if gpu else "cpu")
        monkeypatch.setattr(
            importlib.util,
            "find_spec",
            lambda name: (object() if here[name] else None) if name in here else find_spec(name),
        )
        monkeypatch.setattr("jaxlib.gpu_triton.TritonKernel", object, raising=False)
        _backend._warn_once.cache_clear()

    return make


def test_calls_are_recorded_with_what_runs_them_and_why(machine):
    x = e3nn.IrrepsArray("0e + 1o", jnp.ones((2, 4)))
    machine(gpu=False, triton=False)
    with recorded() as calls:
        with recorded() as inner:
            ops.tensor_product(x, x, backend="xla")
        ops.elementwise_tensor_product(x, x)
        ops.tensor_product(x.irreps, x.irreps)  # computes nothing
        resolve("xla")
    ops.tensor_product(x, x, backend="xla")
    assert inner == [Op("tensor_product", "xla", "not llvm: backend 'xla' was asked for")]
    assert calls == [Op("elementwise_tensor_product", "llvm", "")]
    machine(gpu=False, triton=False, llvmlite=False)
    with recorded() as calls, pytest.warns(UserWarning, match="not 'llvm'"):
        ops.tensor_product(x, x)
    [call] = calls
    assert call.backend == "xla"
    assert call.why.startswith("not llvm: the package llvmlite")


CHOICES = [
    ({"gpu": True, "triton": True}, "triton", ""),
    ({"gpu": False, "triton": True}, "llvm", ""),
    ({"gpu": True, "triton": False}, "xla", "not 'triton': the package triton is not installed"),
    ({"gpu": False, "triton": True, "llvmlite": False}, "xla", "not 'llvm': the package llvmlite"),
]


@pytest.mark.parametrize(("here", "backend", "warning"), CHOICES)
def test_none_chooses_by_device_and_says_once_what_is_missing(machine, here, backend, warning):
    machine(**here)
    if warning:
        with pytest.warns(UserWarning, match=warning):
            assert resolve(None) == backend
    assert resolve(None) == backend  # a second warning would be an error


def test_the_variable_says_what_none_means(machine, monkeypatch):
    machine(gpu=True, triton=True)
    monkeypatch.setenv("EQFUSE_BACKEND", "e3nn")
    assert resolve(None) == "e3nn"
    assert resolve("xla") == "xla"
    monkeypatch.setenv("EQFUSE_BACKEND", "cuda")
    with pytest.raises(ValueError, match="EQFUSE_BACKEND 'cuda' is unknown; choose one of triton"):
        resolve(None)


def test_a_named_backend_runs_or_is_an_error(machine):
    machine(gpu=False, triton=False)
    assert [resolve(name) for name in ("xla", "e3nn")] == ["xla", "e3nn"]
    with pytest.raises(ValueError, match=r"'triton' cannot run here: .*install eqfuse"):
        resolve("triton")
    machine(gpu=False, triton=True, llvmlite=False)
    with pytest.raises(ValueError, match=r"'llvm' cannot run here: .*pip install llvmlite"):
        resolve("llvm")
    with pytest.raises(ValueError, match="'pallas' is unknown; choose one of triton, "):
        resolve("pallas")
    assert resolve_here("xla") == "xla"
    with pytest.raises(ValueError, match="backend 'triton' cannot run here: JAX has no GPU"):
        resolve_here("triton")


def test_triton_on_a_cpu_is_refused():
    """It never falls back. The other tests interpret its kernels, so in a process of its own."""
    pytest.importorskip("triton")
    code = (
        "import e3nn_jax as e3nn, jax; from eqfuse import ops; x = e3nn.normal('0e', "
        "jax.random.key(0)); ops.tensor_product(x, x, backend='triton')"
    )
    done = run_python("-c", code, check=False)
    assert "ValueError: backend 'triton' runs on a GPU" in done.stderr


X, Y, ROWS = "2x0e+2x1o", "0e+1o", 3
ENDS = np.array([0, 1, 2]), np.array([1, 2, 0])
EDGES = ops.Edges.from_arrays(*ENDS, ROWS)


def applied(module, *operands):
    return module.init_with_output(jax.random.key(2), *operands)[0]


def real(y):
    return e3nn.IrrepsArray(y.irreps, y.array.real)


def tiled(y):
    """Return weights of the 12 irreps of a product of x and y."""
    return jnp.tile(y.array, 3)


OPS = {
    "tensor_product": lambda x, y, **b: ops.tensor_product(x, real(y), **b),
    "elementwise_tensor_product": lambda x, y, **b: ops.elementwise_tensor_product(x, x, **b),
    "channelwise_tensor_product": lambda x, y, **b: ops.channelwise_tensor_product(x, x, **b),
    "graph_tensor_product": lambda x, y, **b: ops.graph_tensor_product(x, y, tiled(y), EDGES, **b),
    "symmetric_contraction": lambda x, y, **b: ops.symmetric_contraction(
        x, jnp.ones((1, 3, 2)), irreps_out="2x0e", correlation=2, **b
    ),
    "linear": lambda x, y, **b: applied(ops.Linear(X, **b), x),
    "tensor_product_linear": lambda x, y, **b: applied(ops.TensorProductLinear(X, **b), x, y),
    "tensor_product_linear_gate": lambda x, y, **b: applied(
        ops.TensorProductLinearGate(X, **b), x, y
    ),
    "grouped_dense": lambda x, y, **b: ops.grouped_dense(x.array, [x.array.T], **b),
    "interpolate": lambda x, y, **b: ops.interpolate(
        [jnp.ones((2, 6, 4))], ops.group_by_interval(EDGES.senders % 2, 2), jnp.ones((3, 6)), **b
    ),
}
OF_E3NN = {
    "tensor_product": lambda x, y: e3nn.tensor_product(x, real(y)),
    "elementwise_tensor_product": lambda x, y: e3nn.elementwise_tensor_product(x, x),
    "graph_tensor_product": lambda x, y: e3nn.scatter_sum(
        e3nn.tensor_product(x[ENDS[0]], y) * tiled(y), dst=ENDS[1], output_size=ROWS
    ),
    "linear": lambda x, y: applied(e3nn.flax.Linear(X), x),
    "tensor_product_linear": lambda x, y: applied(e3nn.flax.Linear(X), e3nn.tensor_product(x, y)),
    "grouped_dense": lambda x, y: x.array @ x.array.T,
}
"""What e3nn-jax makes of complex operands, where it has the op."""


@pytest.mark.parametrize("name", OPS)
def test_every_op_runs_on_its_backend(name):
    x, y = (e3nn.normal(irreps, jax.random.key(0), (ROWS,)) for irreps in (X, Y))
    for backend in ("xla", "e3nn"):
        with recorded() as found:
            jax.eval_shape(lambda b=backend: OPS[name](x, y, backend=b))
        assert [(f.kind, f.backend) for f in found] == [(name, backend)]


def complex_normal(irreps, seed):
    parts = jax.random.normal(jax.random.key(seed), (2, ROWS, e3nn.Irreps(irreps).dim))
    return e3nn.IrrepsArray(irreps, parts[0] + 1j * parts[1])


@pytest.mark.parametrize("name", OF_E3NN)
def test_complex_operands(name, monkeypatch):
    """None runs e3nn's, and says why; a backend asked for by name is refused."""
    monkeypatch.delenv("EQFUSE_BACKEND", raising=False)
    operands, ours = (complex_normal(X, 0), complex_normal(Y, 1)), OPS[name]
    expected = OF_E3NN[name](*operands)
    with recorded() as calls:
        results = [ours(*operands, backend=backend) for backend in (None, "e3nn")]
    assert {call.backend for call in calls} == {"e3nn"}
    assert "complex operands are computed by backend 'e3nn' alone" in calls[0].why
    for found in results:
        assert found.dtype == jnp.complex64
        found, exact = (getattr(a, "array", a) for a in (found, expected))
        np.testing.assert_allclose(found, exact, atol=1e-5)
    for backend in ("xla", "llvm"):
        with pytest.raises(ValueError, match=f"backend '{backend}' is for real numbers: complex"):
            ours(*operands, backend=backend)


def test_complex_parameters(monkeypatch):
    monkeypatch.delenv("EQFUSE_BACKEND", raising=False)
    module, x = ops.Linear("3x0e+1o"), real(complex_normal(X, 0))
    params = jax.tree.map(lambda p: 1j * p, module.init(jax.random.key(2), x))
    expected = e3nn.flax.Linear("3x0e+1o").apply(params, x)
    np.testing.assert_allclose(module.apply(params, x).array, expected.array, atol=1e-5)


def test_availability_names_a_reason_for_every_backend(machine):
    machine(gpu=False, triton=True)
    report = availability()
    assert tuple(report) == BACKENDS
    assert {name for name, (runs, _) in report.items() if runs} == {"llvm", "xla", "e3nn"}
    assert "no GPU" in report["triton"][1]
    assert all(reason for _, reason in report.values())


def test_info_prints_versions_devices_and_reasons(monkeypatch):
    text = info()
    assert f"jax         {jax.__version__}" in text
    assert f"None picks {resolve(None)!r}" in text
    assert all(f"  {name} " in text for name in BACKENDS)
    assert "cache  " in text
    monkeypatch.setenv("EQFUSE_BACKEND", "xla")
    assert "backend     None picks 'xla', because EQFUSE_BACKEND is set" in info().splitlines()


def test_kernels_multiply_as_jax_is_told(rng):
    """`ops.TF32X3` reaches every op with matmuls; what is given by name holds."""
    x = e3nn.normal("4x0e+4x1o", jax.random.key(0), (5,))
    kernel = jnp.ones((4, 4))

    def precisions(**named):
        def everything(x):
            linear = ops.Linear("4x0e+4x1o", backend="triton", **named)
            product = ops.TensorProductLinear("4x0e", backend="triton", **named)
            y = e3nn.normal("0e", jax.random.key(1), (5,))
            dense = ops.grouped_dense(x.array[:, :4], [kernel], backend="triton")
            init = jax.random.key(0)
            return linear.init_with_output(init, x), product.init_with_output(init, x, y), dense

        found = set()
        for equation in jax.make_jaxpr(everything)(x).eqns:
            form = equation.params.get("form")
            if form is not None and form.has_matrices:
                found.add(form.input_precision)
            if call := equation.params.get("call"):
                found.add(call.fused.linear.linear_form.input_precision)
        return found

    assert precisions() == {"ieee"}
    with jax.default_matmul_precision(ops.TF32X3):
        assert precisions() == {"tf32x3"}
        assert precisions(input_precision="ieee") == {"ieee", "tf32x3"}  # of `grouped_dense`
    with jax.default_matmul_precision("highest"):
        assert precisions(input_precision="tf32") == {"ieee", "tf32"}
