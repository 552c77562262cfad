"""A trained network for other elements."""

import numpy as np
import pytest
from ase.data import atomic_numbers

from eqfuse.convert import convert_mace
from eqfuse.train.run.checkpoint import read_checkpoint
from eqfuse.train.settings.schema import ConfigError
from eqfuse.train.start import _group, of_elements, similar
from tests.convert.conftest import GOLDENS, unpacked
from tests.small_runs import prepared


@pytest.mark.parametrize(
    ("z", "known", "expected"),
    [
        (14, (1, 6, 8), 6),  # silicon is like carbon
        (9, (1, 8, 17), 17),  # fluorine like chlorine
        (31, (5, 12, 30), 5),  # gallium like boron
        (2, (1, 4, 10), 10),  # helium like neon, and not beryllium
        (47, (28, 29, 46), 29),  # silver like copper
        (72, (22, 57, 73), 22),  # hafnium like titanium
        (58, (57, 90), 90),  # cerium like thorium
        (16, (1, 6), 6),  # no other of its group
    ],
)
def test_a_new_element_begins_as_the_most_similar_one(z, known, expected):
    assert similar(z, known) == expected


def test_all_groups_are_those_of_the_periodic_table():
    table = {1: "H Li Na K Rb Cs Fr", 2: "Be Mg Ca Sr Ba Ra", 4: "Ti Zr Hf Rf", 12: "Zn Cd Hg"}
    table |= {13: "B Al Ga In Tl", 14: "C Si Ge Sn Pb", 17: "F Cl Br I At", 18: "He Ne Ar Kr Xe Rn"}
    for group, names in table.items():
        assert {_group(atomic_numbers[name]) for name in names.split()} == {group}, names


@pytest.fixture(scope="module")
def network(tmp_path_factory):
    """Run of a network of mace with ZBL and Agnesi's transform, of H, C and O."""
    folder = tmp_path_factory.mktemp("network")
    convert_mace(unpacked(GOLDENS / "density.model.xz", folder), folder / "run")
    return folder / "run"


def test_a_new_element_has_the_weights_of_the_similar_one_and_its_own_radius(network):
    params, metadata, _ = read_checkpoint(network, ("best",))
    more, theirs = of_elements(params, metadata, (1, 6, 8, 16))
    assert theirs["species"] == [1, 6, 8, 16]
    assert theirs["reference_energies"]["16"] == metadata["reference_energies"]["8"]
    old, new = (tree["params"]["model"]["embedding"] for tree in (params, more))
    np.testing.assert_array_equal(new, old[[0, 1, 2, 2]])
    fields = theirs["model_fields"]
    assert fields["atomic_numbers"] == [1, 6, 8, 16]
    assert fields["covalent_radii"][:3] == metadata["model_fields"]["covalent_radii"]
    assert fields["covalent_radii"][3] == pytest.approx(1.05)
    assert theirs["potential"]["repulsion"]["atomic_numbers"] == [1, 6, 8, 16]


def test_an_added_element_is_trained(network, copper):
    settings = [f"start_from={network}", "data=extxyz", f"data.path={copper}", "data.val=4"]
    with pytest.raises(ConfigError, match=r"begin as a similar element \(elements=add\)"):
        prepared(*settings, tiny=())
    with pytest.raises(ConfigError, match="fit, for Cu, which the network does not know"):
        prepared(*settings, "elements=add", tiny=())
    settings += ["elements=add", "data.reference_energies=fit"]
    dataset, _ = prepared(*settings, tiny=())
    assert dataset.species == (1, 6, 8, 29)
    # the energy of copper is fitted; those of elements that are not in the data stay
    before = read_checkpoint(network, ("best",))[1]["reference_energies"]
    assert dataset.references[8] == before["8"] != dataset.references[29]
