"""Evaluate structures with the program that a network comes from; needs that program, not eqfuse.

    python network_original.py PROGRAM FILE STRUCTURES.npz RESULTS.npz [HEAD OR FIDELITY]

`scripts/network_goldens.py` makes the goldens of the tests with it. Everything is in float64;
couplings that a file keeps in float32 are computed anew where the program can.
"""

import math
import os
import sys
import warnings

if __name__ == "__main__":  # or the files beside this one would be imported for the programs
    sys.path = [path for path in sys.path if path != os.path.dirname(os.path.abspath(__file__))]

import numpy as np

NO_STRESS = np.full((3, 3), np.nan)
os.environ.setdefault("TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD", "1")  # mace's own import needs it


def main(program: str, file: str, structures: str, results: str, choice: str | None = None):
    """Write energy (eV), forces (eV/Å) and stress (eV/Å^3; NaN where there is none) of each."""
    warnings.simplefilter("ignore")
    evaluate, version = PROGRAMS[program](file, choice)
    outputs = {"version": version}
    with np.load(structures) as given:
        for k in range(int(given["count"])):
            names = ("numbers", "positions", "cell", "pbc")
            result = evaluate(*(given[f"{k}_{name}"] for name in names))
            outputs |= {f"{k}_{name}": np.asarray(value) for name, value in result.items()}
    np.savez(results, **outputs)


def mace(file, choice):
    import ase
    import mace
    import torch
    from mace import data
    from mace.tools import AtomicNumberTable, torch_geometric

    torch.set_default_dtype(torch.float64)
    network = torch.load(file, map_location="cpu", weights_only=False).double().eval()
    _exact_couplings(network)
    basis = network.radial_embedding.bessel_fn
    table = AtomicNumberTable([int(z) for z in network.atomic_numbers])
    r_max = float(network.r_max)
    exact = torch.arange(1, len(basis.bessel_weights) + 1) * (math.pi / r_max)
    if abs(exact / basis.bessel_weights - 1).max() < 1e-6:
        basis.bessel_weights.data.copy_(exact)
        basis.prefactor.copy_(torch.tensor(math.sqrt(2 / r_max)))
    for product in network.products:
        _exact_products(product.symmetric_contractions)
    heads = list(getattr(network, "heads", ["Default"]))

    def evaluate(numbers, positions, cell, pbc):
        atoms = ase.Atoms(numbers, positions, cell=cell, pbc=pbc)
        config = data.config_from_atoms(atoms, head_name=choice or heads[0])
        made = data.AtomicData.from_config(config, z_table=table, cutoff=r_max, heads=heads)
        loader = torch_geometric.dataloader.DataLoader([made], batch_size=1)
        out = network(next(iter(loader)).to_dict(), compute_stress=True)
        stress = out["stress"].detach().numpy()[0] if pbc.all() else NO_STRESS
        forces = out["forces"].detach().numpy()
        return {"energy": out["energy"].item(), "forces": forces, "stress": stress}

    return evaluate, f"mace-torch {mace.__version__}"


def _exact_products(contraction):
    """Replace the couplings of a symmetric contraction of mace that were rounded to float32."""
    import torch
    from e3nn import o3
    from mace.tools.cg import U_matrix_real

    irreps_in = o3.Irreps([ir for _, ir in contraction.irreps_in])
    for part, (_, ir) in zip(contraction.contractions, contraction.irreps_out, strict=True):
        for name, buffer in part.named_buffers(recurse=False):
            if name.startswith("U_matrix_"):
                degree = int(name.removeprefix("U_matrix_"))
                options = {"correlation": degree, "dtype": torch.float64}
                exact = U_matrix_real(irreps_in, o3.Irreps([(1, ir)]), **options)[-1]
                if exact.shape == buffer.shape and abs(exact - buffer).max() < 1e-5:
                    buffer.copy_(exact)


