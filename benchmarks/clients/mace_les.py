"""Compare a converted MACELES with mace-torch and `les`, in float64, and separate the causes.

    python -m benchmarks.clients.mace_les FILE FRAMES [--index :4]

It needs mace-torch, torch and `les` (whose licence is CC BY-NC; nothing of it is in this package).
FILE is a network of `torch.save`, FRAMES what ASE reads. Networks are trained in float32, and
mace-torch casts its file to float64 with all that was rounded when the file was written: couplings
(U_matrix) and constants of the radial basis besides the weights. Here they are computed again in
float64 on the side of mace-torch, as the conversion has them, and radial functions are networks
or tables on ours.
"""

import os

os.environ.setdefault("TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD", "1")  # mace's own import needs it

import argparse
import math
import tempfile
from pathlib import Path

import ase.io
import mace.modules.models
import numpy as np
import torch
from e3nn import o3
from mace.calculators import MACECalculator
from mace.modules.extensions import MACELES
from mace.modules.symmetric_contraction import U_matrix_real

import eqfuse
from eqfuse.convert import convert

NEAR = 1e-5
"""Largest change of a number by what float32 had rounded."""


def unrounded(network):
    """Compute again in float64 what a file of float32 has rounded besides its weights."""
    basis = network.radial_embedding.bessel_fn
    r_max = float(basis.r_max)
    numbers = torch.arange(1, len(basis.bessel_weights) + 1, dtype=torch.float64)
    _replace(basis.bessel_weights, numbers * math.pi / r_max)
    _replace(basis.prefactor, torch.tensor(math.sqrt(2 / r_max), dtype=torch.float64))
    for product in network.products:
        contractions = product.symmetric_contractions
        for (_, ir), part in zip(contractions.irreps_out, contractions.contractions, strict=True):
            for order in range(1, part.correlation + 1):
                out = o3.Irreps([(1, ir)])
                *_, found = U_matrix_real(part.coupling_irreps, out, order, dtype=torch.float64)
                _replace(part.U_tensors(order), found)
    for name, buffer in network.named_buffers():
        if "_w3j_" in name:
            _replace(buffer, o3.wigner_3j(*map(int, name.split("_")[-3:]), dtype=torch.float64))


def _replace(old, new):
    if (change := (old - new.reshape(old.shape)).abs().max()) > NEAR:
        raise ValueError(f"{change:.1e} is no rounding")
    with torch.no_grad():
        old.copy_(new.reshape(old.shape))


def results(calculator, frames):
    """Return energies, eV, and forces, eV/Å."""
    energies, forces = [], []
    calculator.reset()  # what it remembers of a frame is of the network before a change
    for frame in frames:
        atoms = frame.copy()
        atoms.calc = calculator
        energies.append(atoms.get_potential_energy())
        forces.append(atoms.get_forces())
    return np.array(energies), np.concatenate(forces)


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("file")
    parser.add_argument("frames")
    parser.add_argument("--index", default=":4")
    args = parser.parse_args()
    frames = ase.io.read(args.frames, args.index)
    torch.set_default_dtype(torch.float64)
    mace.modules.models.MACELES = MACELES  # the name in files of the program that had it first
    theirs = MACECalculator(model_paths=args.file, device="cpu", default_dtype="float64")
    sides = {"its file": results(theirs, frames)}
    unrounded(theirs.models[0])
    sides["its file, constants in float64"] = results(theirs, frames)
    with tempfile.TemporaryDirectory() as folder:
        other = Path(folder) / "unrounded.model"
        torch.save(theirs.models[0], other)
        files = (("the file", args.file, "network"), ("the file", args.file, "auto"))
        for name, file, radial in (*files, ("what is unrounded", other, "network")):
            run = Path(folder) / f"{Path(file).stem}-{radial}"
            convert("mace", file, run)
            energies, forces = results(
                eqfuse.Calculator(run, dtype="float64", radial=radial), frames
            )
            for side, (e, f) in sides.items():
                print(
                    f"{name} converted, radial={radial}; mace-torch with {side}: energies differ "
                    f"by {np.abs(energies / e - 1).max():.1e} of themselves, forces by "
                    f"{np.abs(forces - f).max():.1e} eV/Å of {np.abs(f).max():.3g}"
                )


if __name__ == "__main__":
    main()
