"""The result of a converter, and the error of a file that cannot be converted."""

import dataclasses

from eqfuse.models import ZBL


class ConvertError(ValueError):
    """An error for a file or network that cannot be converted; the message is for the user."""


def refuse(what: str, model: str = "NequIP"):
    """Refuse a network with something that a model of eqfuse cannot represent.

    Raises:
      ConvertError: always, naming it.
    """
    raise ConvertError(f"the network has {what}, which eqfuse's {model} cannot represent")


def whole_power(power, of: str = "a cutoff") -> int:
    """Return the power of a cutoff function; refuse one that is no whole number."""
    if float(power) != int(power):
        refuse(f"{of} of the power {power}, which is no whole number")
    return int(power)


@dataclasses.dataclass(frozen=True)
class Converted:
    """A network of another program in terms of this package.

    Attributes:
      program: that it comes from.
      model: "nequip", "mace" or "allegro".
      fields: settings of the model, but for the backend.
      params: its parameters, nested dicts of arrays.
      scale, shift: of the energies of each element, eV.
      references: energies of the elements, eV by atomic number, sorted.
      dtype: of the weights in the file.
      repulsion: of near atoms, or None.
      choice: the head or fidelity that was chosen, or None.
    """

    program: str
    model: str
    fields: dict
    params: dict
    scale: tuple[float, ...]
    shift: tuple[float, ...]
    references: dict[int, float]
    dtype: str
    repulsion: ZBL | None = None
    choice: str | None = None
