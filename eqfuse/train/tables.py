"""Tables of radial functions in a run, which may change how it computes them when it goes on."""

from eqfuse import models
from eqfuse.models.radial_choice import choose
from eqfuse.train.run.resume import RADIAL
from eqfuse.train.settings.schema import ConfigError


def check_radial(model, name: str):
    """Refuse tables that a network cannot have.

    Raises:
      ConfigError: settings that are out of range, by their names, or not for this network.
    """
    try:
        choose(model, 0)
    except ValueError as error:
        raise ConfigError(f"model={name} is impossible: {error}") from error


def without_radial(fields: dict) -> dict:
    """Return the settings of a network that decide what it computes, not how."""
    return {name: value for name, value in fields.items() if name not in RADIAL}


def keep_knots(metadata: dict, theirs: dict):
    """Add the knots of a checkpoint to the metadata of the run that goes on, if it keeps them.

    It does not where its settings of radial functions are others: then they are chosen anew.
    """
    ours, others = metadata["model_fields"], theirs["model_fields"]
    if all(ours[name] == others[name] for name in RADIAL) and "radial" in theirs:
        metadata["radial"] = theirs["radial"]


def with_knots(potential, params, num_edges: int, metadata: dict):
    """Return a potential with the knots of its tables, and their accuracy, None without tables.

    Knots are those in the metadata, or chosen for these parameters and written there.

    Args:
      potential: see `models.with_knots`.
      params: those that the run begins or goes on with.
      num_edges: of the largest batch.
      metadata: of the checkpoints.
    """
    if "radial" in metadata:
        knots = metadata["radial"]["knots"]
        potential = potential.clone(model=potential.model.clone(radial_knots=knots))
    potential, accuracy = models.with_knots(potential, params, num_edges)
    if accuracy is not None:
        metadata.setdefault("radial", accuracy._asdict())
        print(f"  radial   {accuracy}", flush=True)
    return potential, accuracy
