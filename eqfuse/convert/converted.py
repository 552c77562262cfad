"""What a converter reads from a file: a network of this package with its parameters."""

import dataclasses

from eqfuse.models import ZBL


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
