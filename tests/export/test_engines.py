"""The Python of docs/how-to/engines.md, with the engines: pip install ipi openmm; else ASE's."""

import os
import re
import subprocess
import sys
from pathlib import Path

import ase.build
import ase.io
import numpy as np
import pytest
from ase.calculators.socketio import SocketIOCalculator
from ase.md.velocitydistribution import thermalize_momenta
from ase.md.verlet import VelocityVerlet

import eqfuse
from tests.child import ROOT, ends_here, start_python
from tests.lammps.untrained import untrained_run

PAGE = (ROOT / "docs" / "how-to" / "engines.md").read_text(encoding="utf-8")
CLIENT, OPENMM = re.findall(r"```python not-executed\n(.*?)```", PAGE, re.DOTALL)
IPI = Path(__file__).with_name("ipi.xml").read_text(encoding="utf-8")


def water() -> ase.Atoms:
    """Return eight molecules in a box."""
    rng, atoms = np.random.default_rng(0), ase.Atoms()
    for corner in np.ndindex(2, 2, 2):
        molecule = ase.build.molecule("H2O")
        molecule.rotate(360 * rng.random(), rng.normal(size=3))
        molecule.translate(3.1 * np.array(corner))
        atoms += molecule
    atoms.set_cell([6.2, 6.2, 6.2])
    atoms.pbc = True
    thermalize_momenta(atoms, 300, rng=rng)
    return atoms


def client(place, run, atoms, name: str) -> subprocess.Popen:
    """Start the client of the page in a folder with what it names."""
    ase.io.write(place / "start.xyz", atoms)
    (place / "runs").mkdir()
    (place / "runs" / "first").symlink_to(run)
    (place / "client.py").write_text(CLIENT.replace('"eqfuse"', f'"{name}"'))
    return start_python("client.py", cwd=place)


@pytest.mark.parametrize("periodic", [True, False])
def test_the_client_computes_for_a_server_of_ipis_protocol(tmp_path, periodic):
    """ASE's server, to which positions come in full precision; forces are the calculator's."""
    run, name = untrained_run(tmp_path, "mace", numbers=(1, 8)), f"eqfuse_{os.getpid()}_{periodic}"
    atoms = water()
    atoms.pbc = periodic
    own = eqfuse.Calculator(run)
    server = SocketIOCalculator(unixsocket=name, timeout=300)
    with ends_here(client(tmp_path, run, atoms, name)) as process:
        with server:
            for seed in range(2):
                atoms.rattle(0.05, seed=seed)
                atoms.set_cell(atoms.cell.array * 1.01, scale_atoms=True)
                found = []
                for calculator in (server, own):
                    here = atoms.copy()
                    here.calc = calculator
                    found.append([here.get_potential_energy(), here.get_forces()])
                    found[-1] += [here.get_stress()] if periodic else []
                for one, other in zip(*found, strict=True):
                    np.testing.assert_allclose(one, other, rtol=1e-9, atol=1e-10)
        assert process.wait(timeout=60) == 0


