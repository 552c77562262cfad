"""Make small checkpoints of SevenNet with random weights, for the goldens of the tests.

    python scripts/sevennet_checkpoints.py FOLDER     # in an environment with sevenn
    python scripts/network_goldens.py sevennet FOLDER/NAME.pth NAME --python THAT_PYTHON

The first command writes FOLDER/NAME.pth, and NAME.pth.xz beside the goldens; the second one lets
sevenn evaluate them.
"""

import copy
import lzma
import sys
from pathlib import Path

import sevenn
import torch
from sevenn._const import DEFAULT_E3_EQUIVARIANT_MODEL_CONFIG
from sevenn.model_build import build_E3_equivariant_model

GOLDENS = Path(__file__).parents[1] / "tests" / "convert" / "goldens" / "networks"
COMMON = {
    "version": sevenn.__version__,
    "_number_of_species": 3,
    "_type_map": {8: 0, 1: 1, 6: 2},  # out of order, as files may have them
    "cutoff": 4.0,
    "shift": [-1.0, -2.0, -3.0],
    "radial_basis": {"radial_basis_name": "bessel", "bessel_basis_num": 5},
    "cutoff_function": {"cutoff_function_name": "poly_cut", "poly_cut_p_value": 6},
    "weight_nn_hidden_neurons": [8, 8],
    "is_parity": True,
    "use_modality": False,
}
NETWORKS = {
    "sevennet_both_parities": {
        "channel": 3,
        "lmax": 2,
        "conv_denominator": [4.0, 5.0, 6.0],
        "scale": [1.0, 2.0, 3.0],
        "use_bias_in_linear": True,
    },
    "sevennet_by_hand": {
        "channel": 6,
        "lmax": 2,
        "conv_denominator": 5.0,
        "scale": 1.5,
        "irreps_manual": ["8x0e", "8x0e+4x1o+2x2e", "6x0e+3x1o+2x2e", "7x0e"],
    },
}


def main(folder: str):
    Path(folder).mkdir(exist_ok=True)
    for name, settings in NETWORKS.items():
        torch.manual_seed(0)
        config = copy.deepcopy(DEFAULT_E3_EQUIVARIANT_MODEL_CONFIG | COMMON | settings)
        network = build_E3_equivariant_model(copy.deepcopy(config))
        with torch.no_grad():
            for key, parameter in network.named_parameters():
                if key.endswith("bias"):  # they begin as zero
                    parameter.normal_()
                # five binary digits, with which files are smaller
                mantissa, exponent = torch.frexp(parameter)
                parameter.copy_(torch.ldexp(torch.round(mantissa * 32) / 32, exponent))
        path = Path(folder) / f"{name}.pth"
        parts = {"optimizer_state_dict": {}, "scheduler_state_dict": {}, "epoch": 0}
        torch.save({"config": config, "model_state_dict": network.state_dict(), **parts}, path)
        data = lzma.compress(path.read_bytes(), preset=9)
        (GOLDENS / f"{path.name}.xz").write_bytes(data)
        print(f"{name}: {len(data) / 1000:.1f} kB")


if __name__ == "__main__":
    main(*sys.argv[1:])
