"""Published networks by name: found, checked, and described where they are to be fetched."""

import dataclasses
import re

import pytest

from eqfuse.convert import ConvertError
from eqfuse.convert.command import main
from eqfuse.convert.conversion import READERS
from eqfuse.convert.registry import find_network, identify, published


def test_every_network_can_be_had_and_is_described():
    for network in published().values():
        assert network.program in READERS
        assert network.licence
        assert re.match(r"doi:10\.|arXiv:\d", network.citation)
        assert bool(network.in_wheel) != bool(network.url)
        assert not network.in_wheel or network.sha256  # what is downloaded is checked
    copies = [network.copy for network in published().values()]
    assert len(set(copies)) == len(copies)


def test_an_unknown_name_lists_those_of_the_program(home):
    with pytest.raises(ConvertError, match=r"these are 7net-0, .*7net-omni-i12$"):
        find_network("7net-9", "sevennet")
    with pytest.raises(ConvertError, match="no network of mace that is known here"):
        find_network("7net-0", "mace")


@pytest.mark.parametrize("name", ["7net-0", "nequix-mp-1", "mace-off23-small"])
def test_a_file_of_another_checksum_is_refused(name, home):
    network = published()[name]
    package = network.places()[0] != network.copy and network.places()[0].exists()
    if package:
        pytest.skip(f"{network.package['name']} is installed, whose file comes first")
    network.copy.parent.mkdir(parents=True)
    network.copy.write_bytes(b"another")
    with pytest.raises(ConvertError, match=r"has not the checksum .*: it is damaged"):
        find_network(name.upper(), network.program)


@pytest.mark.usefixtures("nequix")
def test_a_network_is_converted_by_its_name(home, shared_data, capsys):
    """It is taken from where its program keeps it, and recognised in any file."""
    path = shared_data / "networks" / "nequix-mp-1.nqx"
    assert main(["nequix-mp-1", str(home / "run")]) == 0
    assert "published  as nequix-mp-1; licence: MIT; cite arXiv:2508.16067" in (
        capsys.readouterr().out
    )
    network = published()["nequix-mp-1"]
    by_git = dataclasses.replace(
        network, sha256=None, git="2aec85155316fc1751db47d9885175d75d156236"
    )
    data = path.read_bytes()
    assert by_git.matches(data)
    assert not by_git.matches(data[:-1])
    assert identify(path) is network


def test_the_list_names_each(capsys):
    assert main(["list"]) == 0
    out = capsys.readouterr().out
    assert [line.split()[0] for line in out.splitlines()] == list(published())
