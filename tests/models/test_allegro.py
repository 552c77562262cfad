import e3nn_jax as e3nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from eqfuse import ops
from eqfuse.models import Allegro
from eqfuse.models.allegro_irreps import tensor_paths
from tests.models.conftest import CUTOFF

SMALL = {
    "num_species": 3,
    "channels": 3,
    "lmax": 1,
    "cutoff": CUTOFF,
    "latent_dim": 8,
    "two_body_layers": 2,
    "latent_layers": 2,
    "readout_hidden": 2,
    "num_bessel": 4,
    "avg_num_neighbors": 4.0,
}


@pytest.fixture
def graph(make_graph, molecule):
    return make_graph([molecule(0), molecule(1)], CUTOFF)


def variables_of(model, graph, seed=0):
    init = jax.jit(model.init)
    return init(jax.random.key(seed), graph.vectors, graph.species, graph.edges)


@pytest.mark.parametrize("name", ["allegro", "nequip"])
def test_an_atom_feels_those_within_its_cutoff_and_no_others(small_potential, make_graph, name):
    """The derivatives of the energy of each atom, of a zigzag chain that is longer than the cutoff.

    NequIP, here as the control, reaches as many cutoffs as it has layers.
    """
    count = np.arange(8)
    positions = np.stack([1.3 * count, 0.5 * (-1.0) ** count, 0.1 * count**2], axis=1)
    graph = make_graph([(count % 3, positions, None)], CUTOFF)
    potential = small_potential(name, layers=3)
    variables = variables_of(potential, graph)

    @jax.jit
    def energies(positions):
        vectors = positions[graph.edges.senders] - positions[graph.edges.receivers]
        return potential.apply(variables, vectors, graph.species, graph.edges)

    slopes = np.abs(jax.jit(jax.jacobian(energies))(positions)).max(axis=2)  # [atom, moved atom]
    distances = np.linalg.norm(positions[:, None] - positions[None], axis=2)
    within = distances < CUTOFF
    assert within.any(axis=1).all()
    assert slopes[within].min() > 1e-9
    assert not within[0, 4]
    if name == "nequip":
        assert slopes[0, 4] > 1e-9
    else:
        np.testing.assert_array_equal(slopes[~within], 0)
        moved = positions.copy()
        moved[4] += (0.1, -0.2, 0.3)
        before, after = energies(positions), energies(moved)
        np.testing.assert_array_equal(before[~within[4]], after[~within[4]])
        assert (before[within[4]] != after[within[4]]).all()


def test_every_output_irrep_is_equivariant(graph, rotation):
    model = Allegro("0e + 0o + 1o + 0e + 1e", **SMALL)
    variables = variables_of(model, graph)
    apply = jax.jit(lambda v: model.apply(variables, v, graph.species, graph.edges))
    out = apply(graph.vectors)
    assert out.irreps == e3nn.Irreps("0e + 0o + 1o + 0e + 1e")
    sizes = [np.abs(chunk).max() for chunk in out.chunks]
    assert min(sizes) > 1e-6

    for matrix in (rotation, -rotation):
        turned = apply(graph.vectors @ matrix.T)
        # Each product rounds at 1e-16, a few thousand of them follow each other; some cancel.
        expected = out.transform_by_matrix(matrix)
        for size, found, chunk in zip(sizes, turned.chunks, expected.chunks, strict=True):
            np.testing.assert_allclose(found, chunk, rtol=0, atol=1e-10 * size)


