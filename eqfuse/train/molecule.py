"""A run on molecules and crystals: read the data, report, train on energies and forces."""

import contextlib
import dataclasses
import io
from collections.abc import Sequence
from pathlib import Path

import jax
import numpy as np

from eqfuse import data, models, ops
from eqfuse.data import Batcher, Dataset
from eqfuse.models.ewald import LatentEwald
from eqfuse.models.heads import stack_heads
from eqfuse.models.potential import irreps_out
from eqfuse.runs.checkpoint import Checkpoints
from eqfuse.runs.errors import ConfigError
from eqfuse.runs.files import RunFolder, require_free
from eqfuse.runs.log import Log, machine, say, warnings_printed
from eqfuse.runs.process import keep_programs
from eqfuse.train.datasets import load_datasets
from eqfuse.train.loop import Fit
from eqfuse.train.parallel import Devices, find_devices, matmul_precision
from eqfuse.train.results import Callback, write_results
from eqfuse.train.settings.config import PAST, Config, PotentialSettings
from eqfuse.train.settings.options import to_yaml
from eqfuse.train.start import interrupted_run, run_metadata
from eqfuse.train.step import Compiled, initial_parameters
from eqfuse.train.terminal import lines, parameters, report
from eqfuse.train.tuning import Tuning, training_of


def build_potential(
    settings: PotentialSettings,
    dataset: Dataset,
    backend: str | None,
    charge_key: str | None = None,
) -> tuple[models.Potential, dict]:
    """Return the potential for a dataset, and the fields of its model as plain values."""
    scale, shift = _scale_and_shift(settings, dataset)
    fields, long_range = settings.model_fields(dataset.avg_num_neighbors), None
    if settings.long_range is not None:
        own = {"charges": settings.les_charges, "charge_key": charge_key}
        own |= {"sigma": settings.les_sigma, "cutoff": settings.les_cutoff}
        long_range = LatentEwald(**own)
    fields |= {"irreps_out": irreps_out(long_range), "num_species": len(dataset.species)}
    if fields.get("distance_transform") is not None:
        fields["atomic_numbers"] = [int(z) for z in dataset.species]
    model = models.build(settings.name, **fields, backend=backend)
    try:
        model.check()
        model.layer_irreps()
    except ValueError as error:
        raise ConfigError(f"model={settings.name} is impossible: {error}") from error
    potential = models.Potential(
        model=model,
        scale=scale,
        shift=shift,
        trainable_scale_shift=settings.trainable_scale_shift,
        binds_within=None if dataset.references_fitted else settings.cutoff,
        repulsion=models.ZBL.of(dataset.species) if settings.zbl else None,
        long_range=long_range,
    )
    return potential, fields


class Prepared:
    """All that a run has before its folder is made.

    `starts` are the networks that its heads start from, None for new ones; `batchers` are of the
    training and the validation samples; `training` is the layout of the parameters in one array,
    and its optimizer.
    """

    def __init__(self, config: Config, devices: Devices):
        """Read the data of a run and the network that it starts from, and print warnings."""
        self.config, self.devices = config, devices
        self.dataset, self.starts = load_datasets(config)
        self.tuning, train = Tuning.of(config, self.dataset, self.starts), None
        if self.tuning is not None:
            self.dataset, train = self.tuning.with_replay(self.dataset)
        self.potential, self.fields, self.params = self._network()
        model = self.potential.model.clone(half_weights=config.precision == "bfloat16")
        self.trained = self.potential.clone(model=model)
        size = config.data.batch_size
        if size < devices.count:
            raise ConfigError(
                f"data.batch_size={size} is too small for {devices.count} devices, which need a "
                f"structure each; set data.batch_size={devices.count} or more, or fewer devices="
            )
        how = {"seed": config.seed, "dtype": config.dtype, "parts": devices.count}
        how |= {"own": devices.own, "hessians": config.training.hessian_weight > 0}
        how["long_range"] = self.potential.long_range
        sides = train or self.dataset.train, self.dataset.val
        self.batchers = [Batcher(samples, size, **how) for samples in sides]
        self.training = training_of(config, self.dataset, self.params, self.tuning)

    def _network(self) -> tuple[models.Potential, dict, dict]:
        """Return the potential, the fields of its model, and its first parameters, of all heads."""
        config, dataset, starts = self.config, self.dataset, self.starts
        if starts[0] is not None:
            heads = [start.initial_params() for start in starts]
            if PAST in dataset.heads:
                past = starts[0] if starts[0].resumed else self.tuning.past
                heads.append(past.initial_params())
            try:
                params = stack_heads(heads) if config.heads else heads[0]
                return starts[0].potential, starts[0].metadata["model_fields"], params
            except ValueError as error:
                raise ConfigError(
                    f"the heads of {config.start_from} are networks of their own ({error}); train "
                    "one alone, or give heads other names, which all start from one (head=NAME)"
                ) from error
        given = config.backend, config.data.charge_key
        potential, fields = build_potential(config.model, dataset, *given)
        sample = dataset.train[0]
        shape = data.Shape(sample.num_atoms + 1, max(sample.num_edges, 1), 2)
        graph = data.collate([sample], shape, config.dtype).graph
        # The statistics of the data are no constants of the program, which is the same for others.
        names = "scale", "shift"
        plain = potential.clone(**{name: (0.0,) * len(dataset.species) for name in names})
        params = initial_parameters(plain, config.seed, graph, config.dtype)
        heads = []
        for own in dataset.heads.values() or [dataset]:
            numbers = zip(names, _scale_and_shift(config.model, own), strict=True)
            given = {name: np.array(values, config.dtype) for name, values in numbers}
            heads.append({**params, "params": {**params["params"], **given}})
        return potential, fields, stack_heads(heads) if config.heads else heads[0]

    def report(self, folder: RunFolder) -> dict[str, str]:
        """Print what there is to say before the training, and return it by title."""
        facts = report(self.config, self.dataset, folder, self.devices)
        facts |= self.tuning.facts(self.dataset) if self.tuning else {}
        say(lines(facts))
        network = self.trained, self.params
        if self.config.verbose:
            batch = self.devices.part(next(self.batchers[0].batches(epoch=0)))
            say(f"{models.summary(*network)}\n{models.ops_summary(*network, batch.graph)}")
        else:
            say(f"network    {parameters(*network)}")
        return facts

    def finish(self, folder: RunFolder, facts: dict, warnings: list[str], ended: bool) -> list:
        """Write and print the results of a run that has `ended`, or was interrupted."""
        facts |= {"network": parameters(self.potential, self.params)} | machine()
        errors = write_results(self, folder, facts, warnings=warnings, ended=ended)
        if ended and self.tuning is not None:
            self.tuning.report(folder, self.dataset)
        return errors


