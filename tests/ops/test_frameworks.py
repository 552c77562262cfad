"""`ops.haiku` and `ops.equinox`: e3nn's parameters and results."""

import functools

import e3nn_jax as e3nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from eqfuse import ops
from tests.child import run_python
from tests.ops.parity import assert_close

NODES, EDGES, CHANNELS = 5, 9, 3
X, Y, OUT = e3nn.Irreps("4x0e+3x1o"), e3nn.Irreps("0e+1o"), e3nn.Irreps("5x0e+2x1o+2e")
RNG = np.random.default_rng(0)
SENDERS, RECEIVERS = RNG.integers(0, NODES, (2, EDGES))
INDEX = np.array([0, 1, 2, 1, 0])

# options of the Linear in Haiku, those of Equinox besides, leading axes of x, the first operand
HAIKU = {
    "vanilla": ({}, (NODES,), None),
    "biases": ({"biases": True, "path_normalization": "path"}, (NODES,), None),
    "force": ({"force_irreps_out": True, "gradient_normalization": "element"}, (NODES,), None),
    "channels": ({"channel_out": 2}, (NODES, CHANNELS), None),
    "indexed": ({"num_indexed_weights": 3}, (NODES,), INDEX),
    "mixed": ({}, (NODES,), RNG.normal(size=(NODES, 4))),
    "per channel": ({"weights_per_channel": True}, (NODES, CHANNELS), RNG.normal(size=(NODES, 4))),
}
EQUINOX = {
    "channels": {},
    "indexed": {"linear_type": "indexed"},
    "mixed": {"linear_type": "mixed", "weights_dim": 4},
    "per channel": {"linear_type": "mixed_per_channel", "weights_dim": 4, "channel_in": CHANNELS},
}
OF_E3NN = ("channels", "mixed", "per channel")
"""Those that e3nn's Linear itself computes."""


@pytest.fixture(autouse=True)
def _on_xla(x64, monkeypatch):
    monkeypatch.setenv("EQFUSE_BACKEND", "xla")


def operands_of(name):
    options, shape, first = HAIKU[name]
    x = e3nn.normal(X, jax.random.key(1), shape, dtype=jnp.float64)
    return options, ([x] if first is None else [jnp.asarray(first), x])


same = functools.partial(assert_close, tolerance=1e-12, least=1.0)
"""Equal trees of equal arrays, at the rounding of float64."""


def with_gradients(function, params):
    """Return the result and the gradients of the parameters for a random cotangent."""
    out = function(params)
    cotangent = np.random.default_rng(2).normal(size=out.shape)
    return out, jax.grad(lambda p: jnp.sum(function(p).array * cotangent))(params)


def assert_agree(name, results, ours, theirs):
    """Compare the results of two modules, and what computes ours."""
    with ops.recorded() as calls:
        found = results(ours)
    assert {call.backend for call in calls} == {"e3nn" if name in OF_E3NN else "xla"}
    same(found, results(theirs))


@pytest.mark.parametrize("name", HAIKU)
def test_haiku_linear_is_e3nns(name):
    hk = pytest.importorskip("haiku")
    options, operands = operands_of(name)

    def network(cls):
        f = lambda *o: cls(OUT, **options)(*o)  # noqa: E731
        return hk.without_apply_rng(hk.transform(f))

    ours, theirs = network(ops.haiku.Linear), network(e3nn.haiku.Linear)
    params = theirs.init(jax.random.key(0), *operands)
    same(ours.init(jax.random.key(0), *operands), params)
    assert_agree(
        name, lambda n: with_gradients(lambda p: n.apply(p, *operands), params), ours, theirs
    )


@pytest.mark.parametrize("name", HAIKU)
def test_equinox_linear_is_e3nns(name):
    eqx = pytest.importorskip("equinox")
    options, operands = operands_of(name)
    if name == "channels":  # e3nn's has them on the result alone
        operands = [operands[0][:, 0]]
    options = options | EQUINOX.get(name, {})
    options |= {"irreps_in": X, "irreps_out": OUT, "input_dtype": jnp.float64}

    theirs = e3nn.equinox.Linear(key=jax.random.key(0), **options)
    ours = ops.equinox.Linear(key=jax.random.key(0), **options)
    same(ours._weights, theirs._weights)

    def results(module):
        arrays, rest = eqx.partition(module, eqx.is_array)
        out, grad = with_gradients(lambda a: eqx.combine(a, rest)(*operands), arrays)
        return out, grad._weights

    assert_agree(name, results, ours, theirs)


def test_errors_are_e3nns():
    pytest.importorskip("equinox")
    module = ops.equinox.Linear(irreps_in=X, irreps_out=OUT, key=jax.random.key(0))
    with pytest.raises(ValueError, match="do not match the expected irreps"):
        module(e3nn.zeros("2x1o", (NODES,)))
    with pytest.raises(AssertionError, match="cannot be provided when 'linear_type' is 'vanilla'"):
        module(jnp.ones((NODES, 4)), e3nn.zeros(X, (NODES,)))


def test_frameworks_are_imported_only_where_they_are_asked_for():
    code = (
        "import sys; sys.modules['haiku'] = sys.modules['equinox'] = None\n"
        "from eqfuse import ops\n"
        "for name in ('haiku', 'equinox'):\n"
        "    try: getattr(ops, name)\n"
        "    except ImportError as error: print(error)\n"
    )
    assert run_python("-c", code).stdout.splitlines() == [
        "eqfuse.ops.haiku needs dm-haiku: pip install dm-haiku",
        "eqfuse.ops.equinox needs equinox: pip install equinox",
    ]
