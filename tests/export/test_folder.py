"""`eqfuse export --for`: folders that run without eqfuse, and in C++ without Python."""

import ctypes
import functools
import importlib.util
import itertools
import json
import math
import os
import platform
import shutil
import subprocess
import sys
from pathlib import Path

import ase.build
import ase.io
import jax
import jax.numpy as jnp
import jaxlib
import numpy as np
import pytest
from ase.calculators.socketio import SocketIOCalculator
from ase.md.velocitydistribution import thermalize_momenta
from ase.md.verlet import VelocityVerlet

import eqfuse
from eqfuse import cli
from eqfuse.export import engine, export_folder
from eqfuse.export.command import sizes_for
from eqfuse.export.folder import with_checksum
from eqfuse.ops.backends.llvm import library, machine
from eqfuse.runs import process
from eqfuse.runs.errors import ConfigError
from tests.child import run_python
from tests.lammps.untrained import untrained_run

ROOT = Path(__file__).parents[2]
SOURCES = ROOT / "eqfuse" / "export"
SIZES = [(40, 800), (600, 28000)]
EXECUTE = 3  # of XLA's FFI

pytestmark = pytest.mark.skipif(
    bool(library.unavailable() or machine.unavailable()), reason="no libraries of kernels here"
)


def plugin():
    """Return XLA's PJRT plug-in for CPUs: $EQFUSE_PJRT_PLUGIN, or that of lammps-jax-pjrt-cpu."""
    if file := os.environ.get("EQFUSE_PJRT_PLUGIN"):
        return file
    found = importlib.util.find_spec("lammps_jax_pjrt_cpu")
    if found is None:
        pytest.skip("no PJRT plug-in: pip install lammps-jax-pjrt-cpu, or EQFUSE_PJRT_PLUGIN")
    return str(Path(found.origin).with_name("pjrt_c_api_cpu_plugin.so"))


def compiled(source: Path, out: Path, level="-O1"):
    if shutil.which("g++") is None:
        pytest.skip("no g++")
    warnings = ["-Wall", "-Wextra", "-Werror", f"-I{SOURCES}"]
    command = ["g++", level, "-std=c++17", *warnings, str(source), "-o", str(out)]
    subprocess.run([*command, "-ldl", "-pthread"], check=True)
    return out


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    return tmp_path_factory.mktemp("folders")


@pytest.fixture(scope="module")
def host(place):
    return compiled(SOURCES / "eqfuse_run.cpp", place / "host")


@pytest.fixture(scope="module")
def mace(place):
    run = untrained_run(place, "mace")
    return run, export_folder(run, place / "mace_folder", engine="pjrt", sizes=SIZES)


