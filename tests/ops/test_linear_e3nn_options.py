"""`ops.Linear` with the other arguments of `e3nn.flax.Linear`, and with weights as an operand."""

import e3nn_jax as e3nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from eqfuse import ops
from eqfuse.ops.ir.linear import LinearForm
from tests.ops import tiers
from tests.ops.parity import only

ROWS, CHANNELS, WEIGHTS = 5, 3, 4
IRREPS, OUT = "2x0e+3x1o+2x0e+1x0o+0x1e", "3x0e+2x1o+3x2e+1x0o+2x0e"
UNSIMPLIFIED = {"simplify_irreps_internally": False}
PARTS = {"instructions": ((0, 0), (2, 4), (1, 1)), "irreps_in": e3nn.Irreps(IRREPS)}

# options, and the shape of the weights
CASES = {
    "channels": ({"channel_out": 2, "biases": True}, None),
    "channels-forced": ({"channel_out": 2, "force_irreps_out": True}, None),
    "channels-weights": ({"channel_out": 2, "biases": True}, (ROWS, WEIGHTS)),
    "weights": ({"biases": True, "gradient_normalization": "path"}, (ROWS, WEIGHTS)),
    "weights-forced": ({"force_irreps_out": True, "gradient_normalization": 0.5}, (1, WEIGHTS)),
    "weights-of-all": ({}, (WEIGHTS,)),
    "weights-unsimplified": ({"biases": True, **UNSIMPLIFIED}, (ROWS, WEIGHTS)),
    "per-channel": ({"weights_per_channel": True, "biases": True}, (ROWS, WEIGHTS)),
    "per-channel-of-all": ({"weights_per_channel": True}, (WEIGHTS,)),
    "unsimplified": ({"biases": True, **UNSIMPLIFIED}, None),
    "unsimplified-channels": ({"channel_out": 2, "path_normalization": 1.0, **UNSIMPLIFIED}, None),
    "unsimplified-indexed": ({"num_indexed_weights": 3, **UNSIMPLIFIED}, None),
    "instructions": ({"force_irreps_out": True, "biases": True, **PARTS, **UNSIMPLIFIED}, None),
    "initializer": ({"parameter_initializer": lambda: jax.nn.initializers.uniform(0.1)}, None),
}


def arguments(name):
    """x, after the index or the weights, if there are any."""
    options, shape = CASES[name]
    channels = "channel_out" in options or "weights_per_channel" in options
    shape_x = (ROWS, CHANNELS) if channels else (ROWS,)
    x = e3nn.normal(IRREPS, jax.random.key(0), shape_x).astype(jnp.result_type(float))
    if "num_indexed_weights" in options:
        return jnp.arange(ROWS) % 3, x
    return (x,) if shape is None else (jax.random.normal(jax.random.key(5), shape), x)


@pytest.mark.parametrize("backend", tiers.slow_unless(["llvm"], "xla", "llvm"))
@pytest.mark.parametrize("name", CASES)
def test_parameters_values_and_gradients_are_e3nns(name, backend):
    """Float64 to 1e-12: up to a hundred products each; the parameters are the same from one key."""
    options, _ = CASES[name]
    with jax.enable_x64(True):
        args = arguments(name)
        ours, theirs = ops.Linear(OUT, backend=backend, **options), e3nn.flax.Linear(OUT, **options)
        params = theirs.init(jax.random.key(1), *args)
        found = ours.init(jax.random.key(1), *args)
        assert list(found["params"]) == list(params["params"])
        jax.tree.map(np.testing.assert_array_equal, found, params)
        expected = theirs.apply(params, *args)
        floats = [n for n, a in enumerate(args) if jnp.issubdtype(a.dtype, jnp.floating)]

        def derivatives(module):
            def loss(params, *operands):
                given = list(args)
                for n, a in zip(floats, operands, strict=True):
                    given[n] = a
                out = module.apply(params, *given)
                return jnp.sum(jnp.sin(out.array)), out

            both = jax.value_and_grad(loss, tuple(range(1 + len(floats))), has_aux=True)
            return jax.jit(both)(params, *(args[n] for n in floats))

        with only(backend, runs=backend != "xla", kinds={LinearForm}):
            (_, out), gradients = derivatives(ours)
        assert out.irreps == expected.irreps
        assert out.shape == expected.shape
        (_, expected), exact = derivatives(theirs)
        for a, b in zip(
            jax.tree.leaves((out.array, gradients)),
            jax.tree.leaves((expected.array, exact)),
            strict=True,
        ):
            np.testing.assert_allclose(a, b, rtol=0, atol=1e-12 * np.abs(b).max(initial=1.0))


