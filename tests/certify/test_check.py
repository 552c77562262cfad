"""`eqfuse check` finds planted faults and names them; `eqfuse compare` says who is wrong."""

import itertools
import json
import os
import re
import runpy
import sys
import threading
from types import SimpleNamespace

import ase.build
import ase.io
import numpy as np
import pytest
from ase.calculators.emt import EMT
from ase.calculators.lj import LennardJones

from eqfuse.certify import worker
from eqfuse.certify.check import Certificate, Check, _others_of, drift, frames_of
from eqfuse.certify.checks import CHECKS, Row, worst_of
from eqfuse.certify.compare import compare
from eqfuse.certify.questions import Rounding, _slope, invariances
from eqfuse.certify.report import Report
from eqfuse.certify.subjects import Remote, Run, Subject
from eqfuse.convert import convert
from eqfuse.data import DataError
from tests.certify.calculators import Folded, Listed, Soft
from tests.convert.conftest import GOLDENS, unpacked


def certificate_of(calculator, **options) -> Certificate:
    return Certificate(Subject(calculator), **{"elements": [29], "duration": 0.1} | options)


def row_of(name, calculator, **options):
    """Return the row of one check, made alone."""
    [row] = certificate_of(calculator, **options).rows(name)
    return row


def failed(rows) -> list[str]:
    return [str(row) for row in rows if row.verdict in ("FAILED", "noted")]


@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_a_right_potential_passes(dtype):
    rows = {row.name: row for row in certificate_of(Soft(dtype)).rows()}
    assert failed(rows.values()) == []
    assert dtype in rows["rounding"].remark
    left_out = {"backend", "precision"}  # of runs of eqfuse
    assert set(rows) == set(CHECKS) - left_out
    assert all(row.error is not None for row in rows.values())


def test_forces_with_sharp_folds_are_slopes_of_short_differences():
    rows = certificate_of(Folded()).rows("forces", "atoms")
    assert [row.verdict for row in rows] == ["passed", "passed"]


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(100))
@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_no_false_alarm(dtype, seed):
    """Two hundred structures, sizes and precisions of a right potential."""
    rng = np.random.default_rng(seed)
    elements = rng.choice(np.arange(1, 84), rng.integers(1, 4), replace=False).tolist()
    atoms = ase.build.bulk("Cu", cubic=True, a=rng.uniform(2.8, 4.5))
    atoms.rattle(rng.uniform(0.01, 0.3), seed=seed)
    atoms.info["name"] = "given"
    assert failed(certificate_of(Soft(dtype), structures=[atoms], elements=elements).rows()) == []


FAULTS = {
    "one atom": ("atoms", "atom "),
    "stress components": ("stress", "yz and xy are exchanged"),
    "stress sign": ("stress", "the sign is opposite"),
    "stress kbar": ("stress", "it is in kbar"),
    "history": ("history", ""),
    "noise": ("repeat", ""),
    "step": ("path", " 5.000 Å"),
    "force jump": ("path", " Å"),
    "minimum image": ("supercell", ""),
    "images": ("images", ""),
    "direction": ("rotation", ""),
    "order": ("permutation", ""),
    "net force": ("isolated", ""),
    "nan": ("path", "not finite"),
    "rough": ("rounding", ""),
    "rough forces": ("rounding", "less than float32"),
}


@pytest.mark.parametrize(
    ("fault", "dtype"),
    [
        *((f, "float64") for f in FAULTS),
        *((f, "float32") for f in ("one atom", "step")),
        pytest.param("history", "float32", marks=pytest.mark.slow),
    ],
)
def test_a_planted_fault_is_found_and_named(fault, dtype):
    name, remark = FAULTS[fault]
    row = row_of(name, Soft(dtype, fault))
    assert (row.verdict, row.meaning) == ("FAILED", CHECKS[name][1])
    assert remark in row.remark


STALE = ("0.3 since the last call", "0.3 or the cell", "cell ignored", "never", "skin too small")
STALE += ("whole skin", "every 10 calls")


@pytest.fixture(scope="module", params=["float64", pytest.param("float32", marks=pytest.mark.slow)])
def certificate(request):
    """Return the certificate of a right potential, with its rounding and a path."""
    certificate = certificate_of(Soft(request.param))
    assert [row.verdict for row in certificate.rows("rounding")] == ["passed"]
    certificate._walk(0)
    return certificate


LISTS = list(itertools.product(("right", *STALE), (0.3, 1.0, 2.0)))


