"""A run on molecules and crystals: read the data, report, train on energies and forces."""

import contextlib
import sys
import warnings
from collections.abc import Sequence
from pathlib import Path

import jax.numpy as jnp

from eqfuse import data, models
from eqfuse.data import Batcher, Dataset, Sample, Structure
from eqfuse.data.lazy import Joined, without_isolated_atoms
from eqfuse.data.samples import species_table
from eqfuse.data.structures import DEFAULT_TYPE, TRAINED, count_labelled, weighted_by_type
from eqfuse.models.radial_table import choose
from eqfuse.train.device.parallel import Devices
from eqfuse.train.loop import Fit
from eqfuse.train.run.checkpoint import Checkpoints
from eqfuse.train.run.files import RunFolder, require_free
from eqfuse.train.run.log import Log, machine
from eqfuse.train.run.results import Callback, loggers, write_results
from eqfuse.train.run.terminal import (
    lines,
    network_report,
    parameters,
    ranges,
    report,
    warnings_printed,
)
from eqfuse.train.schedule import Limits, MoleculeTraining
from eqfuse.train.settings.config import Config, PotentialSettings
from eqfuse.train.settings.options import to_yaml
from eqfuse.train.settings.schema import ConfigError, require
from eqfuse.train.sources import DataSettings
from eqfuse.train.start import Start, interrupted_run, kept_references, run_metadata
from eqfuse.train.step import Compiled, init_state, initial_parameters
from eqfuse.train.tuning import Tuning, trained_part


def load_dataset(config: Config, start: Start | None = None) -> tuple[Dataset, Start | None]:
    """Read the data of a run, split and reference them; print warnings.

    Returns the dataset, and the network that the run starts from, for the `elements` of the run.
    """
    settings, training = config.data, config.training
    structures, validation = weighted(settings, settings.read(), settings.read("val_path"))
    require_labels(training, settings, without_isolated_atoms(structures))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        references = settings.read_reference_energies(config.model.cutoff)
        if start is not None:
            start = start.for_elements(species_table(Joined(structures, validation or [])))
            references = start.references(references)
        dataset = Dataset.build(
            structures,
            cutoff=config.model.cutoff,
            train_size=_size(settings.train),
            val_size=_size(settings.val),
            seed=config.seed,
            species=None if start is None else start.species,
            references=references,
            validation=validation,
            duplicates=settings.duplicates,
        )
    if config.resume is not None and dataset.references_fitted:
        kept = kept_references(config.resume, dataset.species)
        if kept is not None:
            dataset = dataset.with_references(kept, structures, validation)
    messages = [warning.message for warning in caught]
    if start is not None:
        dataset, more = start.referenced(dataset, structures, validation)
        messages += more
    require_labels(training, settings, dataset.train, chosen=True)
    messages += labels_not_validated(training, dataset)
    if (test := settings.read("test")) is not None:
        frames = without_isolated_atoms(test)
        if not frames:
            raise data.DataError("data.test has no frame of several atoms")
        with warnings_printed():
            dataset = dataset.with_test(frames, settings.duplicates)
    if config.resume is None:  # it was checked when the run began
        messages += settings.check_data(dataset, structures, validation)
    for message in messages:
        print(f"warning: {message}", file=sys.stderr, flush=True)
    return dataset, start


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
        choose(model, 0)  # refuses tables of radial functions that the network cannot have
    except ValueError as error:
        raise ConfigError(f"model={settings.name} is impossible: {error}") from error
    potential = models.Potential(
        model=model,
        scale=(dataset.force_rms,) * count,
        shift=(mean,) * count,
        trainable_scale_shift=settings.trainable_scale_shift,
        binds_within=None if dataset.references_fitted else settings.cutoff,
        repulsion=models.ZBL.of(dataset.species) if settings.zbl else None,
    )
    return potential, fields


def run(config: Config, devices: Devices, callbacks: Sequence[Callback] = ()) -> Path:
    """Train a potential; print as it goes; return the folder of the run.

    Args:
      config: of the run.
      devices: which share every batch.
      callbacks: called as it goes, besides those of `config.loggers`.
    Raises:
      data.DataError, ConfigError, TrainingFailed, Interrupted: see `exit_code`; the last good
        checkpoint stays.
    """
    with Log() as log:
        return _run(config, devices, callbacks, log)


def _run(config: Config, devices: Devices, callbacks: Sequence[Callback], log: Log) -> Path:
    name, writes = f"{config.model.name}_{config.data.name}", devices.is_main
    with devices.together():
        callbacks = [*loggers(config.loggers), *callbacks] if writes else []
        if writes and config.resume is None:
            require_free(config.run)  # refused before the data are read
        with warnings_printed():
            start = Start.read(config)
        dataset, start = load_dataset(config, start)
        potential, fields, params = _initial_network(config, dataset, start)
        tuning = Tuning.of(config, dataset, start)
        batchers = _batchers(config, dataset, devices, tuning)
        trained, training = trained_part(config, params, tuning)
    with devices.together():
        folder = RunFolder(config.run, None if config.resume else to_yaml(config), name, writes)
    with contextlib.closing(folder):
        if tuning is not None and writes:
            tuning.keep(folder)
        if writes:
            log.begin(folder.path, new=config.resume is None)
        metadata, resume = run_metadata(config, dataset, potential, fields), None
        if config.resume is not None:
            with devices.together(), warnings_printed():
                like = init_state(training[0].flatten(trained), training[1])
                limits = Limits(len(batchers[0]), config.steps, config.epochs, config.max_minutes)
                resume = interrupted_run(config, like, metadata, folder, limits, writes)
        if choose(potential.model, max(s.n_edges for s in batchers[0].shapes)).table:
            metadata["radial"] = "table"
        facts = report(config, dataset, batchers[0], folder, devices)
        facts |= {} if tuning is None else tuning.facts()
        print(lines(facts))
        batch = devices.part(next(batchers[0].batches(epoch=0)))
        print(network_report(potential, params, batch.graph, config.verbose), flush=True)
        seconds = config.training.checkpoint_seconds
        checkpoints = Checkpoints(folder.checkpoints, metadata, seconds, writes=writes)
        compiled = Compiled(config, potential, dataset.force_rms, trained, training, devices)
        known = {"pretrained": start is not None, "callbacks": callbacks}
        fit = Fit(config, compiled, batchers, folder, checkpoints, devices, **known)
        for callback in callbacks:
            callback.on_start(folder.path, metadata["config"])
        ended, finishes = False, True
        try:
            fit.run(resume)
            ended = True
        except KeyboardInterrupt:  # the second Ctrl-C, which stops at once
            finishes = False
            raise
        finally:
            checkpoints.flush()
            if writes and finishes:
                facts |= ranges(dataset) | {"network": parameters(potential, params)} | machine()
                batches = {"batch_size": config.data.batch_size, "dtype": config.dtype}
                errors = write_results(folder, potential, dataset, facts, **batches, ended=ended)
                if ended and tuning is not None:
                    tuning.report(folder)
                for callback in callbacks:
                    callback.on_end(errors)
        return folder.path


