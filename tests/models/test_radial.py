"""Parts of radial networks; whole networks are those of other programs in `tests/convert`."""

import e3nn_jax as e3nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from eqfuse import ops
from eqfuse.models import mlp, radial
from eqfuse.models.radial import (
    lengths_and_directions,
    polynomial_cutoff,
    spherical_harmonics,
)
from tests.ops import tiers
from tests.ops.parity import BACKENDS, along_random_directions, assert_close, only


@pytest.mark.parametrize("power", [1, 2, 5, 6])
def test_the_polynomial_cutoff_is_that_of_its_paper(power):
    """Gasteiger et al. 2020, eq. 8."""
    x = np.linspace(0, 1.2, 49)
    with jax.enable_x64(True):
        found = polynomial_cutoff(jnp.asarray(4.5 * x), 4.5, power)
    p = power
    expected = 1 - (p + 1) * (p + 2) / 2 * x**p + p * (p + 2) * x ** (p + 1)
    expected -= p * (p + 1) / 2 * x ** (p + 2)
    np.testing.assert_allclose(found, np.where(x < 1, expected, 0), rtol=0, atol=1e-14)


@pytest.mark.parametrize("ls", [range(6), range(1, 3)])
def test_spherical_harmonics_are_those_of_e3nn(ls):
    directions = lengths_and_directions(jax.random.normal(jax.random.key(0), (20, 3)))[1]
    sh = spherical_harmonics(directions, ls)
    irreps = e3nn.Irreps([(1, (l, (-1) ** l)) for l in ls])
    expected = e3nn.spherical_harmonics(irreps, directions, False, normalization="component")
    assert sh.irreps == irreps
    np.testing.assert_allclose(sh.array, expected.array, atol=1e-13)


@pytest.mark.parametrize("few_edges", [0, 100], ids=["many edges", "few edges"])
@pytest.mark.parametrize("backend", tiers.slow_unless(["llvm", "triton"], *BACKENDS))
@pytest.mark.parametrize("hidden", tiers.slow_unless([(4,)], (), (4,), (4, 6)))
def test_radial_networks_are_those_of_e3nn(few_edges, backend, hidden, monkeypatch):
    monkeypatch.setattr(mlp, "FEW_ROWS", few_edges)
    monkeypatch.setattr(radial, "TOGETHER", 2)
    basis = np.random.default_rng(0).normal(size=(5, 3))
    widths = (7, 2, 5)
    networks = radial.RadialNetworks(hidden, widths, backend)
    params = networks.init(jax.random.key(0), basis)

    def theirs(params, basis):
        return [
            e3nn.flax.MultiLayerPerceptron(
                (*hidden, width), jax.nn.silu, output_activation=False
            ).apply({"params": params["params"][f"layer_{k}"]}, basis)
            for k, width in enumerate(widths)
        ]

    native = backend == "llvm" and few_edges > 0
    interpreted = backend == "triton"  # as on a GPU, whatever the number of edges
    with only(backend, runs=native or interpreted, kinds={"matrices"} if native else set()):
        found = along_random_directions(networks.apply, params, basis)
    expected = along_random_directions(theirs, params, basis)
    assert_close(found, expected, 1e-12)
    alone = mlp.MLP((*hidden, widths[0]), jax.nn.silu, backend)
    again = alone.init(jax.random.key(0), basis)
    own = {"params": params["params"]["layer_0"]}
    assert jax.tree.map(np.shape, again) == jax.tree.map(np.shape, own)
    np.testing.assert_allclose(alone.apply(own, basis), expected["value"][0], atol=1e-12)


def test_hidden_layers_of_many_edges_are_not_kept_for_the_derivatives():
    def kept(num_edges):
        networks = radial.RadialNetworks((64, 64), (8,), "xla")
        basis = jnp.ones((num_edges, 8), jnp.float32)
        params = networks.init(jax.random.key(0), basis[:1])
        residuals = jax.vjp(networks.apply, params, basis)[1]
        return sum(a.nbytes for a in jax.tree.leaves(residuals)) / basis.nbytes

    # the basis and the last hidden layer, of 64 / 8 times its size
    assert kept(mlp.FEW_ROWS + 1) < 10 < kept(1000)


@pytest.mark.parametrize(
    ("rows", "backend", "native"), [(16384, "llvm", 1), (16385, "llvm", 0), (9, "xla", 0)]
)
def test_few_rows_are_multiplied_natively(rows, backend, native, monkeypatch):
    calls = []
    monkeypatch.setattr(ops, "grouped_dense", lambda x, kernels, **_: calls.append(len(x)))
    mlp.dense(jnp.ones((rows, 2)), jnp.ones((2, 3)), backend)
    assert len(calls) == native


def test_the_constant_of_an_activation_does_not_depend_on_the_precision():
    """e3nn-jax finds 1 / 1.676565 in float32, and 1 / 1.676562 in float64."""
    found = []
    for x64 in (False, True):
        with jax.enable_x64(x64):
            found.append(float(mlp.normalized(jax.nn.silu)(1.0) / jax.nn.silu(1.0)))
    assert found[0] == pytest.approx(found[1], rel=3e-7)  # of the quotient in float32
