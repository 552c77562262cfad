"""Linears of Flax, Haiku and Equinox: e3nn's parameters and results."""

import functools

import e3nn_jax as e3nn
import jax
import jax.numpy as jnp
import pytest

from eqfuse import ops
from tests.child import run_python
from tests.ops.layers import LINEARS, SETS, Linear
from tests.ops.parity import along_random_directions, assert_close

X = e3nn.Irreps(Linear.irreps)
EQUINOX = {
    "plain": {},
    "forced": {},
    "indexed": {"linear_type": "indexed"},
    "channels": {},
    "weights": {"linear_type": "mixed", "weights_dim": 4},
    "per-channel": {"linear_type": "mixed_per_channel", "weights_dim": 4, "channel_in": SETS},
}
"""Options of the Linear of Equinox, beside those that all frameworks have."""


@pytest.fixture(autouse=True)
def _on_xla(x64, monkeypatch):
    monkeypatch.setenv("EQFUSE_BACKEND", "xla")


def operands_of(case: Linear):
    return case.arguments(*map(jnp.asarray, case.operands()[case.num_parameters :]))


def assert_same(found, expected):
    """Compare trees at the rounding of float64."""
    assert_close(found, expected, 1e-12, least=1.0)


def assert_agree(case: Linear, function, ours, theirs):
    """Compare values and gradients of `function(module)`, a function of parameters."""

    def results(module, params):
        return along_random_directions(function(module), params, orders=("value", "vjp"))

    with ops.recorded() as calls:
        found = results(*ours)
    assert {call.backend for call in calls} == {"e3nn" if case.by_e3nn else "xla"}
    expected = results(*theirs)
    assert_same(found["value"], expected["value"])
    assert_same(*(jax.tree.leaves(of["vjp"]) for of in (found, expected)))


@pytest.mark.parametrize(
    ("name", "framework"),
    # initializers of Haiku are others
    [*((name, "flax") for name in LINEARS), *((n, "haiku") for n in LINEARS if n != "initializer")],
)
def test_linear_is_e3nns(name, framework):
    module, case = pytest.importorskip(framework), LINEARS[name]
    operands = operands_of(case)

    def network(lib):
        make = functools.partial(lib.Linear, Linear.out, **dict(case.options))
        if framework == "flax":
            return make()
        return module.without_apply_rng(module.transform(lambda *o: make()(*o)))

    pair = (ops, e3nn.flax) if framework == "flax" else (ops.haiku, e3nn.haiku)
    ours, theirs = map(network, pair)
    params = theirs.init(jax.random.key(0), *operands)
    assert_close(ours.init(jax.random.key(0), *operands), params, 0)
    assert_agree(case, lambda n: lambda p: n.apply(p, *operands), (ours, params), (theirs, params))


@pytest.mark.parametrize("name", EQUINOX)
def test_equinox_linear_is_e3nns(name):
    eqx, case = pytest.importorskip("equinox"), LINEARS[name]
    operands = operands_of(case)
    if name == "channels":  # e3nn's has them on the result alone
        operands = [operands[0][:, 0]]
    options = dict(case.options) | EQUINOX[name]
    options |= {"irreps_in": X, "irreps_out": Linear.out, "input_dtype": jnp.float64}

    theirs = e3nn.equinox.Linear(key=jax.random.key(0), **options)
    ours = ops.equinox.Linear(key=jax.random.key(0), **options)
    assert_same(ours._weights, theirs._weights)
    pairs = (eqx.partition(module, eqx.is_array)[::-1] for module in (ours, theirs))
    assert_agree(case, lambda rest: lambda arrays: eqx.combine(arrays, rest)(*operands), *pairs)


def test_errors_are_e3nns():
    pytest.importorskip("equinox")
    module = ops.equinox.Linear(irreps_in=X, irreps_out=Linear.out, key=jax.random.key(0))
    with pytest.raises(ValueError, match="do not match the expected irreps"):
        module(e3nn.zeros("2x1o", (5,)))
    with pytest.raises(AssertionError, match="cannot be provided when 'linear_type' is 'vanilla'"):
        module(jnp.ones((5, 4)), e3nn.zeros(X, (5,)))


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