@pytest.mark.parametrize(
    ("irreps_out", "settings", "expected"),
    [
        ("0e", {"layers": 1}, [("0e+1o+2e", "0e+1o+2e", "0e")]),
        # what the last product makes a scalar of has natural parity
        ("0e", {}, [("0e+1o+2e", "0e+1o+2e", "0e+1o+2e"), ("0e+1o+2e", "0e+1o+2e", "0e")]),
        (
            "0e",
            {"layers": 3, "lmax": 1},
            [
                ("0e+1o", "0e+1o", "0e+1o+1e"),
                ("0e+1o+1e", "0e+1o", "0e+1o"),
                ("0e+1o", "0e+1o", "0e"),
            ],
        ),
        (
            "0e",
            {"layers": 3, "lmax": 1, "parity": False},
            [("0e+1o", "0e+1o", "0e+1o"), ("0e+1o", "0e+1o", "0e+1o"), ("0e+1o", "0e+1o", "0e")],
        ),
        ("0e", {"lmax": 0}, [("0e", "0e", "0e"), ("0e", "0e", "0e")]),
        # one product more for the pseudoscalar: 1o times 1o is 1e, and 1e times 1o is 0o
        (
            "0o + 7x0e",
            {"layers": 1, "lmax": 1},
            [("0e+1o", "0e+1o", "0e+1e"), ("1e", "1o", "0o")],
        ),
    ],
)
def test_paths_are_those_reached_and_needed(irreps_out, settings, expected):
    settings = {"layers": 2, "lmax": 2, "parity": True, **settings}
    found = tensor_paths(irreps_out, **settings)
    if irreps_out == "0e":
        last = found.pop()
        assert (last.inputs, last.environment, last.products) == ((), (), ())
    names = [(p.inputs, p.environment, p.products) for p in found]
    assert names == [tuple(map(irs_of, layer)) for layer in expected]


def irs_of(irreps):
    return tuple(ir for _, ir in e3nn.Irreps(irreps))


@pytest.mark.parametrize(
    "settings",
    [{"layers": 3}, {"irreps_out": "0o + 7x0e", "layers": 1}, {"irreps_out": "1o", "layers": 1}],
    ids=["energy", "tetris", "vector"],
)
def test_no_parameter_is_idle(graph, settings):
    model = Allegro(**SMALL | settings)
    variables = variables_of(model, graph)

    def scalar(variables):
        out = model.apply(variables, graph.vectors, graph.species, graph.edges).array
        return jnp.sum(jnp.sin(out))

    for path, gradient in jax.tree.leaves_with_path(jax.jit(jax.grad(scalar))(variables)):
        assert np.abs(gradient).max() > 0, jax.tree_util.keystr(path)


def test_a_pseudoscalar_needs_both_parities(graph):
    model = Allegro("0o + 7x0e", **SMALL, parity=False)
    with pytest.raises(ValueError, match=r"holds 0o, which .* cannot produce; use parity=True"):
        variables_of(model, graph)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"layers": 0}, "layers must be at least 1, got 0"),
        ({"lmax": -1}, "lmax must be at least 0, got -1"),
        ({"latent_dim": 0}, "latent_dim must be positive, got 0"),
        ({"cutoff": -1.0}, "cutoff must be positive, got -1.0"),
        ({"avg_num_neighbors": 0.0}, "avg_num_neighbors must be positive"),
        ({"backend": "cuda"}, "backend 'cuda' is unknown"),
    ],
)
def test_settings_out_of_range_are_refused(graph, settings, message):
    with pytest.raises(ValueError, match=message):
        variables_of(Allegro(**SMALL | settings), graph)


def test_parameters_have_these_names(graph):
    shapes = jax.eval_shape(
        Allegro(**SMALL).init, jax.random.key(0), graph.vectors, graph.species, graph.edges
    )
    leaves = jax.tree.leaves_with_path(shapes["params"])
    assert {"/".join(k.key for k in path): leaf.shape for path, leaf in leaves} == {
        "two_body/Dense_0/kernel": (10, 4),
        "two_body/Dense_1/kernel": (4, 8),
        "first_features/Dense_0/kernel": (8, 6),
        "layer_0/product/weights/Dense_0/kernel": (8, 6),
        "layer_0/product/linear/w[0,0] 6x0e,11x0e": (6, 11),
        "layer_0/product/linear/w[1,1] 6x1o,3x1o": (6, 3),
        "layer_0/latents/Dense_0/kernel": (8, 8),
        "layer_0/mlp/Dense_0/kernel": (8, 8),
        "layer_1/product/weights/Dense_0/kernel": (8, 6),
        "layer_1/product/linear/w[0,0] 6x0e,8x0e": (6, 8),
        "layer_1/latents/Dense_0/kernel": (8, 8),
        "layer_1/mlp/Dense_0/kernel": (8, 8),
        "readout/Dense_0/kernel": (8, 2),
        "readout/Dense_1/kernel": (2, 1),
    }


