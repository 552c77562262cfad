"""Structures are the same through every format and spelling, by every command, or refused.

A seeded generator makes sets of molecules, crystals and slabs with labels, writes each in all
formats that are read (`WRITERS`) and under random spellings of extended XYZ, and reads the file as
each command does. Other values than those written are a failure, whatever is said.
"""

import re
import time
from pathlib import Path
from typing import NamedTuple

import ase
import ase.io
import numpy as np
import pytest
from ase.calculators.singlepoint import SinglePointCalculator
from ase.geometry import complete_cell

from eqfuse.certify.check import frames_of
from eqfuse.data import DataError, Keys
from eqfuse.data.readers import FORMATS, read_with_atoms
from eqfuse.export.command import neighbors_in
from eqfuse.md.structures import read_frames
from eqfuse.train.sources import DataSettings
from tests.data.readers import test_ase_files, test_hdf5
from tests.data.readers.conftest import vasprun

ELEMENTS = ["H", "C", "N", "O", "Na", "Si", "Cl", "Ca", "Cu", "Cd"]
KINDS = ["molecule", "crystal", "slab"]
FILES = 25  # of extended XYZ for each set


def made_set(rng, kind: str) -> list[ase.Atoms]:
    """Return one to three frames of the same atoms, with energy, forces and stress."""
    count, frames = int(rng.integers(2, 8)), []
    symbols = rng.choice(rng.choice(ELEMENTS, 3, replace=False), count)
    places = 2.2 * np.array([(i, j, k) for i in range(3) for j in range(3) for k in range(2)])
    places = rng.permutation(places)[:count].astype(float)
    cell = 7.5 * np.eye(3) + rng.uniform(-1, 1, (3, 3))
    pbc = {"molecule": False, "crystal": True, "slab": rng.permutation([True, True, False])}[kind]
    for _ in range(int(rng.integers(1, 4))):
        moved = places + rng.uniform(-0.2, 0.2, places.shape)
        atoms = ase.Atoms(symbols, moved.round(5), pbc=pbc)
        if kind != "molecule":
            atoms.cell = (cell + rng.uniform(-0.1, 0.1, (3, 3))).round(5)
        results = {"energy": rng.normal(), "forces": rng.normal(size=(count, 3))}
        if kind != "molecule":
            results["stress"] = rng.normal(size=6) / 100
        atoms.calc = SinglePointCalculator(atoms, **results)
        frames.append(atoms)
    return frames


class Writer(NamedTuple):
    """How a format is written: a function of path, frames and random numbers, and what it keeps."""

    name: str
    write: object
    kinds: str = "molecule crystal slab"
    labels: bool = False
    tolerance: float = 1e-4  # Å
    single: bool = False
    same_cell: bool = False
    types: bool = False


def by_ase(format: str, **how):
    def write(path, frames, rng):
        given = dict(how)
        if format == "lammps-data":
            given["specorder"] = elements(frames)
            given["masses"] = bool(rng.integers(2))
        ase.io.write(path, frames[0] if len(frames) == 1 else frames, format=format, **given)

    return write


def elements(frames) -> list[str]:
    return sorted(set(frames[0].get_chemical_symbols()))


def write_dump(path, frames, rng):
    """Write a dump in a random order, of columns that LAMMPS has; elements are types or named."""
    style = str(rng.choice(["x", "xs", "xu", "xsu"]))
    known = elements(frames)
    with open(path, "w") as file:
        if rng.integers(2):
            file.write("ITEM: UNITS\nmetal\n")
        for step, atoms in enumerate(frames):
            cell, _ = atoms.cell.standard_form()
            cell = cell.array if atoms.cell.rank else 20 * np.eye(3)
            inside = atoms.positions
            if atoms.cell.rank:
                inside = atoms.cell.scaled_positions(inside) @ cell
            origin = rng.uniform(-3, 3, 3)
            xy, xz, yz = cell[1, 0], cell[2, 0], cell[2, 1]
            low, high = origin.copy(), origin + cell.diagonal()
            low[0] += min(0, xy, xz, xy + xz)
            high[0] += max(0, xy, xz, xy + xz)
            low[1] += min(0, yz)
            high[1] += max(0, yz)
            flags = " ".join("pp" if p else "ff" for p in atoms.pbc)
            file.write(f"ITEM: TIMESTEP\n{step}\nITEM: NUMBER OF ATOMS\n{len(atoms)}\n")
            file.write(f"ITEM: BOX BOUNDS xy xz yz {flags}\n")
            for row in zip(low, high, (xy, xz, yz), strict=True):
                file.write(" ".join(f"{x:.12g}" for x in row) + "\n")
            names = [c + style[1:] for c in "xyz"]
            file.write(f"ITEM: ATOMS id type {' '.join(names)} fx fy fz\n")
            shown = np.linalg.solve(cell.T, inside.T).T if "s" in style else inside + origin
            for k in rng.permutation(len(atoms)):
                numbers = " ".join(f"{x:.10f}" for x in [*shown[k], *atoms.get_forces()[k]])
                kind = known.index(atoms.symbols[k]) + 1
                file.write(f"{k + 1} {kind} {numbers}\n")
            file.write("\n" * int(rng.integers(2)))


