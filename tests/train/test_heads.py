"""Several heads in one training run: a readout, reference energies and data for each."""

import functools

import ase.build
import ase.io
import jax
import numpy as np
import pytest
from flax.traverse_util import flatten_dict, unflatten_dict

import eqfuse
from eqfuse import models
from eqfuse.data import Batcher, Shape, collate, read_embedded
from eqfuse.data.samples import SamplesOfHeads, prepare_samples
from eqfuse.models.heads import head_of, stack_heads
from eqfuse.runs.checkpoint import load_run, read_checkpoint
from eqfuse.runs.errors import CheckpointError
from eqfuse.runs.files import encode, read_file
from eqfuse.train.main import main
from tests.small_runs import TINY, refused, rewritten, rows_of, write_displaced

SMALL = ["data.val=3", "data.batch_size=4", "training.second_stage=null"]


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """Return three files: water, water with other energies and forces, and carbon dioxide."""
    folder, water = tmp_path_factory.mktemp("heads"), ase.build.molecule("H2O")
    paths = {name: folder / f"{name}.xyz" for name in ("one", "two", "three")}

    def change(_, atoms):
        atoms.calc.results["energy"] = 2 * atoms.calc.results["energy"] - 30.0
        atoms.calc.results["forces"] *= 2

    write_displaced(paths["one"], water, 10, seed=1)
    rewritten(write_displaced(paths["two"], water, 12, seed=2), paths["two"], change)
    write_displaced(paths["three"], ase.build.molecule("CO2"), 9, seed=3)
    return paths


@pytest.fixture(scope="module")
def heads(files):
    return [f"heads.{name}={path}" for name, path in files.items()]


@pytest.fixture(scope="module")
def run(heads, tmp_path_factory):
    """Return the folder of a run with three heads."""
    folder = tmp_path_factory.mktemp("runs") / "heads"
    more = ["epochs=12", "lr=0.05", "training.schedule=constant", f"run={folder}"]
    assert main([*TINY, *SMALL, *heads, "heads.two.weight=2", *more]) == 0
    return folder


@pytest.mark.parametrize(
    ("name", "more"),
    [
        ("mace", {"correlation": 2}),
        pytest.param("nequip", {}, marks=pytest.mark.slow),
        pytest.param("allegro", {"latent_dim": 8}, marks=pytest.mark.slow),
    ],
)
def test_each_graph_has_the_head_of_its_sample(name, more):
    """Energies, forces and stress are those of the head as a network alone, to rounding."""
    sizes = {"num_species": 3, "channels": 4, "layers": 1, "lmax": 1, "cutoff": 3.0, **more}
    model = models.build(name, **sizes, backend="xla")
    potential = models.Potential(model, (1.0,) * 3, (0.0,) * 3)
    with jax.enable_x64(True):
        zero = dict.fromkeys((1, 6, 8), 0.0)
        samples = prepare_samples(read_embedded("ethanol")[:3], 3.0, (1, 6, 8), zero)
        parts = SamplesOfHeads(samples[:1], (), samples[1:])
        [batch] = Batcher(parts, 3, dtype="float64").batches(shuffle=False)
        assert batch.graph.heads.tolist() == [0, 2, 2, 0]
        single = collate(samples, Shape(*batch.graph.node_mask.shape, 512, 4), "float64").graph
        operands = single.vectors, single.species, single.edges
        init = jax.jit(potential.init)
        alone = [flatten_dict(init(jax.random.key(k), *operands)) for k in range(3)]
        for k, own in enumerate(alone, start=1):
            readout = {path: own[path] for path in own if "readout" in "/".join(path)}
            own |= alone[0] | readout | {("params", "scale"): k * np.array([1.0, 2.0, 3.0])}
        shared = [*map(unflatten_dict, alone)]
        together = stack_heads(shared)
        predict = jax.jit(functools.partial(models.predict, potential, stress=True))
        expected = [predict(own, single) for own in shared]
        found = predict(together, batch.graph)
        found, expected, shared, together = jax.device_get((found, expected, shared, together))
    for k, head in enumerate([0, 2, 2]):
        assert abs(expected[0].energy[k] - expected[2].energy[k]) > 1e-3
        for name, at in (("energy", k), ("forces", single.graph_index == k), ("stress", k)):
            ours, theirs = (getattr(one, name)[at] for one in (found, expected[head]))
            # float64: some hundred operations on numbers of order one
            np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-12)
    jax.tree.map(np.testing.assert_array_equal, head_of(together, 2), shared[2])


def errors(run, head, frames):
    """Return the errors of energies of frames by the calculator of a head, meV/atom."""
    calculator = eqfuse.Calculator(run, head=head)
    return 1e3 * np.array(
        [abs(calculator.get_potential_energy(a) - a.get_potential_energy()) / 3 for a in frames]
    )


def test_each_head_has_its_data_and_its_file(run, files):
    """The errors at the end are those of the calculator of each head, and not of another."""
    rows = rows_of(run / "errors.csv")
    for name, path in files.items():
        own = [row for row in rows if row["group"] == f"head {name}"]
        assert [row["set"] for row in own] == ["training", "validation"]
        counts = [int(row["frames"]) for row in own]
        maes = [float(row["energy_mae_mev_per_atom"]) for row in own]
        frames = ase.io.read(path, ":")
        error = errors(run, name, frames).mean()
        # float32, whose energies are up to 60 eV: 4e-6 eV
        assert error == pytest.approx(np.average(maes, weights=counts), abs=0.02)
        assert errors(run, "two" if name == "one" else "one", frames).mean() > 2 * error
    one, two, three = (load_run(run / "heads" / f"{name}.safetensors")[2] for name in files)
    water, other, dioxide = (own["reference_energies"] for own in (one, two, three))
    assert other["8"] < water["8"] - 1
    assert (water["6"], dioxide["1"]) == (dioxide["6"], water["1"])  # which their data have not
    assert two["config"]["data"]["weight"] == 2
    assert two["potential"]["scale"][0] > 1.5 * one["potential"]["scale"][0]


