"""Time training steps of the three models on this CPU against e3nn-jax.

    python -m benchmarks.steps [--threads 2 4] [--only TEXT] [--keep-memory] [--json FILE]

A step is the gradient of a loss on energies and forces; 3 layers, 64 channels, l <= 2, batches of
5, 37 and 111 molecules of 27 atoms. Options and columns: `benchmarks.cpu_timing`.
"""

from benchmarks import cpu_timing
from benchmarks.networks import training_step

MODELS = ("NequIP", "Allegro", "MACE")
CASES = {
    f"{title}, {27 * count} atoms": (
        lambda title=title, count=count: training_step(
            title.lower(), num_molecules=count, counted=count == 5
        )
    )
    for count in (5, 37, 111)
    for title in MODELS
}

if __name__ == "__main__":
    cpu_timing.main("benchmarks.steps", CASES, __doc__)
