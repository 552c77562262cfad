"""A run on molecules and crystals: read the data, report, train on energies and forces."""

import contextlib
import dataclasses
import sys
import warnings
from collections.abc import Callable, Sequence

import jax.numpy as jnp

from eqfuse import data, models
from eqfuse.data import Batcher, Dataset
from eqfuse.data.lazy import Joined, without_isolated_atoms
from eqfuse.data.samples import species_table
from eqfuse.data.store import samples_of
from eqfuse.models.radial_table import choose
from eqfuse.train.compiled import Compiled
from eqfuse.train.device.parallel import Devices
from eqfuse.train.initial import initial_parameters
from eqfuse.train.labels import labels_not_validated, require_labels, weighted
from eqfuse.train.loop import Fit
from eqfuse.train.run.callbacks import Callback, loggers
from eqfuse.train.run.metadata import interrupted_run, kept_references, run_metadata
from eqfuse.train.run.progress import warnings_printed
from eqfuse.train.run.report import report
from eqfuse.train.run.results import write_results
from eqfuse.train.run.runs import RunFolder, new_folder
from eqfuse.train.run.saving import Checkpoints
from eqfuse.train.schedule import Limits, MoleculeTraining
from eqfuse.train.settings.config import Config
from eqfuse.train.settings.networks import PotentialSettings
from eqfuse.train.settings.options import to_yaml
from eqfuse.train.settings.schema import ConfigError
from eqfuse.train.sources import MoleculeData
from eqfuse.train.start import Start
from eqfuse.train.step import TrainState
from eqfuse.train.tables import check_radial


def load_dataset(
    settings: MoleculeData,
    training: MoleculeTraining,
    cutoff: float,
    seed: int,
    start: Start | None = None,
    resume: str | None = None,
) -> tuple[Dataset, Start | None]:
    """Read the data of a run, split and reference them; print warnings.

    Args:
      settings, training: of the data, and of the training on them.
      cutoff: Å.
      seed: of the split.
      start: the network that the run starts from, if any.
      resume: folder of the run that goes on, if any.
    Returns:
      The dataset, and the network; with `elements=data` for the elements of the data only.
    Raises:
      data.DataError: a file, split or element that cannot be used.
      ConfigError: a weight for labels that no frame has, or for an unknown config_type; elements
        or reference energies that do not fit the network.
    """
    structures, validation = weighted(settings, settings.read(), settings.read_validation())
    require_labels(training, settings, without_isolated_atoms(structures))
    references = settings.read_reference_energies()
    if start is not None:
        start = start.for_elements(species_table(Joined(structures, validation or [])))
        references = start.references(references)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        dataset = Dataset.build(
            structures,
            cutoff=cutoff,
            train_size=_size(settings.train),
            val_size=_size(settings.val),
            seed=seed,
            species=None if start is None else start.species,
            references=references,
            validation=validation,
        )
    if resume is not None and dataset.references_fitted:
        kept = kept_references(resume, dataset.references)
        if kept is not None:
            dataset = dataset.with_references(kept, structures, validation)
    messages = [warning.message for warning in caught]
    if start is not None:
        dataset, more = _referenced(
            settings.references_origin, start, dataset, structures, validation
        )
        messages += more
    require_labels(training, settings, dataset.train, chosen=True)
    messages += labels_not_validated(training, dataset)
    dataset = _with_test(dataset, settings.read_test())
    if resume is None:  # it was checked when the run began
        messages += settings.check_data(dataset, structures, validation)
    for message in messages:
        print(f"warning: {message}", file=sys.stderr, flush=True)
    return dataset, start


def _referenced(origin: str | None, start: Start, dataset: Dataset, structures, validation):
    """Return the dataset with the reference energies of its network, and warnings."""
    messages = []
    if origin is None:
        messages += start.other_atoms([structures[i] for i in dataset.isolated_atoms])
    if start.refits:
        references = start.refitted(dataset)
        dataset = dataset.with_references(references, structures, validation)
    if not start.resumed:
        messages += start.other_energies(dataset)
    return dataset, messages


def _with_test(dataset: Dataset, structures) -> Dataset:
    """Return the dataset with test samples of structures that are no isolated atoms, if any."""
    frames = without_isolated_atoms(structures or ())
    if structures is not None and not frames:
        raise data.DataError("data.test has no frame of several atoms")
    references = dataset.references
    test = samples_of(frames, dataset.cutoff, dataset.species, references)
    return dataclasses.replace(dataset, test=test)


def _size(value: float | None) -> float | None:
    return int(value) if value is not None and value >= 1 else value


def build_potential(
    settings: PotentialSettings, dataset: Dataset, backend: str | None
) -> tuple[models.Potential, dict]:
    """Return the potential for a dataset, and the fields of its model as plain values."""
    fields = settings.model_fields(dataset.avg_num_neighbors)
    fields |= {"irreps_out": "0e", "num_species": len(dataset.species)}
    if fields.get("distance_transform") is not None:
        fields["atomic_numbers"] = [int(z) for z in dataset.species]
    count = len(dataset.species)
    mean = dataset.energy_per_atom if settings.shift == "mean" else 0.0
    model = models.build(settings.name, **fields, backend=backend)
    try:
        model.layer_irreps()
        if isinstance(model, models.NequIP):
            model.check()
    except ValueError as error:
        raise ConfigError(f"model={settings.name} is impossible: {error}") from error
    check_radial(model, settings.name)
    potential = models.Potential(
        model=model,
        scale=(dataset.force_rms,) * count,
        shift=(mean,) * count,
        trainable_scale_shift=settings.trainable_scale_shift,
        binds_within=None if dataset.references_fitted else settings.cutoff,
        repulsion=models.ZBL.of(dataset.species) if settings.zbl else None,
    )
    return potential, fields


