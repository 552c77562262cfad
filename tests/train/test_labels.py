"""Losses and errors, on frames of which some lack labels, and with weights of frames."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from eqfuse.data import Batcher, Dataset, read_structures
from eqfuse.data.group_errors import UNITS
from eqfuse.data.structures import Weights
from eqfuse.models import Prediction
from eqfuse.runs.errors import ConfigError
from eqfuse.train.arguments import parse
from eqfuse.train.main import main
from eqfuse.train.metrics import Loss, added, error_row, error_sums
from eqfuse.train.molecule import Prepared
from eqfuse.train.parallel import Devices
from eqfuse.train.step import Compiled
from tests.small_runs import TINY, errors_of, prepared, rewritten, rows_of

LOSS = Loss(energy=2.0, forces=3.0, stress=5.0, force_scale=0.5)
QUANTITIES = ("energy", "forces", "stress")


@pytest.fixture
def frames(copper):
    return read_structures(copper)[:6]


@pytest.fixture
def batch(frames):
    return batch_of(frames)


def only(quantity):
    """Return the loss of one quantity."""
    return dataclasses.replace(LOSS, **{q: 0.0 for q in QUANTITIES if q != quantity})


def batch_of(frames):
    """Return the frames as one batch, with zero references."""
    data = Dataset.build(frames, cutoff=3.0, validation=frames[:1], references={29: 0.0})
    samples = [data.train[k] for k in np.argsort(data.train_indices)]
    [batch] = Batcher(samples, len(frames), dtype=np.float64).batches(shuffle=False)
    return batch


def predicted(batch):
    """Return predictions that depend on the place of an atom in its frame, and on that frame."""
    x, graph = batch.graph.positions, batch.graph
    forces = jnp.sin(x) + jnp.cos(2 * x[:, ::-1])
    energy = jax.ops.segment_sum(forces.sum(axis=1), graph.graph_index, graph.num_graphs)
    stress = energy[:, None, None] * jnp.eye(3)
    return Prediction(node_energy=None, energy=energy, forces=forces, stress=stress)


def sums_of(frames):
    """Return the sums of errors of a batch."""
    batch = batch_of(frames)
    return error_sums(predicted(batch), batch.labels, batch.graph)


def loss_of(frames, loss=LOSS):
    with jax.enable_x64(True):
        return float(loss(sums_of(frames)))


def table_of(*sums):
    return error_row(functools.reduce(added, sums, {}))


@pytest.mark.parametrize("label", QUANTITIES)
def test_a_frame_without_a_label_has_no_influence_on_its_loss(frames, label):
    lacking = [
        dataclasses.replace(f, **{label: None}) if k in (1, 4) else f for k, f in enumerate(frames)
    ]
    fewer = [f for k, f in enumerate(frames) if k not in (1, 4)]
    value = loss_of(lacking, only(label))
    # float64 sums of 100 terms in another order
    assert value == pytest.approx(loss_of(fewer, only(label)), rel=1e-12)
    assert value != pytest.approx(loss_of(frames, only(label)), rel=1e-3)


@pytest.mark.filterwarnings("ignore:the forces of")
def test_atoms_without_forces_have_no_influence_and_others_a_weight(frames, batch):
    """The loss is the mean over the known atoms; a weight multiplies squared errors of its atom."""
    unknown, weights = np.arange(4) == 1, np.array([1.0, 1.0, 3.0, 0.5])

    def masked(frame):
        forces = np.where(unknown[:, None], [np.nan, 1.0, 2.0], frame.forces)
        return dataclasses.replace(frame, forces=forces)

    lacking = [*map(masked, frames[:3]), *frames[3:]]
    weighted = [dataclasses.replace(f, atom_weights=weights * ~unknown) for f in frames]
    errors = predicted(batch).forces[:24] - batch.labels.forces[:24]
    squares = np.asarray(errors**2).mean(axis=1).reshape(6, 4)
    for given, expected in (
        (lacking, np.mean(np.concatenate([squares[:3, ~unknown].ravel(), squares[3:].ravel()]))),
        (weighted, np.mean((weights * squares)[:, ~unknown])),
    ):
        value = loss_of(given, only("forces"))
        assert value == pytest.approx(LOSS.forces * expected / LOSS.force_scale**2, rel=1e-6)
    nothing = dataclasses.replace(frames[0], forces=np.full((4, 3), np.nan))
    assert nothing.forces is None


def test_a_run_on_forces_that_are_nan_for_some_atoms(copper, tmp_path, monkeypatch, capsys):
    """The errors, also by element, are those of the others; frames are on disk."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))

    def change(_, atoms):
        atoms.arrays["forces_weight"] = np.array([2.0, 1.0, 0.0, 1.0])
        atoms.calc.results["forces"][1] = np.nan

    path, run = rewritten(copper, tmp_path / "some.xyz", change), tmp_path / "run"
    given = [f"data={path}", *TINY, "cutoff=3.6", "epochs=1", f"run={run}", "data.store=on"]
    assert main(given) == 0
    assert "forces of 24 atoms in 12 frames are NaN, or have no weight" in capsys.readouterr().err
    [row], name = rows_of(run), "forces_rmse_mev_per_a"
    errors = [errors_of(run)["validation", group][name] for group in ("all", "element Cu")]
    assert errors[0] == errors[1]
    assert float(errors[0]) == pytest.approx(float(row[f"val_{name}"]), rel=1e-4)


