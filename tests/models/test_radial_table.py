"""Radial networks from a table, against the networks themselves in float64."""

import dataclasses
import doctest
import functools
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from eqfuse.data import Shape
from eqfuse.models import MACE, NequIP, predict, radial_table, with_tables
from eqfuse.models.radial import bessel_basis, polynomial_cutoff, xplor_cutoff
from eqfuse.models.radial_table import RadialTable, choose, radial_basis
from tests.models.conftest import CUTOFF
from tests.models.networks import network as variant
from tests.models.networks import small
from tests.ops import tiers

AGNESI = {
    "distance_transform": "agnesi",
    "atomic_numbers": (1, 8, 14),
    "density_normalization": True,
}
SETTINGS = {
    "nequip": {"layers": 2},
    "nequip xplor": {
        "layers": 1,
        "cutoff_function": "xplor",
        "cutoff_onset": 2.1,
        "trainable_bessel": True,
    },
    "nequip pair cutoffs": {"layers": 2, "pair_cutoffs": ((3.0, 2.5, 2.0),) * 3},
    "mace": {},
    "mace agnesi": {"layers": 1, "parity": False, **AGNESI},
    "mace factor": {"layers": 1, "apply_cutoff": False},
    "allegro": {"layers": 1},
}
CASES = tiers.slow_unless(["nequip xplor", "mace agnesi", "allegro"], *SETTINGS)
ONE_CASE = tiers.slow_unless(["nequip xplor"], *SETTINGS)


def first_variables(network, graph):
    """Return those of JAX's random numbers, by whose size bounds here are."""
    init = jax.jit(network.init)
    return init(jax.random.key(0), graph.vectors, graph.species, graph.edges)


def with_table(potential, radial="table", knots=128):
    model = potential.model.clone(radial=radial, radial_knots=knots)
    return potential.clone(model=model)


def results(potential, variables, graph):
    """Return energy, forces and stress, and the gradients of a loss on forces."""

    def loss(variables):
        out = predict(potential, variables, graph, stress=True)
        return jnp.sum(out.energy**2) + jnp.sum(out.forces**2), out

    gradient, out = jax.device_get(jax.jit(jax.grad(loss, has_aux=True))(variables))
    return {"energy": out.energy, "forces": out.forces, "stress": out.stress, "params": gradient}


def errors(found, exact) -> dict[str, float]:
    """Return the largest difference of each kind of result, relative to the largest number."""
    relative = {}
    for name, values in exact.items():
        pairs = list(zip(*map(jax.tree.leaves, (found[name], values)), strict=True))
        scale = max(np.abs(b).max() for _, b in pairs)
        relative[name] = max(np.abs(a.astype(np.float64) - b).max() for a, b in pairs) / scale
    return relative


@pytest.fixture(scope="module")
def batch(make_graph, molecule):
    """Return a molecule and a crystal, with padding."""
    cell = np.array([[2.6, 0.1, 0.0], [0.3, 2.4, 0.2], [-0.2, 0.4, 2.9]])
    crystal = np.array([1, 2]), np.array([[0, 0, 0], [1.3, 1.2, 1.5]]), cell
    return make_graph([molecule(0), crystal], shape=Shape(12, 160, 3))


@pytest.fixture(scope="module")
def make(small_potential, batch):
    """Return a function of the name of a case: the potential, variables, results of networks."""

    @functools.cache
    def make(case):
        potential = small_potential(case.split()[0], **SETTINGS[case])
        variables = first_variables(potential, batch)
        return potential, variables, results(with_table(potential, "network"), variables, batch)

    return make


@pytest.mark.parametrize("case", CASES)
def test_energies_forces_stress_and_gradients_are_those_of_the_network(make, batch, case):
    potential, variables, exact = make(case)
    found = errors(results(with_table(potential), variables, batch), exact)
    assert max(found.values()) < 1e-6, found
    assert found["forces"] > 1e-13  # it was a table


