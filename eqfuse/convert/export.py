"""Write a run of MACE for mace-torch: `eqfuse convert export RUN FILE.npz`."""

import dataclasses
import io
import json
from pathlib import Path

import e3nn_jax as e3nn
import jax
import numpy as np

from eqfuse import models
from eqfuse.convert.converted import ConvertError
from eqfuse.convert.layers import normalized_by
from eqfuse.convert.mace_parameters import our_maps, symmetric_components
from eqfuse.runs.checkpoint import read_checkpoint
from eqfuse.runs.files import require_one_head, write_whole
from eqfuse.train.dispersion import Dispersion

_NOT_EXPORTED = ("nonlinear", "apply_cutoff", "edge_irreps", "first_edge_irreps")
_NOT_EXPORTED += ("agnostic_product", "last_readout_only", "readout_biases")


def export_mace(run, path) -> None:
    """Write the network of a run as a file that `scripts/mace_load.py` makes a mace network of.

    The file holds `fields` (JSON: settings, elements, scale), `references` (energies of the
    elements, eV), the parameters by their names, and `basis/...`, the maps that the weights of the
    product basis are of. All are NumPy's, and are read without eqfuse and without pickle.

    Args:
      run: the folder of a run of MACE.
      path: the .npz file to write, which must not exist.
    Raises:
      CheckpointError: no readable checkpoint.
      ConvertError: a network that mace cannot represent, by name; a file that exists.
    """
    path = Path(path)
    if path.suffix != ".npz":
        raise ConvertError(f"{path} must end in .npz")
    if path.exists():
        raise ConvertError(f"{path} exists already and is not overwritten; name another file")
    require_one_head(run)
    params, metadata, _ = read_checkpoint(run, ("best", "last"))
    _check(metadata, run)
    params = jax.tree.map(lambda p: np.asarray(p, np.float64), params["params"])
    scale, shift = params["scale"], params["shift"]
    if np.ptp(scale):
        _refuse(run, f"a scale for each element ({scale.min():.6g} to {scale.max():.6g} eV)")
    model = models.MACE(**metadata["model_fields"])
    names = {f.name for f in dataclasses.fields(model)} - {"parent", "name", "backend"}
    fields = {
        **{name: getattr(model, name) for name in names},
        "elements": metadata["species"],
        "scale": float(scale[0]),
        "silu": 1 / normalized_by("silu"),
        "repulsion": metadata["potential"].get("repulsion"),
        "dtype": metadata["config"]["dtype"],
    }
    references = np.array([metadata["reference_energies"][str(z)] for z in metadata["species"]])
    arrays = {
        jax.tree_util.keystr(keys, simple=True, separator="/"): leaf
        for keys, leaf in jax.tree.leaves_with_path(params["model"])
    }
    arrays |= _bases(model)
    content = io.BytesIO()
    arrays |= {"fields": np.array(json.dumps(fields)), "references": references + shift}
    np.savez_compressed(content, **arrays)
    try:
        write_whole(path, content.getvalue())
    except OSError as error:
        raise ConvertError(f"{path} cannot be written: {error.strerror}") from error


def _refuse(run, what: str):
    raise ConvertError(f"the network of {run} has {what}, which mace cannot represent")


def _check(metadata: dict, run):
    if dispersion := Dispersion.of_run(metadata):
        _refuse(run, f"a dispersion beside it, {dispersion} (its labels were less that),")
    if metadata["model"] != "mace" or metadata["potential"] is None:
        raise ConvertError(f"{run} is not a potential of model=mace; only these can be exported")
    fields, potential = metadata["model_fields"], metadata["potential"]
    not_in_mace = {
        "latent charges (model.long_range)": potential.get("long_range"),
        "features of both parities (model.parity=true)": fields["parity"],
        "one layer, with a readout that is not linear (model.layers=1)": fields["layers"] < 2,
        "radial networks of one matrix (model.radial_layers=0)": not fields["radial_layers"],
        "atoms that have no energy without neighbours (it was trained with energies of isolated "
        "atoms)": potential.get("binds_within") is not None,
    }
    for what, found in not_in_mace.items():
        if found:
            _refuse(run, what)
    plain = models.MACE()
    for name in _NOT_EXPORTED:  # older runs lack some
        if fields.get(name, getattr(plain, name)) != getattr(plain, name):
            raise ConvertError(f"the network of {run} has model.{name}, which is not exported")
    if fields["distance_transform"] == "soft":
        raise ConvertError(f"the network of {run} has a soft transform, which is not exported")


def _bases(model: models.MACE) -> dict[str, np.ndarray]:
    """Return the maps of each product basis at sorted places."""
    bases = {}
    layers = model.basis_and_feature_irreps()
    for k, (irreps_basis, irreps_out) in enumerate(layers):
        kept = tuple(ir for _, ir in irreps_basis)
        if kept != tuple(e3nn.Irrep(l, (-1) ** l) for l in range(model.lmax + 1)):
            raise ConvertError(
                f"layer {k} mixes {irreps_basis} only, which mace cannot represent; a network of "
                "higher correlation has all of them"
            )
        for _, ir in irreps_out:
            for nu in range(1, model.correlation + 1):
                maps = our_maps(kept, ir, nu)
                bases[f"basis/{k}/{ir}/{nu}"] = symmetric_components(maps, nu, ir.dim)
    return bases