@pytest.mark.parametrize("name", QUANTITIES)
def test_a_weight_is_that_of_its_frame_and_its_label(frames, name):
    """The weighted loss is the sum of what each frame alone gives, times it, and errors are not."""
    weights = np.array([1.0, 0.5, 4.0, 1.0, 2.0, 1.0])
    weighted = [
        dataclasses.replace(f, weights=Weights(**{name: w}))
        for f, w in zip(frames, weights.tolist(), strict=True)
    ]
    assert table_of(sums_of(weighted)) == pytest.approx(table_of(sums_of(frames)), rel=1e-12)
    expected = 0.0
    for quantity in QUANTITIES:
        alone = np.array([loss_of([f], only(quantity)) for f in frames])
        expected += np.mean(alone * (weights if quantity == name else 1.0))
    assert loss_of(weighted) == pytest.approx(expected, rel=1e-12)


def test_the_report_says_how_many_frames_have_which_label(tmp_path, water):
    def change(number, atoms):
        if number % 2:
            del atoms.calc.results["forces" if number % 4 == 1 else "energy"]
        if number == 2:
            atoms.info["config_weight"] = 2.0

    path = rewritten(water, tmp_path / "mixed.xyz", change)
    dataset, text = prepared(f"data={path}", "data.val=0.1", f"data.val_path={water}")
    assert "energies   in 15 of 20 training and 20 of 20 validation frames, weight 1.0" in text
    assert "forces     in 15 of 20 training and 20 of 20 validation frames, weight 1.0" in text
    assert sorted(s.weights.energy for s in dataset.train) == [*[1.0] * 19, 2.0]


@pytest.mark.usefixtures("pictures")
def test_energies_alone_are_trained_on_only_if_asked_for(tmp_path, water):
    def change(_, atoms):
        atoms.arrays["push"] = atoms.calc.results.pop("forces")

    path, folder = rewritten(water, tmp_path / "energies.xyz", change), tmp_path / "run"
    with pytest.raises(ConfigError, match=r"forces_weight=1.0 needs forces.*: push \(.*_weight=0$"):
        prepared(f"data={path}")
    settings = [f"data={path}", *TINY, "training.forces_weight=0", "epochs=2", f"run={folder}"]
    assert main(settings) == 0
    row = rows_of(folder)[-1]
    assert np.isnan(float(row["val_forces_rmse_mev_per_a"]))
    assert float(row["val_energy_rmse_mev_per_atom"]) > 0
    assert {"learning.png", "parity.png"} <= {picture.name for picture in folder.iterdir()}


def test_forces_alone_are_trained_on_only_if_asked_for(tmp_path, water):
    path = rewritten(water, tmp_path / "forces.xyz", lambda _, a: a.calc.results.pop("energy"))
    with pytest.raises(ConfigError, match=r"training.energy_weight=1.0 needs energy"):
        prepared(f"data={path}")
    _, text = prepared(f"data={path}", "training.energy_weight=0")
    assert "H 0.0000, O 0.0000 eV (no energies to fit them to)" in text
    assert "in 0 of 16 training and 0 of 4 validation frames, not trained on" in text


@pytest.mark.parametrize(("given", "expected"), [(None, 0), (3.0, 3)])
def test_energies_without_a_weight_have_none_in_the_second_stage(water, given, expected):
    """Unless it is asked for: there they were weighed by 10."""
    settings = [*TINY, f"data={water}", f"training.second_energy_weight={given or 'null'}"]
    usual, without = (
        Compiled(Prepared(parse([*settings, *more]), Devices())).losses[1].energy
        for more in ([], ["training.energy_weight=0"])
    )
    assert (usual, without) == (given or 10, expected)


def test_validation_frames_without_any_label_that_is_trained_on(tmp_path, water, capsys):
    path = rewritten(water, tmp_path / "energies.xyz", lambda _, a: a.calc.results.pop("forces"))
    settings = [f"data={water}", "data.val=0.1", f"data.val_path={path}"]
    with pytest.raises(ConfigError, match=r"has a label that is trained on \(forces\)"):
        prepared(*settings, "training.energy_weight=0")
    prepared(*settings)
    assert "warning: no validation frame has forces" in capsys.readouterr().err


