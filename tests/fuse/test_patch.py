"""`ops.patched` and `ops.fuse(patch=True)`: unchanged code runs on our ops."""

import contextlib
import dataclasses
import functools
import importlib
import inspect
import pathlib
import threading
from collections.abc import Callable

import e3nn_jax as e3nn
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from e3nn_jax import tensor_product
from e3nn_jax.flax import Linear

from eqfuse import ops
from eqfuse.fuse.patch import REPLACED
from tests.ops.parity import UNOPTIMIZED

SENDERS, RECEIVERS = np.array([0, 1, 2, 0, 3]), np.array([1, 2, 0, 3, 0])
OWN_LINEAR = getattr(e3nn.equinox, "Linear", None)


def layer(linear, x, y):
    m = e3nn.tensor_product(x[SENDERS], y, filter_ir_out="0e+1o")
    return e3nn.gate(linear(e3nn.scatter_sum(m, dst=RECEIVERS, output_size=4)))


class Network(nn.Module):
    @nn.compact
    def __call__(self, x, y):
        return layer(e3nn.flax.Linear("3x0e+2x1o"), x, y)


def of_flax():
    return Network().init, Network().apply


def transformed(function):
    """Return init and apply of a function with modules of Haiku."""
    hk = pytest.importorskip("haiku")
    return hk.without_apply_rng(hk.transform(function))


def of_haiku():
    return transformed(lambda x, y: layer(e3nn.haiku.Linear("3x0e+2x1o"), x, y))


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


def primitives(function, *args) -> str:
    """Return the trace of a function of IrrepsArrays."""
    return str(jax.make_jaxpr(lambda *a: jax.tree.leaves(function(*a)))(*args))


def is_ours(function, *args) -> bool:
    return "eqfuse" in primitives(function, *args)


def assert_e3nns_own():
    x = e3nn.normal("1o", jax.random.key(0), (2,))
    assert not is_ours(e3nn.tensor_product, x, x)
    assert not is_ours(lambda x: e3nn.flax.Linear("1o").init(jax.random.key(0), x), x)


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
            expected = layer(OWN_LINEAR(**options, key=jax.random.key(2)), *operands())
        else:
            expected = jax.jit(apply, compiler_options=UNOPTIMIZED)(params, *operands())
        found = jax.jit(fused)(params, *operands())
        assert found.irreps == expected.irreps
        np.testing.assert_allclose(found.array, expected.array, rtol=0, atol=1e-14)


def test_nested_blocks_end_together_and_after_errors():
    x = e3nn.normal("1o", jax.random.key(0), (2,))
    with contextlib.suppress(ZeroDivisionError), ops.patched():
        with ops.patched():
            assert is_ours(e3nn.tensor_product, x, x)
        assert is_ours(e3nn.tensor_product, x, x)
        assert not is_ours(lambda x: ops.tensor_product(x, x, backend="e3nn"), x)
        assert not is_ours(ops.Linear("1o", backend="e3nn").init, jax.random.key(0), x)
        assert e3nn.tensor_product("1o", "1o") == "0e+1e+2e"
        raise ZeroDivisionError
    assert_e3nns_own()


def test_other_threads_see_e3nns_own():
    inside, seen = threading.Barrier(2), []
    x = e3nn.normal("1o", jax.random.key(0), (2,))

    def look():
        seen.append(is_ours(e3nn.tensor_product, x, x))

    def other():
        inside.wait()
        look()
        with ops.patched():
            look()
            inside.wait()
            inside.wait()  # the first thread has left
            look()

    thread = threading.Thread(target=other)
    thread.start()
    with ops.patched():
        inside.wait()
        inside.wait()
    assert not is_ours(e3nn.tensor_product, x, x)
    inside.wait()
    thread.join()
    assert seen == [False, True, True]
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


@dataclasses.dataclass
class Layer:
    """Keeps e3nn's names where no attribute of a module holds them."""

    product: Callable = tensor_product
    linear: Callable = Linear

    def __call__(self, x, y):
        return self.linear("3x0e+2x1o").apply(PARAMETERS, self.product(x, y, filter_ir_out="0e+1o"))


class Subclass(Linear):
    def __call__(self, x):
        return 2.0 * super().__call__(x)


class Network2(nn.Module):
    linear: nn.Module = Linear("3x0e+2x1o", name="own")  # made before

    @nn.compact
    def __call__(self, x):
        return self.linear(x)


PARAMETERS = {
    "params": {"w[0,0] 4x0e,3x0e": np.ones((4, 3)), "w[1,1] 4x1o,2x1o": 0.5 * np.ones((4, 2))}
}
MADE = e3nn.FunctionalLinear(e3nn.Irreps("2x0e+2x1o"), e3nn.Irreps("3x0e+2x1o"))
CLOSED_OVER = (lambda product: lambda x, y: product(x, y))(tensor_product)


