"""A network as LAMMPS's `fix external`, on its domain decomposition.

Each rank has its own atoms and ghosts. With L layers (1 for Allegro), the energy of an atom depends
on atoms up to L edges away. Each rank computes the energies of its own atoms, and sends the forces
and virials that atoms of others have here to their ranks.
"""

import ctypes
import sys
import time
import traceback
from collections.abc import Sequence

import numpy as np
from ase.data import atomic_numbers

from eqfuse.data import DataError
from eqfuse.data.samples import species_index
from eqfuse.inference.evaluator import Evaluator
from eqfuse.inference.lists import count_near
from eqfuse.inference.network import Network
from eqfuse.lammps.domains import Exchange, list_nodes
from eqfuse.lammps.mpi import load_mpi, share_cores
from eqfuse.models import Allegro

_VOIGT = (0, 1, 2, 0, 0, 1), (0, 1, 2, 1, 2, 2)  # LAMMPS: xx yy zz xy xz yz


def attach(
    lmp,
    run,
    types: Sequence[str],
    *,
    fix: str | None = None,
    skin: float = 1.0,
    which: str | None = None,
    dtype: str | None = None,
    backend: str | None = None,
    radial: str | None = None,
    dispersion: str | None = None,
) -> "Attached":
    """Let a network compute the forces of a LAMMPS instance, whose box and atoms are there.

        MPI = eqfuse.lammps.load_mpi()
        lmp = lammps.lammps(comm=MPI.COMM_WORLD)
        lmp.commands_string(...)  # units metal, atoms, masses
        eqfuse.lammps.attach(lmp, "runs/first", ["Si", "O"])
        lmp.command("run 1000")

    Energy and virial are those of the fix, and part of LAMMPS's `pe` and `pressure`; `pe/atom` and
    `stress/atom` have those of the atoms, where each edge gives half of its virial to either. The
    energy contains the reference energies. It sets `neighbor`, `neigh_modify` and `comm_modify
    cutoff`, which must not be changed after. All ranks call it together. An error in a step ends
    all ranks, since LAMMPS would go on with old forces.

    Args:
      lmp: `lammps.lammps`.
      run: the run's folder, or a file of its network.
      types: the elements of LAMMPS's types 1, 2, ...
      fix: ID of a `fix ID all external pf/callback 1 1`; None to define one, `eqfuse`.
      skin: Å, by which lists of neighbours extend beyond the cutoff.
      which, dtype, backend, radial: see `eqfuse.Calculator`; tables are made here, once.
      dispersion: "none" for a run with `data.dispersion`, whose network alone is computed here.
    Returns:
      what is called in each step, with counts of what it did.
    Raises:
      CheckpointError: no readable checkpoint.
      DataError: an element that the network does not know.
      ValueError: units that are not metal, another number of types, or no box.
      ImportError: no MPI.
    """
    if not 0 < skin < np.inf:
        raise ValueError(f"the skin must be positive and finite, Å, got {skin}")
    if not lmp.extract_setting("box_exist"):
        raise ValueError("there is no box yet; read or create the atoms before the network")
    if (units := lmp.extract_global("units")) != "metal":
        raise ValueError(f"the network computes in eV and Å: set 'units metal', got {units!r}")
    if (count := lmp.extract_setting("ntypes")) != len(types):
        raise ValueError(f"LAMMPS has {count} types; name the element of each, got {list(types)}")
    unknown = [element for element in types if element not in atomic_numbers]
    if unknown:
        raise DataError(f"{unknown[0]!r} is no element; name one for each type, such as Si")
    load_mpi()
    comm = lmp.get_mpi_comm()
    share_cores(comm)
    how = {"backend": backend, "radial": radial, "dispersion": dispersion}
    network = Network(run, which=which, dtype=dtype, **how)
    network.require_alone("eqfuse in LAMMPS")
    network = network.of_elements([atomic_numbers[element] for element in types])
    attached = Attached(lmp, comm, network, types, fix or "eqfuse", skin)
    if fix is None:
        lmp.command("fix eqfuse all external pf/callback 1 1")
    lmp.commands_list([f"neighbor {skin} bin", "neigh_modify every 1 delay 0 check yes"])
    lmp.command(f"comm_modify cutoff {attached.ghost_cutoff}")
    lmp.command(f"fix_modify {attached.fix} energy yes virial yes")
    lmp.set_fix_external_callback(attached.fix, attached)
    return attached