def test_a_head_has_to_be_chosen(run):
    with pytest.raises(CheckpointError, match="has the heads one, three, two"):
        eqfuse.Calculator(run)
    with pytest.raises(CheckpointError, match=r"has no head=, by its file, .*one.safetensors"):
        eqfuse.Calculator(run)
    with pytest.raises(CheckpointError, match="no head 'four'"):
        eqfuse.Calculator(run, head="four")
    with pytest.raises(CheckpointError, match="choose one by head=NAME"):
        load_run(run, which="last")


@pytest.fixture(scope="module")
def tuned(run, heads):
    """Return the settings of a run with a head that goes on, a new one, and the network's past."""
    new = [heads[1], heads[0].replace("one", "new", 1), "heads.new.reference_energies=fit"]
    more = ["replay=auto", "replay_frames=4", "training.schedule=constant"]
    return [f"start_from={run}", *new, *more, *SMALL]


def of_heads(folder, names=("two", "new", "replay")):
    """Return variables and metadata of each head of a run."""
    files = [folder / "heads" / f"{name}.safetensors" for name in names]
    return zip(*(read_checkpoint(file, ("best",))[:2] for file in files), strict=True)


@pytest.mark.slow
def test_heads_go_on_and_begin_and_the_past_is_one(run, tuned, tmp_path, capsys):
    """After a step that changes nothing, heads are as they began."""
    tiny = ["lr=1e-30", "training.min_lr=1e-30", "steps=1", "training.ema_decay=0"]
    assert main([*tuned, *tiny, f"run={tmp_path / 'run'}"]) == 0
    assert "moved elsewhere by the head replay" in capsys.readouterr().out
    [before], _ = of_heads(run, ["two"])
    params, metadata = of_heads(tmp_path / "run")
    for own in params:
        jax.tree.map(np.testing.assert_array_equal, own, before)
    two, new, past = (own["reference_energies"] for own in metadata)
    assert two == past
    assert new["8"] > two["8"] + 1


@pytest.mark.slow
def test_a_run_of_heads_is_resumed_exactly(run, tuned, tmp_path):
    whole, parts = (tmp_path / name for name in ("whole", "parts"))
    assert main([*tuned, "lr=0.01", "steps=6", f"run={whole}"]) == 0
    assert main([*tuned, "lr=0.01", "steps=3", f"run={parts}"]) == 0
    assert main([f"resume={parts}", "steps=6"]) == 0
    (ours, *_), (theirs, *_) = (read_checkpoint(f, ("last",)) for f in (parts, whole))
    jax.tree.map(np.testing.assert_array_equal, ours, theirs)
    (ours, _), (theirs, _), ([before], _) = of_heads(parts), of_heads(whole), of_heads(run, ["two"])
    jax.tree.map(np.testing.assert_array_equal, ours, theirs)
    networks = [own["params"]["model"] for own in theirs]
    embeddings = [own["embedding"] for own in networks]
    assert all((own == embeddings[0]).all() for own in embeddings)
    assert not (embeddings[0] == before["params"]["model"]["embedding"]).all()
    readouts = [np.concatenate(jax.tree.leaves(own["readout"]), None) for own in networks]
    assert len(np.unique(readouts, axis=0)) == 3


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ("ONE heads.one=TWO", "heads.one is given twice"),
        ("ONE heads.two.val=0.1", "heads.two: data.path=null is impossible"),
        ("ONE heads.two.batch_size=4", "heads.two.batch_size is no setting of a head"),
        ("ONE data=TWO", "each head has data of its own"),
        ("ONE heads.two=EMPTY", "heads.two: "),
        ("ONE heads.a/b=TWO", "a name of letters"),
        ("ONE heads.two=TWO start_from=RUN elastic=30 head=one", "left out with heads.NAME="),
        ("heads.new=TWO start_from=RUN", "has the heads one, three, two"),
        ("heads.replay=TWO start_from=RUN head=one replay=auto", "heads=replay is impossible"),
    ],
)
def test_bad_heads_are_refused(run, files, tmp_path, capsys, given, text):
    (empty := tmp_path / "empty.xyz").touch()
    words = {"TWO": files["two"], "EMPTY": empty, "RUN": run, "ONE": f"heads.one={files['one']}"}
    for word, value in words.items():
        given = given.replace(word, str(value))
    assert text in refused([*given.split(), f"run={tmp_path / 'run'}"], capsys)
    assert not (tmp_path / "run").exists()


def test_heads_that_are_networks_of_their_own_are_refused(run, heads, tmp_path, capsys):
    """Such as fidelities of SevenNet, which differ in every layer."""
    folder = tmp_path / "fidelities" / "heads"
    folder.mkdir(parents=True)
    for name in ("one", "two"):
        arrays, metadata = read_file(run / "heads" / f"{name}.safetensors")
        arrays["params/params/model/embedding"] += name == "two"
        (folder / f"{name}.safetensors").write_bytes(encode(arrays, metadata))
    given = [f"start_from={folder.parent}", *heads[:2], *SMALL, f"run={tmp_path / 'run'}"]
    assert main(given) == 2
    assert "are networks of their own (they differ in model/embedding)" in capsys.readouterr().err
