"""A trained run as a calculator of ASE, and the second derivatives that it computes."""

import os
import threading
import warnings
from pathlib import Path

import ase.calculators.calculator
import jax
import jax.numpy as jnp
import numpy as np
from ase.data import chemical_symbols
from ase.stress import full_3x3_to_voigt_6_stress

from eqfuse import ops
from eqfuse.data import DataError, Structure
from eqfuse.data.readers import frames_of, is_one
from eqfuse.data.readers.ase_files import as_atoms
from eqfuse.data.structures import FlownApartError, require_near
from eqfuse.inference.arguments import understood
from eqfuse.inference.descriptors import descriptors
from eqfuse.inference.evaluator import Evaluator, Placed, Results, derivatives, moved
from eqfuse.inference.network import Network, find_runs, unlike_training
from eqfuse.inference.predict import as_structures
from eqfuse.inference.spread import Spread, spreads_of, with_spread
from eqfuse.models.radial_table import WRITTEN
from eqfuse.runs.process import keep_memory
from eqfuse.train.dispersion import Added

_DIVERGED = (
    "the dynamics or relaxation has diverged before this step; make its steps shorter, or see what "
    "the structures before it look like"
)
_LISTED = 12  # elements, in a text
_FEW_ATOMS, _SKIN_OF_FEW, _SKIN = 32, 1.5, 0.7  # Å


def skin_of(num_atoms: int) -> float:
    """Return the skin of a calculator to which none is given, Å.

    To make a list of a few atoms takes as long as several steps, and more pairs cost them little.
    """
    return _SKIN_OF_FEW if num_atoms <= _FEW_ATOMS else _SKIN


def _short(run: str) -> str:
    parts = Path(os.path.abspath(run)).parts
    return parts[-3] if parts[-2:-1] == ("checkpoints",) else parts[-1]


