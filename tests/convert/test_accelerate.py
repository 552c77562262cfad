"""Calculators of other programs that become ours; with the programs where they are installed."""

import copy
import pickle
import sys
import types
import warnings

import ase
import numpy as np
import pytest
from ase.calculators.emt import EMT
from ase.calculators.mixing import SumCalculator
from ase.constraints import FixAtoms, Hookean

import eqfuse
from eqfuse.convert.accelerate import Differs, rounding
from tests.small_runs import copper_cell

PROGRAMS = "ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning"


class NequIPCalculator(eqfuse.Calculator):
    """A stand-in for nequip's, whose results may be wrong by a factor."""

    factors = types.MappingProxyType({})
    asked = 0

    def calculate(self, atoms=None, properties=("energy",), system_changes=()):
        super().calculate(atoms, properties, system_changes)
        type(self).asked += 1
        self.results = {n: r * self.factors.get(n, 1.0) for n, r in self.results.items()}


@pytest.fixture(scope="module")
def calculator(package):
    return lambda **options: NequIPCalculator(package, **options)


@pytest.fixture(scope="module", autouse=True)
def _home(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(autouse=True)
def _default_dtype():
    """Keep the default dtype of torch, which mace's networks set."""
    yield
    if torch := sys.modules.get("torch"):
        torch.set_default_dtype(torch.float32)


@pytest.fixture
def atoms(calculator):
    [*symbols] = calculator().species[:2]
    positions = [[0, 0, 0], [1.2, 0.1, 0], [0.1, 1.3, 0.2]]
    return ase.Atoms([symbols[0], symbols[1], symbols[0]], positions, cell=[6] * 3, pbc=True)


def test_accelerated_calculator_is_compared_once(calculator, package, atoms):
    theirs = calculator()
    fast = eqfuse.accelerate(theirs, file=package)
    assert type(fast).__mro__[1] is eqfuse.Calculator
    assert repr(fast).startswith("<Accelerated that of a NequIPCalculator: ")
    assert fast.name == "that of a NequIPCalculator"
    assert eqfuse.accelerate(fast) is fast
    assert eqfuse.accelerate(package).name == package.name
    for wrong in (NequIPCalculator, None):
        with pytest.raises(TypeError, match="the name or file of a network and no file=, got "):
            eqfuse.accelerate(wrong)
    NequIPCalculator.asked = 0
    atoms.calc = fast
    assert np.isfinite(atoms.get_potential_energy())
    assert atoms.get_stress().shape == (6,)
    asked = NequIPCalculator.asked
    assert asked > 0
    atoms.rattle(0.01)
    forces = atoms.get_forces()
    assert NequIPCalculator.asked == asked
    atoms.calc = copy.deepcopy(pickle.loads(pickle.dumps(fast)))
    np.testing.assert_allclose(atoms.get_forces(), forces, rtol=0, atol=1e-5)  # float32


def test_accelerated_calculator_is_compared_without_constraints(calculator, package, atoms):
    """ASE's get_forces() has zeros for fixed atoms, which differed from ours."""
    atoms.set_constraint([FixAtoms([0]), Hookean(1, 2, rt=0.1, k=5.0)])
    atoms.calc = eqfuse.accelerate(calculator(), file=package)
    assert np.abs(atoms.get_forces(apply_constraint=False)[0]).max() > 1e-3
    assert not atoms.get_forces()[0].any()
    assert atoms.calc.atoms.constraints


@pytest.mark.parametrize(
    ("name", "unit"), [("energy", "eV,"), ("forces", "eV/Å,"), ("stress", "eV/Å³,")]
)
def test_accelerated_calculator_that_differs_refuses(name, unit, calculator, package, atoms):
    theirs = calculator(dtype="float64")
    theirs.factors = {name: 1 + 1e-3}
    fast = eqfuse.accelerate(theirs, file=package)
    for _ in range(2):
        with pytest.raises(Differs, match=f"{name} of NequIPCalculator and .* differ by .* {unit}"):
            fast.get_property(name, atoms)
    assert not fast.results


def test_stress_of_slabs_is_not_compared(calculator, package, atoms):
    """Mace divides it by the volume of a cell that it makes, which was taken for a difference."""
    theirs, atoms.pbc = calculator(), (True, True, False)
    theirs.factors = {"stress": 0.1}
    atoms.calc = eqfuse.accelerate(theirs, file=package)
    assert np.abs(atoms.get_stress()).max() > 5e-5


@pytest.mark.parametrize(
    ("layers", "correlation", "tables", "couplings"), [(1, 1, 1, 2), (3, 1, 3, 6), (2, 3, 12, 16)]
)
def test_rounding_counts_the_factors_of_a_term(layers, correlation, tables, couplings):
    """One layer of correlation 3 has 3 radial functions and 3 + 1 couplings; the second 12, 16."""
    model = types.SimpleNamespace(layers=layers, correlation=correlation)
    module = types.SimpleNamespace(potential=types.SimpleNamespace(model=model))
    network = types.SimpleNamespace(dtype="float64", radial="tables of 256", module=module)
    assert rounding(network, "nequip") == pytest.approx(1e-7 * tables + 1e-10)
    assert rounding(network, "mace") == pytest.approx(1e-7 * tables + 2.0**-24 * couplings + 1e-10)
    network.radial = "network"
    assert rounding(network, "nequip") == 1e-10


@pytest.mark.parametrize(("factor", "refused"), [(1 + 1e-6, True), (1 + 1e-9, False)])
def test_accelerated_float64_refuses_a_millionth(factor, refused, calculator, package, atoms):
    theirs = calculator(dtype="float64")
    theirs.default_dtype = "float64"
    size = np.abs(theirs.get_property("forces", atoms)).max()
    theirs.factors = {"forces": 1 + (factor - 1) / min(size, 1.0)}
    theirs.reset()
    fast = eqfuse.accelerate(theirs, file=package)
    if refused:
        with pytest.raises(Differs, match="forces of"):
            fast.get_property("forces", atoms)
    else:
        assert fast.get_property("forces", atoms).shape == (3, 3)


def test_accelerate_keeps_the_other_members_of_a_sum(calculator, package):
    total = SumCalculator([calculator(), dispersion := EMT()])
    first, second = eqfuse.accelerate(total, file=package).mixer.calcs
    assert isinstance(first, eqfuse.Calculator)
    assert second is dispersion


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({}, "its network is compiled; give the file"),
        ({"energy_units_to_eV": 27.2}, "other units .energy_units_to_eV=27.2"),
    ],
)
def test_accelerate_returns_what_it_cannot_convert(calculator, changes, why):
    theirs = calculator()
    vars(theirs).update(changes)
    with pytest.warns(UserWarning, match=f"NequIPCalculator is returned as it was, .*{why}"):
        assert eqfuse.accelerate(theirs) is theirs
    with pytest.warns(UserWarning, match="EMT is returned as it was, .* none of MACECalculator"):
        eqfuse.accelerate(EMT())