def _initial_network(config: Config, dataset: Dataset, start: Start | None):
    """Return a potential, the fields of its model, and its first parameters."""
    if start is not None:
        return *start.potential(), start.initial_params()
    potential, fields = build_potential(config.model, dataset, config.backend)
    sample = dataset.train[0]
    shape = data.Shape(sample.num_atoms + 1, max(sample.num_edges, 1), 2)
    graph = data.collate([sample], shape, config.dtype).graph
    # The statistics of the data are no constants of the program, which is the same for other data.
    names = "scale", "shift"
    plain = potential.clone(**{name: (0.0,) * len(dataset.species) for name in names})
    params = initial_parameters(plain, config.seed, graph, config.dtype)
    given = {name: jnp.array(getattr(potential, name), config.dtype) for name in names}
    return potential, fields, {**params, "params": {**params["params"], **given}}


def _batchers(
    config: Config, dataset: Dataset, devices: Devices, tuning: Tuning | None
) -> list[Batcher]:
    """Return the batchers of the training and the validation samples."""
    size = config.data.batch_size
    if size < devices.count:
        raise ConfigError(
            f"data.batch_size={size} is too small for {devices.count} devices, which need a "
            f"structure each; set data.batch_size={devices.count} or more, or fewer devices="
        )
    train = dataset.train if tuning is None else tuning.with_replay(dataset.train)
    how = {"seed": config.seed, "dtype": config.dtype, "parts": devices.count, "own": devices.own}
    how["hessians"] = config.training.hessian_weight > 0
    return [Batcher(samples, size, **how) for samples in (train, dataset.val)]


def weighted(
    settings: DataSettings, structures: Sequence[Structure], validation: Sequence[Structure] | None
):
    """Return the structures with the weights of their config_type."""
    weights = settings.type_weights()
    if not weights:
        return structures, validation
    every = Joined(structures, validation or [])
    types = {structure.config_type or DEFAULT_TYPE for structure in every}
    if unknown := sorted(set(weights) - types - {DEFAULT_TYPE}):
        raise ConfigError(
            f"data.config_type_weights: no frame has config_type={unknown[0]}; there are "
            f"{', '.join(sorted(types))}"
        )
    structures = weighted_by_type(structures, weights)
    return structures, None if validation is None else weighted_by_type(validation, weights)


def _trained_labels(training: MoleculeTraining) -> list[str]:
    """Return the labels with a weight in the loss."""
    return [name for name in TRAINED if getattr(training, f"{name}_weight")]


def require_labels(
    training: MoleculeTraining,
    settings: DataSettings,
    frames: Sequence[Structure | Sample],
    chosen: bool = False,
):
    """Refuse labels that have a weight in the loss, and that no frame has.

    `frames` are all that were read, without isolated atoms, or with `chosen` those that train.
    """
    for name in _trained_labels(training):
        if not frames or count_labelled(frames, name):
            continue
        setting = f"training.{name}_weight"
        why = (
            f"only other frames have {name}; choose more (data.train) or others (seed)"
            if chosen
            else settings.missing_label(name)
        )
        raise ConfigError(
            f"{setting}={getattr(training, f'{name}_weight')} needs {name}, of a weight above "
            f"zero, in a training frame of {settings.origin}: {why}; or set {setting}=0"
        )


def labels_not_validated(training: MoleculeTraining, dataset: Dataset) -> list[str]:
    """Return warnings of labels that are trained on and that no validation frame has.

    Without any of them nothing decides which network is best, which is an error.
    """
    trained = _trained_labels(training)
    unknown = [name for name in trained if not dataset.num_labelled(name)[1]]
    if unknown == trained:
        raise ConfigError(
            f"no validation frame has a label that is trained on ({', '.join(trained)}), so that "
            "the best network is not known; choose others (data.val, data.val_path or seed)"
        )
    criterion = training.best
    quantity = criterion.partition("_")[0]
    if criterion != "loss":
        need = f"of a label that validation frames have: none has {quantity}"
        require(dataset.num_labelled(quantity)[1] > 0, "training.best", criterion, need)
        need = f"left out: it is predicted only with training.{quantity}_weight above zero"
        predicted = quantity in ("energy", "forces") or quantity in trained
        require(predicted, "training.best", criterion, need)
    return [
        f"no validation frame has {'' if name in ('energy', 'forces') else 'a '}{name}: the errors "
        f"of {name} are not known"
        for name in unknown
    ]
