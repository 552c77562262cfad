"""Run a folder that `eqfuse export for=openmm` wrote, by JAX, without eqfuse.

    engine = Engine(folder)
    energies, forces, virial = engine.compute(numbers, positions, cell, pbc)

It needs jax, flatbuffers, numpy and scipy; `openmm_force` needs OpenMM 8.4 or later.
"""

import ctypes
import itertools
import pathlib
import platform
import zlib

import jax
import jax.export
import numpy as np
import scipy.spatial

FORMAT = 3  # of folders that this file reads
_registered: set[str] = set()


class Engine:
    """A network of a folder.

    Attributes:
      cutoff: Å.
      elements: symbols and atomic numbers that the network knows.
    """

    def __init__(self, folder):
        self.folder = pathlib.Path(folder).resolve()
        manifest, mark = self.folder / "manifest.txt", b"checksum manifest.txt "
        text, _, checksum = _read(manifest).rpartition(mark)
        if checksum != b"%d\n" % zlib.crc32(text):
            raise ValueError(f"{manifest} is damaged, or too old; export the network again")
        lines = [line.split() for line in text.decode().splitlines()]
        one = {words[0]: words[1] for words in lines}
        if int(one["format"]) > FORMAT:
            raise ValueError(
                f"{folder} was made by a later version of eqfuse (format {one['format']}, and this "
                f"engine.py reads {FORMAT}); use the engine.py in the folder"
            )
        self._checksums = {words[1]: int(words[2]) for words in lines if words[0] == "checksum"}
        if one["for"] != "openmm":
            raise ValueError(
                f"{folder} is for {one['for']}; write one with eqfuse export for=openmm"
            )
        self.cutoff, self.dtype = float(one["cutoff"]), one["dtype"]
        elements = [words[1:] for words in lines if words[0] == "element"]
        self.elements = {symbol: int(number) for symbol, number, _ in elements}
        self._references = {int(number): float(energy) for _, number, energy in elements}
        self._programs = [(int(w[1]), int(w[3]), w[4]) for w in lines if w[0] == "program"]
        self._compiled = {}
        if "library" in one:
            if one["processor"] != platform.machine():
                raise ValueError(
                    f"the kernels in {folder} are for a processor {one['processor']}, and this one "
                    f"is {platform.machine()}; export the network on such a machine, or with "
                    "backend=xla"
                )
            names = [words[1] for words in lines if words[0] == "kernel"]
            self._whole(one["library"])
            _register(self.folder / one["library"], names)

    def _whole(self, name: str) -> bytes:
        """Return the content of a file of the folder, whose checksum is that of the manifest."""
        content = _read(self.folder / name)
        if zlib.crc32(content) != self._checksums.get(name):
            raise ValueError(f"{self.folder / name} is damaged; export the network again")
        return content

    def compute(self, numbers, positions, cell=None, pbc=(False, False, False)):
        """Return energies, forces and virial of atoms.

        Args:
          numbers: [n] atomic numbers.
          positions: [n, 3] Å.
          cell: [3, 3] Å, rows are lattice vectors; not read in directions that are not periodic.
          pbc: [3] bool.
        Returns:
          energies [n] eV, with reference energies; forces [n, 3] eV/Å; virial [3, 3] eV, minus the
          derivative of the energy by a strain.
        Raises:
          ValueError: arrays of other shapes, a direction that is periodic without a cell, elements
            that the network does not know, more atoms or edges than the largest program holds, or
            a damaged file.
        """
        numbers, pbc = np.asarray(numbers), np.broadcast_to(np.asarray(pbc, bool), (3,))
        positions = np.asarray(positions, np.float64)
        if positions.shape != (len(numbers), 3):
            raise ValueError(
                f"{len(numbers)} numbers need positions [{len(numbers)}, 3], got {positions.shape}"
            )
        rows = np.zeros((3, 3)) if cell is None else np.asarray(cell, np.float64)
        rows = rows[pbc] if rows.shape == (3, 3) else np.zeros((3, 3))
        if not (np.isfinite(positions).all() and np.isfinite(rows).all()):
            raise ValueError("positions or cell are not finite")
        if pbc.any() and np.linalg.matrix_rank(rows) < len(rows):
            raise ValueError(
                f"pbc is {pbc.tolist()}, and cell is {cell}: a vector [3] is needed "
                "for each periodic direction"
            )
        if unknown := sorted(set(numbers.tolist()) - set(self._references)):
            known = " ".join(self.elements)
            raise ValueError(f"the network does not know the elements {unknown}; it knows {known}")
        senders, receivers, vectors = pairs(positions, rows, self.cutoff)
        n, e = len(numbers), len(senders)
        size = next(((a, b, f) for a, b, f in self._programs if a >= n and b >= e), None)
        if size is None:
            a, b, _ = self._programs[-1]
            raise ValueError(
                f"there are {n} atoms and {e} edges, and the largest program holds {a} and {b}; "
                "export one with more atoms= and edges="
            )
        atoms, edges, file = size
        loops = np.arange(edges - e) * atoms // max(edges - e, 1)  # padding, at no distance
        ends = [np.append(end, loops).astype(np.int32) for end in (senders, receivers)]
        arrays = (
            np.append(numbers, np.full(atoms - n, min(self._references))).astype(np.int32),
            np.int32(n),
            np.concatenate([vectors, np.zeros((edges - e, 3))]).astype(self.dtype),
            *ends,
            *_grouped(ends[1], atoms),
            *_grouped(ends[0], atoms),
        )
        with jax.enable_x64(self.dtype == "float64"):
            if file not in self._compiled:
                exported = jax.export.deserialize(bytearray(self._whole(file)))
                self._compiled[file] = jax.jit(exported.call)
            results = self._compiled[file](*arrays)
        energies, gradient = (np.asarray(a, np.float64) for a in results)
        gradient, forces = gradient[:e], np.zeros((n, 3))
        np.add.at(forces, receivers, gradient)
        np.subtract.at(forces, senders, gradient)
        strain = vectors.T @ gradient
        references = np.array([self._references[z] for z in numbers.tolist()])
        return energies[:n] + references, forces, -(strain + strain.T) / 2


