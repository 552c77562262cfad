import csv

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from eqfuse import data
from eqfuse.train import load_run
from eqfuse.train.main import main
from eqfuse.train.tetris import ROTATION_TOLERANCE, demonstrate, logits
from tests.ops import tiers


@pytest.mark.parametrize(
    "model", tiers.slow_unless(["tetris"], "nequip", "allegro", "mace", "tetris")
)
def test_seed_0_learns_all_shapes_within_100_steps(tmp_path, capsys, model):
    folder = tmp_path / "run"
    assert main([f"model={model}", "verbose=true", f"run={folder}"]) == 0
    out = capsys.readouterr().out
    assert "accuracy 100.0%" in out
    assert " parameters\n  ops      " in out
    assert "mirrored chiral1 is predicted to be chiral2" in out
    assert "mirrored chiral2 is predicted to be chiral1" in out

    with open(folder / "metrics.csv", newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) <= 101
    assert float(rows[-1]["accuracy"]) == 1.0
    assert float(rows[0]["accuracy"]) < 1.0
    assert f"name: {model}" in (folder / "config.yaml").read_text(encoding="utf-8")

    # What the folder holds is what was shown.
    module, params, metadata = load_run(folder)
    assert metadata["task"] == "tetris"
    graph, labels = data.tetris(metadata["config"]["data"]["radius"])
    shown = demonstrate(module, params, graph, labels, rotations=5, seed=1)
    assert shown.holds
    assert 0 < shown.rotation_error <= ROTATION_TOLERANCE
    values = np.asarray(logits(module, params, graph))
    np.testing.assert_array_equal(values.argmax(-1), labels)


def test_it_neither_goes_on_nor_starts_another_run(tmp_path, capsys):
    assert main(["model=tetris", "steps=2", f"run={tmp_path / 'run'}"]) == 1
    for settings in (
        [f"resume={tmp_path / 'run'}"],
        [f"start_from={tmp_path / 'run'}", "data=lif"],
    ):
        assert main(settings) == 2
        assert "classifies the Tetris shapes" in capsys.readouterr().err


class Wrapper:
    """A network that is not equivariant: an equivariant one, plus a little of a coordinate."""

    def __init__(self, module, amount):
        self.module, self.amount = module, amount

    def apply(self, params, vectors, species, edges):
        out = self.module.apply(params, vectors, species, edges)
        leak = jax.ops.segment_sum(vectors[:, 2] ** 2, edges.receivers, species.shape[0])
        return type(out)(out.irreps, out.array + self.amount * leak[:, None])


@pytest.mark.slow
def test_the_demonstration_fails_for_a_network_that_is_not_equivariant(tmp_path):
    folder = tmp_path / "run"
    assert main(["model=tetris", f"run={folder}"]) == 0
    module, params, _ = load_run(folder)
    graph, labels = data.tetris()
    exact = demonstrate(Wrapper(module, 0.0), params, graph, labels, rotations=3, seed=0)
    broken = demonstrate(Wrapper(module, 1e-3), params, graph, labels, rotations=3, seed=0)
    assert exact.holds
    assert broken.rotation_error > ROTATION_TOLERANCE
    assert not broken.holds


def test_too_few_steps_fail_and_are_profiled(tmp_path, capsys):
    folder = tmp_path / "run"
    assert main(["model=tetris", "steps=2", "profile=true", f"run={folder}"]) == 1
    captured = capsys.readouterr()
    assert "did not reach 100% in 2 steps" in captured.err
    assert "ms per step; the trace is in" in captured.out
    assert list((folder / "profile").rglob("*.xplane.pb"))
    load_run(folder)


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
    tmp_path, capsys, settings, parts
):
    assert main([*settings, f"run={tmp_path / 'run'}"]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith(
        "error: the shapes cannot be distinguished from their mirror images: "
    )
    assert len(captured.err.splitlines()) == 1
    for part in parts:
        assert part in captured.err
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_float64(tmp_path):
    folder = tmp_path / "run"
    assert main(["model=tetris", "dtype=float64", f"run={folder}"]) == 0
    with jax.enable_x64(True):
        _, params, _ = load_run(folder)
    assert {leaf.dtype for leaf in jax.tree.leaves(params)} == {np.dtype(np.float64)}
    assert jnp.zeros(1).dtype == jnp.float32
