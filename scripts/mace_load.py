"""Make a network of mace-torch from what `eqfuse convert export RUN FILE.npz` wrote.

    python mace_load.py FILE.npz FILE.model [--dtype float64]

It needs mace-torch, torch and NumPy, and not eqfuse. The result is a whole module, as mace saves
it: `MACECalculator(model_paths="FILE.model")`, `mace_eval_configs` and further training read it.
The differences between the two programs, which are undone here, are listed in
`eqfuse/convert/mace_parameters.py`.
"""

import argparse
import itertools
import json
import math
import os

os.environ.setdefault("TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD", "1")  # mace's own import needs it

import numpy as np
import torch
from e3nn import o3
from mace import modules

INTERACTIONS = {
    (False, False): "RealAgnosticInteractionBlock",
    (True, False): "RealAgnosticResidualInteractionBlock",
    (False, True): "RealAgnosticDensityInteractionBlock",
    (True, True): "RealAgnosticDensityResidualInteractionBlock",
}


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file", help="the .npz file")
    parser.add_argument("model", help="the .model file to write")
    parser.add_argument("--dtype", choices=["float32", "float64"], help="that of the run if absent")
    options = parser.parse_args()
    network = load(options.file)
    dtype = options.dtype or fields_of(np.load(options.file))["dtype"]
    torch.save(network.to(getattr(torch, dtype)), options.model)


def fields_of(arrays) -> dict:
    """Return the settings in a file."""
    return json.loads(str(arrays["fields"]))


def load(path) -> modules.ScaleShiftMACE:
    """Return the network of a file, in float64."""
    arrays = np.load(path)
    fields = fields_of(arrays)
    torch.set_default_dtype(torch.float64)
    network = _network(fields, arrays["references"])
    with torch.no_grad():
        _fill(network, fields, arrays)
    return network


def _network(fields: dict, references) -> modules.ScaleShiftMACE:
    channels, density = fields["channels"], fields["density_normalization"]
    hidden = [(channels, (l, (-1) ** l)) for l in range(fields["hidden_lmax"] + 1)]
    kinds = [INTERACTIONS[residual, density] for residual in (fields["first_skip"], True)]
    first, then = (modules.interaction_classes[kind] for kind in kinds)
    return modules.ScaleShiftMACE(
        r_max=fields["cutoff"],
        num_bessel=fields["num_bessel"],
        num_polynomial_cutoff=fields["poly_power"],
        max_ell=fields["lmax"],
        interaction_cls=then,
        interaction_cls_first=first,
        num_interactions=fields["layers"],
        num_elements=len(fields["elements"]),
        hidden_irreps=o3.Irreps(hidden),
        MLP_irreps=o3.Irreps(f"{fields['readout_hidden']}x0e"),
        atomic_energies=references,
        avg_num_neighbors=fields["avg_num_neighbors"],
        atomic_numbers=fields["elements"],
        correlation=fields["correlation"],
        gate=torch.nn.functional.silu,
        radial_MLP=[fields["radial_hidden"]] * fields["radial_layers"],
        distance_transform="None" if fields["distance_transform"] is None else "Agnesi",
        pair_repulsion=fields["repulsion"] is not None,
        use_reduced_cg=False,
        atomic_inter_scale=fields["scale"],
        atomic_inter_shift=0.0,  # in the energies of the elements
    )


def _fill(network, fields: dict, arrays):
    _set_constants(network, fields)
    _set_linear(network.node_embedding.linear, [arrays["embedding"]], normalized=False)
    for k, (block, product) in enumerate(zip(network.interactions, network.products, strict=True)):
        layer = f"layer_{k}"
        _set_linear(block.linear_up, _matrices(arrays, f"{layer}/linear_up"))
        _set_convolution(block, k, fields, arrays)
        skip = _matrices(arrays, f"{layer}/skip") or _matrices(arrays, f"{layer}/species_linear")
        _set_species_linear(block.skip_tp, skip)
        if fields["density_normalization"]:
            [dense] = block.density_fn.children()
            dense.weight[:, 0] = torch.from_numpy(arrays[f"{layer}/density"])
        _set_product(product.symmetric_contractions, k, fields, arrays)
        _set_linear(product.linear, _matrices(arrays, f"{layer}/linear_down"))
        readout = network.readouts[k]
        if k < fields["layers"] - 1:
            _set_linear(readout.linear, _matrices(arrays, f"readout_{k}"))
            continue
        _set_linear(readout.linear_1, _matrices(arrays, f"readout_{k}/linear_in"))
        ratio = readout.non_linearity.acts[0].cst * fields["silu"]
        [out] = _matrices(arrays, f"readout_{k}/linear_out")
        _set_linear(readout.linear_2, [out / ratio])


def _matrices(arrays, name: str) -> list[np.ndarray]:
    """Return the matrices of a Linear, by irrep."""
    return [arrays[key] for key in sorted(arrays.files) if key.startswith(f"{name}/w[")]


