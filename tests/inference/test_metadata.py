"""Metadata of a network with wrong types or sizes: one sentence, before anything is built."""

import copy

import pytest

import eqfuse
from eqfuse import cli
from eqfuse.train import CheckpointError
from eqfuse.train.run import files
from tests.lammps.untrained import untrained_run


@pytest.fixture(scope="module")
def network(tmp_path_factory):
    [file] = untrained_run(tmp_path_factory.mktemp("runs")).glob("**/best.safetensors")
    arrays, metadata = files.read_file(file)
    return arrays, {k: v for k, v in metadata.items() if k not in ("format", "arrays_sha256")}


CHANGES = {
    "layers": ("model_fields", "layers", 100_000),
    "lmax": ("model_fields", "lmax", 60),
    "no layers": ("model_fields", "layers", "two"),
    "avg_num_neighbors": ("model_fields", "avg_num_neighbors", float("nan")),
    "cutoff": ("model_fields", "cutoff", None),
    "unknown field": ("model_fields", "colour", 1),
    "model_fields": ("model_fields", None, 3),
    "model": ("model", None, "other"),
    "model type": ("model", None, ["nequip"]),
    "config": ("config", None, "text"),
    "dtype": ("config", "dtype", "float16"),
    "species": ("species", None, [29, 29]),
    "species type": ("species", None, "Cu"),
    "species number": ("species", None, [13, 290]),
    "references": ("reference_energies", "29", None),
    "references type": ("reference_energies", None, [1.0]),
    "references number": ("reference_energies", "29", float("inf")),
    "scale": ("potential", "scale", [1.0]),
    "shift": ("potential", "shift", ["a", "b"]),
    "potential": ("potential", None, 7),
    "potential field": ("potential", "colour", 7),
}


@pytest.mark.parametrize("name", CHANGES)
def test_metadata_of_wrong_types_or_sizes_are_one_sentence(network, tmp_path, capsys, name):
    arrays, metadata = network[0], copy.deepcopy(network[1])
    group, key, value = CHANGES[name]
    if key is None:
        metadata[group] = value
    else:
        metadata[group][key] = value
    path = tmp_path / "network.safetensors"
    path.write_bytes(files.encode(arrays, metadata))
    with pytest.raises((CheckpointError, ValueError)) as error:
        eqfuse.Calculator(path)
    assert "\n" not in str(error.value)
    assert cli.main(["info", str(path)]) == 2
    assert capsys.readouterr().err.count("\n") == 1