def in_turn(theirs, structures, **options):
    """Return the largest errors of energies per atom and forces of an accelerated calculator."""
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=".*returned as it was")
        fast = eqfuse.accelerate(theirs, **options)
    assert isinstance(fast, eqfuse.Calculator)
    errors = []
    for atoms in structures:
        found = []
        for calc in (theirs, fast):
            one = atoms.copy()
            one.calc = calc
            found.append((one.get_potential_energy() / len(one), one.get_forces()))
        errors.append([np.abs(np.subtract(*pair)).max() for pair in zip(*found, strict=True)])
    return np.max(errors, axis=0)


@pytest.mark.filterwarnings(*PROGRAMS)
@pytest.mark.parametrize("heads", [("Default",), ("one", "two")])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_accelerated_mace(dtype, heads):
    mace = pytest.importorskip("mace.calculators")
    from benchmarks.clients import mace_networks

    small = {"r_max": 4.5, "bessel": 4, "radial": (6, 6), "readout": 4, "neighbors": 6.0}
    small |= {"elements": (1, 6, 8), "gain": 100.0, "max_ell": 1, "correlation": 2}
    shape = mace_networks.Shape("3x0e", **small, heads=heads)
    network = mace_networks.random_network(shape, dtype)
    head = {"head": "two"} if len(heads) > 1 else {}
    theirs = mace.MACECalculator(models=network, default_dtype=dtype, device="cpu", **head)
    cell = ase.Atoms("HCO", [[0, 0, 0], [1.2, 0.1, 0], [0.1, 1.3, 0.2]], cell=[6] * 3, pbc=True)
    molecule = cell[:2]
    molecule.pbc = False
    energy, forces = in_turn(theirs, [cell, molecule])
    assert energy < {"float32": 1e-5, "float64": 1e-7}[dtype]
    assert forces < {"float32": 1e-4, "float64": 1e-7}[dtype]


@pytest.mark.filterwarnings(*PROGRAMS)
@pytest.mark.slow
@pytest.mark.parametrize("program", ["sevenn", "nequix"])
def test_accelerated_calculators_of_other_programs(program, shared_data):
    module = pytest.importorskip(f"{program}.calculator")
    if program == "sevenn":
        theirs = module.SevenNetCalculator("7net-0", device="cpu")
    else:
        file = shared_data / "networks" / "nequix-mp-1.nqx"
        theirs = module.NequixCalculator(model_path=file, use_kernel=False)
    energy, forces = in_turn(theirs, [copper_cell()])
    assert energy < 1e-5
    assert forces < 1e-4
