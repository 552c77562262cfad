"""Training on Hessians: files, rows in batches, the third derivative, and runs."""

import dataclasses

import ase.build
import ase.io
import jax
import numpy as np
import optax
import pytest

import eqfuse
from eqfuse.data import Batcher, DataError, Structure, Units, read_structures
from eqfuse.data.checks import hessians
from eqfuse.data.samples import prepare_samples
from eqfuse.models import Potential, build, compile_predict, predict
from eqfuse.train.main import main
from eqfuse.train.metrics import Loss, error_sums
from tests.models.conftest import ONE_OF_ALL, SMALL
from tests.ops import tiers
from tests.ops.parity import BACKENDS, only
from tests.small_runs import TINY, errors_of, refused, rewritten, rows_of, write_displaced


def springs(atoms) -> np.ndarray:
    """Return the Hessian of springs of 2 eV/Å^2 between all atoms of a molecule."""
    vectors = atoms.positions[None] - atoms.positions[:, None]
    lengths = np.linalg.norm(vectors, axis=-1) + np.eye(len(atoms))
    unit = vectors / lengths[..., None]
    hessian = np.einsum("abi,abj->aibj", unit, -2.0 * unit)
    for a in range(len(atoms)):
        hessian[a, :, a] = -hessian[a].sum(axis=1)
    return hessian


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    """Path of water molecules of which the last two have no Hessian."""
    path = tmp_path_factory.mktemp("data") / "water.xyz"
    write_displaced(path, ase.build.molecule("H2O"), 10, seed=0)

    def change(number, atoms):
        if number < 8:
            atoms.arrays["hessian"] = springs(atoms).reshape(3, -1)

    return rewritten(path, path, change)


def test_hessians_of_a_file(file):
    frames, units = read_structures(file), Units.of("Hartree", "Bohr")
    scaled = read_structures(file, units=units)
    for structure, other, atoms in zip(frames[:8], scaled, ase.io.read(file, ":"), strict=False):
        # a file has 8 decimals
        np.testing.assert_allclose(structure.hessian, springs(atoms), rtol=0, atol=2e-8)
        factor = units.energy / units.length**2
        np.testing.assert_allclose(other.hessian, factor * structure.hessian, rtol=1e-12)
    assert frames[8].hessian is None
    [soft] = hessians(frames)  # 2 eV/Å^2 is less than any bond of hydrogen has
    assert "probably in mdyn/Å (times 6.2415)" in soft
    assert not list(hessians([dataclasses.replace(s, hessian=10 * s.hessian) for s in frames[:8]]))
    weighted = dataclasses.replace(frames[0], weights=frames[0].weights._replace(hessian=0.0))
    assert weighted.hessian is None


def test_hessian_of_wrong_form_is_refused(file):
    frame = read_structures(file)[0]

    def with_hessian(hessian):
        return dataclasses.replace(frame, hessian=hessian)

    for given, message in (
        (np.zeros((3, 3)), "hessian must have 81 real numbers for 3 atoms"),
        (np.full((3, 3, 3, 3), np.inf), "hessian has inf"),
        (np.where(np.eye(9), np.nan, 1.0), "hessian has nan"),
    ):
        with pytest.raises(DataError, match=message):
            with_hessian(given)
    assert with_hessian(np.full((9, 9), np.nan)).hessian is None
    turned, other = with_hessian(-frame.hessian), frame.hessian.transpose(0, 2, 1, 3)
    assert "do not add up to zero in 1 of 2 frames" in next(hessians([frame, with_hessian(other)]))
    assert "negative in 1 of 2" in next(hessians([frame, turned]))


def test_a_batch_has_a_known_row_of_each_hessian(file):
    frames = read_structures(file)
    known = frames[1].hessian.copy()
    known[1:] = np.nan
    frames[1] = dataclasses.replace(frames[1], hessian=known)
    rng = np.random.default_rng(0)
    atoms = ase.build.bulk("Cu", cubic=True) * (5, 5, 6)  # sorted in space
    many = rng.normal(size=(len(atoms), 3, len(atoms), 3))
    frames.append(Structure(atoms.numbers, atoms.positions, atoms.cell, atoms.pbc, hessian=many))
    samples = prepare_samples(frames, 3.0, (1, 8, 29), dict.fromkeys((1, 8, 29), 0.0))
    assert not np.array_equal(samples[-1].order, np.arange(len(atoms)))
    chosen = {}
    batcher = Batcher(samples, 6, dtype=np.float64, hessians=True)
    for epoch in range(30):
        batches = zip(batcher.batches(epoch), batcher.groups(epoch), strict=True)
        for batch, group in batches:
            rows, first = batch.labels.hessian, 0
            for number in group:
                sample = samples[number]
                own, first = slice(first, first + sample.num_atoms), first + sample.num_atoms
                direction, values = (sample.in_structure(a[own]) for a in rows[:2])
                assert (rows.mask[own] == (sample.hessian is not None)).all()
                if sample.hessian is None:
                    assert not direction.any()
                    continue
                [place] = np.argwhere(direction)
                assert direction[tuple(place)] == 1
                np.testing.assert_array_equal(values, frames[number].hessian[tuple(place)])
                chosen.setdefault(int(number), set()).add(tuple(place.tolist()))
            assert not rows.mask[first:].any()
    assert chosen[0] == {(a, i) for a in range(3) for i in range(3)}
    assert chosen[1] == {(0, 0), (0, 1), (0, 2)}
    assert len(chosen[10]) > 25


