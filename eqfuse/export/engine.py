"""Run a folder that `eqfuse export --for openmm` wrote, by JAX, without eqfuse.

    engine = Engine(folder)
    energies, forces, virial = engine.compute(numbers, positions, cell, pbc)

It needs jax, flatbuffers, numpy and scipy; `openmm_force` needs OpenMM 8.4 or later.
"""

import ctypes
import itertools
import pathlib
import platform

import jax
import jax.export
import numpy as np
import scipy.spatial

FORMAT = 1  # of folders that this file reads
_registered: set[str] = set()


class Engine:
    """A network of a folder.

    Attributes:
      cutoff: Å.
      elements: symbols and atomic numbers that the network knows.
    """

    def __init__(self, folder):
        self.folder = pathlib.Path(folder).resolve()
        text = (self.folder / "manifest.txt").read_text(encoding="utf-8")
        lines = [line.split() for line in text.splitlines()]
        one = {words[0]: words[1] for words in lines}
        if int(one["format"]) > FORMAT:
            raise ValueError(
                f"{folder} was made by a later version of eqfuse (format {one['format']}, and this "
                f"engine.py reads {FORMAT}); use the engine.py in the folder"
            )
        if one["for"] != "openmm":
            raise ValueError(
                f"{folder} is for {one['for']}; write one with eqfuse export --for openmm"
            )
        self.cutoff, self.dtype = float(one["cutoff"]), one["dtype"]
        elements = [words[1:] for words in lines if words[0] == "element"]
        self.elements = {symbol: int(number) for symbol, number, _ in elements}
        self._references = {int(number): float(energy) for _, number, energy in elements}
        self._programs = [
            (int(w[1]), int(w[2]), self.folder / w[3]) for w in lines if w[0] == "program"
        ]
        self._compiled = {}
        if "library" in one:
            if one["processor"] != platform.machine():
                raise ValueError(
                    f"the kernels in {folder} are for a processor {one['processor']}, and this one "
                    f"is {platform.machine()}; export the network on such a machine, or with "
                    "--backend xla"
                )
            names = [words[1] for words in lines if words[0] == "kernel"]
            _register(self.folder / one["library"], names)

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
          ValueError: elements that the network does not know, or more atoms or edges than the
            largest program holds.
        """
        numbers = np.asarray(numbers)
        if unknown := sorted(set(numbers.tolist()) - set(self._references)):
            known = " ".join(self.elements)
            raise ValueError(f"the network does not know the elements {unknown}; it knows {known}")
        senders, receivers, vectors = pairs(positions, cell, pbc, self.cutoff)
        n, e = len(numbers), len(senders)
        size = next(((a, b, f) for a, b, f in self._programs if a >= n and b >= e), None)
        if size is None:
            a, b, _ = self._programs[-1]
            raise ValueError(
                f"there are {n} atoms and {e} edges, and the largest program holds {a} and {b}; "
                "export one with more --atoms and --edges"
            )
        atoms, edges, file = size
        loops = np.arange(edges - e) * atoms // max(edges - e, 1)  # padding, at no distance
        arrays = (
            np.append(numbers, np.full(atoms - n, min(self._references))).astype(np.int32),
            np.int32(n),
            np.append(senders, loops).astype(np.int32),
            np.append(receivers, loops).astype(np.int32),
            np.concatenate([vectors, np.zeros((edges - e, 3))]).astype(self.dtype),
        )
        with jax.enable_x64(self.dtype == "float64"):
            if file not in self._compiled:
                exported = jax.export.deserialize(bytearray(file.read_bytes()))
                self._compiled[file] = jax.jit(exported.call)
            results = self._compiled[file](*arrays)
        energies, forces, virial = (np.asarray(a, np.float64) for a in results)
        references = np.array([self._references[z] for z in numbers.tolist()])
        return energies[:n] + references, forces[:n], virial


def pairs(positions, cell, pbc, cutoff: float):
    """Return senders, receivers and vectors [e, 3] of all ordered pairs within the cutoff."""
    positions = np.asarray(positions, np.float64)
    images, atoms = positions, np.arange(len(positions))
    if np.any(pbc):
        rows = np.asarray(cell, np.float64)[np.asarray(pbc)]
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


def _register(library: pathlib.Path, names) -> None:
    """Register the kernels of a library with JAX, once in a process."""
    if not library.exists():
        raise FileNotFoundError(f"{library} is missing; is the folder whole?")
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
