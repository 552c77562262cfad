"""The Tetris example, which the command runs without data."""

import jax
import pytest

from benchmarks.launches.tetris_network import TetrisNet
from eqfuse import data
from eqfuse.train.main import main
from eqfuse.train.step import initial_parameters
from eqfuse.train.tetris import ROTATION_TOLERANCE, demonstrate
from tests.ops import tiers


@pytest.mark.parametrize("model", tiers.slow_unless(["nequip"], "nequip", "allegro", "mace"))
def test_seed_0_learns_all_shapes_within_100_steps(tmp_path, monkeypatch, capsys, model):
    monkeypatch.chdir(tmp_path)
    assert main([f"model={model}", "verbose=true"]) == 0
    out = capsys.readouterr().out
    assert "accuracy 100.0%" in out
    assert " parameters\n  ops      " in out
    assert "mirrored chiral1 is predicted to be chiral2" in out
    assert "mirrored chiral2 is predicted to be chiral1" in out
    assert not any(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("settings", "code", "part"),
    [
        pytest.param(
            ["steps=2"], 1, "did not reach 100% in 2 steps; try steps=4", marks=pytest.mark.slow
        ),
        (["epochs=3", "run=first"], 2, "data= is missing: without it a network learns the Tetris"),
        (["model.zbl=true"], 2, "which has no model.zbl; give a file"),
        (["layer=3"], 2, "layer is not a setting of this run; nearest: layers"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_what_ends_it(tmp_path, monkeypatch, capsys, settings, code, part):
    monkeypatch.chdir(tmp_path)
    assert main(["layers=3", "channels=2", "backend=xla", *settings]) == code
    assert part in capsys.readouterr().err
    assert not any(tmp_path.iterdir())


class Wrapper:
    """A network that is not equivariant: an equivariant one, plus a little of a coordinate."""

    def __init__(self, module, amount):
        self.module, self.amount = module, amount

    def apply(self, params, vectors, species, edges):
        out = self.module.apply(params, vectors, species, edges)
        leak = jax.ops.segment_sum(vectors[:, 2] ** 2, edges.receivers, species.shape[0])
        return type(out)(out.irreps, out.array + self.amount * leak[:, None])


def test_the_demonstration_sees_a_network_that_is_not_equivariant():
    graph, labels = data.tetris()
    module = TetrisNet(backend="xla")
    params = initial_parameters(module, 0, graph, "float32")
    found = []
    for leak in (0.0, 1e-3):
        _, error, mirrored = demonstrate(Wrapper(module, leak), params, graph, labels, seed=0)
        assert len(mirrored) == 8
        found.append(error)
    assert 0 < found[0] <= ROTATION_TOLERANCE < found[1]


@pytest.mark.parametrize(
    ("settings", "parts"),
    [
        (["model=nequip", "layers=1"], ["layers=1, lmax=2", "(layers=3 is enough)"]),
        (["model=mace", "layers=1"], ["layers=1, lmax=2", "(layers=2 is enough)"]),
        (["model=allegro", "model.parity=false"], ["parity=False", "use parity=True"]),
    ],
    ids=lambda value: " ".join(value),
)
def test_networks_that_cannot_tell_a_shape_from_its_mirror_image_are_refused(
    capsys, settings, parts
):
    assert main(settings) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith(
        "error: the shapes cannot be distinguished from their mirror images: "
    )
    assert len(captured.err.splitlines()) == 1
    for part in parts:
        assert part in captured.err