def of_vmapped_class(x, y):
    linear = nn.vmap(
        Linear, in_axes=0, variable_axes={"params": None}, split_rngs={"params": False}
    )
    return linear("3x0e+2x1o").apply(PARAMETERS, tensor_product(x, y, filter_ir_out="0e+1o"))


def of_a_shared_layer(x, y):
    linear = Linear("3x0e+2x1o").bind(PARAMETERS)
    return linear(tensor_product(x, y, filter_ir_out="0e+1o")) + linear(e3nn.concatenate([x, x]))


def of_functional_linear(x, y):
    weights = [np.arange(6.0).reshape(2, 3), np.ones((2, 2))]
    return e3nn.utils.vmap(lambda x: MADE(weights, x))(x)


def of_flat_weights_and_biases(x, y):
    linear = e3nn.FunctionalLinear(x.irreps, e3nn.Irreps("0e+1o+2e"), biases=[True, False, False])
    return e3nn.utils.vmap(linear, in_axes=(None, 0))(jnp.arange(5.0), x)


@functools.cache
def linear_of_equinox():
    pytest.importorskip("equinox")
    key, irreps = jax.random.key(0), {"irreps_in": "2x1o", "irreps_out": "1o"}
    return e3nn.equinox.Linear(**irreps, key=key, input_dtype=jnp.float64)


WAYS = {
    "name": lambda x, y: tensor_product(x, y),
    "vmapped": jax.vmap(lambda x, y: tensor_product(x, y)),
    "closure": CLOSED_OVER,
    "default_of_a_dataclass": Layer(),
    "partial": functools.partial(tensor_product, filter_ir_out="0e+1o"),
    "subclass": lambda x, y: Subclass("3x0e+2x1o").apply(PARAMETERS, tensor_product(x, y)),
    "made_before": lambda x, y: Network2().apply(
        {"params": {"linear": PARAMETERS["params"]}}, tensor_product(x, y)
    ),
    "equinox, made_before": lambda x, y: linear_of_equinox()(x.filter("1o")),
    "vmapped_class": of_vmapped_class,
    "shared": of_a_shared_layer,
    "functional_linear": of_functional_linear,
    "flat_weights_and_biases": of_flat_weights_and_biases,
    "elementwise": lambda x, y: e3nn.elementwise_tensor_product(
        x, e3nn.concatenate([y, y]), filter_ir_out="0e+1o"
    ),
}


@pytest.mark.parametrize("way", WAYS)
def test_a_name_is_replaced_however_it_was_kept(way):
    with jax.enable_x64(True):
        x = e3nn.normal("2x0e+2x1o", jax.random.key(0), (4,), dtype=jnp.float64)
        y = e3nn.normal("0e+1o", jax.random.key(1), (4,), dtype=jnp.float64)
        expected, fused = WAYS[way](x, y), ops.fuse(WAYS[way], patch=True)
        assert is_ours(fused, x, y)
        with ops.patched():
            assert WAYS[way](x, y).zero_flags == expected.zero_flags
        assert not is_ours(WAYS[way], x, y)
        found = jax.jit(fused)(x, y)
    assert found.irreps == expected.irreps
    np.testing.assert_allclose(found.array, expected.array, rtol=0, atol=1e-14)


class Changed(e3nn.FunctionalLinear):
    def aggregate_paths(self, *args):
        return super().aggregate_paths(*args)


OWN_PRODUCT = inspect.unwrap(tensor_product)  # kept from behind e3nn's decorator
CHANGED = Changed(e3nn.Irreps("2x0e+2x1o"), e3nn.Irreps("3x0e+2x1o"))
STAYS = {
    "unwrapped": lambda x: OWN_PRODUCT(x, x),
    "changed_method": lambda x: e3nn.utils.vmap(CHANGED, in_axes=(None, 0))(jnp.ones(10), x),
}


@pytest.mark.parametrize("beside", [False, True])
@pytest.mark.parametrize("way", STAYS)
def test_report_places_what_stays_e3nns(way, beside, capsys):
    x = e3nn.normal("2x0e+2x1o", jax.random.key(0), (4,))

    def function(x):
        return STAYS[way](x), *([e3nn.tensor_product(x, x)] if beside else [])

    jax.eval_shape(ops.fuse(function, patch=True, report=True), x)
    line = inspect.getsourcelines(STAYS[way])[1]
    report = capsys.readouterr().out
    own = report[report.index("e3nn-jax's own product or Linear is at") :].splitlines()[0]
    assert f"test_patch.py:{line}" in own
    assert "it stays" in own
    assert "patch=True" not in report


def of_legacy(x, y):
    tp = e3nn.legacy.FunctionalTensorProduct(x.irreps, "1o", "2x0e", [(1, 0, 0, "uvu", False)])
    return e3nn.utils.vmap(tp.left_right)(x, y)