@pytest.mark.slow
def test_backend_e3nn_takes_them():
    for name in ("channels", "weights", "per-channel", "instructions", "initializer"):
        args, (options, _) = arguments(name), CASES[name]
        module = ops.Linear(OUT, backend="e3nn", **options)
        params = module.init(jax.random.key(1), *args)
        expected = e3nn.flax.Linear(OUT, **options).apply(params, *args)
        np.testing.assert_array_equal(module.apply(params, *args).array, expected.array)


@pytest.mark.slow
def test_as_a_function():
    weights, x = arguments("weights")
    parameters = ops.Linear(OUT).init(jax.random.key(0), weights, x)["params"]
    out = ops.linear(x, parameters, OUT, weights=weights, backend="xla")
    expected = e3nn.flax.Linear(OUT).apply({"params": parameters}, weights, x)
    np.testing.assert_allclose(out.array, expected.array, atol=1e-5)
    with pytest.raises(ValueError, match="index and weights exclude each other"):
        ops.linear(x, parameters, OUT, weights=weights, index=jnp.zeros(ROWS, int))


X = e3nn.IrrepsArray("2x0e+1o", jnp.ones((ROWS, 5)))
REFUSED = {
    "per-channel-alone": ({"weights_per_channel": True}, (X,), "needs weights as an argument"),
    "both-channels": (
        {"weights_per_channel": True, "channel_out": 2},
        (jnp.ones(3), X),
        "weights_per_channel and channel_out exclude each other",
    ),
    "no-irreps-in": (
        {"instructions": ((0, 0),), **UNSIMPLIFIED},
        (X,),
        "instructions need irreps_in",
    ),
    "simplified": (
        {"instructions": ((0, 0),), "irreps_in": X.irreps},
        (X,),
        "instructions need simplify_irreps_internally=False",
    ),
    "no-block": (
        {"instructions": ((2, 0),), "irreps_in": X.irreps, **UNSIMPLIFIED},
        (X,),
        r"instruction \(2, 0\) is of no blocks of 2x0e\+1x1o and 4x0e",
    ),
    "other-irreps": (
        {"instructions": ((1, 0),), "irreps_in": X.irreps, **UNSIMPLIFIED},
        (X,),
        r"instruction \(1, 0\) joins 1x1o with 4x0e",
    ),
    "no-channels": ({"channel_out": 2}, (X[0],), r"x must be \[..., channels, 2x0e\+1x1o\], got"),
    "weights-of-a-number": ({}, (jnp.ones(()), X), r"weights must be \[..., d\], at least one"),
    "weights-that-rotate": ({}, (X, X), "weights must be scalars, 0e, got 2x0e"),
    "biases": ({"biases": "2x0e"}, (X,), "biases must be True, False, or one of them for each"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_errors_name_what_is_wrong(name):
    options, args, message = REFUSED[name]
    with pytest.raises(ValueError, match=message):
        ops.Linear("4x0e", backend="xla", **options).init(jax.random.key(0), *args)


def test_the_configured_normalisation_holds():
    """That of now, and not of the first call with these irreps."""
    default = e3nn.config("path_normalization")
    params = e3nn.flax.Linear(OUT).init(jax.random.key(0), X)
    try:
        for name in ("element", "path"):
            e3nn.config("path_normalization", name)
            found = ops.Linear(OUT, backend="xla").init(jax.random.key(0), X)
            params = e3nn.flax.Linear(OUT).init(jax.random.key(0), X)
            assert jax.tree.all(jax.tree.map(np.array_equal, found, params))
    finally:
        e3nn.config("path_normalization", default)