@pytest.mark.parametrize("backend", tiers.slow_unless(["llvm"], *BACKENDS))
@pytest.mark.parametrize("name", ONE_OF_ALL)
def test_the_loss_of_hessians_and_its_gradient(name, backend, file):
    """Each backend gives all predictions, as e3nn-jax's ops and finite differences do."""
    frames = read_structures(file)[6:9]
    samples = prepare_samples(frames, 3.0, (1, 8), {1: 0.0, 8: 0.0})
    settings = SMALL[name] | {"layers": 1, "num_species": 2, "cutoff": 3.0, "channels": 2}

    def value(params, potential, batch):
        direction = batch.labels.hessian.direction
        done = predict(potential, params, batch.graph, direction=direction)
        sums = error_sums(done, batch.labels, batch.graph)
        return Loss(0.0, 0.0, 0.0, 1.0, hessian=1.0)(sums), done

    with jax.enable_x64(True):
        [batch] = Batcher(samples, 3, dtype=np.float64, hessians=True).batches()
        graph, rows = batch.graph, batch.labels.hessian
        native, reference = (
            Potential(build(name, irreps_out="0e", **settings, backend=backend), (1, 1.5), (0, 0))
            for backend in (backend, "e3nn")
        )
        start = graph.vectors, graph.species, graph.edges
        params = jax.jit(native.init)(jax.random.key(0), *start)
        compiled = jax.jit(jax.value_and_grad(value, has_aux=True), static_argnums=1)
        with only(backend, forbidden=("tensor_product",)):  # a gate is an elementwise product
            (ours, done), gradient = compiled(params, native, batch)
        (theirs, exact), expected = compiled(params, reference, batch)
        np.testing.assert_allclose(ours, theirs, rtol=1e-11)
        for a, b in zip(*map(jax.tree.leaves, (done, exact)), strict=True):
            np.testing.assert_allclose(a, b, rtol=0, atol=1e-9 * max(1, np.abs(b).max()))
        scale = optax.tree.norm(expected)
        for a, b in zip(*map(jax.tree.leaves, (gradient, expected)), strict=True):
            np.testing.assert_allclose(a, b, rtol=0, atol=1e-10 * scale)
        # along the gradient, whose length is the slope; differences err by the step squared
        plus, minus = (
            compiled(optax.tree.add_scale(params, step / scale, gradient), native, batch)[0][0]
            for step in (1e-4, -1e-4)
        )
        assert float(scale) == pytest.approx(float(plus - minus) / 2e-4, rel=1e-5)
        predicted, size = compile_predict(native), 1e-5

        def forces(step):
            positions = graph.positions + step * rows.direction
            moved = dataclasses.replace(graph, positions=positions)
            return np.asarray(predicted(params, moved).forces)

        slope = (forces(-size) - forces(size)) / (2 * size)
    np.testing.assert_allclose(done.along, slope, rtol=0, atol=1e-5)
    known = np.flatnonzero(rows.mask)
    assert 0 < len(known) < graph.node_mask.sum()
    errors = (np.asarray(done.along) - rows.values)[known]
    assert float(ours) == pytest.approx(np.mean(errors**2), rel=1e-10)


def test_a_run_on_hessians(file, tmp_path, capsys):
    run, name = tmp_path / "run", "hessian_rmse_mev_per_a2"
    more = ["training.hessian_weight=0.1", "epochs=30", "dtype=float64", "cutoff=3", "seed=1"]
    more += ["training.energy_weight=0", "training.forces_weight=0"]  # the best by Hessians
    assert main([f"data={file}", *TINY, *more, f"run={run}"]) == 0
    assert "H RMSE" in capsys.readouterr().out
    errors = [float(row[f"val_{name}"]) for row in rows_of(run)]
    assert errors[-1] < 0.8 * errors[0]
    # the table of the end has the errors of the same rows, and those by element
    table = errors_of(run)
    best, *by = (
        float(table["validation", group][name])
        for group in ("all", "element O", "element H", "element H")
    )
    assert best == pytest.approx(min(errors), rel=1e-9)
    assert np.sqrt(np.mean(np.square(by))) == pytest.approx(best, rel=1e-9)
    assert f"<td>{best:.2f}</td>" in (run / "report.html").read_text(encoding="utf-8")
    # the errors of validation frames are those of the network's Hessians
    frames = ase.io.read(file, ":8")
    whole = [np.sqrt(np.mean((eqfuse.hessian(run, a) - springs(a)) ** 2)) * 1e3 for a in frames]
    assert min(errors) == pytest.approx(np.mean(whole), rel=0.5)
    ase.io.write(plain := tmp_path / "plain.xyz", ase.io.read(file, "8:") * 4)
    message = refused([f"data={plain}", *TINY, "training.hessian_weight=1"], capsys)
    assert "training.hessian_weight=1.0 needs hessian" in message
    assert "no column hessian" in message