class Calculator(ase.calculators.calculator.Calculator):
    """Energy, energies of atoms, forces, stress and stresses of atoms from a trained run.

        atoms.calc = eqfuse.Calculator("runs/first")

    The neighbour list extends by `skin` beyond the cutoff and stays on the device until an atom has
    moved by half of that; a cell that deforms takes its part of the skin. Calculators of the same
    network share the programs that they compile, and these are kept for later processes, unless
    JAX_ENABLE_COMPILATION_CACHE is false. A program has headroom for neighbours, and structures
    with fewer atoms use it, too; after atoms were added, the next one has a tenth of headroom for
    atoms, so that fluctuations compile nothing.

    The calculator can be copied and pickled. Several threads may use one, which then computes for
    one after the other. Stress is computed only when it is asked for. `get_stresses` returns the
    part of each atom, whose sum is the stress; each edge gives half of its part to either atom.
    Atoms without a periodic direction have no stress; energies are totals, in eV, with the
    reference energies.

    Args:
      run: the run's folder, or a file of its network (.safetensors); or the name of a published
        network, such as "7net-0", or a file of mace, sevenn, nequix or nequip, which is converted
        once.
      skin: Å; None: 1.5 up to 32 atoms, whose lists cost more than their pairs, and 0.7 beyond.
      which, dtype, backend, radial, head: see `eqfuse.inference.Network`.
      dispersion: "d3(bj)", "d3(bj,r2scan)", ..., which `dftd3` computes on the CPU and is added;
        without a functional, or True, it is that of PBE. None is that of the run, which has one if
        it was trained with `data.dispersion`, and "none" or False is the network alone. With a
        dispersion there are no stresses of atoms, and their energies are computed only where they
        are asked for.
      spread: whether results have the spread, as those of `eqfuse.Committee`, of a run to which
        `eqfuse uncertainty` fitted it; it costs a derivative for each of its features.
      atoms, label, directory: as in ASE's calculators.
      others: words of other programs: model_paths, model_path, model, default_dtype, modal (a
        head), device (which must be that of JAX), damping and dispersion_xc with dispersion=True.
    Raises:
      CheckpointError: no readable checkpoint, or no spread that was fitted.
      ConfigError: another dispersion, or no `dftd3`.
      TypeError: an unknown argument; names the one that was probably meant.
      ValueError: a skin that is negative or not finite, another `which` or dtype, or a backend or
        device that does not run here.
    """

    implemented_properties = ("energy", "energies", "forces", "stress", "stresses", "free_energy")
    ignored_changes = frozenset({"initial_charges", "initial_magmoms"})  # of ASE: not read here

    def __init__(
        self,
        run=None,
        *,
        skin: float | None = None,
        which=None,
        dtype=None,
        backend=None,
        radial=None,
        head: str | None = None,
        dispersion: str | bool | None = None,
        spread: bool = False,
        atoms=None,
        label=None,
        directory=".",
        **others,
    ):
        """Read the network of a run; the arguments are described above."""
        keep_memory()  # before this starts JAX, whose threads have their memory from then on
        given = {"run": run, "dtype": dtype, "head": head, "dispersion": dispersion}
        given = understood(given, others, Calculator.__init__)
        run, dtype, head, dispersion = given.values()
        if not isinstance(run, str | os.PathLike):
            raise TypeError(f"run must be the path of one run, got {run!r}; see eqfuse.Committee")
        self.backend = ops.resolve_here(backend)
        if skin is not None and not 0 <= skin < np.inf:
            raise ValueError(f"the skin must be zero or more Å, and finite, got {skin}")
        how = {"which": which, "dtype": dtype, "backend": backend, "head": head}
        self.network = Network(run, radial=radial, dispersion=dispersion, **how)
        self.skin = None if skin is None else float(skin)
        self.dispersion = self.network.dispersion
        self.spread = bool(spread)
        if spread:
            with_spread(self.network)  # refused where none was fitted
        if self.dispersion is not None or self.network.module.potential.long_range is not None:
            names = self.implemented_properties
            self.implemented_properties = tuple(n for n in names if n != "stresses")
        self._state: tuple[bytes, ...] | None = None
        self._begin()
        super().__init__(atoms=atoms, label=label, directory=directory)
        self.use_cache = False  # ASE would copy the atoms once more

    def _evaluator_of(self, network: Network) -> Evaluator:
        return Evaluator(network, skin_of if self.skin is None else self.skin)

    def _begin(self):
        """Set what neither copies nor pickles have."""
        self._evaluator, self._said = self._evaluator_of(self.network), set()
        self._lock = threading.RLock()
        self._found: Results | None = None
        self._added: Added | None = None
        self._spread: dict = {}
        self._cell, self._volume = None, 0.0

    def __getstate__(self):
        ours = ("_evaluator", "_said", "_lock", "_found", "_added", "_spread", "_cell", "_volume")
        return {name: value for name, value in self.__dict__.items() if name not in ours}

    def __setstate__(self, state):
        self.__dict__.update(state)
        if self.atoms is not None:  # whose positions are written in place
            self.atoms = self.atoms.copy()
        self._begin()

    def __repr__(self) -> str:
        symbols = [chemical_symbols[z] for z in self.species]
        elements = " ".join(symbols)
        if len(symbols) > _LISTED:
            elements = f"{len(symbols)} elements {symbols[0]} to {symbols[-1]}"
        added = "" if self.dispersion is None else f", {self.dispersion}"
        how = f"cutoff {self.cutoff:g} Å, {self.network.dtype}, backend {self.backend}"
        return f"<{type(self).__name__} {self.network.name}: {elements}, {how}{added}>"

    @property
    def name(self) -> str:
        """Return the name of the run, file or published network, which ASE's databases keep."""
        return _short(self.network.name) + (f", {self.dispersion}" if self.dispersion else "")

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
        """Return the number of programs that all calculators of the same network have compiled."""
        return self._evaluator.program.num_compilations

    def get_property(self, name, atoms=None, allow_calculation=True):
        with self._lock:
            if atoms is not None:
                self._take(atoms)
            # ASE would compare the atoms again, and copy them in each step
            return super().get_property(name, None, allow_calculation)

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
            if self._found is None:
                found = self._compute(of_atoms=False)
                self._added = self.dispersion and self.dispersion.of(self._placed)
                if self.spread:
                    now = self._evaluator
                    [spread] = spreads_of(now.network, now.listed, [self._placed])
                    self._spread = spread.results()
                self._found = found  # all of them are there
            energies, forces, [strain], references, _ = self._found
            energies = energies + references
            energy, results = float(energies.sum()), {"energies": energies}
            if self._added is not None:
                of_energy, of_forces, of_strain = self._added
                energy, forces, strain = energy + of_energy, forces + of_forces, strain + of_strain
                results = {}
                if "energies" in properties:
                    results["energies"] = energies + self.dispersion.energies_of_atoms(self._placed)
            results |= {"energy": energy, "free_energy": energy, "forces": forces} | self._spread
            if self._volume and "stress" in properties:
                results["stress"] = full_3x3_to_voigt_6_stress(strain / self._volume)
            if self._volume and "stresses" in properties:
                parts = self._compute(of_atoms=True).strain / self._volume
                results["stresses"] = full_3x3_to_voigt_6_stress(parts)
            self.results = results

    def get_descriptors(self, atoms=None, invariants_only: bool = True, num_layers: int = -1):
        """Return the features of atoms, by default of the last ones; see `eqfuse.descriptors`."""
        atoms = self.atoms if atoms is None else atoms
        given = {"invariants_only": invariants_only, "num_layers": num_layers}
        return descriptors(self.network, atoms, **given)

    def apply(self, function, atoms, **static) -> tuple[np.ndarray, np.ndarray]:
        """Return a function of atoms, see `Evaluator.apply`, and the atom that each node is."""
        with self._lock:
            self.calculate(atoms)  # copies have results, and no list
            listed = self._evaluator.listed
            placed = [(self.atoms.positions, self._cell)]
            return self._evaluator.apply(function, listed, placed, **static), listed.order

    def _take(self, atoms):
        """Take atoms as those that results are of, and forget those of others."""
        # what results depend on, in bytes, which are compared quickly; positions first
        arrays = atoms.arrays["positions"], atoms.arrays["numbers"], atoms.cell.array, atoms.pbc
        key = self.network.charge_key
        charge = repr(atoms.info.get(key) if key else None)
        state = (*[array.tobytes() for array in arrays], charge.encode())
        if state == self._state:
            return
        if self._state is not None and state[1:] == self._state[1:]:
            self.atoms.positions = atoms.positions
        else:
            self.atoms, self._cell = atoms.copy(), None
        self._state, self.results, self._found = state, {}, None

    def _choose_elements(self):
        """Compute with the elements of the first atoms alone, until others have more."""
        now, numbers = self._evaluator, self.atoms.numbers
        network = now.network if now.listed else self.network.of_elements(numbers)
        if now.listed and not np.isin(numbers, network.species).all():
            network = self.network
        if network is not now.network:
            self._evaluator = self._evaluator_of(network)

    @property
    def _placed(self) -> Placed:
        atoms = self.atoms
        place = atoms.numbers, atoms.positions, self._cell, atoms.pbc
        return Placed(*place, self.network.charge_of(atoms))

    def _compute(self, *, of_atoms: bool) -> Results:
        atoms = self.atoms
        if not np.isfinite(atoms.positions).all():
            raise DataError(f"positions are not finite: {_DIVERGED}")
        if self._cell is None:
            [checked] = as_structures(atoms, self.network.charge_key)
            self._cell, self._volume = checked.cell, checked.volume
            for text in unlike_training(self.network, [checked]):
                if text not in self._said:
                    self._said.add(text)
                    warnings.warn(text, UserWarning, stacklevel=2)
            self._choose_elements()
        try:
            require_near(atoms.positions)
            return self._evaluator([self._placed], of_atoms=of_atoms)
        except FlownApartError as error:
            raise FlownApartError(f"{error}; in a simulation: {_DIVERGED}") from error


