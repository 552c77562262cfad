"""One atomic structure with its labels, checked when it is made."""

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from eqfuse.data.lazy import Lazy


class DataError(ValueError):
    """An error for data, or a request made of them, that cannot be used; it says what to do."""


class FlownApartError(DataError):
    """An error for atoms so far apart that no neighbour list can be made."""


def counted(count: int, one: str, many: str | None = None) -> str:
    """Return a number and what is counted: "1 frame", "2 frames" (`one` with an s)."""
    return f"{count} {one if count == 1 else many or one + 's'}"


MAX_ATOMIC_NUMBER = 118
FARTHEST = 1e10
"""Å from the origin, where float64 resolves 2e-6 Å: positions beyond are not known."""
DEFAULT_TYPE = "Default"
"""The name in settings of the config_type of structures without one, as in mace."""


class Weights(NamedTuple):
    """What the squared errors of a structure's labels are multiplied by in the loss."""

    energy: float = 1.0
    forces: float = 1.0
    stress: float = 1.0
    hessian: float = 1.0


UNWEIGHTED = Weights()
TRAINED = Weights._fields
"""The labels that a structure may have."""
LABELS = TRAINED[:3]
"""Those that every prediction has."""


@dataclasses.dataclass(frozen=True, eq=False)
class Structure:
    """Atoms in a molecule or a periodic cell, with what is known of energy and derivatives.

    Arrays are converted to the dtypes below. Atoms may lie outside the cell. The cell of a
    molecule (no periodic direction) is set to zero, and stress is dropped where the cell has no
    volume, since neither has a meaning there. A label whose weight is zero is dropped, except the
    energy of an isolated atom: files hold placeholders under such weights.

    Attributes:
      numbers: [n_atoms] int32, atomic numbers.
      positions: [n_atoms, 3] float64, Å.
      cell: [3, 3] float64, Å, rows are lattice vectors.
      pbc: [3] bool, whether each lattice direction is periodic.
      energy: total energy, eV, or None.
      forces: [n_atoms, 3] float64, eV/Å, or None; NaN for atoms, not all, whose forces are unknown
        or have no weight.
      stress: [3, 3] float64, eV/Å^3, the derivative of the energy by strain over the volume
        (ASE's sign: positive under tension), or None.
      config_type: name of the group of structures it belongs to, or None; "IsolatedAtom" (or
        "isolated_atom") for a single atom whose energy is the reference energy of its element.
      origin: its name in messages, such as "FILE, frame 3", or None.
      weights: of its labels in the loss, finite and zero or more.
      atom_weights: [n_atoms] float64, further ones of the forces of each atom, or None for one.
      hessian: [n_atoms, 3, n_atoms, 3] float64, eV/Å^2, the second derivatives of the energy by the
        positions (of an atom with all its images), or None; rows, [a, i], may be NaN, not all, for
        unknown. It is read from any shape of that many numbers.
      charge: the total charge, e.
      unread: keys of the file that may hold labels and are not read, by the names of the labels.
      remarks: names of what its file says and no network reads, see `eqfuse.data.remarks`.
    Raises:
      DataError: no atoms, an unknown element, arrays that do not fit, NaN or infinity, a periodic
        direction without a lattice vector, an isolated atom of several atoms, an impossible weight.
    """

    numbers: np.ndarray
    positions: np.ndarray
    cell: np.ndarray | None = None
    pbc: np.ndarray | None = None
    energy: float | None = None
    forces: np.ndarray | None = None
    stress: np.ndarray | None = None
    config_type: str | None = None
    origin: str | None = None
    weights: Weights = UNWEIGHTED
    atom_weights: np.ndarray | None = None
    hessian: np.ndarray | None = None
    charge: float = 0.0
    unread: Mapping[str, str] = dataclasses.field(default_factory=dict)
    remarks: tuple[str, ...] = ()

    def __post_init__(self):
        numbers = np.asarray(self.numbers)
        count = numbers.size
        if count == 0:
            raise DataError("there are no atoms in this structure; remove it")
        if numbers.ndim != 1 or not np.issubdtype(numbers.dtype, np.integer):
            raise DataError(
                "atomic numbers must be a vector of integers, "
                f"got {numbers.dtype} of shape {numbers.shape}"
            )
        unknown = (numbers < 1) | (numbers > MAX_ATOMIC_NUMBER)
        if unknown.any():
            atom = int(np.argmax(unknown))
            raise DataError(
                f"unknown element: atom {atom} has atomic number {numbers[atom]} "
                "('X' in a file); name a real element"
            )
        pbc = np.zeros(3, bool) if self.pbc is None else np.asarray(self.pbc, bool)
        pbc = np.array(np.broadcast_to(pbc, (3,)))
        self._store(numbers=numbers.astype(np.int32), pbc=pbc)
        self._store(positions=_finite("positions", self.positions, (count, 3)))
        self._store(cell=self._checked_cell())
        if self.energy is not None:
            self._store(energy=float(_finite("energy", self.energy, ())))
        if self.forces is not None:
            self._store_forces()
        if self.stress is not None:
            stress = _finite("stress", self.stress, (3, 3))
            self._store(stress=stress if self.volume > 0 else None)
        if self.hessian is not None:
            self._store_hessian()
        self._store(charge=float(_finite("charge", self.charge, ())))
        if self.is_isolated_atom and count > 1:
            raise DataError(
                f"config_type={self.config_type} is for one atom and its reference energy, but "
                f"there are {count} atoms here; name this group of structures otherwise"
            )
        self._store(weights=Weights(*map(float, self.weights)))
        for name, weight in self.weights._asdict().items():
            if not 0 <= weight < np.inf:
                raise DataError(
                    f"the weight of the {name} is {weight}; it must be finite and zero or more"
                )
            if weight == 0 and not self.is_isolated_atom:
                self._store(**{name: None})

    def _store_forces(self) -> None:
        """Check forces and their weights; what is NaN, or without a weight, is unknown."""
        shape, forces, weights = (len(self.numbers), 3), np.array(self.forces), self.atom_weights
        unknown = np.zeros(shape[0], bool)
        if forces.shape == shape and np.issubdtype(forces.dtype, np.floating):
            unknown |= np.isnan(forces).any(axis=1)
        if weights is not None:
            weights = _finite("atom_weights", weights, shape[:1])
            if (weights < 0).any():
                raise DataError(f"the weight of an atom's forces is {weights.min()}, below zero")
            self._store(atom_weights=weights)
            unknown |= weights == 0
        if unknown.any():
            forces = np.where(unknown[:, None], 0, forces)
        forces = _finite("forces", forces, shape)
        forces[unknown] = np.nan
        self._store(forces=None if unknown.all() else forces)

    def _store_hessian(self) -> None:
        """Check second derivatives, of which rows that are NaN are unknown."""
        rows, given = 3 * self.num_atoms, np.asarray(self.hessian)
        if given.size != rows**2 or not np.issubdtype(given.dtype, np.floating):
            raise DataError(
                f"hessian must have {rows**2} real numbers for {counted(self.num_atoms, 'atom')}, "
                f"(3 n_atoms)^2, got {given.dtype} of shape {given.shape}"
            )
        hessian = np.array(given, np.float64).reshape(rows, rows)
        known = ~np.isnan(hessian).all(axis=1)
        _finite("hessian", hessian[known], (int(known.sum()), rows))
        shape = (self.num_atoms, 3, self.num_atoms, 3)
        self._store(hessian=hessian.reshape(shape) if known.any() else None)

    @classmethod
    def unchecked(cls, **fields) -> "Structure":
        """Return a structure of fields that are those of one that was checked."""
        structure = object.__new__(cls)
        structure._store(**fields)
        return structure

    def _store(self, **fields) -> None:
        self.__dict__.update(fields)  # the dataclass is frozen

    def _checked_cell(self) -> np.ndarray:
        if self.cell is None or not self.pbc.any():
            return np.zeros((3, 3))
        cell = _finite("cell", self.cell, (3, 3))
        periodic = cell[self.pbc]
        if np.linalg.matrix_rank(periodic) < len(periodic):
            raise DataError(
                f"periodic directions {self.pbc.tolist()} need linearly independent lattice "
                f"vectors, got {cell.tolist()} Å; set the cell, or the direction non-periodic"
            )
        return cell

    @property
    def num_atoms(self) -> int:
        return len(self.numbers)

    @property
    def is_isolated_atom(self) -> bool:
        """Test for an isolated atom, whose energy is a reference and not trained on.

        Its config_type is IsolatedAtom, as in MACE, or isolated_atom, as in GAP.
        """
        return (self.config_type or "").replace("_", "").lower() == "isolatedatom"

    @property
    def volume(self) -> float:
        """Return the volume of the cell in Å^3; 0 for a molecule."""
        return abs(float(np.linalg.det(self.cell)))