@pytest.mark.parametrize(
    ("kept", "skin"),
    [
        pytest.param(*case, marks=[] if {"right", 1.0} & {*case} else pytest.mark.slow)
        for case in LISTS
    ],
)
def test_a_list_that_is_not_made_anew_in_time_is_found(kept, skin, certificate):
    certificate.subject = Subject(Listed(kept, skin, certificate.precision))
    row = worst_of("history", certificate._of_small_steps())
    assert row.verdict == ("passed" if kept == "right" else "FAILED"), row


def test_a_structure_without_numbers_leaves_out_no_other_of_its_name():
    """Each of two molecules has a name by its formula, and one of them gives no number."""
    pairs = [ase.Atoms("Cu2", [[0, 0, 0], [length, 0, 0]]) for length in (0.4, 2.5)]
    certificate = certificate_of(Soft(fault="nan"), structures=pairs, duration=0)
    [row] = certificate.rows("finite")
    assert (row.verdict, row.remark) == ("FAILED", "Cu2: a number is not finite")
    assert [len(atoms) for atoms, _ in certificate._measured].count(2) == 1
    with pytest.raises(ValueError, match="no check is called force; there are finite, rounding"):
        next(certificate.rows("force"))


ARGON = LennardJones(sigma=3.4, epsilon=0.0104)


@pytest.mark.parametrize(
    ("name", "calculator", "options", "row"),
    [
        ("history", Listed("0.3 since the last call"), {}, "FAILED .*coming nearer by"),
        # it ends at a length at which its functions are not zero
        ("path", EMT(), {}, r"FAILED .*5\.87"),
        # a jump by 3.4e-5 eV/Å at 10.2 Å; at 0.2 Å the energy is 1e13 eV
        pytest.param("path", ARGON, {"elements": [18]}, "eV/Å +FAILED", marks=pytest.mark.slow),
        ("repeat", Soft("float32", "order of sums"), {}, "noted +(energy|forces)"),
        # a drift that shorter steps do not mend
        ("nve", Soft("float64", "force jump"), {"duration": 0.4}, "FAILED"),
    ],
    ids=["stale list", "cut off", "steep wall", "order of sums", "drift"],
)
def test_a_calculator_fails_or_is_noted(name, calculator, options, row):
    assert re.search(row, str(row_of(name, calculator, **options)))


class Smeared(EMT):
    """EMT whose forces are the slope of `free_energy`, as with smeared electrons."""

    def calculate(self, *arguments):
        super().calculate(*arguments)
        self.results["energy"] *= 1.02


def test_the_energy_is_that_whose_slope_the_forces_are():
    found = []
    for calculator in (Smeared(), EMT()):
        atoms = ase.build.bulk("Cu").repeat(2)
        first = worker.compute(calculator, atoms)["energy"]
        found.append([first, *worker.dynamics(calculator, atoms, 1.0, 2, 600.0)["energies"]])
    assert found[0] == found[1]


def test_check_notes_small_differences():
    assert Row("translation", 5e-10, 1e-12, "eV").verdict == "noted"
    assert Row("translation", 5e-9, 1e-12, "eV").verdict == "FAILED"
    row = Row("forces", 5e-7, 1e-9, "eV/Å")
    assert row.verdict == "noted"
    assert "too small to matter" in row.meaning
    assert Row("forces", 5e-6, 1e-9, "eV/Å").verdict == "FAILED"


@pytest.mark.parametrize(
    ("known", "verdict"), [(None, "noted"), (True, "FAILED"), (False, "not checked")]
)
def test_inversion_is_asked_of_networks_that_have_it(known, verdict):
    subject = Subject(Soft(fault="chiral"))
    subject.has_inversion = known
    [row] = Certificate(subject, elements=[29]).rows("inversion")
    assert row.verdict == verdict


def test_the_bound_of_a_slope_holds_where_the_force_has_a_kink():
    for place in np.linspace(-3.2, 3.2, 65):
        energies = np.maximum(np.array([-3, -2, -1, 1, 2, 3]) - place, 0.0) ** 3
        slope, bound = _slope(energies, 1.0)
        assert abs(slope - 3 * max(-place, 0.0) ** 2) <= 0.7 * bound + 1e-12


