"""`ops.patched` and `ops.fuse(patch=True)`: unchanged code runs on our ops."""

import contextlib
import threading
import types

import e3nn_jax as e3nn
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from e3nn_jax import tensor_product
from e3nn_jax.flax import Linear

from eqfuse import ops
from tests.ops.parity import UNOPTIMIZED

SENDERS, RECEIVERS = np.array([0, 1, 2, 0, 3]), np.array([1, 2, 0, 3, 0])
OWN = {
    "tensor_product": e3nn.tensor_product,
    "flax": e3nn.flax.Linear,
    "haiku": getattr(e3nn.haiku, "Linear", None),
    "equinox": getattr(e3nn.equinox, "Linear", None),
}


def layer(linear, x, y):
    m = e3nn.tensor_product(x[SENDERS], y, filter_ir_out="0e+1o")
    return e3nn.gate(linear(e3nn.scatter_sum(m, dst=RECEIVERS, output_size=4)))


class Network(nn.Module):
    @nn.compact
    def __call__(self, x, y):
        return layer(e3nn.flax.Linear("3x0e+2x1o"), x, y)


def of_flax():
    return Network().init, Network().apply


def of_haiku():
    hk = pytest.importorskip("haiku")
    network = hk.without_apply_rng(
        hk.transform(lambda x, y: layer(e3nn.haiku.Linear("3x0e+2x1o"), x, y))
    )
    return network.init, network.apply


def of_equinox():
    pytest.importorskip("equinox")

    def init(key, x, y):
        with ops.patched():
            irreps = e3nn.tensor_product(x.irreps, y.irreps, filter_ir_out="0e+1o")
            return e3nn.equinox.Linear(irreps_in=irreps, irreps_out="3x0e+2x1o", key=key)

    return init, lambda linear, x, y: layer(linear, x, y)


def operands():
    x = e3nn.normal("2x0e+2x1o", jax.random.key(0), (4,), dtype=jnp.float64)
    return x, e3nn.normal("0e+1o", jax.random.key(1), (5,), dtype=jnp.float64)


def assert_e3nns_own():
    assert e3nn.tensor_product is OWN["tensor_product"]
    for name in ("flax", "haiku", "equinox"):
        assert getattr(getattr(e3nn, name), "Linear", None) is OWN[name]
    assert type(e3nn) is type(e3nn.flax) is types.ModuleType


@pytest.mark.parametrize("framework", [of_flax, of_haiku, of_equinox])
def test_code_without_a_changed_line_is_fused(framework):
    with jax.enable_x64(True):
        init, apply = framework()
        if framework is not of_equinox:
            init = jax.jit(init, compiler_options=UNOPTIMIZED)
        params = init(jax.random.key(2), *operands())
        fused = ops.fuse(apply, patch=True)
        jaxpr = str(jax.make_jaxpr(lambda p: fused(p, *operands()).array)(params))
        assert "eqfuse_fused" in jaxpr or "out[receiver" in jaxpr
        assert_e3nns_own()
        if framework is of_equinox:  # its Linear is ours already: e3nn's by the same key
            options = {"irreps_in": params.irreps_in, "irreps_out": "3x0e+2x1o"}
            expected = layer(OWN["equinox"](**options, key=jax.random.key(2)), *operands())
        else:
            expected = jax.jit(apply, compiler_options=UNOPTIMIZED)(params, *operands())
        found = jax.jit(fused)(params, *operands())
        assert found.irreps == expected.irreps
        np.testing.assert_allclose(found.array, expected.array, rtol=0, atol=1e-14)


def test_names_are_replaced_in_nested_blocks_and_restored_after_errors():
    with contextlib.suppress(ZeroDivisionError), ops.patched():
        with ops.patched():
            assert e3nn.tensor_product is ops.tensor_product
        assert (e3nn.tensor_product, e3nn.flax.Linear) == (ops.tensor_product, ops.Linear)
        if OWN["haiku"]:
            assert e3nn.haiku.Linear is ops.haiku.Linear
        from e3nn_jax import tensor_product as imported_within

        assert imported_within is ops.tensor_product
        assert ops.tensor_product("1o", "1o", backend="e3nn") == "0e+1e+2e"  # calls e3nn's own
        raise ZeroDivisionError
    assert_e3nns_own()


def test_other_threads_see_e3nns_own():
    inside, seen = threading.Barrier(2), []

    def other():
        inside.wait()
        seen.extend([e3nn.tensor_product, e3nn.flax.Linear])
        with ops.patched():
            seen.append(e3nn.tensor_product)
            inside.wait()
            inside.wait()  # the first thread has left
            seen.append(e3nn.tensor_product)

    thread = threading.Thread(target=other)
    thread.start()
    with ops.patched():
        inside.wait()
        inside.wait()
    assert e3nn.tensor_product is OWN["tensor_product"]
    inside.wait()
    thread.join()
    assert seen == [OWN["tensor_product"], OWN["flax"], ops.tensor_product, ops.tensor_product]
    assert_e3nns_own()


def test_a_function_under_jit_is_traced_again():
    @jax.jit
    def product(x, y):
        return e3nn.tensor_product(x, y).array

    x, y = e3nn.normal("0e+1o", jax.random.key(0), (2, 3))

    def has_our_product():
        return "eqfuse_form" in str(jax.make_jaxpr(product)(x, y))

    assert not has_our_product()
    with ops.patched():
        assert has_our_product()
    assert not has_our_product()


@pytest.mark.parametrize(
    ("function", "name"),
    [
        (lambda x: tensor_product(x, x), "from e3nn_jax import tensor_product"),
        (jax.vmap(lambda x: tensor_product(x, x)), "from e3nn_jax import tensor_product"),
        (lambda x: Linear("1o").init(jax.random.key(0), x), "from e3nn_jax.flax import Linear"),
    ],
)
def test_a_name_that_was_imported_before_is_refused(function, name):
    """Else nothing would be replaced, and nobody would know."""
    x = e3nn.normal("0e+1o", jax.random.key(0), (3,))
    with pytest.raises(RuntimeError, match=rf"test_patch.py:\d+ calls .* was imported by `{name}`"):
        ops.fuse(function, patch=True)(x)
    assert_e3nns_own()
    function(x)  # outside it is e3nn's own


def test_a_linear_of_equinox_that_was_made_before_is_refused():
    pytest.importorskip("equinox")
    linear = e3nn.equinox.Linear(irreps_in="1o", irreps_out="1o", key=jax.random.key(0))
    with pytest.raises(RuntimeError, match="make networks of Equinox within"):
        ops.fuse(linear, patch=True)(e3nn.normal("1o", jax.random.key(0), (3,)))
