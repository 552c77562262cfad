"""Make small packages of nequip and nequip-allegro with random weights, for the tests' goldens.

    python scripts/nequip_packages.py FOLDER [NAMES]   # in an environment with nequip 0.7 or later
    python scripts/network_goldens.py nequip FOLDER/NAME.nequip.zip NAME --python THAT_PYTHON

The first command writes FOLDER/NAME.nequip.zip, and NAME.nequip.zip.xz beside the goldens, the same
without code; the second one lets nequip evaluate the first file.
"""

import io
import lzma
import sys
import zipfile
from pathlib import Path

import torch
import yaml
from e3nn.util.codegen import CodeGenMixin
from nequip.model import NequIPGNNModel
from nequip.scripts import _package_utils
from nequip.utils.global_state import set_global_state

GOLDENS = Path(__file__).parents[1] / "tests" / "convert" / "goldens" / "networks"
COMMON = {
    "seed": 1,
    "model_dtype": "float64",
    "r_max": 4.0,
    "type_names": ["O", "H", "C"],  # out of order, as files may have them
    "num_layers": 3,
    "l_max": 2,
    "avg_num_neighbors": 7.0,
    "per_type_energy_scales": {"H": 1.1, "C": 1.2, "O": 1.3},
    "per_type_energy_shifts": {"H": -1.0, "C": -2.0, "O": -3.0},
}
NEQUIP = {"num_bessels": 6, "radial_mlp_depth": 2, "radial_mlp_width": 8}
ALLEGRO = {
    "radial_chemical_embed": {
        "_target_": "allegro.nn.TwoBodyBesselScalarEmbed",
        "num_bessels": 5,
        "bessel_trainable": True,
    },
    "radial_chemical_embed_dim": 6,
    "scalar_embed_mlp_hidden_layers_width": 7,
    "num_scalar_features": 8,
    "num_tensor_features": 3,
    "allegro_mlp_hidden_layers_width": 9,
    "readout_mlp_hidden_layers_width": 5,
}
REPULSION = {
    "_target_": "nequip.nn.pair_potential.ZBL",
    "chemical_species": ["O", "H", "C"],
    "units": "metal",
}
LES = {"les_args": {"use_atomwise": False, "sigma": 1.1, "dl": 2.2}}
NETWORKS = {
    "nequip_charges": {"parity": False, "num_features": 4, "l_max": 1, "num_layers": 2, "LES": LES},
    "nequip_both_parities": {"parity": True, "num_features": 3, "bessel_trainable": True},
    "nequip_pair_cutoffs": {
        "parity": False,
        "num_features": [6, 4, 2],
        "type_embed_num_features": 5,
        "per_edge_type_cutoff": {"H": 2.5, "C": {"H": 3.0, "C": 3.8, "O": 3.3}, "O": 3.6},
        "readout_mlp_hidden_layers_depth": 1,
        "readout_mlp_hidden_layers_width": 7,
        "readout_mlp_nonlinearity": None,
    },
    "nequip_repulsion": {
        "parity": False,
        "num_features": 3,
        "l_max": 1,
        "num_layers": 2,
        "avg_num_neighbors": {"H": 5.0, "C": 7.0, "O": 9.0},
        "pair_potential": REPULSION,
    },
    "allegro_product": {
        "parity": True,
        "per_edge_type_cutoff": {"H": 2.5, "C": {"H": 3.0, "C": 3.8, "O": 3.3}, "O": 3.6},
        "allegro_mlp_nonlinearity": None,
    },
    "allegro_spline": {
        "parity": False,
        "num_layers": 2,
        "l_max": 1,
        "avg_num_neighbors": {"H": 5.0, "C": 7.0, "O": 9.0},
        "radial_chemical_embed": {
            "_target_": "allegro.nn.TwoBodySplineScalarEmbed",
            "num_splines": 6,
            "spline_span": 3,
        },
        "weight_individual_irreps": False,
        "tp_path_channel_coupling": False,
        "scalar_embed_mlp_hidden_layers_depth": 0,
        "allegro_mlp_hidden_layers_depth": 2,
        "pair_potential": REPULSION,
    },
}


def main(folder: str, *names: str):
    set_global_state()
    for name in names or NETWORKS:
        network = _network(name).eval()
        for weight in network.parameters():  # five binary digits, with which files are smaller
            mantissa, exponent = torch.frexp(weight.data)
            weight.data = torch.ldexp(torch.round(mantissa * 32) / 32, exponent)
        path = Path(folder) / f"{name}.nequip.zip"
        path.parent.mkdir(exist_ok=True)
        _package(network, path)
        kept = CodeGenMixin.__getstate__
        CodeGenMixin.__getstate__ = lambda module, kept=kept: kept(module) | {"__codegen__": {}}
        small = Path(folder) / f"{name}_without_code.nequip.zip"
        _package(network, small)
        CodeGenMixin.__getstate__ = kept
        data = lzma.compress(_without_code(small, name), preset=9)
        (GOLDENS / f"{name}.nequip.zip.xz").write_bytes(data)
        print(f"{name}: {len(data) / 1000:.1f} kB")


def _network(name: str):
    if "LES" in NETWORKS[name]:
        from nequip_les.model import LESModel  # with `les`, whose licence is another

        return LESModel(base_model="nequip", **COMMON | NEQUIP | NETWORKS[name])
    if not name.startswith("allegro"):
        return NequIPGNNModel(**COMMON | NEQUIP | NETWORKS[name])
    import allegro.model  # which not every environment has

    return allegro.model.AllegroModel(**COMMON | ALLEGRO | NETWORKS[name])


def _package(network, path: Path):
    """Write a network as nequip packages it."""
    with torch.package.PackageExporter(path) as exporter:
        for add, names in (
            (exporter.mock, _package_utils._MOCK_MODULES),
            (exporter.intern, _package_utils._INTERNAL_MODULES),
            (exporter.extern, _package_utils._EXTERNAL_MODULES),
        ):
            add([*names, *(f"{name}.**" for name in names)])
        exporter.intern(["nequip_les", "nequip_les.**"])
        exporter.extern(["les", "les.**"])
        networks = torch.nn.ModuleDict({"sole_model": network})
        exporter.save_pickle("model", "eager_model.pkl", networks)
        metadata = {"package_version_id": 2, "available_models": ["eager"]}
        exporter.save_text("model", "package_metadata.txt", yaml.dump(metadata))


def _without_code(path: Path, name: str) -> bytes:
    data = io.BytesIO()
    with zipfile.ZipFile(path) as archive, zipfile.ZipFile(data, "w") as out:
        for member in archive.namelist():
            if member.endswith((".storage", "/model/eager_model.pkl")):
                out.writestr(f"{name}/{member.split('/', 1)[1]}", archive.read(member))
    return data.getvalue()


if __name__ == "__main__":
    main(*sys.argv[1:])
