"""A trained run as a calculator of ASE."""

import difflib
import os
import threading

import ase.calculators.calculator
import jax
import numpy as np
from ase.stress import full_3x3_to_voigt_6_stress

from eqfuse import ops
from eqfuse.data import DataError, Structure
from eqfuse.inference.descriptors import descriptors
from eqfuse.inference.listed import DIVERGED, Listed, Lister, State
from eqfuse.inference.predict import Network
from eqfuse.inference.program import Evaluated, Packed, atom_strain_derivatives, program_of
from eqfuse.train.device.process import keep_memory, keep_programs

_ARGUMENTS = (
    "run",
    "skin",
    "which",
    "dtype",
    "backend",
    "radial",
    "atoms",
    "label",
    "directory",
)
_OTHER_NAMES = {  # what calculators of mace and nequip call it
    "default_dtype": "here it is called dtype",
    "model_path": "here it is called run",
    "model_paths": "here it is called run, and is one run; eqfuse.Committee takes several",
    "models": "here it is called run, a file or folder; eqfuse.Committee takes several",
    "model": "here it is called run, a file or folder",
    "compile_path": "here it is called run, and nothing is compiled before",
    "compile_mode": "programs are always compiled",
    "enable_cueq": "the fused ops are always used, see backend",
    "head": "a network has one head",
    "chemical_symbols": "the run knows its elements",
    "device": "it is that of JAX; set JAX_PLATFORMS=cpu or cuda before the program starts",
}