def write_vasprun(path, frames, rng):
    path.write_text(vasprun(frames))


def write_npz(path, frames, rng):
    columns = {"z": frames[0].numbers, "R": [f.positions for f in frames]}
    columns |= {"E": [f.get_potential_energy() for f in frames]}
    units = {"e_unit": np.array("eV"), "r_unit": np.array("Ang")}
    np.savez(path, **columns, F=[f.get_forces() for f in frames], **units)


def write_hdf5(path, frames, rng):
    def group(atoms):
        labels = dict(atoms.calc.results)
        own = {"atomic_numbers": atoms.numbers, "positions": atoms.positions, "weight": 1.0}
        own |= {"cell": atoms.cell.array, "pbc": atoms.pbc, "config_type": "Default"}
        return own | {"properties": labels, "property_weights": dict.fromkeys(labels, 1.0)}

    test_hdf5.write(path, [group(atoms) for atoms in frames])


def write_lmdb(path, frames, rng):
    rows = {str(k + 1): test_ase_files.encoded(atoms) for k, atoms in enumerate(frames)}
    test_ase_files.write(path, rows)


CRYSTAL = "crystal"
WRITERS = [
    Writer("frames.xyz", by_ase("extxyz"), labels=True),
    *(Writer(f"frames.extxyz.{k}", by_ase("extxyz"), labels=True) for k in ("gz", "bz2", "xz")),
    Writer("frames.traj", by_ase("traj"), labels=True),
    Writer("frames.db", by_ase("db"), labels=True),
    Writer("frames.json", by_ase("json"), labels=True),
    Writer("frames.aselmdb", write_lmdb, labels=True),
    Writer("frames.h5", write_hdf5, labels=True),
    Writer("frames.npz", write_npz, "molecule", labels=True),
    Writer("frames.cif", by_ase("cif"), CRYSTAL),
    Writer("frames.CIF.gz", by_ase("cif"), CRYSTAL),
    Writer("frames.pdb", by_ase("proteindatabank"), "molecule crystal", tolerance=5e-3),
    Writer("frames.gen", by_ase("gen"), "molecule crystal", single=True),
    Writer("POSCAR_1", by_ase("vasp"), CRYSTAL, single=True),
    Writer("frames.vasp", by_ase("vasp", direct=True), CRYSTAL, single=True),
    Writer("XDATCAR", by_ase("vasp-xdatcar"), CRYSTAL, same_cell=True),
    Writer("vasprun_2.xml", write_vasprun, CRYSTAL, labels=True),
    Writer("run7", write_vasprun, CRYSTAL, labels=True),
    Writer("frames.lammpstrj", write_dump, types=True),
    Writer("dump.7", write_dump, types=True),
    Writer("data.water", by_ase("lammps-data"), CRYSTAL, single=True, types=True),
]


def numbers(form: str, between: str):
    return lambda rows: form.format(between.join(map(repr, np.ravel(rows).tolist())))


def nested(form: str):
    return lambda rows: form.format(np.asarray(rows).tolist())


