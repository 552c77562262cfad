"""One rank of a periodic cell, without LAMMPS: its atoms and ghosts are given by a stand-in."""

import itertools
import types

import ase.build
import numpy as np
import pytest

import eqfuse
from eqfuse.lammps import fix
from tests.lammps.untrained import untrained_run


class Alone:
    """The communicator of a single rank."""

    rank, size = 0, 1

    def allreduce(self, value, op=None):
        return value

    def allgather(self, value):
        return [value]

    def Create_dist_graph_adjacent(self, sources, destinations):
        return self

    def neighbor_allgather(self, values):
        return []

    def neighbor_alltoall(self, values):
        return []

    def Free(self):
        pass


class StandIn:
    """What `Attached` asks of `lammps.lammps`, for atoms and all images within a distance."""

    def __init__(self, atoms, width):
        self.exchange(atoms, width)
        self.given, self.lmp = {}, None
        self.lib = types.SimpleNamespace(
            lammps_fix_external_set_energy_peratom=lambda *_: None,
            lammps_fix_external_set_virial_peratom=lambda *_: None,
        )
        self.numpy = types.SimpleNamespace(
            extract_atom=lambda name, nelem, dim: self.arrays[name][:nelem]
        )

    def exchange(self, atoms, width):
        shifts = [s for s in itertools.product(range(-5, 6), repeat=3) if any(s)]
        images = (atoms.positions + (np.array(shifts) @ atoms.cell.array)[:, None]).reshape(-1, 3)
        near = np.linalg.norm(images[:, None] - atoms.positions, axis=2).min(1) < width
        ghosts = np.tile(np.arange(len(atoms)), len(shifts))[near]
        self.cell, self.num_ghosts = atoms.cell.array, len(ghosts)
        self.atom = np.append(np.arange(len(atoms)), ghosts)
        own = np.zeros((len(atoms), 3))
        self.moved = np.concatenate([own, images[near] - atoms.positions[ghosts]])
        self.set(atoms)

    def set(self, atoms):
        kinds = np.searchsorted([13, 29], atoms.numbers) + 1
        x = atoms.positions[self.atom] + self.moved
        self.arrays = {"x": x, "id": self.atom + 1, "type": kinds[self.atom]}

    def extract_setting(self, name):
        return {"nghost": self.num_ghosts, "triclinic": 0}[name]

    def extract_global(self, name):
        return {"sublo": np.zeros(3), "subhi": np.diag(self.cell)}[name]

    def extract_box(self):
        return np.zeros(3), np.diag(self.cell), 0, 0, 0, [1, 1, 1], 0

    def fix_external_set_energy_global(self, name, energy):
        self.given["energy"] = energy

    def fix_external_set_virial_global(self, name, virial):
        self.given["virial"] = np.array(virial)


@pytest.mark.parametrize("forces", ["returned", "complete"])
def test_a_rank_alone_agrees_with_the_calculator(tmp_path, monkeypatch, forces):
    """In a first list, after moves within the skin, after larger ones, and of other types."""
    monkeypatch.setattr(fix, "load_mpi", lambda: types.SimpleNamespace(LAND=None))
    atoms = ase.build.bulk("Al", cubic=True)
    atoms.numbers[1] = 29
    atoms.rattle(0.1, seed=1)
    atoms.calc = eqfuse.Calculator(untrained_run(tmp_path))
    network, width = atoms.calc.network, 4 * 4.0 + 1.0
    lmp = StandIn(atoms, width)
    attached = fix.Attached(lmp, Alone(), network, ["Al", "Cu"], "eqfuse", forces, 1.0)
    lists = []
    for move, copper in ((0.0, 1), (0.02, 1), (0.6, 1), (0.0, 2)):
        atoms.positions[0] += [move, 0, 0]
        atoms.numbers[copper] = 29
        lmp.set(atoms)
        found = np.zeros((4, 3))
        attached._step(4, found)
        largest = np.abs(atoms.get_forces()).max()
        np.testing.assert_allclose(found, atoms.get_forces(), rtol=0, atol=1e-10 * largest)
        assert lmp.given["energy"] == pytest.approx(atoms.get_potential_energy(), rel=1e-11)
        stress = -lmp.given["virial"][[0, 1, 2, 5, 4, 3]] / atoms.get_volume()
        np.testing.assert_allclose(stress, atoms.get_stress(), rtol=0, atol=1e-10)
        lists.append(attached.num_lists)
    assert lists == [1, 1, 2, 3]
    assert attached.num_edges > 0