class Calculator(ase.calculators.calculator.Calculator):
    """Energy, energies of atoms, forces, stress and stresses of atoms from a trained run.

        atoms.calc = eqfuse.Calculator("runs/first")

    The neighbour list extends by `skin` beyond the cutoff and stays on the device until an atom has
    moved by half of that; a cell that deforms takes its part of the skin. Calculators of the same
    network share the programs that they compile, and these are kept for later processes, unless
    JAX_ENABLE_COMPILATION_CACHE is false. A program is compiled for a number of atoms and a
    number of neighbours with some headroom, so that fluctuations compile nothing. Structures with
    fewer atoms use the same program; after atoms were added, the next program has a tenth of
    headroom for atoms too.

    The calculator can be copied and pickled. Several threads may use one, which then computes for
    one after the other; with a calculator for each thread, they compute at the same time. Stress is
    computed only when it is asked for. `get_stresses` returns the part of each atom, whose sum is
    the stress; each edge gives half of its part to either atom. Atoms without a periodic direction
    have no stress; energies are totals, in eV, with the reference energies.

    Args:
      run: the run's folder, or a file of its network (.safetensors).
      skin: Å; None: 1.5 up to 32 atoms, whose lists cost more than their pairs, and 0.7 beyond.
      which: "best" or "last" checkpoint; None for the best there is.
      dtype: "float64" or "float32"; None for that of the run.
      backend: see `eqfuse.ops`.
      radial: "network", "table" or "auto", see `Network`; None for that of the run.
      atoms, label, directory: as in ASE's calculators.
    Raises:
      CheckpointError: no readable checkpoint.
      TypeError: an unknown argument; names the one that was probably meant.
      ValueError: a skin that is negative or not finite, another `which` or dtype, a backend that is
        unknown or for other devices, or a run that did not train a potential.
    """

    implemented_properties = ("energy", "energies", "forces", "stress", "stresses", "free_energy")

    def __init__(
        self,
        run,
        *,
        skin: float | None = None,
        which=None,
        dtype=None,
        backend=None,
        radial=None,
        atoms=None,
        label=None,
        directory=".",
        **unknown,
    ):
        if unknown:
            raise TypeError("; ".join(map(_unknown_argument, unknown)))
        if not isinstance(run, str | os.PathLike):
            raise TypeError(f"run must be the path of one run, got {run!r}; see eqfuse.Committee")
        ops.resolve_here(backend)
        if skin is not None and not 0 <= skin < np.inf:
            raise ValueError(f"the skin must be zero or more Å, and finite, got {skin}")
        keep_programs()
        keep_memory()
        self.network = Network(run, which=which, dtype=dtype, backend=backend, radial=radial)
        self.skin = None if skin is None else float(skin)
        self._state: State | None = None
        self._begin()
        super().__init__(atoms=atoms, label=label, directory=directory)
        self.use_cache = False  # ASE would copy the atoms once more

    def _begin(self):
        network = self.network
        self._program = program_of(network._potential, network.cutoff, network.dtype)
        self._lister = Lister(
            self._program, network.species, network.references, network.cutoff, self.skin
        )
        self._lock = threading.RLock()
        self._listed, self._packed = None, None

    def __getstate__(self):
        left_out = ("_program", "_lister", "_lock", "_listed", "_packed")
        return {name: value for name, value in self.__dict__.items() if name not in left_out}

    def __setstate__(self, state):
        self.__dict__.update(state)
        with jax.enable_x64(True):
            self.network._params = jax.device_put(self.network._params)
        self._begin()

    @property
    def species(self) -> tuple[int, ...]:
        """Return the sorted atomic numbers that the network knows."""
        return self.network.species

    @property
    def cutoff(self) -> float:
        """Return the cutoff of the network, Å."""
        return self.network.cutoff

    @property
    def num_compilations(self) -> int:
        """Return how many programs all calculators of the same network have compiled."""
        return self._program.num_compilations

    def get_property(self, name, atoms=None, allow_calculation=True):
        """Return a property as ASE's calculators do, for one thread after the other."""
        with self._lock:
            if atoms is not None:
                self._take(atoms)
            # ASE would compare the atoms again, and copy them in each step
            return super().get_property(name, None, allow_calculation)

    def check_state(self, atoms, tol=1e-15):
        """Return what of atoms changed since the last calculation, of what results depend on."""
        if self._state is None:
            return list(State._fields)
        changed = zip(State._fields, self._state, State.of(atoms), strict=True)
        return [name for name, before, now in changed if now != before]

    def reset(self):
        """Forget the results; `atoms` are those of before until the next calculation."""
        self.results = {}

    def calculate(self, atoms=None, properties=("energy",), system_changes=()):
        """Compute energy and forces, and stress if asked for, in eV, eV/Å and eV/Å^3.

        Raises:
          DataError: an element that the run was not trained on, no atoms, atoms at one place,
            positions that are not finite or far apart, or too many pairs of them within cutoff and
            skin (see `eqfuse.data.neighbor_list`), a periodic direction without a lattice vector.
        """
        with self._lock:
            if atoms is not None and atoms is not self.atoms:
                self._take(atoms)
            listed, packed = self._compute()
            energies = listed.in_structure(packed.node_energy)
            energies += listed.references
            energy = float(energies.sum())
            self.results = {
                "energy": energy,
                "free_energy": energy,
                "energies": energies,
                "forces": listed.in_structure(packed.forces),
            }
            if not listed.volume:
                return
            if "stress" in properties:
                self.results["stress"] = full_3x3_to_voigt_6_stress(packed.strain / listed.volume)
            if "stresses" in properties:
                with jax.enable_x64(True):
                    parts = atom_strain_derivatives(self._evaluate(listed))
                parts = listed.in_structure(np.asarray(parts)) / listed.volume
                self.results["stresses"] = full_3x3_to_voigt_6_stress(parts)

    def get_descriptors(self, atoms=None, invariants_only: bool = True, num_layers: int = -1):
        """Return the features of atoms, by default of the last ones; see `eqfuse.descriptors`."""
        atoms = self.atoms if atoms is None else atoms
        given = {"invariants_only": invariants_only, "num_layers": num_layers}
        return descriptors(atoms, self.network, **given)

    def evaluated_for(self, atoms) -> tuple[Evaluated, jax.Array, np.ndarray]:
        """Return what the network computes for atoms, the species of the nodes, and their order."""
        with self._lock:
            self.get_property("energy", atoms)
            listed, _ = self._compute()
            return self._evaluate(listed), listed.of_nodes[0], listed.order

    def _take(self, atoms):
        """Take atoms as those that results are of, and forget those of others."""
        state = State.of(atoms)
        if state == self._state:
            return
        if self._state is not None and state[1:] == self._state[1:]:
            self.atoms.positions = atoms.positions
        else:
            self.atoms = atoms.copy()
        self._state, self.results = state, {}

    def _compute(self) -> tuple[Listed, Packed]:
        """Return what the network computes for `atoms`; from before, if they are as before."""
        atoms, state, listed = self.atoms, self._state, self._listed
        if listed is not None and listed.state[1:] == state[1:]:
            if self._packed is not None and listed.state == state:
                return listed, self._packed
            cell = listed.cell_now
        else:
            _require_finite(atoms.positions)
            cell = Structure(atoms.numbers, atoms.positions, atoms.cell.array, atoms.pbc).cell
        self._packed = None
        if listed is None or not listed.is_valid(state, atoms, cell, self.cutoff):
            _require_finite(atoms.positions)
            self._listed = listed = self._lister.list(atoms, cell)
        listed.move(state, atoms, cell)
        self._packed = packed = self._run(listed)
        return listed, packed

    def _run(self, listed: Listed) -> Packed:
        params, geometry = self.network._params, listed.geometry
        while True:
            sizes = listed.sizes
            with jax.enable_x64(True), jax.default_matmul_precision("highest"):
                packed = self._program.packed(
                    params, listed.pairs, geometry, *listed.of_nodes, size=sizes.edges
                )
            packed = Packed.of(np.asarray(packed))
            if packed.num_edges <= sizes.edges:
                return packed
            count = len(listed.order)
            listed.sizes = self._lister.sizes(count, packed.num_edges, sizes.pairs, sizes.nodes)

    def _evaluate(self, listed: Listed) -> Evaluated:
        """Return all that the network computes for a structure, on the device."""
        geometry, (species, count) = listed.geometry, listed.of_nodes
        structure = geometry[:-3], geometry[None, -3:], np.zeros(len(species), np.int32)
        with jax.enable_x64(True), jax.default_matmul_precision("highest"):
            return self._program.compiled(
                self.network._params,
                listed.pairs,
                *structure,
                species,
                count,
                size=listed.sizes.edges,
            )


def _require_finite(positions):
    if not np.isfinite(positions).all():
        raise DataError(f"positions are not finite: {DIVERGED}")


def _unknown_argument(name: str) -> str:
    """Return what to do instead of passing an argument that the calculator does not have."""
    if name in _OTHER_NAMES:
        return f"Calculator has no argument {name}: {_OTHER_NAMES[name]}"
    near = difflib.get_close_matches(name, _ARGUMENTS, n=1)
    hint = f"nearest: {near[0]}" if near else f"it has {', '.join(_ARGUMENTS)}"
    return f"Calculator has no argument {name}; {hint}"