@pytest.fixture
def calculator_file(tmp_path, monkeypatch):
    """Return a folder with a module of a calculator that this process has not imported."""
    (tmp_path / "mine.py").write_text(
        "import os, subprocess\n"
        "from ase.calculators.lj import LennardJones\n"
        "def made(sigma=2.3):\n"
        "    print('words of a calculator')\n"
        "    return LennardJones(sigma=sigma, epsilon=0.1, rc=5.0, ro=3.5, smooth=True)\n"
        "class Dying(LennardJones):\n"
        "    def calculate(self, *arguments):\n"
        "        print('out of memory', flush=True)\n"
        "        os._exit(3)\n"
        "class Reading(LennardJones):\n"
        "    def calculate(self, *arguments):\n"
        "        subprocess.run(['sort'])\n"
        "        super().calculate(*arguments)\n"
    )
    os.mkfifo(tmp_path / "pipe")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.usefixtures("pictures")
def test_a_calculator_of_another_process_is_checked_and_reported(calculator_file, command):
    ase.io.write("copper.xyz", ase.build.bulk("Cu", cubic=True))
    arguments = ["mine:made(sigma=2.2)", "copper.xyz", "--python", sys.executable]
    arguments += ["--picoseconds", 0.1, "--report", "report.html", "--json", "numbers.json"]
    assert "PASS: " in command("check", *arguments).out
    page = (calculator_file / "report.html").read_text()
    known = json.loads((calculator_file / "numbers.json").read_text())
    assert page.count("<img") == 2
    assert known["verdict"] == "PASS"
    assert known["precision"] == "float64"
    assert {row["check"] for row in known["checks"]} <= set(CHECKS)
    assert known["versions"]["python"]


def test_a_script_around_python_may_print(calculator_file):
    """Also what is no UTF-8, to both streams."""
    (script := calculator_file / "python").write_text(
        "#!/bin/sh\n"
        "printf 'module \\265\\n'\n"
        "printf 'library \\265\\n' >&2\n"
        f'exec {sys.executable} "$@"\n'
    )
    script.chmod(0o700)
    remote = Remote("mine:Dying()", script)
    with pytest.raises(DataError, match="has ended: out of memory"):
        remote.compute([ase.Atoms("Cu")])
    remote.close()


@pytest.mark.usefixtures("calculator_file")
def test_a_program_of_a_calculator_that_reads_its_input_does_not_wait():
    remote = Remote("mine:Reading()")
    killer = threading.Timer(20, remote._process.kill)
    killer.start()
    [found] = remote.compute([ase.Atoms("Cu2", [(0, 0, 0), (0, 0, 2.5)])])
    killer.cancel()
    remote.close()
    assert found.is_finite


def test_the_worker_draws_velocities_with_ase_before_3_29(monkeypatch):
    monkeypatch.delattr("ase.md.velocitydistribution.thermalize_momenta")
    dynamics = runpy.run_path(worker.__file__)["dynamics"]
    found = dynamics(EMT(), ase.build.bulk("Cu").repeat(4), 1.0, 1, 600.0)
    kinetic = 0.5 * ase.data.atomic_masses[29] * np.square(found["velocities"]).mean()
    assert kinetic == pytest.approx(0.5 * ase.units.kB * 600, rel=0.2)


def test_a_page_escapes_names(tmp_path):
    name = "a|b\n# *c* [d](e) <img src=x>`"
    subject = SimpleNamespace(name=name, versions=lambda: {"x": "1"})
    known = {"precision": "float64", "elements": [1], "walks": [], "energies": []}
    own = Report(SimpleNamespace(subject=subject, **known), SimpleNamespace(file=name))
    own.write(tmp_path / "a.html", None)
    page = (tmp_path / "a.html").read_text()
    assert r"<h1>Check of a|b\n# *c* [d](e) &lt;img src=x&gt;`</h1>" in page


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("none", "none"),
        ("nomodule:made() --elements Cu", "No module named 'nomodule'"),
        ("mine:other() --elements Cu", "has no attribute 'other'"),
        ("mine:made()", "name the elements"),
        ("mine:made() --elements Xx", "Xx is no element"),
        ("mine:made() --elements Cu --picoseconds 0.05", "dynamics of 0.1 ps"),
        ("mine:made() --elements Cu --python nopython", "cannot be run"),
        ("mine:made() none.xyz", "none.xyz"),
        ("mine:made() --elements Cu --report page.txt", "end its name with .html"),
        ("mine:made() --elements Cu --json nowhere/numbers.json", "cannot be written"),
        ("mine:made() --elements Cu dtype=float32", "dtype=: of a run only"),
        ("mine:Dying() --elements Cu", "out of memory"),
        ("mine:made() --elements Cu --temperature -300", "temperature=-300.0 is impossible"),
        ("mine:made() --elements Cu --picoseconds inf", "picoseconds=inf is impossible"),
        (f"nomodule:made('{300 * 'x'}') --elements Cu", "No module named 'nomodule'"),
        ("mine:made() mine.py --json mine.py", "different files"),
        ("mine:made() --elements Cu --report a.html --json a.html", "different files"),
        ("mine:made() --elements Cu --json pipe", "it is a pipe or a device"),
        ("mine:made(sigma=small) --elements Cu", "cannot be made: quote texts, 'like this'"),
        ("mine:made() --elements Cu --python ./none", "python=./none cannot be run"),
        ("mine:made() --elements Cu --backends xla", "backends=: of a run only"),
    ],
)
@pytest.mark.usefixtures("calculator_file")
def test_check_refuses_what_it_cannot_check(words, message, command):
    """Also a calculator that ends its process."""
    assert message in command("check", *words.split(), code=2).err


