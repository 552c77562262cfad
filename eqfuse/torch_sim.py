"""A trained network as a model of torch-sim, https://github.com/TorchSim/torch-sim.

    model = eqfuse.torch_sim.model("runs/first")
    torch_sim.integrate(system=atoms, model=model, ...)

It needs torch-sim: pip install "eqfuse[torchsim]".
"""

import itertools

import jax
import jax.numpy as jnp
import numpy as np

from eqfuse.data.samples import species_index
from eqfuse.inference.pairs import (
    is_valid,
    list_side_by_side,
    padded_pairs,
    room_for_edges,
    room_for_pairs,
)
from eqfuse.inference.predict import Network
from eqfuse.inference.program import Evaluated, program_of, strain_derivatives


def model(run, *, skin: float = 0.5, dtype: str | None = None, backend: str | None = None):
    """Return a `torch_sim.models.interface.ModelInterface` with energy, forces and stress.

    All systems of a state are computed in one call. Arrays go between torch and JAX by dlpack,
    without copies, on the device of JAX, to which states are moved. Lists of neighbours are made on
    the host, and kept until an atom has moved by half the skin.

    Args:
      run: the folder of a run, or a file of its network (.safetensors).
      skin: Å.
      dtype: "float64" or "float32", of the network; None for that of the run.
      backend: see `eqfuse.ops`.
    Raises:
      ImportError: torch-sim is not there.
      CheckpointError: no readable network.
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
        """A network of eqfuse; see `eqfuse.torch_sim.model`."""

        def __init__(self):
            super().__init__()
            self._evaluate = _Evaluation(Network(run, dtype=dtype, backend=backend), skin)
            self._device = torch.device("cuda" if jax.default_backend() == "gpu" else "cpu")
            self._dtype = getattr(torch, self._evaluate.network.dtype)
            self._compute_forces = self._compute_stress = True
            self._memory_scales_with = "n_atoms_x_density"

        def forward(self, state, **_) -> dict:
            """Return energy [n_systems] eV, forces [n_atoms, 3] and stress [n_systems, 3, 3].

            Raises:
              DataError: see `eqfuse.Calculator.calculate`.
            """
            if isinstance(state, dict):
                state = torch_sim.SimState(**state, masses=torch.ones_like(state["positions"]))
            state = state.to(self._device)
            shared = state.positions, state.row_vector_cell, state.system_idx
            with jax.enable_x64(True), jax.default_matmul_precision("highest"):
                arrays = [jnp.from_dlpack(array.detach().contiguous()) for array in shared]
                numbers, pbc = state.atomic_numbers.cpu().numpy(), np.asarray(state.pbc)
                results = self._evaluate(*arrays, numbers, np.broadcast_to(pbc, 3))
                jax.block_until_ready(results)
            names = "energy", "forces", "stress"
            tensors = (torch.from_dlpack(array).to(state.dtype) for array in results)
            return dict(zip(names, tensors, strict=True))

    return Model()


class _Evaluation:
    """Computes systems side by side, with a list of neighbours that is kept."""

    def __init__(self, network: Network, skin: float):
        self.network, self._skin = network, skin
        self._program = program_of(network._potential, network.cutoff, network.dtype)
        self._key, self._pairs, self._room, self._edges = None, None, 0, 0

    def __call__(self, positions, cells, index, numbers, pbc):
        """Return energies [n_systems], forces [n_atoms, 3] and stress, of arrays on the device."""
        network, index = self.network, index.astype(jnp.int32)
        positions, cells = positions.astype(jnp.float64), cells.astype(jnp.float64)
        cells = cells * jnp.asarray(pbc[:, None])
        self._list(*map(np.asarray, (positions, cells, index)), numbers, pbc)
        structure = positions, cells, index, self._species, np.int32(len(numbers))
        while True:
            done = self._program.compiled(
                network._params, self._pairs, *structure, size=self._edges
            )
            if int(done.num_edges) <= self._edges:
                references = network.references[self._species]
                return _results(done, cells, index, references)
            self._edges = room_for_edges(int(done.num_edges))

    def _list(self, positions, cells, index, numbers, pbc):
        """Make a list of neighbours where that of before does not hold all pairs."""
        cutoff, skin = self.network.cutoff, self._skin
        ends = np.searchsorted(index, np.arange(len(cells) + 1))
        own = [(positions[a:b], cells[k]) for k, (a, b) in enumerate(itertools.pairwise(ends))]
        key = numbers.tobytes(), index.tobytes(), pbc.tobytes()
        if key == self._key and all(
            is_valid(before, now, cutoff, skin)
            for before, now in zip(self._listed, own, strict=True)
        ):
            return
        *pairs, near = list_side_by_side(own, [pbc] * len(own), cutoff, skin)
        self._species = species_index(numbers, self.network.species)
        self._room = max(self._room, room_for_pairs(len(pairs[0])))
        self._edges = max(self._edges, room_for_edges(near))
        padded = padded_pairs(*pairs, len(positions), self._room)
        self._pairs, self._key = jax.device_put(padded), key
        self._listed = [(at.copy(), cell.copy()) for at, cell in own]


@jax.jit
def _results(done: Evaluated, cells, index, references):
    count = len(cells)
    energy = jax.ops.segment_sum(done.node_energy + references, index, count)
    volume = jnp.abs(jnp.linalg.det(cells))[:, None, None]
    stress = strain_derivatives(done, index, count) / jnp.where(volume > 0, volume, 1)
    return energy, done.forces, jnp.where(volume > 0, stress, 0)