NUMBERS = [numbers(*how) for how in (('"{}"', " "), ("{{{}}}", " "), ('"{}"', ", "))]
NUMBERS += [lambda rows: nested("{}")(rows).replace(" ", ""), nested("{}"), nested('"{}"')]
FLAGS = [(form, w) for w in ("FT", "ft", "01") for form in ('"{} {} {}"', '"{}{}{}"', "{}{}{}")]
FLAGS += [("{},{},{}", "FT"), ("[{}, {}, {}]", ["False", "True"])]
FLAGS += [(form, ["false", "true"]) for form in ('"[{}, {}, {}]"', '"_JSON [{}, {}, {}]"')]
FLAGS += [("{{{} {} {}}}", ["FALSE", "TRUE"])]
FLAGS += [('"{} {} {}"', words) for words in (["no", "yes"], ["ff", "pp"])]
OTHER_LATTICES = ["box", "unit_cell", "lattice_vectors"]
COLUMNS = ["species:S:1:pos", "Z:I:1:pos", "Species:S:1:pos", "species:S:1:Pos"]
SPELLINGS = {
    "lattice": ["Lattice", "lattice", "LATTICE", "cell", "Cell", *OTHER_LATTICES],
    "numbers of lattice": NUMBERS,
    "pbc": ["pbc", "PBC", "Pbc", "periodic"],
    "flags": FLAGS,
    "energy": ["energy", "Energy", "ENERGY"],
    "forces": ["forces", "Forces", "force", "FORCES"],
    "stress": ["stress", "Stress", "STRESS", "virial", "Virial", "virials", "VIRIALS"],
    "numbers of stress": NUMBERS,
    "head": ["Properties", "properties", "PROPERTIES"],
    "columns": [f"{one}:R:3" for one in COLUMNS],
}
"""What is written in each part of a comment line, the usual first."""
REFUSED = {
    "lattice": (3, f"({'|'.join(OTHER_LATTICES)}) is not read: name it Lattice="),
    "numbers of lattice": (1, "value is not in the form of a 9-long numerical vector"),
    "flags": (2, 'is not three of T and F; write pbc="T T F"'),
    "columns": (2, "Properties names no column (species|pos), but"),  # ASE would put all at 0 0 0
}
"""How many of them, the last ones, are not read even if all else is as usual, and why."""
USUAL = 0.6  # the probability of the first spelling of each


def spelled(rng):
    """Return a spelling of each part, chosen at random."""
    for choices in SPELLINGS.values():
        yield choices[0 if rng.random() < USUAL else rng.integers(len(choices))]


def write_spelled(path, frames, rng, spelling) -> str:
    """Write extended XYZ in a spelling; return its first comment line."""
    lattice, cell, pbc, (flags, words), energy, forces, stress, nine, head, columns = spelling
    text = ""
    for atoms in frames:
        entries = [
            f"{head}={columns}:{forces}:R:3",
            f"{energy}={float(atoms.get_potential_energy())!r}",
        ]
        if atoms.cell.rank:
            entries.append(f"{lattice}={cell(atoms.cell.array)}")
            full = atoms.get_stress(voigt=False)
            full = full * -atoms.get_volume() if "vir" in stress.lower() else full
            entries.append(f"{stress}={nine(full)}")
        entries.append(f"{pbc}={flags.format(*(words[k] for k in atoms.pbc.tolist()))}")
        comment = " ".join(rng.permutation(entries))
        symbols = atoms.numbers if columns[0] == "Z" else atoms.get_chemical_symbols()
        text += f"{len(atoms)}\n{comment}\n"
        for symbol, row in zip(
            symbols, np.hstack([atoms.positions, atoms.get_forces()]), strict=True
        ):
            text += f"{symbol} " + " ".join(map(repr, row.tolist())) + "\n"
        text += "\n" * int(rng.integers(3))
    text = text.replace("\n", "\r\n") if rng.random() < 0.1 else text
    path.write_bytes((b"\xef\xbb\xbf" if rng.random() < 0.1 else b"") + text.encode())
    return comment


@pytest.mark.parametrize("part", SPELLINGS)
def test_each_spelling_is_read_or_refused(part, tmp_path, rng, capsys):
    """All else is spelled as usual."""
    frames, choices = made_set(rng, "slab"), SPELLINGS[part]
    count, message = REFUSED.get(part, (0, None))
    for number, one in enumerate(choices):
        spelling = [one if name == part else first for name, (first, *_) in SPELLINGS.items()]
        write_spelled(tmp_path / "a.xyz", frames, rng, spelling)
        refusal = tried(tmp_path / "a.xyz", frames)
        assert (refusal is not None) == (number >= len(choices) - count), (number, refusal)
        assert refusal is None or re.search(message, refusal)


def doors(path, named: list[str] | None):
    """Yield the commands that read structures, and how each reads a file."""
    text = None if named is None else ",".join(named)
    yield "train", lambda: DataSettings(path=str(path), types=text, store="off").read()
    yield "predict, evaluate, select", lambda: [s for s, _ in read_with_atoms(path, Keys(), named)]
    yield "relax", lambda: read_frames(path, text)
    yield "md", lambda: read_frames(path, text, last=True)
    yield "check, compare", lambda: frames_of(path, 10**6, named)
    yield "export", lambda: neighbors_in(path, 3.0, named)


