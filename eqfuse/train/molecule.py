"""A run on molecules and crystals: read the data, report, train on energies and forces."""

import contextlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from eqfuse import data, models
from eqfuse.data import Batcher, Dataset
from eqfuse.models.heads import stack_heads
from eqfuse.models.radial_table import choose
from eqfuse.runs.checkpoint import Checkpoints
from eqfuse.runs.errors import ConfigError
from eqfuse.runs.files import RunFolder, require_free
from eqfuse.runs.log import Log, machine
from eqfuse.train.datasets import load_datasets
from eqfuse.train.loop import Fit
from eqfuse.train.parallel import Devices
from eqfuse.train.results import Callback, loggers, write_results
from eqfuse.train.schedule import Limits
from eqfuse.train.settings.config import PAST, Config, PotentialSettings
from eqfuse.train.settings.options import to_yaml
from eqfuse.train.start import Start, interrupted_run, run_metadata
from eqfuse.train.step import Compiled, init_state, initial_parameters
from eqfuse.train.terminal import (
    lines,
    network_report,
    parameters,
    ranges,
    report,
    warnings_printed,
)
from eqfuse.train.tuning import Tuning, training_of


def build_potential(
    settings: PotentialSettings, dataset: Dataset, backend: str | None
) -> tuple[models.Potential, dict]:
    """Return the potential for a dataset, and the fields of its model as plain values."""
    fields = settings.model_fields(dataset.avg_num_neighbors)
    fields |= {"irreps_out": "0e", "num_species": len(dataset.species)}
    if fields.get("distance_transform") is not None:
        fields["atomic_numbers"] = [int(z) for z in dataset.species]
    scale, shift = _scale_and_shift(settings, dataset)
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
        scale=scale,
        shift=shift,
        trainable_scale_shift=settings.trainable_scale_shift,
        binds_within=None if dataset.references_fitted else settings.cutoff,
        repulsion=models.ZBL.of(dataset.species) if settings.zbl else None,
    )
    return potential, fields


def run(config: Config, devices: Devices, callbacks: Sequence[Callback], log: Log) -> Path:
    """Train a potential; print as it goes; return the folder of the run.

    Args:
      config: of the run.
      devices: which share every batch.
      callbacks: called as it goes, besides those of `config.loggers`.
      log: keeps what is printed.
    Raises:
      data.DataError, ConfigError, TrainingFailed, Interrupted: see `exit_code`; the last good
        checkpoint stays.
    """
    name, writes = f"{config.model.name}_{config.data.name}", devices.is_main
    with devices.together():
        callbacks = [*loggers(config.loggers), *callbacks] if writes else []
        if writes and config.resume is None:
            require_free(config.run)  # refused before the data are read
        dataset, starts = load_datasets(config)
        tuning = Tuning.of(config, dataset, starts)
        if tuning is not None and config.heads:
            dataset = tuning.with_past(dataset)
        potential, fields, params = _initial_network(config, dataset, starts, tuning)
        batchers = _batchers(config, dataset, devices, tuning)
        training = training_of(config, dataset, params, tuning)
    with devices.together():
        folder = RunFolder(config.run, None if config.resume else to_yaml(config), name, writes)
    with contextlib.closing(folder):
        if tuning is not None and writes:
            tuning.keep(folder)
        if writes:
            log.begin(folder.path, new=config.resume is None)
        described = batchers[0].samples, potential, fields, params
        metadata, resume = run_metadata(config, dataset, *described), None
        if starts[0] is not None:
            before = starts[0].metadata.get("started_from")  # of a resumed run, whose start is gone
            metadata["started_from"] = before if tuning is None else tuning.origin
        if config.resume is not None:
            with devices.together(), warnings_printed():
                like = init_state(params, training[1], training[0])
                limits = Limits(len(batchers[0]), config.steps, config.epochs, config.max_minutes)
                resume = interrupted_run(config, like, metadata, folder, limits, writes)
        if choose(potential.model, max(s.n_edges for s in batchers[0].shapes)).table:
            metadata["radial"] = "table"
        facts = report(config, dataset, folder, devices)
        facts |= {} if tuning is None else tuning.facts(dataset)
        print(lines(facts))
        batch = devices.part(next(batchers[0].batches(epoch=0)))
        print(network_report(potential, params, batch.graph, config.verbose), flush=True)
        seconds = config.training.checkpoint_seconds
        checkpoints = Checkpoints(folder.checkpoints, metadata, seconds, writes=writes)
        compiled = Compiled(config, potential, dataset.force_rms, params, training, devices)
        known = {"pretrained": starts[0] is not None, "callbacks": callbacks}
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
                    tuning.report(folder, dataset)
                for callback in callbacks:
                    callback.on_end(errors)
        return folder.path


def _initial_network(
    config: Config, dataset: Dataset, starts: Sequence[Start | None], tuning: Tuning | None
):
    """Return a potential, the fields of its model, and its first parameters, of all heads."""
    if starts[0] is not None:
        heads = [start.initial_params() for start in starts]
        if PAST in dataset.heads:
            heads.append(heads[0] if starts[0].resumed else tuning.network.params)
        try:
            return *starts[0].potential(), stack_heads(heads) if config.heads else heads[0]
        except ValueError as error:
            raise ConfigError(
                f"the heads of {config.start_from} are networks of their own ({error}); train one "
                "alone, or give heads other names, which all start from one (head=NAME)"
            ) from error
    potential, fields = build_potential(config.model, dataset, config.backend)
    sample = dataset.train[0]
    shape = data.Shape(sample.num_atoms + 1, max(sample.num_edges, 1), 2)
    graph = data.collate([sample], shape, config.dtype).graph
    # The statistics of the data are no constants of the program, which is the same for other data.
    names = "scale", "shift"
    plain = potential.clone(**{name: (0.0,) * len(dataset.species) for name in names})
    params = initial_parameters(plain, config.seed, graph, config.dtype)
    heads = []
    for own in dataset.heads.values() or [dataset]:
        numbers = dict(zip(names, _scale_and_shift(config.model, own), strict=True))
        given = {name: np.array(numbers[name], config.dtype) for name in names}
        heads.append({**params, "params": {**params["params"], **given}})
    return potential, fields, stack_heads(heads) if config.heads else heads[0]


def _scale_and_shift(settings: PotentialSettings, dataset: Dataset) -> tuple[tuple, tuple]:
    """Return the first scale and shift of each species, eV."""
    count = len(dataset.species)
    mean = dataset.energy_per_atom if settings.shift == "mean" else 0.0
    return (dataset.force_rms,) * count, (mean,) * count


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
