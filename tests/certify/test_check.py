"""`eqfuse check` finds planted faults and names them; `eqfuse compare` says who is wrong."""

import itertools
import json
import sys

import ase.build
import ase.io
import numpy as np
import pytest
from ase.calculators.emt import EMT
from ase.calculators.lj import LennardJones

from eqfuse import cli
from eqfuse.certify.check import Certificate, drift
from eqfuse.certify.checks import CHECKS, Row, worst_of
from eqfuse.certify.compare import compare
from eqfuse.certify.questions import _slope
from eqfuse.certify.subjects import Run, Subject
from eqfuse.convert import convert
from tests.certify.calculators import Listed, Soft
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


STALE = (
    "0.3 since the last call",
    "0.3 or the cell",
    "cell ignored",
    "never",
    "skin too small",
    "whole skin",
    "every 10 calls",
)


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


def test_a_stale_list_fails_the_question_of_history():
    row = row_of("history", Listed("0.3 since the last call"))
    assert row.verdict == "FAILED"
    assert "coming nearer by" in row.remark


def test_a_potential_that_is_cut_off_where_it_is_not_zero_fails():
    """EMT ends at a length at which its functions are not zero."""
    row = row_of("path", EMT())
    assert row.verdict == "FAILED"
    assert "5.87" in row.remark


@pytest.mark.slow
def test_a_force_that_jumps_at_a_cutoff_is_found_beside_a_steep_wall():
    """By 3.4e-5 eV/Å at 10.2 Å; at 0.2 Å the energy is 1e13 eV."""
    row = row_of("path", LennardJones(sigma=3.4, epsilon=0.0104), elements=[18])
    assert (row.verdict, row.unit) == ("FAILED", "eV/Å")


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


def test_bits_that_differ_by_the_order_of_sums_are_noted():
    row = row_of("repeat", Soft("float32", "order of sums"))
    assert row.verdict == "noted"
    assert row.remark.startswith(("energy", "forces"))


def test_a_drift_that_shorter_steps_do_not_mend_fails():
    assert row_of("nve", Soft("float64", "force jump"), duration=0.4).verdict == "FAILED"


def test_the_bound_of_a_slope_holds_where_the_force_has_a_kink():
    for place in np.linspace(-3.2, 3.2, 65):
        energies = np.maximum(np.array([-3, -2, -1, 1, 2, 3]) - place, 0.0) ** 3
        slope, bound = _slope(energies, 1.0)
        assert abs(slope - 3 * max(-place, 0.0) ** 2) <= 0.7 * bound + 1e-12


@pytest.fixture
def calculator_file(tmp_path, monkeypatch):
    """Return a folder with a module of a calculator that this process has not imported."""
    (tmp_path / "mine.py").write_text(
        "from ase.calculators.lj import LennardJones\n"
        "def made(sigma=2.3):\n"
        "    print('words of a calculator')\n"
        "    return LennardJones(sigma=sigma, epsilon=0.1, rc=5.0, ro=3.5, smooth=True)\n"
    )
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.usefixtures("pictures")
def test_a_calculator_of_another_process_is_checked_and_reported(calculator_file, capsys):
    file = calculator_file / "copper.xyz"
    ase.io.write(file, ase.build.bulk("Cu", cubic=True))
    report, numbers = calculator_file / "report.html", calculator_file / "numbers.json"
    arguments = ["check", "mine:made(sigma=2.2)", str(file), "--python", sys.executable]
    arguments += ["--picoseconds", "0.1", "--report", str(report), "--json", str(numbers)]
    assert cli.main(arguments) == 0
    out = capsys.readouterr().out
    assert "PASS: " in out
    page, known = report.read_text(), json.loads(numbers.read_text())
    assert page.count("<img") == 2
    assert known["verdict"] == "PASS"
    assert known["precision"] == "float64"
    assert {row["check"] for row in known["checks"]} <= set(CHECKS)
    assert known["versions"]["python"]


def test_check_refuses_what_it_cannot_check(calculator_file, capsys):
    def said(*arguments):
        assert cli.main(["check", *arguments]) == 2
        return capsys.readouterr().err

    assert "none" in said("none")
    assert "No module named 'nomodule'" in said("nomodule:made()", "--elements", "Cu")
    assert "has no attribute 'other'" in said("mine:other()", "--elements", "Cu")
    assert "name the elements" in said("mine:made()")
    assert "Xx is no element" in said("mine:made()", "--elements", "Xx")
    assert "dynamics of 0.1 ps" in said("mine:made()", "--elements", "Cu", "--picoseconds", "0.05")
    assert "cannot be run" in said("mine:made()", "--python", "nopython", "--elements", "Cu")
    assert "none.xyz" in said("mine:made()", "none.xyz")
    copper = ("mine:made()", "--elements", "Cu")
    assert "end its name with .html" in said(*copper, "--report", "page.txt")
    assert "cannot be written" in said(*copper, "--json", "nowhere/numbers.json")
    assert "dtype=: of a run only" in said(*copper, "dtype=float32")


def test_a_calculator_that_ends_its_process_is_an_error(calculator_file, capsys):
    (calculator_file / "dying.py").write_text(
        "import os\n"
        "from ase.calculators.emt import EMT\n"
        "class Dying(EMT):\n"
        "    def calculate(self, *arguments):\n"
        "        print('out of memory', flush=True)\n"
        "        os._exit(3)\n"
    )
    assert cli.main(["check", "dying:Dying()", "--elements", "Cu"]) == 2
    assert "out of memory" in capsys.readouterr().err


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
def test_a_converted_run_passes(converted, capsys):
    assert cli.main(["check", str(converted), "--backends", "--picoseconds", "0"]) == 0
    assert "PASS: 18 checks, 1 not checked" in capsys.readouterr().out


def test_a_run_computes_in_batches_what_its_calculator_does(converted):
    run = Run(converted, dtype="float64")
    atoms = ase.Atoms([run.elements[0]] * 2, [[0, 0, 0], [0.3, 0.4, 2.0]], cell=[4, 5, 6], pbc=True)
    [batched], [alone] = run.compute([atoms]), run.in_turn([atoms])
    assert batched.energy == pytest.approx(alone.energy, abs=1e-12)
    np.testing.assert_allclose(batched.forces, alone.forces, atol=1e-12)
    np.testing.assert_allclose(batched.stress, alone.stress, atol=1e-14)
    assert {"eqfuse", "jax"} <= set(run.versions())


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


def test_the_command_compares(frames, tmp_path, monkeypatch, capsys):
    (tmp_path / "scaled.py").write_text(
        "from ase.calculators.emt import EMT\n"
        "class Scaled(EMT):\n"
        "    def __init__(self, scale=1.0):\n"
        "        super().__init__()\n"
        "        self.scale = scale\n"
        "    def calculate(self, *arguments):\n"
        "        super().calculate(*arguments)\n"
        "        self.results['forces'] = self.scale * self.results['forces']\n"
    )
    monkeypatch.chdir(tmp_path)
    ase.io.write("frames.xyz", frames)
    emt = "ase.calculators.emt:EMT()"
    assert cli.main(["compare", emt, "scaled:Scaled()", "frames.xyz"]) == 0
    assert "they agree within rounding" in capsys.readouterr().out
    assert cli.main(["compare", emt, "scaled:Scaled(1.01)", "frames.xyz", "--frames", "1"]) == 1
    assert "B: forces are NOT the slope" in capsys.readouterr().out
    assert cli.main(["compare", emt, emt, "frames.xyz", "backend_a=foo"]) == 2
    assert "backend 'foo' is unknown" in capsys.readouterr().err