def flipped(path: Path, k: int):
    """Flip one bit of a file."""
    content = bytearray(path.read_bytes())
    content[k // 8 % len(content)] ^= 1 << k % 8
    path.write_bytes(content)


def structure(name):
    """Return a crystal, a slab, a skewed cell smaller than the cutoff, or a molecule."""
    if name == "molecule":  # all of it is far from the first of two domains along x
        return ase.Atoms("AlCu2", [[10, 0, 0], [12.4, 0.1, 0], [10.3, 2.5, 0.2]])
    atoms = ase.build.bulk("Al", cubic=True)
    if name == "skewed":
        atoms = ase.build.bulk("Al") * (2, 1, 1)
    if name == "slab":
        atoms = ase.build.fcc111("Al", (2, 2, 2), vacuum=4.0)
        atoms.info.clear()
    atoms.numbers[0] = 29
    atoms.rattle(0.1, seed=1)
    atoms.positions += [7, -5, 3]  # outside of the cell
    return atoms


def run_host(host, folder, atoms, tmp_path, *options, environment=()):
    """Return energy, forces and virial by the C++ program, in a process without Python."""
    file = tmp_path / "start.xyz"
    ase.io.write(file, atoms)
    command = [str(host), str(folder), plugin(), str(file), *options]
    done = subprocess.run(command, capture_output=True, text=True, env=dict(environment))
    assert done.returncode == 0, done.stderr
    energy, virial, *forces = [
        [float(x) for x in line.split()[1:]] for line in done.stdout.splitlines()
    ]
    assert len(forces) == len(atoms)
    return energy[0], np.array(forces), np.reshape(virial, (3, 3))


@functools.cache
def calculator(run, dtype: str, radial: str):
    return eqfuse.Calculator(run, dtype=dtype, backend="xla", radial=radial)


def assert_agreement(results, atoms, run, tolerance, dtype="float64", rounded=True, radial="auto"):
    """Compare with the calculator on XLA's kernels, whose positions have the digits of a file.

    Both have tables of radial functions, unless `radial` is "network".
    """
    energy, forces, virial = results
    atoms = atoms.copy()
    if rounded:
        atoms.positions = atoms.positions.round(8)
        atoms.set_cell(atoms.cell.array)
    atoms.calc = calculator(run, dtype, radial)
    assert abs(energy - atoms.get_potential_energy()) < tolerance * abs(energy)
    largest = np.abs(atoms.get_forces()).max()
    np.testing.assert_allclose(forces, atoms.get_forces(), rtol=0, atol=tolerance * largest)
    if atoms.pbc.all():
        expected = -atoms.get_stress(voigt=False) * atoms.get_volume()
        atol = tolerance * np.abs(expected).max()
        np.testing.assert_allclose(virial, expected, rtol=0, atol=atol)


@pytest.mark.parametrize("name", ["crystal", "slab", "skewed", "molecule"])
@pytest.mark.parametrize("domains", [0, 2])
def test_a_program_without_python_agrees_with_the_calculator(mace, host, tmp_path, name, domains):
    """With two domains: ghosts, and for the molecule, a domain that is empty."""
    run, folder = mace
    atoms = structure(name)
    options = ["--domains", str(domains)] if domains else []
    results = run_host(host, folder, atoms, tmp_path, *options)
    # the file has 8 decimals, also of the cell: 1e-8 of 0.1 Å
    assert_agreement(results, atoms, run, 2e-8)
    if name == "crystal":  # with the bound of tables
        assert_agreement(results, atoms, run, 2e-7, radial="network")
    assert "\nradial tables of 256 knots" in (folder / "manifest.txt").read_text()


@pytest.mark.parametrize(
    ("model", "layers", "dtype", "tolerance", "name"),
    [("nequip", 3, "float64", 2e-8, "crystal"), ("mace", 2, "float32", 2e-5, "molecule")],
)
def test_layers_exchange_features_of_ghosts(host, tmp_path, model, layers, dtype, tolerance, name):
    """Ghosts of one cutoff; an empty domain. From 256 rows on, gates are kernels that call libm."""
    run = untrained_run(tmp_path, model, layers=layers)
    folder = export_folder(
        run, tmp_path / "a", engine="pjrt", sizes=[(300, 500)], dtype=dtype, exchange=True
    )
    assert "hops 1\nexchange" in (folder / "manifest.txt").read_text()
    atoms = structure(name)
    results = run_host(host, folder, atoms, tmp_path, "--domains", "2")
    assert_agreement(results, atoms, run, tolerance, dtype)
    if name == "crystal":
        return
    results = run_host(host, folder, atoms, tmp_path)  # no ghosts
    assert_agreement(results, atoms, run, tolerance, dtype)
    atoms.positions[1] = atoms.positions[0]  # in one domain; the other does not wait for ever
    ase.io.write(tmp_path / "start.xyz", atoms)
    command = [str(host), str(folder), plugin(), str(tmp_path / "start.xyz"), "--domains", "2"]
    done = subprocess.run(command, capture_output=True, text=True, env={}, timeout=300)
    assert done.returncode == 1
    assert "are at one place" in done.stderr


def test_each_level_of_the_processor_computes_the_same(mace, host, tmp_path):
    run, folder = mace
    atoms = structure("crystal")
    for level in ("0", "1", "2"):
        environment = {"EQFUSE_LEVEL": level, "OMP_NUM_THREADS": "1"}
        results = run_host(host, folder, atoms, tmp_path, environment=environment)
        assert_agreement(results, atoms, run, 2e-8)


@pytest.mark.parametrize(
    ("model", "backend", "size"),
    [
        ("allegro", "llvm", (160, 3000)),
        pytest.param("nequip", "xla", SIZES[1], marks=pytest.mark.slow),
    ],
)
def test_float32_and_other_networks(host, tmp_path, model, backend, size):
    run, options = untrained_run(tmp_path, model), {"dtype": "float32", "backend": backend}
    folder = export_folder(run, tmp_path / "a", engine="pjrt", sizes=[size], **options)
    assert (folder / "eqfuse_kernels.so").exists() == (backend == "llvm")
    atoms = structure("crystal")
    results = run_host(host, folder, atoms, tmp_path, "--domains", "2")
    assert_agreement(results, atoms, run, 2e-5)


def test_loaded_twice_and_wrong_arguments(mace, tmp_path):
    _, folder = mace
    shutil.copytree(folder, tmp_path / "copy")
    program = compiled(Path(__file__).with_name("twice.cpp"), tmp_path / "twice", "-O0")
    command = [str(program), plugin(), str(folder), str(tmp_path / "copy")]
    done = subprocess.run(command, capture_output=True, text=True, env={})
    lines = done.stdout.splitlines()
    assert (done.returncode, len(lines)) == (0, 8), done.stdout + done.stderr
    assert len(set(lines[:4])) == 1
    assert "does not know the element of atomic number 79; it knows Al Cu" in lines[4]
    assert "owned is 3, outside 0 to 2 atoms" in lines[5]
    assert "an edge names atom 2, outside 0 to 2 atoms" in lines[6]
    assert "2 senders, 2 receivers and 5 components of vectors" in lines[7]


MEMORY = """
#include <cstdio>
#include "eqfuse_engine.hpp"
int main(int, char **argv) {
  for (int k = 1; k < 4; ++k) {
    const auto [total, left] = eqfuse::memory(argv[k]);
    std::printf("%.0f %.0f\\n", total, left);
  }
}
"""


def test_memory_is_that_of_the_cgroup(tmp_path, monkeypatch):
    """A limit of 1 GB with 300 MB left, no limit, and no cgroup, as in Python."""
    (tmp_path / "memory.cpp").write_text(MEMORY)
    program = compiled(tmp_path / "memory.cpp", tmp_path / "memory", "-O0")
    found, folders = [], [tmp_path / name for name in ("limited", "free", "none")]
    for folder, limit in zip(folders, ("1024000000\n", "max\n"), strict=False):
        folder.mkdir()
        (folder / "memory.max").write_text(limit)
        (folder / "memory.current").write_text("716800000\n")
    for folder in folders:
        monkeypatch.setattr(process, "_CGROUP", folder)
        found.append([size // 1024 for size in process.memory()])
    assert found[0] == [1000000, 300000]
    printed = subprocess.run([program, *folders], capture_output=True, text=True, check=True)
    rows = [[int(word) for word in line.split()] for line in printed.stdout.splitlines()]
    assert rows[0] == found[0]
    assert [total for total, _ in rows] == [total for total, _ in found]  # others take and leave


def test_host_says_what_it_cannot_run(mace, host, tmp_path):
    _, folder = mace
    crystal = structure("crystal")
    at_one_place = crystal.copy()
    at_one_place.positions[2] = at_one_place.positions[1]
    gold = crystal.copy()
    gold.symbols[:] = "Au"
    other = {"x86_64": "aarch64"}.get(platform.machine(), "x86_64")

    def changed(old, new):
        text = (folder / "manifest.txt").read_text()
        assert old in text
        return with_checksum(text.replace(old, new))

    for atoms, manifest, missing, expected in (
        (crystal * (6, 6, 6), None, None, "864 atoms, 0 ghosts and"),
        (gold, None, None, "the network does not know Au; it knows Al Cu"),
        (at_one_place, None, None, "atoms 1 and 2 are at one place"),
        (crystal, None, "eqfuse_kernels.so", "cannot be read; is the folder whole?"),
        (crystal, None, "program_40_800", "cannot be read; is the folder whole?"),
        (crystal, None, "manifest.txt", "cannot be read; is the folder whole?"),
        (crystal, changed("format 3", "format 4"), None, "a later version of eqfuse (format 4"),
        (crystal, changed(platform.machine(), other), None, f"for a processor {other}, and this"),
    ):
        copy = tmp_path / "copy"
        shutil.rmtree(copy, ignore_errors=True)
        shutil.copytree(folder, copy)
        if manifest:
            (copy / "manifest.txt").write_text(manifest)
        if missing:
            (copy / missing).unlink()
        ase.io.write(tmp_path / "start.xyz", atoms)
        command = [str(host), str(copy), plugin(), str(tmp_path / "start.xyz")]
        done = subprocess.run(command, capture_output=True, text=True)
        assert done.returncode == 1, expected
        assert expected in done.stderr
    assert (
        "cannot be loaded"
        in subprocess.run(
            [str(host), str(folder), "nothing.so", "a"], capture_output=True, text=True
        ).stderr
    )


def test_a_folder_holds_nothing_of_the_machine_that_writes_it(mace, place, tmp_path, monkeypatch):
    _, folder = mace
    other = machine.Machine(64, 32, 1 << 22, 1 << 26)
    monkeypatch.setattr(machine, "machine", lambda: other)
    again = export_folder(place / "mace", tmp_path / "again", engine="pjrt", sizes=SIZES)
    for file in folder.iterdir():
        assert str(place).encode() not in file.read_bytes()
        if not file.name.startswith("program"):  # the order of its constants differs
            both = (path.read_bytes() for path in (file, again / file.name))
            one, other = (content.partition(b"checksum program")[0] for content in both)
            assert one == other, file.name


READER = """
import sys
sys.path.insert(0, sys.argv[1])
import engine, numpy as np
given = dict(np.load(sys.argv[3]))
for folder in sys.argv[1:3]:
    one = engine.Engine(folder)
    results = one.compute(**given)
assert not [name for name in sys.modules if name.startswith(("eqfuse", "flax", "e3nn"))]
np.savez(sys.argv[3], *results)
for bad in ({**given, "numbers": np.full(4, 79)}, {k: np.tile(v, (99, 1)[: v.ndim]) if k in
            ("numbers", "positions") else v for k, v in given.items()}):
    try:
        one.compute(**bad)
    except ValueError as error:
        print(error)
"""


def test_a_folder_for_python_runs_without_eqfuse(tmp_path):
    run, folder = untrained_run(tmp_path, "mace"), tmp_path / "a"
    atoms = structure("crystal")
    ase.io.write(tmp_path / "start.extxyz", [atoms, atoms * (3, 1, 1)])
    sizes = sizes_for(tmp_path / "start.extxyz", 4.0)
    assert [n for n, _ in sizes] == [6, 12]
    command = ["export", str(run), str(folder), "--for", "openmm"]
    assert cli.main([*command, "--structure", str(tmp_path / "start.extxyz")]) == 0
    shutil.copytree(folder, tmp_path / "copy")
    arrays = {"numbers": atoms.numbers, "positions": atoms.positions}
    np.savez(tmp_path / "a.npz", **arrays, cell=atoms.cell.array, pbc=atoms.pbc)
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    given = folder, tmp_path / "copy", tmp_path / "a.npz"
    done = run_python("-c", READER, *given, env=environment)
    unknown, one_place = done.stdout.splitlines()
    assert "does not know the elements [79]; it knows Al Cu" in unknown
    assert "are at one place" in one_place
    with np.load(tmp_path / "a.npz") as results:
        energies, forces, virial = results.values()
    # sums in another order, of about 100 numbers: 1e-14
    assert_agreement((energies.sum(), forces, virial), atoms, run, 1e-11, rounded=False)
    given = atoms.numbers, atoms.positions, atoms.cell.array, atoms.pbc
    # the library first: once it is loaded, its file must not change
    for file in (folder / "eqfuse_kernels.so", folder / "program_6_80"):
        flipped(file, 8 * 1000 + 5)
        with pytest.raises(ValueError, match=f"{file} is damaged; export the network again"):
            engine.Engine(folder).compute(*given)
        flipped(file, 8 * 1000 + 5)


@pytest.mark.parametrize("file", ["manifest.txt", "eqfuse_kernels.so", "program_40_800"])
def test_a_flipped_bit_of_a_folder_is_named_by_the_host(mace, host, tmp_path, file):
    shutil.copytree(mace[1], tmp_path / "copy")
    ase.io.write(tmp_path / "start.xyz", structure("crystal"))
    command = [str(host), str(tmp_path / "copy"), plugin(), str(tmp_path / "start.xyz")]
    for k in (3, 8 * 1000 + 5):
        flipped(tmp_path / "copy" / file, k)
        done = subprocess.run(command, capture_output=True, text=True, env={})
        flipped(tmp_path / "copy" / file, k)
        assert done.returncode == 1
        assert f"{file} is damaged" in done.stderr
    done = subprocess.run(command, capture_output=True, text=True, env={})
    assert done.returncode == 0, done.stderr


def test_folder_refuses_what_it_cannot_write(tmp_path, monkeypatch, capsys):
    run, file = untrained_run(tmp_path), tmp_path / "mine"
    file.write_text("mine")
    given = {"engine": "pjrt", "sizes": [(4, 8)]}
    for folder, options, expected in (
        (file, given, "exists already and is not overwritten"),
        (file / "a", given, "cannot be written: (Not a directory|File exists)"),
        (tmp_path / "a", given | {"sizes": []}, "needs a number of atoms"),
        (
            tmp_path / "a",
            given | {"engine": "gromacs"},
            "engine must be one of lammps, pjrt, openmm",
        ),
        (tmp_path / "a", given | {"target": "gfx1100"}, "target must be cpu, or with for=lammps"),
        (tmp_path / "a", given | {"exchange": True, "engine": "openmm"}, "not with for=openmm"),
        (tmp_path / "a", given | {"types": ["Au"]}, "types are Au, and the network knows Al Cu"),
    ):
        with pytest.raises(ConfigError, match=expected):
            export_folder(run, folder, **options)
    allegro = untrained_run(tmp_path, "allegro")
    with pytest.raises(ConfigError, match="has no layers that could exchange"):
        export_folder(allegro, tmp_path / "a", **given, exchange=True)
    monkeypatch.setattr(library, "_linker", lambda: None)
    with pytest.raises(ConfigError, match="install binutils; backend=xla writes"):
        export_folder(run, tmp_path / "a", **given)
    monkeypatch.setattr(library, "_linker", lambda: "/bin/false")
    with pytest.raises(RuntimeError, match="did not link the kernels"):
        export_folder(run, tmp_path / "a", **given)
    assert file.read_text() == "mine"
    command = ["export", str(run), str(tmp_path / "a")]
    assert cli.main([*command, "--for", "pjrt", "--atoms", "4"]) == 2
    assert cli.main([*command, "--atoms", "4"]) == 2
    assert "give as many atoms= as edges=" in capsys.readouterr().err
    assert sorted(p.name for p in tmp_path.iterdir()) == ["allegro", "mine", "nequip", "nothing"]


@pytest.mark.parametrize("client", ["program", "example"])
def test_a_network_computes_for_a_server_of_ipi(mace, host, tmp_path, client):
    """ASE's server of i-PI's protocol; positions come in full precision."""
    run, folder = mace
    atoms, name = structure("crystal"), f"eqfuse_{client}_{os.getpid()}"
    ase.io.write(tmp_path / "start.xyz", atoms)
    command, environment = [host, folder, plugin(), tmp_path / "start.xyz", "--unix", name], {}
    if client == "example":
        command = [sys.executable, ROOT / "examples" / "ipi_client.py", run, *command[3:]]
        environment = os.environ | {"PYTHONPATH": str(ROOT)}
    options = {"env": environment, "stderr": subprocess.PIPE, "text": True}
    with SocketIOCalculator(unixsocket=name, timeout=300) as server:
        process = subprocess.Popen([*map(str, command)], **options)
        try:
            for seed in range(2):
                atoms.rattle(0.05, seed=seed)
                atoms.set_cell(atoms.cell.array * 1.01, scale_atoms=True)
                here = atoms.copy()
                here.calc = server
                virial = -here.get_stress(voigt=False) * here.get_volume()
                results = here.get_potential_energy(), here.get_forces(), virial
                assert_agreement(results, atoms, run, 1e-10, rounded=False)
        except BaseException:
            process.kill()
            print(process.communicate()[1])
            raise
    assert client == "program" or process.wait(timeout=60) == 0
    process.kill()
    process.communicate()


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


def test_openmm_moves_water_as_ase(tmp_path):
    """Energy and forces are the calculator's; positions after 50 steps of NVE are ASE's."""
    openmm = pytest.importorskip("openmm")
    from openmm import app, unit

    run, atoms = untrained_run(tmp_path, "mace", numbers=(1, 8)), water()
    folder = export_folder(run, tmp_path / "a", engine="openmm", sizes=[(24, 1500)])
    topology, system = app.Topology(), openmm.System()
    residue = topology.addResidue("water", topology.addChain())
    for symbol, mass in zip(atoms.symbols, atoms.get_masses(), strict=True):
        topology.addAtom(symbol, app.Element.getBySymbol(symbol), residue)
        system.addParticle(mass)
    vectors = [openmm.Vec3(*row) for row in atoms.cell.array / 10] * unit.nanometer
    topology.setPeriodicBoxVectors(vectors)
    system.setDefaultPeriodicBoxVectors(*vectors)
    system.addForce(engine.openmm_force(engine.Engine(folder), topology))
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


def answer(frame, own, ghosts, reverse):
    """Exchange rows as LAMMPS does for lammps-jax; operands and results are rows and a token."""

    def words(address, count):
        return (ctypes.c_uint64 * count).from_address(address)

    extension, stage, operands, results = (words(frame, 15)[k] for k in (1, 4, 9, 14))
    if extension:  # it asks for the version
        (ctypes.c_int32 * 8).from_address(words(extension, 4)[3])[6:8] = 0, 3
    elif stage & 0xFFFFFFFF == EXECUTE:
        (rows, token), (to, token_to) = (
            [words(buffer, 6) for buffer in words(side, 2)] for side in (operands, results)
        )
        shape = words(rows[5], 2)[:]
        ctypes.memmove(to[3], rows[3], 8 * math.prod(shape))
        ctypes.memmove(token_to[3], token[3], 4)
        rows = np.frombuffer((ctypes.c_double * math.prod(shape)).from_address(to[3]))
        rows = rows.reshape(shape)
        if reverse:
            np.add.at(rows, own, rows[ghosts])
        rows[ghosts] = 0 if reverse else rows[own]


@pytest.mark.parametrize(("model", "exchange"), [("nequip", True), ("allegro", False)])
def test_a_bundle_of_lammps_jax_finds_its_kernels(tmp_path, model, exchange):
    """The program that `pair_style jax/kk` runs, by the client of jaxlib; ghosts as LAMMPS's."""
    lammps_jax = pytest.importorskip("lammps_jax.export")
    run, atoms = untrained_run(tmp_path, model), structure("crystal")
    command = ["export", str(run), str(tmp_path / "a"), "for=jax-kk", "types=Cu,Al"]
    command += ["atoms=400", "edges=6000", f"exchange={exchange}".lower()]
    assert cli.main(command) == 0
    folder = tmp_path / "a"
    bundle = json.loads((folder / "program_400_6000.json").read_text())
    hops = 1 if exchange else 2
    assert bundle["contract"]["n_hops"] == hops
    assert len(bundle["contract"]["comm_widths"]) == exchange
    script = '. ./env.sh; echo "$LAMMPS_JAX_FFI_HANDLERS"'
    given = subprocess.run(["bash", "-c", script], cwd=folder, capture_output=True, text=True)
    handlers = dict(entry.split("=") for entry in given.stdout.strip().split(";"))
    assert sorted(handlers) == bundle["contract"]["custom_call_targets"]
    files = {value.rpartition(":")[0] for value in handlers.values()}
    assert files == {str(folder / "eqfuse_kernels.so")}
    engine._register(folder / "eqfuse_kernels.so", list(handlers))

    own, cells = len(atoms), np.array(list(itertools.product(range(-3, 4), repeat=3)))
    cells = cells[np.argsort(np.any(cells, axis=1), kind="stable")]  # the atoms first
    at = (atoms.positions + (cells @ atoms.cell.array)[:, None]).reshape(-1, 3)
    near = np.linalg.norm(at[:, None] - at[:own], axis=2).min(axis=1) < 4.0 * hops
    at, owners = at[near], np.flatnonzero(near) % own
    count, asked = len(at), []

    def exchange_rows(reverse, frame):
        asked.append(reverse)
        answer(frame, owners[own:], np.arange(own, count), reverse)

    kind = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
    calls = [kind(functools.partial(exchange_rows, reverse)) for reverse in (False, True)]
    for name, call in zip(("forward", "reverse"), calls if exchange else [], strict=False):
        capsule = jax.ffi.pycapsule(ctypes.cast(call, ctypes.c_void_p))
        jax.ffi.register_ffi_target(f"lammps_jax.{name}_comm", capsule, platform="cpu")
    client = jax.devices()[0].client
    text = lammps_jax.program_text(bundle, "energy_and_forces_mlir")
    options = jaxlib.xla_client.CompileOptions()
    devices = jaxlib._jax.DeviceList((client.devices()[0],))
    program = client.compile_and_load(text, devices, options)
    distances = np.linalg.norm(at[:, None] - at, axis=2) + 10 * np.eye(count)
    ends = np.nonzero(distances[: own if exchange else count] < 4.0)
    edges = len(ends[0])
    ends = [np.append(a, np.full(6000 - edges, 400)).astype(np.int32) for a in ends]
    positions = np.concatenate([at, np.full((400 - count, 3), 50.0)])
    types = np.zeros(400, np.int32)
    types[:count] = (atoms.numbers == 13)[owners]
    asked.clear()
    counts = np.int32(own), np.int32(count - own)
    arrays = positions, types, *counts, *ends, np.arange(6000) < edges
    with jax.enable_x64(True):
        arrays = [jnp.asarray(a) for a in arrays]
        results = program.execute_sharded(arrays).disassemble_into_single_device_arrays()
        energy, of_rows = (np.asarray(a[0]) for a in results)
    forces = np.zeros((own, 3))
    np.add.at(forces, owners, of_rows[:count])
    virial = at.T @ of_rows[:count]  # as LAMMPS computes it
    assert_agreement((float(energy), forces, virial), atoms, run, 1e-11, rounded=False)
    assert asked == ([False, True] if exchange else [])
