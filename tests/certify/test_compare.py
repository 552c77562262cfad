"""`eqfuse compare` says by how much two potentials differ, where, and which of them is wrong."""

import ase.build
import ase.io
import pytest

from eqfuse import cli
from eqfuse.certify.compare import compare
from eqfuse.certify.subjects import Subject
from tests.certify.calculators import Soft


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


def test_numbers_of_threads_are_compared(frames, tmp_path, monkeypatch, capsys):
    (tmp_path / "threads.py").write_text(
        "import os\n"
        "from ase.calculators.emt import EMT\n"
        "class Threads(EMT):\n"
        "    def calculate(self, *arguments):\n"
        "        super().calculate(*arguments)\n"
        "        one = os.environ.get('OMP_NUM_THREADS') == '1'\n"
        "        one = one and len(os.sched_getaffinity(0)) == 1\n"
        "        self.results['forces'] = self.results['forces'] * (1.01 if one else 1.0)\n"
    )
    monkeypatch.chdir(tmp_path)
    ase.io.write("frames.xyz", frames[:1])
    threads = ["compare", "threads:Threads()", "threads:Threads()", "frames.xyz"]
    assert cli.main(threads) == 0
    assert cli.main([*threads, "--threads-b", "1"]) == 1
    assert "B: forces are NOT the slope" in capsys.readouterr().out
    assert cli.main([*threads, "--threads-b", "0"]) == 2
    assert cli.main([*threads, "--batch-a", "2"]) == 2
    assert "--batch: of a run only" in capsys.readouterr().err