@pytest.mark.parametrize(
    ("name", "other", "verdict"),
    [
        ("backend", Soft(), "passed"),
        ("precision", Soft("float32"), "passed"),
        ("backend", Soft(fault="order"), "FAILED"),
        ("precision", Soft("float32", "rough forces"), "FAILED"),
    ],
)
def test_potentials_that_must_agree_are_compared(name, other, verdict):
    assert row_of(name, Soft(), others=[(name, "", Subject(other))]).verdict == verdict


def test_the_drift_is_the_slope_of_the_energy():
    """It is 4e-6 eV a step of 1 fs for 4 atoms."""
    atoms = ase.build.bulk("Cu", cubic=True)
    still = np.zeros((100, 4, 3))
    _, _, slope = drift(atoms, 1.0, 4e-6 * np.arange(100), still, still)
    assert slope == pytest.approx(1.0, rel=1e-9)


@pytest.fixture(scope="module")
def converted(tmp_path_factory):
    """Return a run with a cutoff for each pair of elements."""
    folder = tmp_path_factory.mktemp("runs")
    golden = GOLDENS / "networks" / "nequip_pair_cutoffs.nequip.zip.xz"
    convert("nequip", unpacked(golden, folder), folder / "run")
    return folder / "run"


@pytest.mark.slow
def test_a_converted_run_passes(converted, command):
    printed = command("check", converted, "--backends", "--picoseconds", 0).out
    assert "PASS: 18 checks, 1 not checked" in printed


def test_a_run_computes_in_batches_what_its_calculator_does(converted):
    run = Run(converted, dtype="float64")
    atoms = ase.Atoms([run.elements[0]] * 2, [[0, 0, 0], [0.3, 0.4, 2.0]], cell=[4, 5, 6], pbc=True)
    [batched], [alone] = run.compute([atoms]), run.in_turn([atoms])
    assert batched.energy == pytest.approx(alone.energy, abs=1e-12)
    np.testing.assert_allclose(batched.forces, alone.forces, atol=1e-12)
    np.testing.assert_allclose(batched.stress, alone.stress, atol=1e-14)
    assert {"eqfuse", "jax"} <= set(run.versions())


class Charged(EMT):
    """EMT with an energy of the total charge, in `info`."""

    def calculate(self, atoms, *arguments):
        super().calculate(atoms, *arguments)
        self.results["energy"] += atoms.info.get("q", 0.0) ** 2 / len(atoms)


def test_frames_are_checked_with_their_total_charges(tmp_path):
    atoms = ase.build.bulk("Cu", cubic=True)
    atoms.info |= {"q": -3, "other": "text"}
    ase.io.write(file := tmp_path / "charged.xyz", atoms)
    subject = Subject(Charged())
    subject.info_of = lambda atoms: {"q": atoms.info.get("q", 0)}
    certificate = Certificate(subject, frames_of(file, 1), duration=0)
    assert [row.verdict for row in certificate.rows("supercell")] == ["passed"]
    charges = [atoms.info.get("q", 0) for atoms, _ in certificate._measured]
    assert charges == [-3] + [0] * (len(charges) - 1)


CHARGED = """
from ase.calculators.emt import EMT
class Charged(EMT):
    def calculate(self, atoms, *arguments):
        super().calculate(atoms, *arguments)
        energy = 4 * atoms.info.get("charge", 0) + 10 * (atoms.info.get("spin", 1) - 1)
        self.results["free_energy"] = self.results["energy"] = self.results["energy"] + energy
"""


