"""The result of a converter, and the error of a file that cannot be converted."""

import dataclasses
from typing import NoReturn

from eqfuse.models import ZBL
from eqfuse.models.ewald import LatentEwald


class ConvertError(ValueError):
    """An error for a file or network that cannot be converted; the message is for the user."""


def refuse(what: str) -> NoReturn:
    """Refuse a network with something that eqfuse cannot represent, by name."""
    raise ConvertError(f"the network has {what}, which eqfuse cannot represent")


def whole_power(power, of: str = "a cutoff") -> int:
    """Return the power of a cutoff function; refuse one that is no whole number."""
    if float(power) != int(power):
        refuse(f"{of} of the power {power}, which is no whole number")
    return int(power)


@dataclasses.dataclass(frozen=True)
class Converted:
    """A network of another program in terms of this package."""

    program: str
    model: str  # "nequip", "mace" or "allegro"
    fields: dict  # settings of the model, but for the backend
    params: dict  # nested dicts of arrays
    scale: tuple[float, ...]  # of the energies of each element, eV
    shift: tuple[float, ...]
    references: dict[int, float]  # energies of the elements, eV by atomic number, sorted
    dtype: str  # of the weights in the file
    repulsion: ZBL | None = None
    long_range: LatentEwald | None = None
    choice: str | None = None  # the head or fidelity that was chosen
    heads: tuple[str, ...] = ()  # all heads or fidelities that were written, if several
