"""A trained run as a calculator of ASE."""

import dataclasses
import difflib
import math
import threading

import ase.calculators.calculator
import jax
import numpy as np
from ase.stress import full_3x3_to_voigt_6_stress

from eqfuse.data import DataError, Structure
from eqfuse.data.errors import FlownApartError
from eqfuse.data.ordering import spatial_order
from eqfuse.data.samples import species_index
from eqfuse.inference.descriptors import descriptors
from eqfuse.inference.pairs import (
    Evaluated,
    Pairs,
    Sizes,
    atom_strain_derivatives,
    is_valid,
    list_pairs,
    padded_pairs,
    program_of,
    room_for_edges,
    room_for_pairs,
    strain_derivative,
)
from eqfuse.inference.predict import Network
from eqfuse.train.device.programs import keep_programs

_NODE_HEADROOM, _NODE_MULTIPLE = 1.1, 4
_MOST_OWN, _MOST_OTHERS = 2, 1.2
"""How many times as large as needed a program may be that this calculator, or another, needed."""
_DIVERGED = (
    "the dynamics or relaxation has diverged before this step; make its steps shorter, or see what "
    "the structures before it look like"
)

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
    "model_paths": "here it is called run, and is one run",
    "compile_path": "here it is called run, and nothing is compiled before",
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
      skin: Å.
      which: "best" or "last" checkpoint; None for the best there is.
      dtype: "float64" or "float32"; None for that of the run.
      backend: see `eqfuse.ops`.
      radial: "network", "table" or "auto", see `Network`; None for that of the run.
      atoms, label, directory: as in ASE's calculators.
    Raises:
      CheckpointError: no readable checkpoint.
      TypeError: an unknown argument; names the one that was probably meant.
      ValueError: a skin that is negative or not finite, another `which` or dtype, or a run that did
        not train a potential.
    """

    implemented_properties = ("energy", "energies", "forces", "stress", "stresses", "free_energy")

    def __init__(
        self,
        run,
        *,
        skin: float = 0.5,
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
        if not 0 <= skin < np.inf:
            raise ValueError(f"the skin must be zero or more Å, and finite, got {skin}")
        keep_programs()
        self.network = Network(run, which=which, dtype=dtype, backend=backend, radial=radial)
        self.skin = float(skin)
        self._begin()
        super().__init__(atoms=atoms, label=label, directory=directory)
        self.use_cache = False  # ASE would copy the atoms once more

    def _begin(self):
        network = self.network
        self._program = program_of(network._potential, network.cutoff, network.dtype)
        self._lock = threading.RLock()
        self._listed, self._evaluated = None, None
        self._used = set()

    def __getstate__(self):
        left_out = ("_program", "_lock", "_listed", "_evaluated", "_used")
        return {name: value for name, value in self.__dict__.items() if name not in left_out}

    def __setstate__(self, state):
        self.__dict__.update(state)
        with jax.enable_x64(True):
            self.network._params = jax.device_put(self.network._params)
        self._begin()

    @property
    def species(self) -> tuple[int, ...]:
        """Sorted atomic numbers that the network knows."""
        return self.network.species

    @property
    def cutoff(self) -> float:
        """Cutoff of the network, Å."""
        return self.network.cutoff

    @property
    def num_compilations(self) -> int:
        """Number of programs that were compiled so far, by all calculators of the same network."""
        return self._program.num_compilations

    def get_property(self, name, atoms=None, allow_calculation=True):
        """Return a property as ASE's calculators do, for one thread after the other."""
        with self._lock:
            return super().get_property(name, atoms, allow_calculation)

    def check_state(self, atoms, tol=1e-15):
        """Return what of atoms changed since the last calculation, of what results depend on."""
        now = _state(atoms)
        if self.atoms is None:
            return list(now)
        before = _state(self.atoms)
        return [name for name in now if not np.array_equal(now[name], before[name])]

    def calculate(self, atoms=None, properties=("energy",), system_changes=()):
        """Compute energy and forces, and stress if asked for, in eV, eV/Å and eV/Å^3.

        Raises:
          DataError: an element that the run was not trained on, no atoms, atoms at one place,
            positions that are not finite or far apart, or too many pairs of them within cutoff and
            skin (see `eqfuse.data.neighbor_list`), a periodic direction without a lattice vector.
        """
        with self._lock:
            if atoms is not None:
                self.atoms = atoms.copy()
            evaluated, listed = self._evaluate(), self._listed
            [energies, forces] = jax.device_get((evaluated.node_energy, evaluated.forces))
            energies = listed.in_structure(energies) + listed.references
            energy = float(energies.sum())
            self.results = {
                "energy": energy,
                "free_energy": energy,
                "energies": energies,
                "forces": listed.in_structure(forces),
            }
            volume = abs(np.linalg.det(listed.cell_now))
            if not volume:
                return
            with jax.enable_x64(True):
                if "stress" in properties:
                    stress = jax.device_get(strain_derivative(evaluated)) / volume
                    self.results["stress"] = full_3x3_to_voigt_6_stress(stress)
                if "stresses" in properties:
                    parts = jax.device_get(atom_strain_derivatives(evaluated)) / volume
                    stresses = full_3x3_to_voigt_6_stress(listed.in_structure(parts))
                    self.results["stresses"] = stresses

    def get_descriptors(self, atoms=None, invariants_only: bool = True, num_layers: int = -1):
        """Return the features of atoms, by default of the last ones; see `eqfuse.descriptors`."""
        atoms = self.atoms if atoms is None else atoms
        given = {"invariants_only": invariants_only, "num_layers": num_layers}
        return descriptors(atoms, self.network, **given)

    def evaluated_for(self, atoms) -> tuple[Evaluated, jax.Array, np.ndarray]:
        """Return what the network computes for atoms, the species of the nodes, and their order."""
        with self._lock:
            self.get_property("energy", atoms)
            evaluated = self._evaluate()
            return evaluated, self._listed.of_nodes[1], self._listed.order

    def _evaluate(self) -> Evaluated:
        """Return what the network computes for `atoms`; from before, if they are as before."""
        atoms, listed = self.atoms, self._listed
        if not np.isfinite(atoms.positions).all():
            raise DataError(f"positions are not finite: {_DIVERGED}")
        if listed is not None and listed.is_of(atoms):
            if self._evaluated is not None and np.array_equal(listed.now, atoms.positions):
                return self._evaluated
            cell = listed.cell_now
        else:
            cell = Structure(atoms.numbers, atoms.positions, atoms.cell.array, atoms.pbc).cell
        self._evaluated = None
        if listed is None or not listed.is_valid(atoms, cell, self.cutoff, self.skin):
            self._listed = listed = self._list(cell)
        listed.now, listed.cell_now = atoms.positions.copy(), cell
        listed.given_cell = atoms.cell.array.copy()
        self._evaluated = self._run(listed)
        return self._evaluated

    def _run(self, listed: "_Listed") -> Evaluated:
        network, count = self.network, len(listed.order)
        positions = np.zeros((listed.sizes.nodes, 3))
        positions[:count] = listed.now[listed.order]
        structure = positions, listed.cell_now[None]
        while True:
            with jax.enable_x64(True), jax.default_matmul_precision("highest"):
                evaluated = self._program.compiled(
                    network._params,
                    listed.pairs,
                    *structure,
                    *listed.of_nodes,
                    size=listed.sizes.edges,
                )
                needed = int(evaluated.num_edges)
            if needed <= listed.sizes.edges:
                return evaluated
            sizes = listed.sizes
            listed.sizes = self._sizes(count, needed, sizes.pairs, sizes.nodes)

    def _list(self, cell) -> "_Listed":
        """Return a neighbour list of the atoms, on the device."""
        atoms, count = self.atoms, len(self.atoms)
        positions, pbc = atoms.positions, atoms.pbc
        species = species_index(atoms.numbers, self.species)
        try:
            pairs = list_pairs(positions, cell, pbc, self.cutoff + self.skin)
        except FlownApartError as err:
            raise FlownApartError(f"{err}; in a simulation: {_DIVERGED}") from err
        order = spatial_order(positions, cell, pbc, self.cutoff)
        near = positions[pairs[0]] + pairs[2] @ cell - positions[pairs[1]]
        edges = int((np.einsum("ei,ei->e", near, near) < self.cutoff**2).sum())
        sizes = self._sizes(count, edges, len(pairs[0]))
        number = np.argsort(order)
        ends = number[pairs[0]], number[pairs[1]]
        pairs = padded_pairs(*ends, pairs[2], sizes.nodes, sizes.pairs)
        nodes = np.zeros(sizes.nodes, np.int32)
        nodes[:count] = species[order]
        with jax.enable_x64(True):
            pairs, *of_nodes = jax.device_put((pairs, np.zeros_like(nodes), nodes, np.int32(count)))
        references = self.network.references[species]
        key = atoms.numbers.copy(), atoms.pbc.copy(), positions.copy(), cell.copy()
        return _Listed(*key, order, references, sizes, pairs, of_nodes)

    def _sizes(self, atoms: int, edges: int, pairs: int, nodes: int | None = None) -> Sizes:
        """Return compiled sizes that hold a structure, or new ones with less padding.

        Args:
          atoms, edges, pairs: that they hold at least.
          nodes: their number of nodes; None: any. The number of pairs is then given, too.
        """
        program, limit = self._program, room_for_edges(edges)

        def fits(sizes: Sizes) -> bool:
            most = _MOST_OWN if sizes in self._used else _MOST_OTHERS
            return (
                atoms <= sizes.nodes <= most * atoms
                and edges <= sizes.edges <= most * limit
                and pairs <= sizes.pairs
                and (nodes is None or (nodes, pairs) == sizes[:2])
            )

        with program.lock:
            fitting = list(filter(fits, program.sizes))
            if fitting:
                chosen = min(fitting, key=lambda sizes: (sizes.edges, sizes.nodes, sizes.pairs))
            elif nodes is not None:
                chosen = Sizes(nodes, pairs, limit)
            elif all(sizes.nodes == atoms for sizes in self._used):
                # Dynamics keep their atoms, and pay for no others; where one came, more may.
                chosen = Sizes(atoms, room_for_pairs(pairs), limit)
            else:
                more = _room(atoms)
                grown = (math.ceil(count * more / atoms) for count in (pairs, edges))
                chosen = Sizes(more, room_for_pairs(next(grown)), room_for_edges(next(grown)))
            if not fitting:
                program.sizes.append(chosen)
        self._used.add(chosen)
        return chosen


