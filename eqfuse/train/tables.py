"""Tables of radial functions in a run, which may change how it computes them when it goes on."""

from eqfuse.models.radial_table import choose
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