def run(config: Config, callbacks: Sequence[Callback] = ()) -> Path:
    """Train a potential, call callbacks and print as it goes; return the folder of the run.

    Raises:
      data.DataError, ConfigError, TrainingFailed, Interrupted: see `exit_code`; the last good
        checkpoint stays.
    """
    keep_programs()
    try:
        devices = find_devices(config.devices)
        ops.resolve_here(config.backend)
    except ValueError as error:
        raise ConfigError(str(error)) from error
    precision = matmul_precision(config.precision, config.dtype, jax.devices()[0])
    precision = jax.default_matmul_precision(precision)
    hidden = contextlib.redirect_stdout(io.StringIO())
    printing = contextlib.nullcontext() if devices.is_main else hidden
    with jax.enable_x64(config.dtype == "float64"), precision, printing, Log() as log:
        return _train(config, devices, callbacks, log)


def _train(config: Config, devices: Devices, callbacks: Sequence[Callback], log: Log) -> Path:
    name, writes = f"{config.model.name}_{config.data.name}", devices.is_main
    callbacks = callbacks if writes else []
    with devices.together():
        if writes and config.resume is None:
            require_free(config.run)  # refused before the data are read
        ready = Prepared(config, devices)
    with devices.together():
        folder = RunFolder(config.run, None if config.resume else to_yaml(config), name, writes)
    with contextlib.closing(folder):
        if writes:
            if ready.tuning is not None:
                ready.tuning.keep(folder)
            log.begin(folder.path, new=config.resume is None)
        metadata = run_metadata(ready) | {"warnings": log.warnings}
        seconds = config.training.checkpoint_seconds
        checkpoints = Checkpoints(folder.checkpoints, metadata, seconds, writes=writes)
        compiled = Compiled(ready)
        fit = Fit(ready, compiled, folder, checkpoints, callbacks)
        resume = None
        if config.resume is not None:
            with devices.together(), warnings_printed():
                at = metadata, folder, fit.limits, writes
                resume = interrupted_run(config, compiled.initial(), *at)
        facts = ready.report(folder)
        for callback in callbacks:
            callback.on_start(folder.path, dataclasses.asdict(config))
        error = None
        try:
            fit.run(resume)
        except BaseException as caught:
            error = caught
            raise
        finally:
            checkpoints.flush()
            if writes and not isinstance(error, KeyboardInterrupt):  # whose second stops at once
                errors = ready.finish(folder, facts, log.warnings, ended=error is None)
                for callback in callbacks:
                    callback.on_end(errors)
    return folder.path


def _scale_and_shift(settings: PotentialSettings, dataset: Dataset) -> tuple[tuple, tuple]:
    count = len(dataset.species)
    mean = dataset.energy_per_atom if settings.shift == "mean" else 0.0
    return (dataset.force_rms,) * count, (mean,) * count