def test_ipi_moves_water_as_ase(tmp_path):
    """Positions after 50 steps of NVE are ASE's, and the energy is conserved."""
    pytest.importorskip("ipi")
    run, name, atoms = untrained_run(tmp_path, "mace", numbers=(1, 8)), f"e{os.getpid()}", water()
    # atomic units: bohr, and hbar / hartree
    velocities = atoms.get_velocities() / ase.units.Bohr * ase.units._aut * ase.units.second
    text = IPI.replace("NAME", name).replace("VELOCITIES", str(velocities.ravel().tolist()))
    (tmp_path / "input.xml").write_text(text)
    ase.io.write(tmp_path / "start.xyz", atoms)
    command = [Path(sys.executable).with_name("i-pi"), "input.xml"]
    with ends_here(subprocess.Popen(command, cwd=tmp_path)) as server:
        while not os.path.exists(f"/tmp/ipi_{name}"):
            assert server.poll() is None
        with ends_here(client(tmp_path, run, atoms, name)) as process:
            assert server.wait(timeout=300) == 0
            process.wait(timeout=60)
    found = ase.io.read(tmp_path / "out.x_0.xyz", -1)
    energies = np.loadtxt(tmp_path / "out.p")
    before = atoms.positions.copy()
    atoms.calc = eqfuse.Calculator(run)
    assert energies[0, 0] == pytest.approx(atoms.get_potential_energy(), rel=1e-6)
    VelocityVerlet(atoms, 0.5 * ase.units.fs).run(50)
    moved = found.positions - atoms.positions
    moved -= 6.2 * np.rint(moved / 6.2)
    np.testing.assert_allclose(moved, 0, atol=2e-5)  # the digits of i-PI's files
    assert np.abs(atoms.positions - before).max() > 0.05
    assert np.ptp(energies[:, 1]) < 1e-3 * len(atoms)


def test_openmm_moves_water_as_ase(tmp_path):
    """Energy and forces are the calculator's; positions after 50 steps of NVE are ASE's."""
    openmm = pytest.importorskip("openmm")
    from openmm import app, unit

    run, atoms, scope = untrained_run(tmp_path, "mace", numbers=(1, 8)), water(), {}
    exec(OPENMM, scope)
    topology, system = app.Topology(), openmm.System()
    residue = topology.addResidue("water", topology.addChain())
    for symbol, mass in zip(atoms.symbols, atoms.get_masses(), strict=True):
        topology.addAtom(symbol, app.Element.getBySymbol(symbol), residue)
        system.addParticle(mass)
    vectors = [openmm.Vec3(*row) for row in atoms.cell.array / 10] * unit.nanometer
    topology.setPeriodicBoxVectors(vectors)
    system.setDefaultPeriodicBoxVectors(*vectors)
    system.addForce(scope["eqfuse_force"](run, topology))
    integrator = openmm.CustomIntegrator(0.5 * unit.femtosecond)  # velocity Verlet, as ASE's
    integrator.addComputePerDof("v", "v + 0.5 * dt * f / m")
    integrator.addComputePerDof("x", "x + dt * v")
    integrator.addComputePerDof("v", "v + 0.5 * dt * f / m")
    platform = openmm.Platform.getPlatformByName("Reference")
    context = openmm.Context(system, integrator, platform)
    context.setPositions(atoms.positions / 10 * unit.nanometer)
    velocities = atoms.get_velocities() * ase.units.fs  # Å/fs
    context.setVelocities(velocities * unit.angstrom / unit.femtosecond)

    def found():
        state = context.getState(energy=True, forces=True, positions=True)
        energies = state.getPotentialEnergy(), state.getKineticEnergy()
        per_mole = ase.units.kJ / ase.units.mol
        forces = state.getForces(asNumpy=True).value_in_unit(energies[0].unit / unit.angstrom)
        positions = state.getPositions(asNumpy=True).value_in_unit(unit.angstrom)
        return *(e._value * per_mole for e in energies), forces * per_mole, positions

    potential, kinetic, forces, _ = found()
    atoms.calc = eqfuse.Calculator(run, backend="xla", radial="auto")
    # ASE's and OpenMM's constants differ by 1e-8
    assert potential == pytest.approx(atoms.get_potential_energy(), rel=1e-7)
    np.testing.assert_allclose(forces, atoms.get_forces(), rtol=1e-6, atol=1e-9)
    before = atoms.positions.copy()
    integrator.step(50)
    VelocityVerlet(atoms, 0.5 * ase.units.fs).run(50)
    later, kinetic_later, _, positions = found()
    np.testing.assert_allclose(positions, atoms.positions, rtol=0, atol=1e-5)
    assert np.abs(positions - before).max() > 0.05
    assert abs(later + kinetic_later - potential - kinetic) < 1e-3 * kinetic