def _set_constants(network, fields: dict):
    radii = network.radial_embedding
    if fields["distance_transform"] is not None:
        transform = radii.distance_transform
        for name, value in zip("qpa", fields["transform_constants"], strict=True):
            getattr(transform, name).fill_(value)
        if fields["covalent_radii"] is not None:
            transform.covalent_radii[fields["elements"]] = torch.tensor(fields["covalent_radii"])
    if fields["repulsion"] is not None:
        zbl, ours = network.pair_repulsion_fn, fields["repulsion"]
        zbl.p.fill_(ours["power"])
        zbl.a_exp = torch.tensor(ours["exponent"])
        zbl.a_prefactor = torch.tensor(ours["length"] / 0.529)
        # mace scales the repulsion with the rest, and has a constant of its own
        factor = ours["coulomb"] / (14.3996 * fields["scale"])
        zbl.c = torch.tensor(ours["coefficients"]) * factor
        zbl.covalent_radii[fields["elements"]] = torch.tensor(ours["covalent_radii"])


def _set_linear(linear, matrices, normalized: bool = True):
    views = list(linear.weight_views(linear.weight))
    for view, matrix, path in zip(views, matrices, linear.instructions, strict=True):
        rows = math.sqrt(len(matrix)) if normalized else 1.0
        view.copy_(torch.from_numpy(matrix / (rows * path.path_weight)))


def _set_species_linear(tp, matrices):
    """matrices: [elements, rows, columns] of each irrep; none for the identity."""
    views = list(tp.weight_views(tp.weight))
    for k, (view, path) in enumerate(zip(views, tp.instructions, strict=True)):
        ir, rows = tp.irreps_in1[path.i_in1].ir, view.shape[0]
        if matrices:
            matrix = np.moveaxis(matrices[k], 0, 1) / math.sqrt(rows)
        else:
            matrix = np.repeat(np.eye(rows)[:, None], view.shape[1], axis=1)
        view.copy_(torch.from_numpy(matrix * math.sqrt(ir.dim) / path.path_weight))


def _set_convolution(block, k: int, fields: dict, arrays):
    tp = block.conv_tp
    paths, at = [], 0
    for path in tp.instructions:
        mul, ir = tp.irreps_in1[path.i_in1].mul, tp.irreps_out[path.i_out].ir
        scale = path.path_weight / math.sqrt(ir.dim)
        paths.append((ir, path.i_in1, path.i_in2, path.i_out, at, mul, scale))
        at += mul
    paths.sort(key=lambda path: (path[0].l, path[1], path[2]))
    _set_radial(block.conv_tp_weights, k, fields, arrays, [(p[4], p[5]) for p in paths])
    division = fields["avg_num_neighbors"]
    whole = 1.0 if fields["density_normalization"] else 1 / math.sqrt(division)
    linear = block.linear
    views = {
        p.i_in: (view, p.path_weight)
        for p, view in zip(linear.instructions, linear.weight_views(linear.weight), strict=True)
    }
    for matrix, (_, group) in zip(
        _matrices(arrays, f"layer_{k}/linear_basis"),
        itertools.groupby(paths, key=lambda path: path[0].l),
        strict=True,
    ):
        start, matrix = 0, matrix / (whole * math.sqrt(len(matrix)))
        for _, _, _, out, _, mul, scale in group:
            view, weight = views[out]
            view.copy_(torch.from_numpy(matrix[start : start + mul] / (scale * weight)))
            start += mul


def _set_radial(net, k: int, fields: dict, arrays, places):
    columns = np.concatenate([start + np.arange(mul) for start, mul in places])
    ratio = 1.0
    layers = list(net.children())
    for number, dense in enumerate(layers):
        kernel = arrays[f"radial/layer_{k}/Dense_{number}/kernel"] / ratio
        if number == len(layers) - 1:
            theirs = np.empty_like(kernel)
            theirs[:, columns] = kernel
            kernel = theirs
        else:
            ratio = dense.act.cst * fields["silu"]
        dense.weight.copy_(torch.from_numpy(kernel))


def _set_product(module, k: int, fields: dict, arrays):
    weights = arrays[f"layer_{k}/contraction"]  # [elements, paths, channels]
    start = 0
    for part, (_, ir) in zip(module.contractions, module.irreps_out, strict=True):
        for nu in range(1, fields["correlation"] + 1):
            basis = arrays[f"basis/{k}/{ir}/{nu}"]  # [components, paths]
            count = basis.shape[1]
            ours, start = weights[:, start : start + count], start + count
            target = part.weights_max
            if nu < fields["correlation"]:
                target = part.weights[fields["correlation"] - 1 - nu]
            if count == 0:
                target.zero_()
                continue
            theirs = _symmetric(part.U_tensors(nu).numpy(), nu, ir.dim)
            change, *_ = np.linalg.lstsq(basis, theirs, rcond=None)  # [paths, mace's paths]
            result = np.einsum("kp,spu->sku", np.linalg.pinv(change), ours)
            target.copy_(torch.from_numpy(result))


def _symmetric(maps: np.ndarray, degree: int, dim: int) -> np.ndarray:
    """Return the symmetric part of mace's maps, [sorted places x dim, maps]."""
    size = round((maps.size / maps.shape[-1] / dim) ** (1 / degree))
    maps = np.moveaxis(maps.reshape(dim, *[size] * degree, -1), 0, -1)
    places = np.array(list(itertools.combinations_with_replacement(range(size), degree)))
    turns = list(itertools.permutations(range(degree)))
    result = sum(maps[tuple(places[:, turn].T)] for turn in turns) / len(turns)
    return np.moveaxis(result, 2, 1).reshape(len(places) * dim, -1)


if __name__ == "__main__":
    main()