class Committee(ase.calculators.calculator.Calculator):
    """The mean of what several trained runs give, and their spread.

        atoms.calc = eqfuse.Committee("runs/sweep")  # a folder of runs, as seeds=4 makes it
        atoms.get_forces()
        atoms.calc.results["forces_spread"]

    Besides the properties of `eqfuse.Calculator`, the results have `energy_spread` (eV),
    `energies_spread` ([n_atoms] eV), `forces_spread` ([n_atoms] eV/Å) and, in a cell,
    `stress_spread` ([6] eV/Å^3): standard deviations, see `eqfuse.inference.spread.Spread`.

    Args:
      runs: a folder of at least two runs, a pattern such as "runs/seed*", or a sequence of runs.
      atoms: as in ASE's calculators.
      options: of each `eqfuse.Calculator`.
    Raises:
      CheckpointError: no readable checkpoint, or a run given twice.
      ValueError: a single run; see `eqfuse.Calculator`.
    """

    implemented_properties = Calculator.implemented_properties

    def __init__(self, runs, *, atoms=None, **options):
        found = find_runs(runs)
        if len(found) < 2:
            raise ValueError(
                f"a committee needs several runs, and {runs} is one; train others with seeds=4, or "
                "use eqfuse.Calculator"
            )
        self.members = [Calculator(run, **options) for run in found]
        each = [set(member.implemented_properties) for member in self.members]
        self.implemented_properties = tuple(set.intersection(*each))
        super().__init__(atoms=atoms)
        names = ", ".join(each.name for each in self.members)
        self._name = _short(runs) if isinstance(runs, str | os.PathLike) else names

    @property
    def name(self) -> str:
        """Return the name of the folder, or those of the runs, which ASE's databases keep."""
        return self._name

    def get_property(self, name, atoms=None, allow_calculation=True):
        with self.members[0]._lock:  # threads compute one after the other
            return super().get_property(name, atoms, allow_calculation)

    def check_state(self, atoms, tol=1e-15):
        """Return what has changed since the last results; the total charges that are read, too."""
        changed = super().check_state(atoms, tol)
        keys = {member.network.charge_key for member in self.members} - {None}
        known = {} if self.atoms is None else self.atoms.info
        return changed + [key for key in keys if known.get(key) != atoms.info.get(key)]

    def calculate(self, atoms=None, properties=("energy",), system_changes=()):
        """Compute the mean and the spread, in eV, eV/Å and eV/Å^3."""
        super().calculate(atoms, properties, system_changes)
        for member in self.members:
            member.calculate(self.atoms, [*properties, "energies"], system_changes)
        names = self.members[0].results
        values = {name: np.array([m.results[name] for m in self.members]) for name in names}
        self.results = {name: value.mean(axis=0) for name, value in values.items()}
        self.results |= {n: float(self.results[n]) for n in ("energy", "free_energy")}
        spread = Spread.of_members(*(values.get(n) for n in ("energy", "energies", "forces")))
        self.results |= spread.results()
        if "stress" in values:
            self.results["stress_spread"] = values["stress"].std(axis=0, ddof=1)