def test_calculators_of_another_process_get_total_charge_and_spin(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "charging.py").write_text(CHARGED)
    atoms = ase.build.molecule("H2O")
    given = {"charge": np.int64(-2), "spin": 3, "other": np.eye(3)}
    charged = atoms.copy()
    charged.info |= given
    remote = Remote("charging:Charged()")
    plain, found = remote.compute([atoms, charged])
    assert found.energy - plain.energy == pytest.approx(-8 + 20)
    certificate = Certificate(remote, [charged], duration=0)
    verdicts = {row.name: row.verdict for row in certificate.rows("rotation", "separated")}
    assert verdicts == {"rotation": "passed", "separated": "passed"}
    cell = ase.build.bulk("Cu", cubic=True)
    cell.info |= {"charge": -2, "spin": 3}
    asked = invariances(cell, Rounding(1.0, 1.0, 1.0), np.random.default_rng(0))
    [larger] = [question.structures[1] for question in asked if question.name == "supercell"]
    assert larger.info == {"charge": -4, "spin": 3}
    remote.close()


def test_float32_is_compared_on_the_backend_that_is_checked(converted):
    options = Check(str(converted), backend="e3nn", backends=("xla",))
    others = _others_of(Run(converted, backend="e3nn"), options)
    found = [other._calculator.network.module.potential.model.backend for *_, other in others]
    assert found == ["xla", "e3nn"]


@pytest.fixture
def frames():
    frames = [ase.build.bulk("Cu", cubic=True), ase.build.bulk("Cu").repeat(2)]
    for k, atoms in enumerate(frames):
        atoms.rattle(0.1, seed=k)
        atoms.info["name"] = f"frame {k}"
    return frames


def test_precisions_of_one_potential_agree(frames):
    lines, agree = compare(Subject(Soft("float64")), Subject(Soft("float32")), frames)
    assert agree, "\n".join(lines)


class AllElectron(Subject):
    """A potential in float32 to whose energies -13 keV an atom are added, in float64."""

    def offset(self, atoms):
        return -13e3 * len(atoms)

    def compute(self, structures):
        shifted = super().compute(structures)
        pairs = zip(shifted, structures, strict=True)
        return [a._replace(energy=a.energy + self.offset(atoms)) for a, atoms in pairs]


def test_compared_energies_of_all_electrons_hide_nothing(frames):
    """The rounding is that of the network, and not that of 13 keV in float32, 0.8 meV."""
    lines, _ = compare(AllElectron(Soft("float32")), AllElectron(Soft("float32")), frames)
    [row] = [line for line in lines if line.startswith("energy per atom")]
    assert 0 < float(row.split()[5]) < 1e-4


def test_compared_molecules_are_no_crystals(converted):
    """A molecule where two runs differ most: nothing has a stress, and all rows are printed."""
    theirs, ours = Run(converted), Run(converted)
    forces = ours.compute

    def doubled(structures):
        return [a._replace(forces=2 * a.forces) for a in forces(structures)]

    ours.compute = doubled
    z = theirs.elements[0]
    molecule = ase.Atoms([z, z], [[0, 0, 0], [0.3, 0.4, 1.5]], info={"name": "molecule"})
    lines, agree = compare(theirs, ours, [molecule])
    assert not agree
    assert any(line.startswith("B: forces are NOT the slope") for line in lines)
    assert not any("stress" in line for line in lines)


@pytest.mark.parametrize(("fault", "quantity"), [("one atom", "forces"), ("stress sign", "stress")])
def test_the_one_that_is_inconsistent_is_named(frames, fault, quantity):
    lines, agree = compare(Subject(Soft()), Subject(Soft(fault=fault)), frames)
    text = "\n".join(lines)
    assert not agree
    assert f"A: {quantity} are the slope of its own energy" in text
    assert f"B: {quantity} are NOT the slope of its own energy" in text
    if quantity == "forces":
        assert "forces of Cu" in text
        assert "neighbour at 2 to 2.5 Å" in text


def test_the_command_compares(frames, tmp_path, command):
    ase.io.write(file := tmp_path / "frames.xyz", frames)
    right, wrong = (f"tests.certify.calculators:Soft({f})" for f in ("", "fault='one atom'"))
    assert "they agree within rounding" in command("compare", right, right, file).out
    printed = command("compare", right, wrong, file, "--frames", 1, code=1).out
    assert "B: forces are NOT the slope" in printed
    error = command("compare", right, right, file, "backend_a=foo", code=2).err
    assert "backend 'foo' is unknown" in error