@pytest.mark.parametrize("case", ONE_CASE)
def test_forces_are_exactly_minus_the_gradient_of_the_energy(make, batch, case):
    """They are those of the interpolated functions, with few knots, too."""
    potential, variables, exact = make(case)
    run = jax.jit(functools.partial(predict, with_table(potential, knots=16), variables))
    forces, positions = run(batch).forces, np.asarray(batch.positions)
    scale = np.abs(forces).max()
    assert np.abs(forces - exact["forces"]).max() > 1e-5 * scale  # where the network's differ

    def energy(x):
        return jnp.sum(run(dataclasses.replace(batch, positions=x)).energy)

    h = 1e-4
    for atom, axis in ((0, 0), (3, 1), (6, 2)):
        step = np.zeros_like(positions)
        step[atom, axis] = h
        slope = 8 * (energy(positions + step) - energy(positions - step))
        slope -= energy(positions + 2 * step) - energy(positions - 2 * step)
        # third derivatives jump at knots, of which some are within 2e-4
        assert abs(-slope / (12 * h) - forces[atom, axis]) < 1e-7 * scale


@pytest.mark.parametrize("case", ONE_CASE)
def test_float32_is_as_close_to_float64_as_the_network_is(make, batch, case):
    potential, variables, exact = make(case)
    with jax.enable_x64(False):
        narrow = jax.tree.map(
            lambda a: np.float32(a) if a.dtype == np.float64 else a, (variables, batch)
        )
        network, table = (
            errors(results(with_table(potential, radial), *narrow), exact)
            for radial in ("network", "table")
        )
    for name, error in table.items():  # what the network's luck makes smaller than rounding
        assert error < max(2 * network[name], 1e-6), (name, network, table)


def radial_functions(onset, knots=64):
    """Return a function of lengths, as a network computes it, and from a table."""

    def function(lengths, pairs):
        basis = bessel_basis(lengths, 4, CUTOFF)
        if onset is None:
            envelope = polynomial_cutoff(lengths, CUTOFF, 6)
        else:
            envelope = xplor_cutoff(lengths, onset, CUTOFF)
        return basis * envelope[:, None], envelope

    def of(radial):
        network = types.SimpleNamespace(
            radial=radial, radial_knots=knots, backend="xla", variables={}, nonlinear=False
        )
        breaks = (CUTOFF,) if onset is None else (onset, CUTOFF)

        def values(lengths):
            basis, _ = radial_basis(network, lengths, lengths > 0, function, breaks)
            if isinstance(basis, RadialTable):
                return basis.of_edges([basis.table(lambda point: jnp.sin(point.basis))])[0]
            return jnp.sin(basis)

        return values

    return of("network"), of("table")


@pytest.mark.parametrize("onset", [None, 2.0])
def test_values_and_slopes_at_every_length(onset):
    """Near zero, at knots, on both sides of the onset and the cutoff, and beyond it."""
    lengths = [1e-4, 1e-3, 0.0029, 0.02, 0.1, 1.9999, 2 - 1e-13, 2 + 1e-13, 2.0001]
    lengths += [CUTOFF - 1e-3, CUTOFF - 1e-9, CUTOFF, CUTOFF + 1e-9, CUTOFF + 1, 50.0]
    lengths = np.array([*lengths, *CUTOFF * np.arange(1, 64) / 64])
    ones = np.ones_like(lengths)
    network, table = radial_functions(onset)
    for of in (lambda f: f(lengths), lambda f: jax.jvp(f, (lengths,), (ones,))[1]):
        exact, found = of(network), of(table)
        scale = np.abs(exact).max(axis=0)
        assert (np.abs(found - exact) < 1e-5 * scale).all()
        np.testing.assert_array_equal(found[lengths >= CUTOFF], 0)


def test_functions_and_two_derivatives_are_continuous():
    """At every knot, of which the last is the cutoff."""
    knots = CUTOFF * (1e-3 + (1 - 1e-3) * np.arange(1, 65) / 64)
    _, table = radial_functions(None)
    ones = np.ones_like(knots)

    def slope(lengths):
        return jax.jvp(table, (lengths,), (ones,))[1]

    def derivatives(lengths):
        return table(lengths), *jax.jvp(slope, (lengths,), (ones,))

    before, after = derivatives(knots - 1e-9), derivatives(knots + 1e-9)
    for order, (a, b) in enumerate(zip(before, after, strict=True)):
        # 2e-9 of the next derivative, of the order of 10 / Å times this one
        assert np.abs(a - b).max() < 1e-7 * np.abs(a).max(), order


