"""The example in which a network computes for i-PI, against ASE's server of that protocol."""

import os
import subprocess
import sys
from pathlib import Path

import ase.build
import ase.io
import numpy as np
from ase.calculators.socketio import SocketIOCalculator

import eqfuse
from tests.lammps.untrained import untrained_run

ROOT = Path(__file__).parents[2]


def test_a_network_computes_for_a_server_of_ipi(tmp_path):
    run = untrained_run(tmp_path)
    atoms = ase.build.bulk("Al", cubic=True)
    ase.io.write(tmp_path / "start.xyz", atoms)
    name = f"eqfuse_test_{os.getpid()}"
    command = [sys.executable, str(ROOT / "examples" / "ipi_client.py"), str(run)]
    command += [str(tmp_path / "start.xyz"), "--unix", name]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    with SocketIOCalculator(unixsocket=name, timeout=300) as server:
        client = subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True)
        try:
            for seed in range(3):
                atoms.rattle(0.05, seed=seed)
                atoms.set_cell(atoms.cell.array * 1.01, scale_atoms=True)
                here = atoms.copy()
                here.calc = eqfuse.Calculator(run, radial="auto")
                atoms.calc = server
                energy, forces, stress = (
                    atoms.get_potential_energy(),
                    atoms.get_forces(),
                    atoms.get_stress(),
                )
                np.testing.assert_allclose(energy, here.get_potential_energy(), rtol=1e-12)
                np.testing.assert_allclose(forces, here.get_forces(), rtol=0, atol=1e-10)
                np.testing.assert_allclose(stress, here.get_stress(), rtol=0, atol=1e-10)
        except BaseException:
            client.kill()
            print(client.communicate()[1])
            raise
    assert client.wait(timeout=60) == 0
    client.stderr.close()
