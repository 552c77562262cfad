"""Properties of a material: the values that other ways of computing them give."""

import ase
import ase.build
import numpy as np
import pytest
from ase import units
from ase.calculators.emt import EMT
from ase.calculators.lj import LennardJones
from ase.data import covalent_radii

from eqfuse.certify import properties
from eqfuse.md.structures import pair_counts, radial_distribution


@pytest.fixture(scope="module")
def copper():
    return properties.relaxed(ase.build.bulk("Cu", a=3.7), EMT(), cell=True)


def test_minimum_has_no_stress(copper):
    assert copper.cell.lengths()[0] * 2**0.5 == pytest.approx(3.590, abs=2e-3)  # known of EMT
    assert np.abs(copper.get_stress()).max() < 1e-3


def test_closeness_is_relative_to_covalent_radii():
    molecule = ase.Atoms("HCl", [(0, 0, 0), (0, 0, 1.5)])
    near = pytest.approx(1.5 / (covalent_radii[1] + covalent_radii[17]))
    assert properties.closeness([molecule, ase.Atoms("H")]) == {(1, 17): near, (17, 1): near}
    primitive, far = (ase.build.bulk("Cu", a=a) for a in (3.6, 3.7))  # neighbours are images
    near = pytest.approx(3.6 / 2**0.5 / (2 * covalent_radii[29]))
    assert properties.closeness([primitive, far]) == {(29, 29): near}


def test_bulk_modulus_is_that_of_the_elastic_constants(copper):
    found, _, _ = properties.energy_volume(copper)
    assert found["volume, Å³/atom"] == pytest.approx(copper.get_volume(), rel=1e-3)
    c = properties.elastic_constants(copper)
    assert found["bulk modulus, GPa"] == pytest.approx((c[0, 0] + 2 * c[0, 1]) / 3, rel=0.01)


def test_elastic_constants_are_slopes_of_the_energy(copper):
    c, size = properties.elastic_constants(copper), 0.004
    for (i, j), entry in (((0, 0), c[0, 0]), ((1, 2), c[3, 3])):
        energies = []
        for sign in (-1, 0, 1):
            strain = np.zeros((3, 3))
            strain[i, j] += sign * size / 2
            strain[j, i] += sign * size / 2
            atoms = copper.copy()
            atoms.calc = EMT()
            atoms.set_cell(copper.cell.array @ (np.eye(3) + strain), scale_atoms=True)
            energies.append(atoms.get_potential_energy())
        second = (energies[0] - 2 * energies[1] + energies[2]) / size**2
        assert entry == pytest.approx(second / copper.get_volume() / units.GPa, rel=0.01)


def test_frequencies_are_squares_of_a_cell_of_its_own(copper):
    """At (1/2, 0, 0), whose wave fits into a cell of two: of its Gamma."""
    found = properties.frequencies(copper)
    twice = copper.repeat((2, 1, 1))
    twice.calc = copper.calc
    np.testing.assert_allclose(found["Gamma"], 0, atol=0.02)
    own = properties.frequencies(twice)["Gamma"]
    np.testing.assert_allclose(np.sort(own)[3:], found["100"], rtol=2e-3)


def test_frequency_of_two_atoms_without_cell():
    """With k = 72 epsilon / (2^(1/3) sigma^2), and half of the mass."""
    teacher = LennardJones(sigma=3.4, epsilon=0.0104, rc=50.0)
    pair = properties.relaxed(ase.Atoms("Ar2", [(0, 0, 0), (0, 0, 3.7)]), teacher, cell=False)
    pair.set_distance(0, 1, 3.4 * 2 ** (1 / 6))
    found = properties.frequencies(pair)
    assert [*found] == ["Gamma"]
    stiffness = 72 * 0.0104 / (2 ** (1 / 3) * 3.4**2)
    omega = (stiffness / (pair.get_masses()[0] / 2)) ** 0.5
    assert found["Gamma"][-1] == pytest.approx(omega * 1000 * units.fs / (2 * np.pi), rel=1e-3)
    assert np.abs(found["Gamma"][:5]).max() < 0.02


def test_radial_distribution_of_a_crystal(copper):
    counts = pair_counts(copper, 6.0, 0.1)
    distances, values = radial_distribution(counts, 0.1, periodic=True)
    near = copper.cell.lengths()[0]
    shell = np.abs(distances - near).argmin()
    edges = distances[shell] - 0.05, distances[shell] + 0.05
    volume = 4 / 3 * np.pi * (edges[1] ** 3 - edges[0] ** 3)
    assert values[shell] == pytest.approx(12 * copper.get_volume() / volume)
    assert not values[:shell].any()


def test_pairs_of_a_molecule_are_by_distance():
    counts = pair_counts(ase.build.molecule("H2O"), 6.0, 0.1)
    _, values = radial_distribution(counts, 0.1, periodic=False)
    assert values.sum() * 0.1 == pytest.approx(2)  # of each of three atoms


@pytest.mark.slow
def test_properties_are_those_of_the_calculator():
    asked = ase.build.bulk("Cu", a=3.8), Twice(), ("elastic", "volume")
    numbers, curves = properties.of_minimum(*asked)
    minimum = properties.relaxed(ase.build.bulk("Cu"), EMT(), cell=True)
    expected = properties.elastic_constants(minimum)
    for name, value in (("C11, GPa", expected[0, 0]), ("C44, GPa", expected[3, 3])):
        assert numbers[name] == pytest.approx(2 * value, abs=1.0)
    assert numbers["volume, Å³/atom"] == pytest.approx(minimum.get_volume(), rel=1e-3)
    [(volumes, energies)] = curves.values()
    assert len(volumes) == 7
    assert min(energies) == 0


class Twice(EMT):
    """EMT with twice the energies."""

    def calculate(self, *given, **named):
        super().calculate(*given, **named)
        self.results = {name: 2 * value for name, value in self.results.items()}


def test_molecule_has_frequencies_and_no_elastic_constants():
    pair = ase.Atoms("Cu2", [(0, 0, 0), (0, 0, 2.3)])
    numbers, curves = properties.of_minimum(pair, EMT(), ("volume", "elastic", "phonons"))
    assert {*numbers} == {f"{n} frequency at Gamma, THz" for n in ("lowest", "highest")}
    [(order, values)] = curves.values()
    assert len(order) == len(values) == 6
    assert values[-1] == numbers["highest frequency at Gamma, THz"]