class Attached:
    """A network that computes the forces of a LAMMPS instance; see `attach`.

    It counts the steps and neighbour lists (`num_steps`, `num_lists`) and, of the last step on
    this rank, `num_own`, `num_nodes` and `num_edges`. Ghosts are needed up to `ghost_cutoff` (Å).
    """

    def __init__(self, lmp, comm, network: Network, types, fix: str, skin: float):
        self.fix, self.num_steps, self.num_lists = fix, 0, 0
        self.num_own = self.num_nodes = self.num_edges = 0
        self._lmp, self._comm, self._network, self._skin = lmp, comm, network, skin
        species = species_index([atomic_numbers[element] for element in types], network.species)
        self._species = np.append(0, species).astype(np.int32)  # types begin with 1
        model = network.module.potential.model
        self._hops = 1 if isinstance(model, Allegro) else model.layers
        self.ghost_cutoff = self._hops * network.cutoff + skin
        self._evaluator = Evaluator(network, varies=True)
        self._listed, self._exchange = None, None

    @property
    def num_compilations(self) -> int:
        return self._evaluator.program.num_compilations

    def counts(self) -> str:
        return (
            f"{self.num_steps} evaluations, {self.num_lists} lists, {self.num_compilations} "
            f"programs; at last {self.num_own} own atoms, {self.num_nodes} nodes, "
            f"{self.num_edges} edges"
        )

    def __call__(self, caller, step, num_own, tags, x, f):
        """Compute forces, energy and virial; LAMMPS calls it in each step on all ranks."""
        try:  # ctypes would print an exception, and LAMMPS go on with the forces of the last step
            self._step(num_own, f)
        except BaseException:
            rank, text = self._comm.rank, traceback.format_exc()
            text += f"rank {rank}: eqfuse failed in step {step}; all ranks end"
            print(text, file=sys.stderr)
            sys.stderr.flush()
            time.sleep(1)  # until mpirun, which Abort ends too, has passed it on
            self._comm.Abort(1)

    def _step(self, num_own: int, f):
        count = num_own + self._lmp.extract_setting("nghost")
        x, tags, types = (self._of_atoms(name, count) for name in ("x", "id", "type"))
        cell, *box = self._box()
        key = num_own, tags.tobytes(), types.tobytes()
        reach = self._network.cutoff, self._skin
        valid = self._listed is not None and self._listed.is_valid([(x, cell)], key, *reach)
        if not self._comm.allreduce(valid, load_mpi().LAND):
            self._list(key, tags.copy(), x, types, cell, *box)
        energies, parts = self._compute(x, cell)
        own = parts[:num_own]
        self._exchange.send_home(parts[num_own:], own)
        f[:] = own[:, :3]  # not +=: LAMMPS does not clear it
        energies = energies[:num_own]
        totals = np.array([energies.sum(), *own[:, 3:].sum(axis=0)])
        energy, *virial = self._comm.allreduce(totals)
        # both are totals, on each rank: LAMMPS divides the virial by the number of ranks
        self._lmp.fix_external_set_energy_global(self.fix, energy)
        self._lmp.fix_external_set_virial_global(self.fix, virial)
        self._set_of_atoms(energies, own[:, 3:])
        self.num_steps += 1
        self.num_own, self.num_nodes = num_own, len(self._nodes.images)
        self.num_edges = self._listed.num_edges

    def _of_atoms(self, name: str, count: int) -> np.ndarray:
        """Return an array of own atoms and ghosts, [count, ...], without a copy."""
        if count == 0:
            return np.zeros((0, 3)) if name == "x" else np.zeros(0, np.int64)
        return self._lmp.numpy.extract_atom(name, nelem=count, dim=3 if name == "x" else 1)

    def _box(self):
        """Return the cell [3, 3] Å (rows), its lower corner, and the periodic directions."""
        low, high, xy, yz, xz, periodic, _ = self._lmp.extract_box()
        lx, ly, lz = np.subtract(high, low)
        return np.array([[lx, 0, 0], [xy, ly, 0], [xz, yz, lz]]), low, np.array(periodic, bool)

    def _list(self, key, tags, x, types, cell, low, periodic):
        """Make a new list of nodes and pairs; all ranks do so together."""
        num_own, cutoff = key[0], self._network.cutoff
        nodes = list_nodes(x, tags, num_own, cell, cutoff + self._skin, self._hops)
        pairs = nodes.senders, nodes.receivers, nodes.shifts
        near = count_near(x[nodes.images], cell, *pairs, cutoff)
        species = self._species[types[nodes.images]]
        lists = *pairs, near
        self._listed = self._evaluator.padded([(x, cell)], key, lists, species, num_atoms=num_own)
        self._nodes = nodes
        exchange = Exchange(self._comm, *self._subdomain(cell, low), periodic)
        if self._exchange is not None:
            self._exchange.free()
        self._exchange = exchange
        exchange.connect(tags[:num_own], nodes.tags[num_own:])
        self.num_lists += 1

    def _subdomain(self, cell, low):
        """Return its bounds [2, 3] and how far ghosts are [3], in fractions of the box."""
        triclinic = bool(self._lmp.extract_setting("triclinic"))
        names = ("sublo_lambda", "subhi_lambda") if triclinic else ("sublo", "subhi")
        bounds = np.array([self._lmp.extract_global(name) for name in names])
        if not triclinic:
            bounds = (bounds - low) / np.diag(cell)
        return bounds, self.ghost_cutoff * np.linalg.norm(np.linalg.inv(cell), axis=0)

    def _compute(self, x, cell) -> tuple[np.ndarray, np.ndarray]:
        """Return energies of the nodes, and their forces and virials, [n_nodes, 3 + 6]."""
        images = self._nodes.images
        if len(images) == 0:
            return np.zeros(0), np.zeros((0, 9))
        results = self._evaluator.run(self._listed, [(x[images], cell)], of_atoms=True)
        virials = -results.strain[:, _VOIGT[0], _VOIGT[1]]
        energies = results.energies + results.references
        return energies, np.concatenate([results.forces, virials], axis=1)

    def _set_of_atoms(self, energies, virials):
        """Give LAMMPS energies and virials of the own atoms; it takes them where it needs them."""
        count = len(energies)
        if count == 0:
            return
        energies, virials = (np.ascontiguousarray(a, np.float64) for a in (energies, virials))
        pointers = virials.ctypes.data + virials.strides[0] * np.arange(count, dtype=np.uintp)
        # lammps's own methods make these arrays in loops of Python
        arguments = (
            (self._lmp.lib.lammps_fix_external_set_energy_peratom, energies),
            (self._lmp.lib.lammps_fix_external_set_virial_peratom, pointers),
        )
        for function, array in arguments:
            pointer = array.ctypes.data_as(ctypes.c_void_p)
            function.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
            function(self._lmp.lmp, self.fix.encode(), pointer)