def with_origins(structures: Sequence[Structure], name: str = "structure") -> Sequence[Structure]:
    """Return structures that all have an origin, by default `name` and a number from 0."""
    if isinstance(structures, Lazy):  # on disk, with origins
        return structures
    return [
        s if s.origin else Structure.unchecked(**vars(s) | {"origin": f"{name} {k}"})
        for k, s in enumerate(structures)
    ]


def weighted_by_type(
    structures: Sequence[Structure], by_type: Mapping[str, float]
) -> Sequence[Structure]:
    """Return the structures with weights multiplied by those of their config_type, if it has one.

    "Default" is that of structures without one, as in mace.
    """
    if hasattr(structures, "weighted"):  # on disk
        return structures.weighted(by_type)
    return [weighted(structure, by_type) for structure in structures]


def weighted(structure: Structure, by_type: Mapping[str, float]) -> Structure:
    """Return one structure of `weighted_by_type`."""
    factor = by_type.get(structure.config_type or DEFAULT_TYPE, 1.0)
    if factor == 1:
        return structure
    weights = Weights(*(factor * weight for weight in structure.weights))
    return dataclasses.replace(structure, weights=weights)


def has_all_forces(item) -> bool:
    """Test whether the forces of all atoms of a structure or sample are known."""
    return item.forces is not None and not np.isnan(item.forces).any()


def count_labelled(items: Iterable, name: str) -> int:
    """Count the structures or samples that have the label `name`."""
    return sum(getattr(item, name) is not None for item in items)


def _finite(name: str, value, shape: tuple[int, ...]) -> np.ndarray:
    try:
        array = np.array(value, dtype=np.float64)
    except (TypeError, ValueError) as err:
        raise DataError(f"{name} must be numbers of shape {shape}, got {value!r}") from err
    if array.shape != shape:
        raise DataError(f"{name} must have shape {shape}, got {array.shape}")
    bad = ~np.isfinite(array)
    if bad.any():
        where = f" for atom {np.argwhere(bad)[0][0]}" if name in ("positions", "forces") else ""
        raise DataError(f"{name} has {array[bad][0]}{where}; remove or repair this structure")
    if name == "positions":
        require_near(array)
    return array


def require_near(positions: np.ndarray):
    """Refuse atoms so far away that their positions, and those of their images, are not known."""
    if not np.abs(positions).max(initial=0.0) < FARTHEST:
        raise FlownApartError(
            f"an atom is {np.abs(positions).max():.1e} Å from the origin, too far for its position "
            f"to be known; move the structure to within {FARTHEST:.0e} Å"
        )