def sevennet(file, choice):
    import sevenn
    import sevenn.util
    import torch
    from sevenn.calculator import SevenNetCalculator
    from sevenn.nn.node_embedding import OnehotEmbedding

    made_single, convert = OnehotEmbedding.forward, sevenn.util.dtype_correct

    def one_hot(self, data):
        data = made_single(self, data)
        for key in (self.key_output, self.key_additional_output):
            if key is not None:
                data[key] = data[key].double()
        return data

    OnehotEmbedding.forward = one_hot
    sevenn.util.dtype_correct = lambda value, *_, **__: convert(value, torch.float64, torch.int64)
    options = {"modal": choice} if choice else {}
    calculator = SevenNetCalculator(file, device="cpu", **options)
    network = sevenn.util.load_checkpoint(file).build_model().double()
    network.set_is_batch_data(False)
    network.eval()
    _exact_couplings(network)
    calculator.model = network
    return _evaluation(calculator), f"sevenn {sevenn.__version__}"


def _evaluation(calculator):
    import ase
    from ase.stress import voigt_6_to_full_3x3_stress

    def evaluate(numbers, positions, cell, pbc):
        atoms = ase.Atoms(numbers, positions, cell=cell, pbc=pbc, calculator=calculator)
        result = {"energy": atoms.get_potential_energy(), "forces": atoms.get_forces()}
        stress = voigt_6_to_full_3x3_stress(atoms.get_stress()) if pbc.all() else NO_STRESS
        return result | {"stress": stress}

    return evaluate


def nequix(file, choice):
    import importlib.metadata

    import ase
    import equinox
    import jax
    import jraph
    import nequix.model
    from nequix.data import atomic_numbers_to_indices, dict_to_graphstuple, preprocess_graph

    network, config = nequix.model.load_model(file)
    jax.config.update("jax_enable_x64", True)

    network = jax.tree.map(lambda a: a.astype("float64") if hasattr(a, "astype") else a, network)
    compute = equinox.filter_jit(network)
    indices = atomic_numbers_to_indices(config["atomic_numbers"])

    def evaluate(numbers, positions, cell, pbc):
        atoms = ase.Atoms(numbers, positions, cell=cell, pbc=pbc)
        graph = preprocess_graph(atoms, indices, config["cutoff"], targets=False)
        graph["positions"] = np.asarray(positions, np.float64)
        graph["shifts"] = graph["shifts"].astype(np.float64)
        if graph["cell"] is not None:
            graph["cell"] = np.asarray(cell, np.float64)
        sizes = len(numbers) + 1, len(graph["senders"]) + 1
        padded = jraph.pad_with_graphs(dict_to_graphstuple(graph), *sizes, n_graph=2)
        energy, forces, stress = compute(jax.tree.map(jax.numpy.asarray, padded))
        return {
            "energy": float(energy[0]),
            "forces": forces[: len(numbers)],
            "stress": NO_STRESS if stress is None else stress[0],
        }

    return evaluate, f"nequix {importlib.metadata.version('nequix')}"


def nequip(file, choice):
    import importlib.metadata

    import torch
    from nequip.data.transforms import ChemicalSpeciesToAtomTypeMapper, NeighborListTransform
    from nequip.integrations.ase import NequIPCalculator
    from nequip.model import ModelFromPackage
    from nequip.utils.global_state import set_global_state

    set_global_state()
    network = ModelFromPackage(file)
    if isinstance(network, torch.nn.ModuleDict):  # the networks of a training, by name
        [network] = network.values()
    network = network.eval()
    parts = network.model.func
    names, r_max = list(parts.per_type_energy_scale_shift.type_names), float(parts.edge_norm.r_max)
    transforms = [ChemicalSpeciesToAtomTypeMapper(names), NeighborListTransform(r_max=r_max)]
    calculator = NequIPCalculator(network, torch.device("cpu"), transforms=transforms)
    return _evaluation(calculator), f"nequip {importlib.metadata.version('nequip')}"


def _exact_couplings(network):
    """Replace couplings that were rounded to float32."""
    rounded = [(n, b) for n, b in network.named_buffers() if "_w3j_" in n]
    try:
        from e3nn import o3
    except ImportError:
        return
    import torch

    for name, buffer in rounded:
        degrees = [int(l) for l in name.split("_w3j_")[1].split("_")]
        exact = o3.wigner_3j(*degrees, dtype=torch.float64)
        if abs(exact - buffer).max() < 1e-6:
            buffer.copy_(exact)


PROGRAMS = {"mace": mace, "sevennet": sevennet, "nequix": nequix, "nequip": nequip}

if __name__ == "__main__":
    main(*sys.argv[1:])
