import e3nn_jax as e3nn
import jax
import numpy as np
import pytest

from eqfuse.models import Allegro
from tests.models.conftest import CUTOFF
from tests.models.networks import small, variables_of


@pytest.mark.parametrize("name", ["allegro", pytest.param("nequip", marks=pytest.mark.slow)])
def test_an_atom_feels_those_within_its_cutoff_and_no_others(small_potential, make_graph, name):
    """The derivatives of the energy of each atom, of a zigzag chain that is longer than the cutoff.

    NequIP, here as the control, reaches as many cutoffs as it has layers.
    """
    count = np.arange(8)
    positions = np.stack([1.3 * count, 0.5 * (-1.0) ** count, 0.1 * count**2], axis=1)
    graph = make_graph([(count % 3, positions, None)])
    potential = small_potential(name, layers=3)
    variables = variables_of(potential, graph)

    @jax.jit
    def energies(positions):
        vectors = positions[graph.edges.senders] - positions[graph.edges.receivers]
        return potential.apply(variables, vectors, graph.species, graph.edges)[:8]

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
        ("0o + 7x0e", {"layers": 1, "lmax": 1}, [("0e+1o", "0e+1o", "0e+1e"), ("1e", "1o", "0o")]),
    ],
)
def test_paths_are_those_reached_and_needed(irreps_out, settings, expected):
    found = Allegro(irreps_out, **settings).paths()
    if irreps_out == "0e":
        last = found.pop()
        assert (last.inputs, last.environment, last.products) == ((), (), ())
    names = [(p.inputs, p.environment, p.products) for p in found]
    assert names == [tuple(map(irs_of, layer)) for layer in expected]


def irs_of(irreps):
    return tuple(ir for _, ir in e3nn.Irreps(irreps))


@pytest.mark.parametrize("activation", [True, False])
def test_the_energy_is_its_definition(graph, activation):
    """Two layers from the parameters by numpy alone, edge by edge and node by node.

    The first matrix of the networks of the latents is one of the latents and the scalars together.
    """
    model = small(Allegro, latent_activation=activation)
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
    found = jax.jit(model.apply)(variables, graph.vectors, graph.species, graph.edges)
    assert np.abs(expected).max() > 1e-2
    np.testing.assert_allclose(found.array, expected, rtol=0, atol=1e-12)
