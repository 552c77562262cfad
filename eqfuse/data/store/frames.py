"""Structures on disk."""

import json
from collections.abc import Iterable, Mapping
from pathlib import Path

import numpy as np

from eqfuse.data.errors import DataError
from eqfuse.data.lazy import Lazy
from eqfuse.data.structures import DEFAULT_TYPE, LABELS, Structure, Weights, is_isolated_atom

_FRAME = np.dtype(
    [
        ("start", np.int64),  # of its atoms in the other files
        ("num_atoms", np.int64),
        ("number", np.int64),  # in its file
        ("file", np.int32),
        ("config_type", np.int32),  # -1 for None
        ("known", bool, 3),  # the labels
        ("pbc", bool, 3),
        ("cell", np.float64, (3, 3)),
        ("energy", np.float64),
        ("stress", np.float64, (3, 3)),
        ("weights", np.float64, 3),
    ]
)
_ATOMS = {"numbers": (np.int32, ()), "positions": (np.float64, (3,)), "forces": (np.float64, (3,))}


def write_frames(folder: Path, files: dict[str, Iterable[Structure]]) -> int:
    """Write the structures of files to a folder, while they are read.

    Args:
      folder: that exists.
      files: structures by the name of their file.
    Returns:
      how many there are.
    Raises:
      DataError: a file without structures; what reading them raises.
    """
    types: dict[str, int] = {}
    start = count = 0
    outputs = {name: open(folder / name, "wb") for name in ("frames", *_ATOMS)}  # noqa: SIM115
    try:
        for file, (path, structures) in enumerate(files.items()):
            number = -1
            for number, s in enumerate(structures):
                record = np.zeros((), _FRAME)
                record["start"], record["num_atoms"] = start, s.num_atoms
                record["file"], record["number"] = file, number
                kind = s.config_type
                record["config_type"] = -1 if kind is None else types.setdefault(kind, len(types))
                record["known"] = [getattr(s, name) is not None for name in LABELS]
                record["pbc"], record["cell"], record["weights"] = s.pbc, s.cell, s.weights
                record["energy"] = 0.0 if s.energy is None else s.energy
                record["stress"] = 0.0 if s.stress is None else s.stress
                outputs["frames"].write(record.tobytes())
                forces = np.zeros((s.num_atoms, 3)) if s.forces is None else s.forces
                arrays = {"numbers": s.numbers, "positions": s.positions, "forces": forces}
                for name, (dtype, _) in _ATOMS.items():
                    outputs[name].write(np.ascontiguousarray(arrays[name], dtype).tobytes())
                start += s.num_atoms
            if number < 0:
                raise DataError(f"{path} has no frames; give a file with structures in it")
            count += number + 1
    finally:
        for output in outputs.values():
            output.close()
    names = {"files": list(files), "config_types": list(types)}
    (folder / "names.json").write_text(json.dumps(names), encoding="utf-8")
    return count


def mapped(path: Path, dtype, shape: tuple[int, ...] = ()) -> np.ndarray:
    """Return the array in a file, which is read when it is used, [n, *shape]."""
    if not path.stat().st_size:  # nothing can be mapped
        return np.zeros((0, *shape), dtype)
    # views of an array are made faster than those of its subclass
    return np.asarray(np.memmap(path, dtype, "r")).reshape(-1, *shape)


def slices(starts: np.ndarray, counts: np.ndarray) -> list[slice]:
    """Return the slices of ranges."""
    return list(map(slice, starts.tolist(), (starts + counts).tolist()))


def pieces(array: np.ndarray, of: list[slice]) -> np.ndarray:
    """Return slices of an array, one after the other."""
    return np.concatenate([array[piece] for piece in of] or [array[:0]])


class StoredStructures(Lazy):
    """The structures that `write_frames` wrote; each is a few views of files.

    Args:
      folder: where they are.
      by_type: see `weighted`.
    Attributes:
      frames: [n_frames] records, see `_FRAME`.
      factors: of the weights, by the number of the config_type; the last is that of none.
      numbers, positions, forces: of all atoms, [n], [n, 3] Å, [n, 3] eV/Å (zero where unknown).
    """

    def __init__(self, folder: Path, by_type: Mapping[str, float] | None = None):
        self.folder = Path(folder)
        names = json.loads((self.folder / "names.json").read_text("utf-8"))
        self._files, self._types = names["files"], names["config_types"]
        self.frames = mapped(self.folder / "frames", _FRAME)
        self.numbers, self.positions, self.forces = (
            mapped(self.folder / name, *kind) for name, kind in _ATOMS.items()
        )
        kinds = *self._types, None  # whose number is -1
        self._isolated = np.array([is_isolated_atom(kind) for kind in kinds])
        self.factors = np.array([(by_type or {}).get(k or DEFAULT_TYPE, 1.0) for k in kinds])

    def weighted(self, by_type: Mapping[str, float]) -> "StoredStructures":
        """Return these structures with the weights of `eqfuse.data.structures.weighted_by_type`."""
        return StoredStructures(self.folder, by_type)

    def labels(self, frames: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return which labels of records are known, [n, 3], and their weights, [n, 3]."""
        kinds, known = frames["config_type"], frames["known"]
        if (self.factors == 1).all():
            return known, frames["weights"]
        weights = self.factors[kinds][:, None] * frames["weights"]
        return known & ((weights > 0) | self._isolated[kinds][:, None]), weights

    def __len__(self) -> int:
        return len(self.frames)

    def record(self, k: int) -> tuple:
        """Return the fields of a frame, see `_FRAME`, the slice of its atoms in place of two."""
        fields = self.frames[k].item()  # all at once: one by one takes ten times as long
        start, num_atoms, number, file, kind, known, pbc, cell, energy, stress, weights = fields
        if (self.factors != 1).any():
            [known], [weights] = self.labels(self.frames[k : k + 1])
        atoms = slice(start, start + num_atoms)
        return number, file, kind, known, pbc, cell, energy, stress, weights, atoms

    def origin(self, file: int, number: int) -> str:
        """Return the name of a frame in messages."""
        return f"{self._files[file]}, frame {number}"

    def item(self, k: int) -> Structure:
        number, file, kind, known, pbc, cell, energy, stress, weights, atoms = self.record(k)
        has_energy, has_forces, has_stress = known.tolist()
        return Structure.unchecked(
            numbers=self.numbers[atoms],
            positions=self.positions[atoms],
            cell=cell,
            pbc=pbc,
            energy=energy if has_energy else None,
            forces=self.forces[atoms] if has_forces else None,
            stress=stress if has_stress else None,
            config_type=self.config_type(kind),
            origin=self.origin(file, number),
            weights=Weights(*weights.tolist()),
        )

    def config_type(self, kind: int) -> str | None:
        """Return the config_type of this number in the store."""
        return None if kind < 0 else self._types[kind]