@pytest.mark.parametrize("function", [of_functional_linear, of_legacy])
def test_rows_that_are_not_fused_are_e3nns(function):
    """Without `ops.fuse`, e3nn-jax writes the rows of one row at a time faster."""
    x = e3nn.normal("2x0e+2x1o", jax.random.key(0), (4,))
    y = x.filter("1o").slice_by_mul[:1]
    with ops.patched():
        assert not is_ours(function, x, y)
    assert is_ours(ops.fuse(function, patch=True), x, y)


def test_a_weighting_by_scalars_stays_arithmetic():
    """Else `ops.fuse` would not see that the weights of a message are plain factors."""
    x = e3nn.normal("2x0e+2x1o", jax.random.key(0), (4,))
    with ops.patched():
        assert not is_ours(lambda x: x * jnp.ones((4, 4)), x)


def test_layers_of_e3nn_jax_itself_are_replaced():
    pytest.importorskip("haiku")
    from e3nn_jax.experimental.transformer import Transformer

    def attention(x, y):
        layer = Transformer("2x0e+2x1o", [4], jax.nn.silu, 1)
        cutoff = jnp.ones(5, x.dtype)
        return layer(SENDERS, RECEIVERS, cutoff, y, x)

    network = transformed(attention)
    with jax.enable_x64(True):
        params = network.init(jax.random.key(2), *operands())
        fused = ops.fuse(network.apply, patch=True)
        assert is_ours(fused, params, *operands())
        found = jax.jit(fused)(params, *operands()).array
        expected = jax.jit(network.apply)(params, *operands()).array
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-14)


OWN_OPTIONS = {"backend", "input_precision"}


@pytest.mark.parametrize("module", REPLACED)
def test_signatures_are_e3nns_written_out_with_an_example(module):
    """Each public name of e3nn-jax that is replaced is in the reference, too."""
    page = (pathlib.Path(__file__).parents[2] / "docs/reference/ops.md").read_text("utf-8")
    for name in REPLACED[module]:
        assert f"`{module.replace('e3nn_jax', 'e3nn')}.{name}`" in page
    framework = module.rpartition(".")[2]
    pytest.importorskip(framework if framework in ("haiku", "equinox") else module)
    theirs = importlib.import_module(module)
    for name, of in REPLACED[module].items():
        own, op = getattr(theirs, name), getattr(importlib.import_module(of), name)
        expected, found = (inspect.signature(f).parameters for f in (own, op))
        assert [p for p in found if p not in OWN_OPTIONS] == [*expected], name
        for p in expected:
            assert (found[p].kind, found[p].default) == (expected[p].kind, expected[p].default)
        assert ">>> " in op.__doc__, name
        if inspect.isclass(own):
            assert issubclass(op, own)


def test_batch_norms_are_the_same_and_stay_e3nns():
    with jax.enable_x64(True):
        x = e3nn.normal("2x0e+2x1o", jax.random.key(0), (4,), dtype=jnp.float64)
        norm = e3nn.flax.BatchNorm()
        variables = norm.init(jax.random.key(1), x, use_running_average=False)

        def normed(x):
            return norm.apply(variables, x, use_running_average=False, mutable=True)[0]

        found = ops.fuse(normed, patch=True)(x)
        np.testing.assert_allclose(found.array, normed(x).array, rtol=0, atol=1e-14)
        with ops.patched():
            assert not is_ours(normed, x)


@pytest.mark.parametrize(("irreps", "orders"), [("0e+1o", (1, 2, 3)), ("2x0e+1o", (2,))])
def test_symmetric_tensor_product_of_haiku(irreps, orders):
    network = transformed(
        lambda x: e3nn.haiku.SymmetricTensorProduct(orders, keep_irrep_out="0e+1o")(x)
    )
    with jax.enable_x64(True):
        x = e3nn.normal(irreps, jax.random.key(0), (3, 2), dtype=jnp.float64)
        params = network.init(jax.random.key(2), x)
        with ops.patched():
            again = network.init(jax.random.key(2), x)
            assert is_ours(network.apply, params, x)
        assert jax.tree.all(jax.tree.map(np.array_equal, params, again))
        found, expected = ops.fuse(network.apply, patch=True)(params, x), network.apply(params, x)
    assert found.irreps == expected.irreps
    np.testing.assert_allclose(found.array, expected.array, rtol=0, atol=1e-13)


def test_sums_that_are_mapped_back_have_no_loop():
    """e3nn-jax numbers their targets one after the other, a third of the time of Allegro."""
    targets = jnp.asarray([[7, 7, -3], [5, 0, 7]])

    def summed(x):
        return e3nn.scatter_sum(x, dst=targets, map_back=True).array

    x = e3nn.normal("0e+1o", jax.random.key(0), (2, 3))
    fused = ops.fuse(summed, patch=True)
    np.testing.assert_array_equal(fused(x), summed(x))
    assert "scan" in str(jax.make_jaxpr(summed)(x))
    assert "scan" not in str(jax.make_jaxpr(fused)(x))
