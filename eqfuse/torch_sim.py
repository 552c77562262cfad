"""A trained network as a model of torch-sim, https://github.com/TorchSim/torch-sim.

    model = eqfuse.torch_sim.model("runs/first")
    torch_sim.integrate(system=atoms, model=model, ...)

It needs torch-sim: pip install "eqfuse[torchsim]".
"""

import jax
import numpy as np

from eqfuse.inference import Evaluator, Network, Placed


def model(
    run,
    *,
    skin: float = 0.5,
    dtype: str | None = None,
    backend: str | None = None,
    dispersion: str | None = None,
):
    """Return a `torch_sim.models.interface.ModelInterface` with energy, forces and stress.

    All systems of a state are computed in one call on the device of JAX, to which states are moved.
    Lists of neighbours are made on the host, and kept until an atom has moved by half the skin.

    Args:
      run: the folder of a run, or a file of its network (.safetensors).
      skin: Å.
      dtype: "float64" or "float32", of the network; None for that of the run.
      backend: see `eqfuse.ops`.
      dispersion: see `eqfuse.Calculator`.
    Raises:
      ImportError: torch-sim is not there.
      CheckpointError: no readable network.
      ConfigError: a network with latent charges.
    """
    try:
        import torch
        import torch_sim
        from torch_sim.models.interface import ModelInterface
    except ImportError as error:
        raise ImportError(
            'eqfuse.torch_sim needs torch-sim: pip install "eqfuse[torchsim]"'
        ) from error

    class Model(ModelInterface):
        def __init__(self):
            super().__init__()
            network = Network(run, dtype=dtype, backend=backend, dispersion=dispersion)
            network.require("eqfuse.torch_sim", dispersion=True)
            self._evaluator = Evaluator(network, skin)
            self._device = torch.device("cuda" if jax.default_backend() == "gpu" else "cpu")
            self._dtype = getattr(torch, network.dtype)
            self._compute_forces = self._compute_stress = True
            self._memory_scales_with = "n_atoms_x_density"

        def forward(self, state, **_) -> dict:
            """Return energy [n_systems] eV, forces [n_atoms, 3] and stress [n_systems, 3, 3]."""
            if isinstance(state, dict):
                state = torch_sim.SimState(**state, masses=torch.ones_like(state["positions"]))
            state = state.to(self._device)
            shared = state.positions, state.row_vector_cell, state.system_idx, state.atomic_numbers
            positions, cells, index, numbers = (a.detach().cpu().numpy() for a in shared)
            pbc = np.array(np.broadcast_to(np.asarray(state.pbc), 3))
            positions, cells = positions.astype(np.float64), cells * pbc[:, None]
            ends = np.searchsorted(index, np.arange(1, len(cells)))
            parts = zip(np.split(numbers, ends), np.split(positions, ends), cells, strict=True)
            structures = [Placed(*part, pbc) for part in parts]
            energies, forces, strain, references, _ = self._evaluator(structures)
            energies = np.bincount(index, energies + references, len(cells))
            if (dispersion := self._evaluator.network.dispersion) is not None:
                more = [dispersion.of(one) for one in structures]
                energies = energies + [one.energy for one in more]
                forces = forces + np.concatenate([one.forces for one in more])
                strain = strain + [one.strain for one in more]
            volumes = np.abs(np.linalg.det(cells))[:, None, None]
            results = {
                "energy": energies,
                "forces": forces,
                "stress": np.divide(strain, volumes, out=np.zeros_like(strain), where=volumes > 0),
            }
            return {
                name: torch.from_numpy(array).to(self._device, state.dtype)
                for name, array in results.items()
            }

    return Model()