def of_each(function, run, atoms=None):
    """Return a function of a calculator and atoms, for one structure, or a list for several.

    The calculator is that of a run, or, where atoms are given alone, the one that they have.
    """
    given, own = (run, None) if atoms is None else (atoms, Calculator(run))
    found = []
    for one in frames_of(given):
        calculator = own or getattr(one, "calc", None)
        if not isinstance(calculator, Calculator):
            raise TypeError(
                f"it needs an eqfuse.Calculator, got {type(calculator).__name__}: "
                "set atoms.calc = eqfuse.Calculator(RUN)"
            )
        found.append(function(calculator, as_atoms(one) if isinstance(one, Structure) else one))
    return found[0] if is_one(given) else found


def hessian(run, atoms=None) -> np.ndarray | list[np.ndarray]:
    """Return the second derivatives of the energy by the positions of atoms.

        H[a, i, b, j] = d^2 E / dr_ai dr_bj

    It is the exact derivative of the forces, computed on the device one column after the other;
    that of a dispersion is by differences of its forces.
    `ase.vibrations.VibrationsData(atoms, eqfuse.hessian(atoms))` has frequencies and modes.

    Args:
      run: the folder of a run, or a file of its network; or left out, for the `eqfuse.Calculator`
        that the atoms have. A TypeError names another one.
      atoms: `ase.Atoms`, or several in any form, see `eqfuse.predict`.
    Returns:
      [n_atoms, 3, n_atoms, 3] eV/Å^2, in float64 of what the precision of the network gives; a list
      of them unless one structure was given.
    """
    return of_each(_hessian, run, atoms)


def _hessian(calculator: Calculator, atoms: ase.Atoms) -> np.ndarray:
    count = len(atoms)
    columns, order = calculator.apply(_columns, atoms, count=count)
    columns = columns.reshape(count, 3, -1, 3)[:, :, :count]
    out = np.empty((count, 3, count, 3))
    out[order[:, None], :, order[None]] = columns.transpose(0, 2, 1, 3)
    dispersion = calculator.dispersion
    return out if dispersion is None else out + dispersion.hessian(calculator._placed)


def _columns(module, params, near, geometry, *, count: int):
    """Return the derivatives of the gradient by each coordinate, [3 count, n_nodes, 3]."""
    params = params | {WRITTEN: {"model": {WRITTEN: True}}}
    zero = jnp.zeros_like(geometry.positions)

    def gradient(moves):
        found = derivatives(module, params, *moved(near, geometry, moves))
        return -found.forces(near.edges)

    _, linear = jax.linearize(gradient, zero)  # what no direction changes is computed once

    def column(number):
        return linear(zero.reshape(-1).at[number].set(1).reshape(zero.shape))

    return jax.lax.map(column, jnp.arange(3 * count))
