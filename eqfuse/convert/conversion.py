"""Read a network of another program and write it as the folder of a run."""

import contextlib
import dataclasses
import hashlib
from pathlib import Path

import jax
import numpy as np

from eqfuse import models
from eqfuse.convert.converted import Converted, ConvertError
from eqfuse.convert.mace import heads_of_mace, read_mace
from eqfuse.convert.nequip import read_nequip
from eqfuse.convert.nequix import read_nequix
from eqfuse.convert.registry import find_network
from eqfuse.convert.sevennet import fidelities_of, read_sevennet
from eqfuse.data import Shape, collate
from eqfuse.runs.checkpoint import Checkpoints, metadata_of, named_arrays
from eqfuse.runs.files import RunFolder, encode, write_whole
from eqfuse.train.schedule import MoleculeTraining
from eqfuse.train.settings.config import MODELS, Config
from eqfuse.train.settings.options import to_yaml
from eqfuse.train.sources import DataSettings

READERS = {
    "mace": read_mace,
    "sevennet": read_sevennet,
    "nequix": read_nequix,
    "nequip": read_nequip,
}
"""By program; each takes a file, and the name of a head or fidelity or None."""
HEADS = {"mace": heads_of_mace, "sevennet": fidelities_of}
"""By program, functions of a file to the names of its heads or fidelities."""


def convert(program: str, path, run, *, choice: str | None = None) -> Converted:
    """Write the network of a file of another program to the folder of a run.

    The program is not needed, and nothing in the file is executed. The folder can be given to
    `eqfuse.Calculator`, `eqfuse.inference.evaluate`, `load_run` and `start_from=`.

    Args:
      program: one of `READERS`.
      path: the file, or the name of a published network, such as "7net-0".
      run: the folder, which must not exist.
      choice: which head (mace) or fidelity (sevennet), of a network with several; None for all,
        each in a file of its own, RUN/heads/NAME.safetensors, which `head=` of calculators chooses.
    Returns:
      What the network is; the first, of several heads.
    Raises:
      ConvertError: a file that cannot be read, or a network that eqfuse cannot represent.
      ConfigError: the folder exists or cannot be written.
    """
    path = find(program, path)
    with reading(program, path):
        names = HEADS[program](path) if program in HEADS else []
        if choice is not None and choice not in names:
            known = f"the heads {', '.join(names)}" if names else "one head only"
            raise ConvertError(f"the network has {known}, and no {choice!r}")
        if any("/" in name for name in names):
            raise ConvertError(f"a head with a slash in its name cannot be a file: {names}")
        several = len(names) > 1 and choice is None
        networks = [READERS[program](path, name) for name in (names if several else [choice])]
        networks = [dataclasses.replace(n, heads=tuple(names) if several else ()) for n in networks]
        for converted in networks:
            check_parameters(converted)
    write_run(networks, path, run)
    return networks[0]


def find(program: str, path) -> Path:
    """Return the file that is meant, perhaps by the name of a published network."""
    path = Path(path)
    if path.exists() and not path.is_file():
        raise ConvertError(f"{path} is a folder, a device or a pipe; give the file of a network")
    return path if path.exists() else find_network(str(path), program)


@contextlib.contextmanager
def reading(program: str, path):
    """Turn errors of files that are not laid out as they should be into one that says so."""
    try:
        yield
    except ConvertError:
        raise
    except Exception as error:  # damaged or malicious files fail in many ways
        raise ConvertError(
            f"{path} is not laid out as files of {program} are, or damaged ({error!r}); if "
            f"{program} reads it, please report its version"
        ) from error


def write_run(networks: list[Converted], path, run):
    """Write a network, or the heads of one, to the folder of a run, which must not exist."""
    path = Path(path)
    config = _config(path, str(run), networks[0])
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    folder = RunFolder(run, to_yaml(config))
    try:
        for converted in networks:
            potential, variables = potential_and_variables(converted)
            source = {"program": converted.program, "file": path.name, "sha256": digest}
            of_data = {
                "data_sha256": "",
                "species": list(converted.references),
                "reference_energies": {str(z): e for z, e in converted.references.items()},
                "statistics": {
                    "force_rms": None,
                    "avg_num_neighbors": converted.fields["avg_num_neighbors"],
                    "energy_per_atom": None,
                },
                "converted": source | {"choice": converted.choice},
            }
            metadata = metadata_of(config, converted.fields, potential, **of_data)
            if converted.heads:
                file = folder.path / "heads" / f"{converted.choice}.safetensors"
                file.parent.mkdir(exist_ok=True)
                write_whole(file, encode(named_arrays("params", variables), metadata))
            else:
                checkpoints = Checkpoints(folder.checkpoints, metadata)
                progress = {"position": {"epoch": 0, "batch": 0}, "epoch": 0}
                checkpoints.offer("best", 0, lambda v=variables: v, progress)
                checkpoints.flush()
    finally:
        folder.close()


def potential_and_variables(converted: Converted) -> tuple[models.Potential, dict]:
    """Return the potential that the network is, and its variables in float64.

    What was of float32 in a file has been multiplied with constants of the program: rounded again,
    it would give the results of the program to 1e-8 only.
    """
    scale, shift = converted.scale, converted.shift
    model = models.build(converted.model, **converted.fields)
    parts = {"repulsion": converted.repulsion, "long_range": converted.long_range}
    potential = models.Potential(model, scale, shift, **parts)
    params = {"model": converted.params, "scale": np.array(scale), "shift": np.array(shift)}
    return potential, {"params": jax.tree.map(lambda a: np.asarray(a, np.float64), params)}


def check_parameters(converted: Converted):
    """Refuse parameters of other shapes than the network has, and numbers that are not finite."""
    potential, variables = potential_and_variables(converted)
    with jax.enable_x64(True):
        graph = collate([], Shape(1, 1, 1), "float64").graph
        shapes = jax.eval_shape(
            potential.init, jax.random.key(0), graph.vectors, graph.species, graph.edges
        )
    ours, theirs = (
        {jax.tree_util.keystr(path): leaf.shape for path, leaf in jax.tree.leaves_with_path(tree)}
        for tree in (shapes, variables)
    )
    if ours != theirs:
        different = sorted({name for name, _ in ours.items() ^ theirs.items()})
        raise ConvertError(
            f"parameters do not fit: {different[0]} has the shape {theirs.get(different[0])} in "
            f"the file and {ours.get(different[0])} in eqfuse's {converted.model} "
            f"({len(different)} such names)"
        )
    numbers = {"reference energies": [*converted.references.values()], "parameters": variables}
    for name, values in numbers.items():
        if not all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(values)):
            raise ConvertError(f"the {name} of the network are not all finite (NaN or infinity)")


def _config(path: Path, run: str, converted: Converted) -> Config:
    """Return the settings of the run, whose data file is the file that was converted."""
    settings = MODELS[converted.model]
    names = {f.name for f in dataclasses.fields(settings)}
    fields = {name: v for name, v in converted.fields.items() if name in names}
    if (les := converted.long_range) is not None:
        fields |= {"long_range": "les", "les_charges": les.charges, "les_sigma": les.sigma}
        fields["les_cutoff"] = les.cutoff
    return Config(
        model=settings(**fields, zbl=converted.repulsion is not None),
        data=DataSettings(path=str(path.resolve())),
        training=MoleculeTraining(),
        dtype=converted.dtype,
        run=run,
    )
