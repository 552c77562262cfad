"""Files of networks with wrong metadata or weights: one sentence, before anything is built."""

import re

import ase.build
import ase.io
import numpy as np
import pytest

import eqfuse
from eqfuse.runs import files
from eqfuse.runs.checkpoint import read_checkpoint
from eqfuse.runs.errors import CheckpointError, ConfigError
from eqfuse.train.settings.options import from_plain


@pytest.fixture
def network(untrained):
    """Return the arrays and the metadata of a network, which a test may change."""
    [file] = untrained().glob("**/best.safetensors")
    return files.read_file(file)


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
    "shapes": ("shapes", None, []),
    "potential field": ("potential", "colour", 7),
}


@pytest.mark.parametrize("name", CHANGES)
def test_metadata_of_wrong_types_or_sizes_are_one_sentence(network, tmp_path, command, name):
    arrays, metadata = network
    group, key, value = CHANGES[name]
    if key is None:
        metadata[group] = value
    else:
        metadata[group][key] = value
    path = tmp_path / "network.safetensors"
    path.write_bytes(files.encode(arrays, metadata))
    with pytest.raises(CheckpointError) as error:
        eqfuse.Calculator(path)
    assert "\n" not in str(error.value)
    assert command("info", path, code=2).err.count("\n") == 1


def test_allegro_of_old_versions_is_refused_by_the_version_that_reads_it(network, tmp_path):
    """As a network, and as the start of a training, which reads the settings of the run first."""
    arrays, metadata = network
    metadata["model"] = "allegro"
    metadata["model_fields"]["latent_activation"] = True
    metadata["config"]["model"] |= {"name": "allegro", "latent_activation": True}
    path = tmp_path / "network.safetensors"
    path.write_bytes(files.encode(arrays, metadata))
    text = "is of the Allegro of eqfuse 0.2.0 and before, which that version reads"
    with pytest.raises(CheckpointError, match=re.escape(f"{path} {text}")):
        eqfuse.Calculator(path)
    with pytest.raises(ConfigError, match=re.escape(f"{path}: it {text}")):
        from_plain(metadata["config"], path)


DAMAGED = "is damaged: its parameter {} is missing or has another shape"


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (None, DAMAGED),
        (lambda array: array.T.copy(), DAMAGED),
        (lambda array: np.concatenate([array] * 2), DAMAGED),
        (lambda array: array * np.nan, "{} is not finite"),
    ],
    ids=["absent", "transposed", "twice", "not finite"],
)
def test_wrong_weights_are_refused(network, tmp_path, command, change, text):
    """Also where the digests are right; by calculators, and as the start of a training."""
    arrays, metadata = network
    name = max(arrays, key=lambda name: arrays[name].ndim == 2 and np.ptp(arrays[name].shape))
    array = arrays.pop(name)
    arrays |= {} if change is None else {name: change(array)}
    broken, frames, out = (tmp_path / n for n in ("broken.safetensors", "cu.xyz", "out.xyz"))
    broken.write_bytes(files.encode(arrays, metadata))
    text = text.format(name if text is DAMAGED else name.partition("/")[2])
    with pytest.raises(CheckpointError, match=re.escape(text)):
        eqfuse.Calculator(broken)
    ase.io.write(frames, ase.build.bulk("Cu", cubic=True))
    assert text in command("predict", broken, frames, out, code=2).err
    assert not out.exists()
    with pytest.raises(CheckpointError, match=re.escape(text)):
        read_checkpoint(broken, ("best", "last"))


def test_weights_of_another_network_than_the_metadata_are_refused(network, tmp_path):
    arrays, metadata = network
    metadata["model_fields"]["channels"] *= 2
    broken = tmp_path / "broken.safetensors"
    broken.write_bytes(files.encode(arrays, metadata))
    with pytest.raises(CheckpointError, match=f"{broken} is damaged: its parameters are not those"):
        eqfuse.predict(broken, ase.build.bulk("Cu", cubic=True))