@pytest.mark.parametrize("activation", [True, False])
def test_the_energy_is_its_definition(graph, activation):
    """Two layers from the parameters by numpy alone, edge by edge and node by node.

    The first matrix of the networks of the latents is one of the latents and the scalars together.
    """
    model = Allegro(**SMALL, latent_activation=activation)
    variables = variables_of(model, graph)
    p = variables["params"]
    senders, receivers = graph.edges.senders, graph.edges.receivers
    d = np.linalg.norm(graph.vectors, axis=1)
    r = d / CUTOFF
    u = (1 - 28 * r**6 + 48 * r**7 - 21 * r**8)[:, None]
    bessel = np.sqrt(2 / CUTOFF) * np.sin(np.arange(1, 5) * np.pi * r[:, None]) / d[:, None]
    unit = graph.vectors / d[:, None]
    silu = e3nn.normalize_function(jax.nn.silu)

    def mlp(parameters, x, act):
        kernels = [parameters[f"Dense_{k}"]["kernel"] for k in range(len(parameters))]
        for k, kernel in enumerate(kernels):
            x = x @ kernel / np.sqrt(len(kernel))
            x = act(x) if act and k < len(kernels) - 1 else x
        return x

    def weighted(parameters, x):
        w = np.reshape(mlp(parameters, x, None), (-1, 2, 3))  # [n_edges, l, channel]
        return w[:, 0], np.sqrt(3) * w[:, 1, :, None] * unit[:, None, :]

    def summed(a):
        out = np.zeros((len(graph.species), *a.shape[1:]))
        np.add.at(out, receivers, a)
        return out / 2.0  # sqrt(n), n = 4

    z = np.eye(3)[graph.species]
    x = u * mlp(p["two_body"], np.hstack([z[receivers], z[senders], u * bessel]), silu)
    scalar, vector = weighted(p["first_features"], x)
    for k in range(2):
        layer = p[f"layer_{k}"]
        around = [summed(a)[receivers] for a in weighted(layer["product"]["weights"], x)]
        dot = (vector * around[1]).sum(-1) / np.sqrt(3)
        scalars = np.hstack([scalar * around[0], dot])
        linear = layer["product"]["linear"]
        to_scalars = linear["w[0,0] 6x0e,11x0e" if k == 0 else "w[0,0] 6x0e,8x0e"]
        first = np.vstack([layer["latents"]["Dense_0"]["kernel"], to_scalars[:, :8]])
        kernels = {"Dense_0": {"kernel": first}, "Dense_1": layer["mlp"]["Dense_0"]}
        act = silu if activation else None
        x = (x + u * mlp(kernels, np.hstack([x, scalars]), act) / 2) / np.sqrt(5 / 4)
        if k == 0:
            pair = [scalar[..., None] * around[1], vector * around[0][..., None]]
            scalar = scalars @ to_scalars[:, 8:] / np.sqrt(6)
            vector = np.concatenate(pair, axis=1)
            w = linear["w[1,1] 6x1o,3x1o"]
            vector = np.einsum("zui,uv->zvi", vector, w) / np.sqrt(6)
    expected = summed(mlp(p["readout"], x, None))
    found = model.apply(variables, graph.vectors, graph.species, graph.edges)
    assert np.abs(expected).max() > 1e-2
    np.testing.assert_allclose(found.array, expected, rtol=0, atol=1e-12)


def test_float32_in_float32_out(graph):
    model = Allegro(**SMALL)
    vectors = graph.vectors.astype(np.float32)
    variables = jax.jit(model.init)(jax.random.key(0), vectors, graph.species, graph.edges)
    assert {leaf.dtype for leaf in jax.tree.leaves(variables)} == {np.dtype(np.float32)}
    out = jax.jit(model.apply)(variables, vectors, graph.species, graph.edges)
    assert out.dtype == np.float32


def test_atoms_without_neighbours_are_zero(graph):
    """Every energy is one of an edge."""
    model = Allegro("0e + 0o + 1o", **SMALL)
    variables = variables_of(model, graph)
    edges = ops.Edges.from_arrays(np.zeros(0, int), np.zeros(0, int), 3)
    species = np.array([2, 1, 2], np.int32)
    out = jax.jit(model.apply)(variables, jnp.zeros((0, 3)), species, edges)
    np.testing.assert_array_equal(out.array, np.zeros((3, 5)))