def assert_same(atoms, read, labels: bool, tolerance: float):
    """Compare a frame with what was read, up to rotations where the cell says how it is rotated."""
    np.testing.assert_array_equal(read.numbers, atoms.numbers)
    np.testing.assert_array_equal(read.pbc, atoms.pbc)
    cell, given = np.asarray(read.cell), atoms.cell.array
    pbc, count = atoms.pbc, len(atoms)
    if pbc.any():
        lattices = cell[pbc], given[pbc]
        metrics = [rows @ rows.T for rows in lattices]
        np.testing.assert_allclose(*metrics, rtol=0, atol=40 * tolerance)
        places = [
            np.linalg.solve(complete_cell(c).T, (s.positions - s.positions[0]).T).T
            for c, s in ((cell, read), (given, atoms))
        ]
        away = places[0] - places[1]
        away[:, pbc] -= np.rint(away[:, pbc])
        assert np.abs(away).max() * 10 < 10 * tolerance
    else:
        far = [np.linalg.norm(s.positions[:, None] - s.positions, axis=2) for s in (read, atoms)]
        np.testing.assert_allclose(*far, rtol=0, atol=10 * tolerance)
    if not labels or not hasattr(read, "energy"):
        return
    assert read.energy == pytest.approx(atoms.get_potential_energy(), abs=1e-8)
    np.testing.assert_allclose(read.forces, atoms.get_forces(), rtol=0, atol=1e-8)
    assert read.forces.shape == (count, 3)
    if pbc.any():
        np.testing.assert_allclose(read.stress, atoms.get_stress(voigt=False), rtol=0, atol=1e-8)


def tried(path, frames, labels=True, tolerance=1e-8, named=None) -> str | None:
    """Read a file by every door; return the refusal, which is the same for all, or None."""
    refusals = []
    for door, read in doors(path, named):
        try:
            found = read()
        except DataError as error:
            assert str(path) in str(error), door  # noqa: PT017 - it may also not be raised
            refusals.append(str(error))
            continue
        refusals.append(None)
        if door == "export":
            assert found[1] == len(frames[0])
            continue
        expected = frames[-1:] if door == "md" else frames
        assert len(found) == len(expected), door
        for atoms, one in zip(expected, found, strict=True):
            assert_same(atoms, one, labels, tolerance)
    assert len(set(refusals)) == 1, refusals
    return refusals[0]


def assert_equal_or_refused(seed: int, folder):
    """Make one set, and try it in every format and in several spellings; return the counts."""
    rng, count, read = np.random.default_rng(seed), 0, 0
    kind = KINDS[seed % len(KINDS)]
    frames = made_set(rng, kind)
    for writer in WRITERS:
        if kind not in writer.kinds:
            continue
        given = frames[:1] if writer.single else frames
        if writer.same_cell:
            given = [atoms.copy() for atoms in frames]
            for atoms in given:
                atoms.cell = frames[0].cell
        path = folder / f"{seed}" / writer.name
        path.parent.mkdir(exist_ok=True)
        writer.write(path, given, rng)
        named = elements(frames) if writer.types else None
        refusal = tried(path, given, writer.labels, writer.tolerance, named)
        assert refusal is None, f"seed {seed}, {writer.name}: {refusal}"
        count, read = count + 1, read + 1
    for number in range(FILES):
        path = folder / f"{seed}_{number}.xyz"
        comment = write_spelled(path, frames, rng, spelled(rng))
        try:
            read += tried(path, frames) is None
        except AssertionError as error:
            raise AssertionError(f"seed {seed}, {comment}") from error
        count += 1
    return count, read


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_files_are_read_the_same_or_refused(seed, tmp_path, capsys):
    count, read = assert_equal_or_refused(seed, tmp_path)
    assert count > 30
    assert read > count // 2


@pytest.mark.slow
def test_many_files_are_read_the_same_or_refused(tmp_path, capsys):
    first, counts = int(time.time()), np.zeros(2, int)
    for seed in range(first, first + 60):
        counts += assert_equal_or_refused(seed, tmp_path)
    with capsys.disabled():
        print(f"\nseeds from {first}: {counts[0]} files tried, {counts[1]} read, others refused")


def test_every_format_has_a_writer():
    covered = {"extxyz", "traj", "db", "json", "lmdb", "hdf5", "rmd17", "cif", "pdb", "gen"}
    covered |= {"vasp", "vasp-xdatcar", "vasp-xml", "lammps"}
    assert set(FORMATS) - covered == {"vasp-out"}  # see test_vasp.py


def test_the_page_lists_the_formats():
    page = Path(__file__).parents[3] / "docs" / "reference" / "data.md"
    rows = re.findall(r"^\| `([^`]+)` \| (.+?) \| .+ \|$", page.read_text(encoding="utf-8"), re.M)
    listed = {name: tuple(re.findall("`([^`]+)`", names)) for name, names in rows}
    assert listed == {name: known.names for name, known in FORMATS.items()}