@pytest.mark.slow
def test_parts_of_intervals_change_nothing(make, batch, monkeypatch):
    """On a GPU the edges of an interval are divided, so that more blocks sum its gradient."""
    potential, variables, _ = make("nequip xplor")
    potential = with_table(potential, knots=16)
    exact = results(potential, variables, batch)
    monkeypatch.setattr(radial_table, "_parts", lambda *_: 4)
    found = results(potential, variables, batch)
    assert max(errors(found, exact).values()) < 1e-12


def test_intervals_of_many_edges_are_divided_on_a_gpu():
    of = radial_table._parts
    assert [of(n, 128, "triton") for n in (2_700, 16_383, 16_384, 160_000)] == [1, 1, 2, 8]
    assert of(160_000, 128, "llvm") == 1


@pytest.mark.parametrize(
    ("network", "num_edges", "table", "why"),
    [
        (small(NequIP), 1023, False, "1023 edges, fewer than 8 for each of 128 knots"),
        (small(NequIP), 1024, True, "1024 edges, at least 8 for each of 128 knots"),
        (small(NequIP, radial_knots=16), 200, True, "at least 8 for each of 16 knots"),
        (small(NequIP, radial="network"), 10**6, False, "radial=network"),
        (small(NequIP, radial="table"), 1, True, "radial=table"),
        (small(MACE, **AGNESI), 6143, False, "128 knots for each of 6 pairs of species"),
        (small(MACE, **AGNESI), 6144, True, "128 knots for each of 6 pairs of species"),
    ],
)
def test_auto_is_a_table_where_edges_are_several_times_the_knots(network, num_edges, table, why):
    choice = choose(network, num_edges)
    assert choice.table == table
    assert why in choice.why


@pytest.mark.parametrize("case", ["mace agnesi", "mace factor"])
def test_kept_tables_give_the_same_and_are_of_their_parameters(make, batch, case):
    """Kernels read kept tables, also where the cutoff multiplies what is read."""
    potential, variables, _ = make(case)
    potential = with_table(potential, knots=16)
    kept = with_tables(potential, variables)
    run, network = (
        jax.jit(functools.partial(predict, p))
        for p in (potential, with_table(potential, "network", 16))
    )
    exact = run(variables, batch)
    texts = [str(jax.make_jaxpr(run)(v, batch)) for v in (variables, kept)]
    assert ["eqfuse_tabulated" in text for text in texts] == [False, True]
    for found in (run(kept, batch), network(kept, batch)):
        np.testing.assert_allclose(found.forces, exact.forces, rtol=0, atol=1e-12)
    assert set(kept) == {"params", "tables"}
    doubled = jax.tree.map(lambda table: 2 * table, kept["tables"])
    assert np.abs(run(kept | {"tables": doubled}, batch).forces - exact.forces).max() > 1e-3


def test_nonlinear_interactions_have_no_tables(graph, monkeypatch):
    """Compute them by networks for any number of edges, for which others have tables."""
    network = functools.partial(variant, "mace, nonlinear", layers=1)
    variables = first_variables(network(), graph)
    arguments = variables, graph.vectors, graph.species, graph.edges
    expected = jax.jit(network(radial="network").apply)(*arguments).array
    monkeypatch.setitem(radial_table.EDGES_PER_KNOT, "cpu", 0)
    assert not radial_table.choose(network(), 10**6).table
    np.testing.assert_array_equal(jax.jit(network().apply)(*arguments).array, expected)
    with pytest.raises(ValueError, match="is not for nonlinear=True"):
        jax.eval_shape(network(radial="table").apply, *arguments)


def test_the_example_at_the_head_prints_what_it_shows():
    assert doctest.testmod(radial_table) == (0, 9)
