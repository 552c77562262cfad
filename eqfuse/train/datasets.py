"""The datasets of a run: one, or one for each of its heads; read, checked, split and referenced."""

import warnings
from collections.abc import Sequence

from eqfuse import data
from eqfuse.data import Dataset, Sample, Structure
from eqfuse.data.lazy import Joined, without_isolated_atoms
from eqfuse.data.remarks import unread
from eqfuse.data.samples import species_table
from eqfuse.data.structures import DEFAULT_TYPE, count_labelled, weighted_by_type
from eqfuse.models.ewald import NO_SLABS
from eqfuse.runs.errors import ConfigError, naming
from eqfuse.runs.log import warn, warnings_printed
from eqfuse.runs.schema import require
from eqfuse.train.schedule import MoleculeTraining
from eqfuse.train.settings.config import Config
from eqfuse.train.sources import DataSettings
from eqfuse.train.start import Start, kept_references


def load_datasets(config: Config) -> tuple[Dataset, list[Start | None]]:
    """Read the data of a run, and of each head if it has several; print warnings.

    Returns the dataset, and the network that each head starts from, None for a new one.
    """
    configs, read, heads, starts = config.of_heads(), {}, {}, []
    for name, own in configs.items():
        with naming(name and f"heads.{name}"):
            read[name] = read_weighted(own.data)
    elements = None
    if config.heads:
        parts = [part for both in read.values() for part in both if part is not None]
        elements = species_table(without_isolated_atoms(Joined(*parts)))
    for name, own in configs.items():
        with naming(name and f"heads.{name}"):
            heads[name], start = _load_dataset(own, name, read[name], elements)
            starts.append(start)
    return (Dataset.of_heads(heads) if config.heads else heads[None]), starts


def _load_dataset(
    config: Config, head: str | None, read: tuple, elements: Sequence[int] | None
) -> tuple[Dataset, Start | None]:
    """Split and reference what `read_weighted` returned, of a run or of a head.

    `elements` are the atomic numbers of all heads; None for those of the data. The network that
    it starts from is returned for the elements of the run.
    """
    settings, training = config.data, config.training
    train, val = (int(n) if n and n >= 1 else n for n in (settings.train, settings.val))
    structures, validation = read
    with warnings_printed():
        start = Start.of(config, head)
    require_labels(training, settings, without_isolated_atoms(structures))
    require_charges(config, start, Joined(structures, validation or ()))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        references = settings.read_reference_energies(config.model.cutoff)
        if start is not None:
            every = elements or species_table(Joined(structures, validation or []))
            start = start.for_elements(every)
            references = start.references(references)
        dataset = Dataset.build(
            structures,
            cutoff=config.model.cutoff,
            train_size=train,
            val_size=val,
            seed=config.seed,
            species=elements if start is None else start.species,
            references=references,
            validation=validation,
            duplicates=settings.duplicates,
        )
    if config.resume is not None and dataset.references_fitted:
        kept = kept_references(config.resume, dataset.species, head)
        if kept is not None:
            dataset = dataset.with_references(kept, structures, validation)
    messages = [warning.message for warning in caught]
    if start is not None:
        dataset, more = start.referenced(dataset, structures, validation)
        messages += more
    require_labels(training, settings, dataset.train, chosen=True)
    messages += labels_not_validated(training, dataset)
    remarks = (remark for s in Joined(structures, validation or ()) for remark in s.remarks)
    messages += [text] if (text := unread(remarks, settings.charge_key)) else []
    if (test := settings.read("test")) is not None:
        frames = without_isolated_atoms(test)
        if not frames:
            raise data.DataError("data.test has no frame of several atoms")
        require_charges(config, start, frames)
        with warnings_printed():
            dataset = dataset.with_test(frames, settings.duplicates)
    if config.resume is None:  # it was checked when the run began
        messages += settings.check_data(dataset, structures, validation)
    for message in messages:
        of_head = "" if head is None else f"head {head}: "
        warn(f"{of_head}{message}")
    return dataset, start


def require_charges(config: Config, start: Start | None, structures: Sequence[Structure]):
    """Refuse data that latent charges cannot be trained on, or charges that are not read."""
    key, charged = config.data.charge_key, config.model.long_range is not None
    if start is not None:
        long_range = start.potential.long_range
        own, charged = long_range and long_range.charge_key, long_range is not None
        if own != key:
            what = "does not read total charges" if own is None else "reads total charges"
            need = "leave it out" if own is None else f"give data.charge_key={own}"
            raise ConfigError(
                f"data.charge_key={key} is impossible: the network of start_from= {what}; {need}"
            )
    for one in structures if charged else ():
        if one.pbc.any() != one.pbc.all():
            raise data.DataError(f"{one.origin or 'a frame'}: {NO_SLABS}")


def read_weighted(settings: DataSettings) -> tuple:
    """Return the structures of `data.path` and `data.val_path`, or None, with their weights."""
    structures, validation = settings.read(), settings.read("val_path")
    given = settings.type_weights()
    if not given and settings.weight == 1:
        return structures, validation
    every = Joined(structures, validation or [])
    types = {structure.config_type or DEFAULT_TYPE for structure in every}
    if unknown := sorted(set(given) - types - {DEFAULT_TYPE}):
        raise ConfigError(
            f"data.config_type_weights: no frame has config_type={unknown[0]}; there are "
            f"{', '.join(sorted(types))}"
        )
    weights = {name: settings.weight * given.get(name, 1.0) for name in types}
    structures = weighted_by_type(structures, weights)
    return structures, None if validation is None else weighted_by_type(validation, weights)


def require_labels(
    training: MoleculeTraining,
    settings: DataSettings,
    frames: Sequence[Structure | Sample],
    chosen: bool = False,
):
    """Refuse labels that have a weight in the loss, and that no frame has.

    `frames` are all that were read, without isolated atoms, or with `chosen` those that train.
    """
    for name in training.trained:
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
    trained = training.trained
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