@dataclasses.dataclass(eq=False)
class _Listed:
    """A neighbour list on the device, the structure for which it was made, and that of now.

    Atoms are numbered as in `order` on the device.
    """

    numbers: np.ndarray
    pbc: np.ndarray
    positions: np.ndarray
    cell: np.ndarray
    order: np.ndarray
    references: np.ndarray
    sizes: Sizes
    pairs: Pairs
    of_nodes: list[jax.Array]
    now: np.ndarray | None = None
    cell_now: np.ndarray | None = None
    given_cell: np.ndarray | None = None

    def is_of(self, atoms) -> bool:
        """Return whether atoms differ at most in their positions from those of before."""
        return (
            np.array_equal(self.numbers, atoms.numbers)
            and np.array_equal(self.pbc, atoms.pbc)
            and np.array_equal(self.given_cell, atoms.cell.array)
        )

    def is_valid(self, atoms, cell, cutoff: float, skin: float) -> bool:
        """Return whether the list holds all pairs of atoms within the cutoff."""
        return (
            np.array_equal(self.numbers, atoms.numbers)
            and np.array_equal(self.pbc, atoms.pbc)
            and is_valid((self.positions, self.cell), (atoms.positions, cell), cutoff, skin)
        )

    def in_structure(self, of_nodes) -> np.ndarray:
        """Return what the nodes have, in the order of the structure."""
        out = np.empty((len(self.order), *of_nodes.shape[1:]))
        out[self.order] = of_nodes[: len(self.order)]
        return out


def _unknown_argument(name: str) -> str:
    """Return what to do instead of passing an argument that the calculator does not have."""
    if name in _OTHER_NAMES:
        return f"Calculator has no argument {name}: {_OTHER_NAMES[name]}"
    near = difflib.get_close_matches(name, _ARGUMENTS, n=1)
    hint = f"nearest: {near[0]}" if near else f"it has {', '.join(_ARGUMENTS)}"
    return f"Calculator has no argument {name}; {hint}"


def _state(atoms) -> dict[str, np.ndarray]:
    of_atoms = {name: atoms.arrays[name] for name in ("positions", "numbers")}
    return of_atoms | {"cell": atoms.cell.array, "pbc": atoms.pbc}


def _room(atoms: int) -> int:
    """Return a number of atoms plus a tenth and one, rounded up to a multiple."""
    return -(-int(_NODE_HEADROOM * atoms + 1) // _NODE_MULTIPLE) * _NODE_MULTIPLE