def run(config: Config, devices: Devices, callbacks: Sequence[Callback] = ()) -> None:
    """Train a potential; print as it goes.

    Args:
      config: of the run.
      devices: which share every batch.
      callbacks: called as it goes, besides those of `config.loggers`.
    Raises:
      data.DataError, ConfigError: data or settings refused.
      TrainingFailed: the loss is not finite; the last good checkpoint stays.
      Interrupted: by Ctrl-C; the checkpoint is written.
    """
    name, writes = f"{config.model.name}_{config.data.name}", devices.is_main
    with devices.together():
        callbacks = [*loggers(config.loggers), *callbacks] if writes else []
        if writes and config.resume is None:
            new_folder(config.run, name)  # refused before the data are read
        with warnings_printed():
            own = config.elements, config.backend, config.dtype
            start = Start.read(config.start_from, config.resume, config.model, config.data, *own)
        dataset, start = load_dataset(
            config.data, config.training, config.model.cutoff, config.seed, start, config.resume
        )
        network = config.model, config.seed, config.dtype, config.backend
        potential, fields, params = _initial_network(*network, dataset, start)
        batchers = _batchers(config.data.batch_size, config.seed, config.dtype, dataset, devices)
    with devices.together():
        folder = RunFolder(config.run, None if config.resume else to_yaml(config), name, writes)
    with contextlib.closing(folder):
        metadata = run_metadata(dataclasses.asdict(config), dataset, potential, fields)
        resume = None
        if config.resume is not None:
            with devices.together(), warnings_printed():
                resume = interrupted_run(
                    config.data, config.training, params, metadata, folder, writes
                )
        limits = Limits(len(batchers[0]), config.steps, config.epochs, config.max_minutes)
        how = config.data, config.training, config.start_from, config.backend
        print(report(*how, dataset, batchers, limits, folder, devices))
        _print_network(potential, params, batchers[0], metadata, devices)
        seconds = config.training.checkpoint_seconds
        checkpoints = Checkpoints(folder.checkpoints, metadata, seconds, writes=writes)
        how = {"sequence": config.sequence, "profiled": config.profile}
        compiled = Compiled(config.training, potential, dataset.force_rms, params, devices, **how)
        places = folder, checkpoints, devices
        known = {"profiled": config.profile, "pretrained": start is not None}
        fit = Fit(
            config.training, compiled, batchers, limits, *places, **known, callbacks=callbacks
        )
        for callback in callbacks:
            callback.on_start(folder.path, metadata["config"])

        def finish(state: TrainState | None):
            if writes:
                batches = {"batch_size": config.data.batch_size, "dtype": config.dtype}
                ended = state is not None
                errors = write_results(folder, potential, dataset, **batches, ended=ended)
                for callback in callbacks:
                    callback.on_end(errors)

        _train(fit, resume, checkpoints, finish)


def _initial_network(
    settings: PotentialSettings, seed: int, dtype: str, backend: str | None, dataset, start
):
    """Return a potential, the fields of its model, and its first parameters."""
    if start is not None:
        return *start.potential(), start.initial_params()
    potential, fields = build_potential(settings, dataset, backend)
    return potential, fields, _initial_parameters(potential, dataset, seed, dtype)


def _batchers(
    size: int, seed: int, dtype: str, dataset: Dataset, devices: Devices
) -> list[Batcher]:
    """Return the batchers of the training and the validation samples."""
    if size < devices.count:
        raise ConfigError(
            f"data.batch_size={size} is too small for {devices.count} devices, which need a "
            f"structure each; set data.batch_size={devices.count} or more, or fewer devices="
        )
    return [
        Batcher(
            samples,
            size,
            seed=seed,
            dtype=dtype,
            parts=devices.count,
            own=devices.own,
        )
        for samples in (dataset.train, dataset.val)
    ]


def _print_network(potential, params, batcher: Batcher, metadata: dict, devices: Devices):
    """Print what the network is; write to the metadata that its largest batch reads tables.

    Args:
      potential, params: the network.
      batcher: of the training samples.
      metadata: of the checkpoints.
      devices: which share every batch.
    """
    print(models.summary(potential, params))
    batch = devices.part(next(batcher.batches(epoch=0)))
    print(models.ops_summary(potential, params, batch.graph))
    if choose(potential.model, max(shape.n_edges for shape in batcher.shapes)).table:
        metadata["radial"] = "table"


def _train(fit: Fit, resume, checkpoints: Checkpoints, finish: Callable):
    """Train, then call `finish` with the last state, or with None if the training did not end."""
    state, finishes = None, True
    try:
        state = fit.run(resume)
    except KeyboardInterrupt:  # the second Ctrl-C, which stops at once
        finishes = False
        raise
    finally:
        checkpoints.flush()
        if finishes:
            finish(state)


def _initial_parameters(potential, dataset: Dataset, seed: int, dtype: str):
    sample = dataset.train[0]
    shape = data.Shape(sample.num_atoms + 1, max(sample.num_edges, 1), 2)
    graph = data.collate([sample], shape, dtype).graph
    # The statistics of the data are no constants of the program, which is the same for other data.
    names = "scale", "shift"
    plain = potential.clone(**{name: (0.0,) * len(dataset.species) for name in names})
    params = initial_parameters(plain, seed, graph, dtype)
    given = {name: jnp.array(getattr(potential, name), dtype) for name in names}
    return {**params, "params": {**params["params"], **given}}
