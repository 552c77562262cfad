"""The Tetris example, which `python train.py` runs without data."""

import dataclasses

import jax
import numpy as np
import pytest

from benchmarks.launches.e3nn_tetris import Reference
from eqfuse import cli
from eqfuse.train.step import initial_parameters
from examples import tetris
from tests.child import ROOT, run_python
from tests.ops import tiers


@pytest.mark.parametrize("model", tiers.slow_unless(["nequip"], *tetris.SMALL))
def test_seed_0_learns_all_shapes_within_100_steps(tmp_path, monkeypatch, capsys, model):
    monkeypatch.chdir(tmp_path)
    assert tetris.main([f"model={model}", "verbose=true"]) == 0
    out = capsys.readouterr().out
    for one, other in ("12", "21"):
        assert f"mirrored chiral{one} is predicted to be chiral{other}" in out
    assert "accuracy 100.0%" in out
    assert " parameters\n  ops      " in out
    assert not any(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("settings", "code", "parts"),
    [
        pytest.param(
            ["steps=2", "channels=2"], 1, ["did not reach 100% in 2 steps"], marks=pytest.mark.slow
        ),
        (["epochs=3"], 2, ["epochs is not a setting of the Tetris example", "data="]),
        (["layer=3"], 2, ["layer is not a setting", "did you mean layers?"]),
        (["model=nequib"], 2, ["model=nequib is unknown; choose from: nequip"]),
        (["layers=x"], 2, ["layers=x is impossible: it must be of type int"]),
        (["layers=1"], 2, ["their mirror images: irreps_out", "(layers=3 is enough)"]),
        (["model=mace", "layers=1"], 2, ["layers=1, lmax=2", "(layers=2 is enough)"]),
        (["model=allegro", "model.parity=false"], 2, ["parity=False", "use parity=True"]),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_tetris_bad_settings_are_one_error(capsys, settings, code, parts):
    assert tetris.main(settings) == code
    error = capsys.readouterr().err
    assert error.startswith("error: ")
    assert len(error.splitlines()) == 1
    assert all(part in error for part in parts)


def test_the_program_runs_it_without_data_and_the_command_names_it(tmp_path, capsys):
    for data, run in (("tetris", "the Tetris example"), ("lif", "this run")):
        program = ROOT / "train.py", f"data={data}", "layer=3"
        done = run_python(*program, check=False, cwd=tmp_path)
        assert done.returncode == 2
        assert f"layer is not a setting of {run}" in done.stderr
    for argument in ("data=tetris", "layers=3"):
        assert cli.main(["train", argument]) == 2
        assert "python train.py model=nequip layers=3" in capsys.readouterr().err


class Wrapper:
    """A network that is not equivariant: an equivariant one, plus a little of a coordinate."""

    def __init__(self, module, amount):
        self.module, self.amount = module, amount

    def apply(self, params, vectors, species, edges):
        out = self.module.apply(params, vectors, species, edges)
        leak = jax.ops.segment_sum(vectors[:, 2] ** 2, edges.receivers, species.shape[0])
        return type(out)(out.irreps, out.array + self.amount * leak[:, None])


def test_the_demonstration_sees_a_network_that_is_not_equivariant():
    graph, labels = tetris.shapes()
    module = tetris.TetrisNet(backend="xla")
    params = initial_parameters(module, 0, graph, "float32")
    found = []
    for leak in (0.0, 1e-3):
        wrapper = Wrapper(module, leak)
        _, error, mirrored = tetris.demonstrate(wrapper, params, graph, labels, seed=0)
        assert len(mirrored) == 8
        found.append(error)
    assert 0 < found[0] <= tetris.TOLERANCE < found[1]


def test_edges_join_cubes_that_share_a_face():
    graph, labels = tetris.shapes()
    assert graph.node_mask.all()
    assert graph.graph_mask.all()
    np.testing.assert_array_equal(labels, np.arange(8))
    np.testing.assert_array_equal(graph.graph_index, np.repeat(np.arange(8), 4))
    same_graph = graph.graph_index[:, None] == graph.graph_index
    distances = np.linalg.norm(graph.positions[:, None] - graph.positions, axis=-1)
    edges = np.stack([graph.edges.receivers, graph.edges.senders], axis=1)
    expected = np.argwhere(same_graph & (distances < 1.1) & (distances > 0))
    np.testing.assert_array_equal(edges, expected)
    np.testing.assert_array_equal(np.linalg.norm(graph.vectors, axis=1), 1.0)


def test_the_tetris_network_is_that_of_e3nn():
    graph, _ = tetris.shapes()
    noise = np.random.default_rng(0).normal(size=graph.positions.shape)
    positions = graph.positions.astype(np.float64) + 0.1 * noise
    graph = dataclasses.replace(graph, positions=positions)
    with jax.enable_x64(True):
        reference, model = Reference(), tetris.TetrisNet()
        theirs = jax.random.key(1), graph.positions, graph.edges
        variables = jax.jit(reference.init)(*theirs)
        assert sum(leaf.size for leaf in jax.tree.leaves(variables)) == 7170
        own = graph.vectors, graph.species, graph.edges
        ours = jax.jit(model.init)(theirs[0], *own)
        jax.tree.map(np.testing.assert_array_equal, ours, variables)
        expected = jax.jit(reference.apply)(variables, *theirs[1:])
        out = jax.jit(model.apply)(variables, *own)
        assert out.irreps == expected.irreps == "0o + 7x0e"
        # float64, outputs of order 1; the sums are taken in another order.
        np.testing.assert_allclose(out.array, expected.array, rtol=0, atol=1e-13)