def test_weights_of_a_config_type_that_no_frame_has(tmp_path, water):
    def change(number, atoms):
        atoms.info["config_type"] = "hot" if number % 2 else "cold"

    path = rewritten(water, tmp_path / "typed.xyz", change)
    with pytest.raises(ConfigError, match="no frame has config_type=warm; there are cold, hot"):
        prepared(f"data={path}", "data.config_type_weights={warm: 2}")
    dataset, _ = prepared(f"data={path}", "data.config_type_weights={hot: 2}")
    assert {(s.config_type, s.weights.forces) for s in dataset.train} == {("hot", 2), ("cold", 1)}


def test_weights_of_config_types_are_a_mapping():
    given = ["data=extxyz", "data.path=none.xyz"]
    data = parse([*given, "data.config_type_weights={bulk: 2, 300K: 0.5}"]).data
    assert data.type_weights() == {"bulk": 2.0, "300K": 0.5}
    for text in ("bulk", "{bulk: -1}", "{bulk: much}", "{bulk: .inf}", "{bulk: 1", "{bulk: true}"):
        with pytest.raises(ConfigError, match=r"data\.config_type_weights=.* is impossible"):
            parse([*given, f"data.config_type_weights={text}"])


def perturbed(batch, rng):
    """Labels plus known errors, and nonsense where there is padding."""
    labels, graph, errors = batch.labels, batch.graph, {}
    for name in QUANTITIES:
        errors[name] = rng.normal(size=getattr(labels, name).shape)
        errors[name][~(graph.node_mask if name == "forces" else graph.graph_mask)] = 1e6
    values = {name: getattr(labels, name) + error for name, error in errors.items()}
    known = {
        "energy": errors["energy"][graph.graph_mask] / 4,
        "forces": errors["forces"][graph.node_mask],
        "stress": errors["stress"][graph.graph_mask],
    }
    return Prediction(node_energy=None, **values), known


def test_errors_are_those_of_the_real_atoms(batch, rng):
    prediction, errors = perturbed(batch, rng)
    sums = error_sums(prediction, batch.labels, batch.graph)
    table = table_of(sums, sums)
    for name in QUANTITIES:
        error, unit = 1e3 * errors[name], UNITS[name]
        # float32 labels near 10 eV: relative errors of 1e-6.
        assert table[f"{name}_mae_{unit}"] == pytest.approx(np.abs(error).mean(), rel=1e-5)
        assert table[f"{name}_rmse_{unit}"] == pytest.approx((error**2).mean() ** 0.5, rel=1e-5)
    assert sums["forces"][0] == errors["forces"].size


@pytest.mark.parametrize("kind", ["mse", "huber", "universal"])
def test_losses_are_those_of_mace(batch, rng, kind):
    """Twice huber's, so that small errors count as in the mean square."""
    prediction, errors = perturbed(batch, rng)
    rows = np.flatnonzero(batch.graph.node_mask)
    lengths = np.linspace(20, 400, len(rows))[:, None]
    batch.labels.forces[rows] = lengths * [0.6, 0.0, 0.8]
    forces = batch.labels.forces.copy()
    forces[rows] += errors["forces"]
    loss = dataclasses.replace(LOSS, kind=kind, delta=0.7)

    def huber(error, delta):  # torch.nn.HuberLoss
        size = np.abs(error)
        is_square = (size < delta) | (kind == "mse")
        return np.where(is_square, 0.5 * size**2, delta * (size - 0.5 * delta)).mean()

    factors = 1.0
    if kind == "universal":  # conditional_huber_forces
        factors = np.select([lengths < 100, lengths < 200, lengths < 300], [1.0, 0.7, 0.4], 0.1)
    expected = 2 * huber(errors["energy"], 0.7) + 3 * huber(errors["forces"], 0.7 * factors)
    expected += 5 * huber(errors["stress"], 0.7)
    prediction = prediction._replace(forces=forces)
    value = loss(error_sums(prediction, batch.labels, batch.graph, loss.penalty))
    assert float(value) == pytest.approx(2 * expected / 0.25, rel=1e-5)


def test_a_batch_without_stress_labels_has_a_finite_loss(batch, rng):
    prediction, _ = perturbed(batch, rng)
    labels = dataclasses.replace(batch.labels, stress_mask=np.zeros_like(batch.labels.stress_mask))
    sums = error_sums(prediction, labels, batch.graph)
    assert float(sums["stress"][0]) == 0
    assert np.isnan(table_of(sums)["stress_mae_mev_per_a3"])
    assert np.isfinite(float(Loss(1.0, 1.0, 1.0, 1.0)(sums)))
