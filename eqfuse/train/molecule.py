"""A run on molecules and crystals: read the data, report, train on energies and forces."""

import contextlib
import dataclasses
import sys
import warnings
from collections.abc import Sequence

import jax.numpy as jnp

from eqfuse import data, models
from eqfuse.data import Batcher, Dataset
from eqfuse.data.lazy import Joined, without_isolated_atoms
from eqfuse.data.samples import species_table
from eqfuse.data.store import samples_of
from eqfuse.train.device.parallel import Devices
from eqfuse.train.initial import initial_parameters
from eqfuse.train.labels import labels_not_validated, require_labels, weighted
from eqfuse.train.loop import Fit
from eqfuse.train.metrics import Loss
from eqfuse.train.run.callbacks import Callback, loggers
from eqfuse.train.run.metadata import interrupted_run, kept_references, run_metadata
from eqfuse.train.run.progress import warnings_printed
from eqfuse.train.run.report import report
from eqfuse.train.run.results import write_results
from eqfuse.train.run.runs import RunFolder, folder_for
from eqfuse.train.run.saving import Checkpoints
from eqfuse.train.schedule import Limits
from eqfuse.train.settings.config import Config, PotentialSettings
from eqfuse.train.settings.schema import ConfigError
from eqfuse.train.start import Start
from eqfuse.train.tables import check_radial, with_knots


def load_dataset(config: Config, start: Start | None = None) -> tuple[Dataset, Start | None]:
    """Read the data of a run, split and reference them; print warnings.

    Args:
      config: of the run.
      start: the network that it starts from, if any.
    Returns:
      The dataset, and the network; with `elements=data` for the elements of the data only.
    Raises:
      data.DataError: a file, split or element that cannot be used.
      ConfigError: a weight for labels that no frame has, or for an unknown config_type; elements
        or reference energies that do not fit the network.
    """
    settings = config.data
    structures, validation = weighted(settings, settings.read(), settings.read_validation())
    require_labels(config.training, settings, without_isolated_atoms(structures))
    references = settings.read_reference_energies()
    if start is not None:
        start = start.for_elements(species_table(Joined(structures, validation or [])))
        references = start.references(references)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        dataset = Dataset.build(
            structures,
            cutoff=config.model.cutoff,
            train_size=_size(settings.train),
            val_size=_size(settings.val),
            seed=config.seed,
            species=None if start is None else start.species,
            references=references,
            validation=validation,
        )
    if config.resume is not None and dataset.references_fitted:
        kept = kept_references(config.resume, dataset.references)
        if kept is not None:
            dataset = dataset.with_references(kept, structures, validation)
    messages = [warning.message for warning in caught]
    if config.resume is None:  # it was checked when the run began
        messages += settings.check_data(dataset, structures, validation)
    if start is not None:
        dataset, more = _referenced(
            settings.references_origin, start, dataset, structures, validation
        )
        messages += more
    require_labels(config.training, settings, dataset.train, chosen=True)
    messages += labels_not_validated(config.training, dataset)
    dataset = _with_test(dataset, settings.read_test())
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
    with devices.together():
        callbacks = [*loggers(config.loggers), *callbacks] if devices.is_main else []
        if devices.is_main:
            folder_for(config)
        with warnings_printed():
            start = Start.of(config)
        dataset, start = load_dataset(config, start)
        if start is None:
            potential, fields = build_potential(config.model, dataset, config.backend)
            params = _initial_parameters(potential, dataset, config.seed, config.dtype)
        else:
            potential, fields = start.potential()
            params = start.initial_params()
        batchers = _batchers(config.data.batch_size, config.seed, config.dtype, dataset, devices)
    with devices.together():
        folder = RunFolder(config, writes=devices.is_main)
    with contextlib.closing(folder):
        _train(config, dataset, potential, fields, batchers, params, folder, devices, callbacks)


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


def _train(config, dataset, potential, fields, batchers, params, folder, devices, callbacks):
    metadata = run_metadata(config, dataset, potential, fields)
    with devices.together():
        writes = devices.is_main
        with warnings_printed():
            going_on = config.resume and interrupted_run(config, params, metadata, folder, writes)
        resume, trained = going_on or (None, params)
    lengths = config.steps, config.epochs, config.max_minutes
    limits = Limits(len(batchers[0]), *lengths)
    print(report(config, dataset, batchers, limits, folder, devices))
    print(models.summary(potential, params))
    batch = devices.part(next(batchers[0].batches(epoch=0)))
    largest = max(shape.n_edges for shape in batchers[0].shapes)
    potential, accuracy = with_knots(potential, trained, largest, metadata)
    print(models.ops_summary(potential, params, batch.graph))
    checkpoints = Checkpoints(
        folder.checkpoints,
        metadata,
        config.training.checkpoint_seconds,
        writes=devices.is_main,
    )
    training = config.training
    loss = Loss(
        energy=training.energy_weight,
        forces=training.forces_weight,
        stress=training.stress_weight,
        force_scale=dataset.force_rms,
        kind=training.loss,
        delta=training.huber_delta,
    )
    for callback in callbacks:
        callback.on_start(folder.path, metadata["config"])
    ended, drawn = False, True
    try:
        fit = Fit(
            training,
            potential,
            loss,
            params,
            batchers,
            limits,
            folder,
            checkpoints,
            devices,
            sequence=config.sequence,
            profiled=config.profile,
            pretrained=config.start_from is not None,
            callbacks=callbacks,
        )
        state = fit.run(resume)
        ended = True
        if accuracy is not None:
            print(
                f"radial     {models.accuracy_of(potential, fit.average_of(state)())}", flush=True
            )
    except KeyboardInterrupt:  # the second Ctrl-C, which stops at once
        drawn = False
        raise
    finally:
        checkpoints.flush()
        if devices.is_main and drawn:
            batches = {"batch_size": config.data.batch_size, "dtype": config.dtype}
            errors = write_results(folder, potential, dataset, **batches, ended=ended)
            for callback in callbacks:
                callback.on_end(errors)


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