def pairs(positions, rows, cutoff: float):
    """Return senders, receivers and vectors [e, 3] of all ordered pairs within the cutoff.

    `rows` are the lattice vectors of the periodic directions, [0 to 3, 3] Å.
    """
    images, atoms = positions, np.arange(len(positions))
    if len(rows):
        inverse = np.linalg.pinv(rows)  # [3, periodic directions]
        positions = positions - np.floor(positions @ inverse) @ rows
        reach = cutoff * np.linalg.norm(inverse, axis=0)
        most = np.ceil(reach).astype(int)
        shifts = np.array(list(itertools.product(*(range(-m, m + 1) for m in most))))
        shifts = shifts[np.argsort(np.any(shifts, axis=1), kind="stable")]  # the atoms first
        images = (positions + (shifts @ rows)[:, None]).reshape(-1, 3)
        near = np.all(np.abs(images @ inverse - 0.5) <= 0.5 + reach, axis=1)
        images, atoms = images[near], np.tile(atoms, len(shifts))[near]
    trees = scipy.spatial.cKDTree(positions), scipy.spatial.cKDTree(images)
    found = trees[0].sparse_distance_matrix(trees[1], cutoff, output_type="ndarray")
    found = found[found["i"] != found["j"]]
    receivers, others = found["i"], found["j"]
    if np.any(found["v"] < 1e-3):  # which would be taken for padding
        k = np.argmin(found["v"])
        raise ValueError(f"atoms {receivers[k]} and {atoms[others[k]]} are at one place")
    return atoms[others], receivers, images[others] - positions[receivers]


def _grouped(ends, atoms: int):
    """Return the edges in the order of an end, and where those of each atom begin, [atoms + 1]."""
    order = np.argsort(ends, kind="stable")
    begin = np.searchsorted(ends[order], np.arange(atoms + 1))
    return order.astype(np.int32), begin.astype(np.int32)


def _read(path: pathlib.Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise ValueError(f"{path} cannot be read; is the folder whole?") from error


def _register(library: pathlib.Path, names) -> None:
    """Register the kernels of a library with JAX, once in a process."""
    handlers = ctypes.CDLL(str(library))
    new = ctypes.pythonapi.PyCapsule_New
    new.restype, new.argtypes = (
        ctypes.py_object,
        [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p],
    )
    for name in names:
        if name not in _registered:
            address = ctypes.cast(getattr(handlers, name), ctypes.c_void_p).value
            jax.ffi.register_ffi_target(name, new(address, None, None), platform="cpu")
            _registered.add(name)


def openmm_force(engine: Engine, topology):
    """Return a force of OpenMM for the atoms of a topology, periodic if it has a box."""
    import openmm
    from openmm import unit

    numbers = [atom.element.atomic_number for atom in topology.atoms()]
    periodic = topology.getPeriodicBoxVectors() is not None
    per_mole = (1 * unit.elementary_charge * unit.volt * unit.AVOGADRO_CONSTANT_NA).value_in_unit(
        unit.kilojoule_per_mole
    )

    def compute(state):
        positions = state.getPositions(asNumpy=True).value_in_unit(unit.angstrom)
        cell = None
        if periodic:
            cell = state.getPeriodicBoxVectors(asNumpy=True).value_in_unit(unit.angstrom)
        energies, forces, _ = engine.compute(numbers, positions, cell, (periodic,) * 3)
        return energies.sum() * per_mole, forces * per_mole * 10

    force = openmm.PythonForce(compute)
    force.setUsesPeriodicBoundaryConditions(periodic)
    return force
