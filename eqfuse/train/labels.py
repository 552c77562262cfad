"""Which labels a run trains on, and how much each structure weighs."""

from collections.abc import Sequence

from eqfuse.data import Dataset, Sample, Structure
from eqfuse.data.lazy import Joined
from eqfuse.data.structures import DEFAULT_TYPE, LABELS, count_labelled, weighted_by_type
from eqfuse.train.schedule import MoleculeTraining
from eqfuse.train.settings.schema import ConfigError, require
from eqfuse.train.sources import MoleculeData


def weighted(
    settings: MoleculeData, structures: Sequence[Structure], validation: Sequence[Structure] | None
):
    """Return the structures with the weights of their config_type.

    Raises:
      ConfigError: a weight of a config_type that no structure has.
    """
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
    return [name for name in LABELS if getattr(training, f"{name}_weight")]


def require_labels(
    training: MoleculeTraining,
    settings: MoleculeData,
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
        need = "left out: the stress is predicted only with training.stress_weight above zero"
        predicted = quantity != "stress" or training.stress_weight
        require(predicted, "training.best", criterion, need)
    return [
        f"no validation frame has {'a ' if name == 'stress' else ''}{name}: the errors of {name} "
        "are not known"
        for name in unknown
    ]
