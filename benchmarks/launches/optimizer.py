"""What an optimizer does of a training step, alone: launches, and a prediction of their time.

    python -m benchmarks.launches.optimizer
    python -m benchmarks.launches optimizer [NAME ...] --account

Gradient to parameters and their average, for the networks of `benchmarks.launches.models`: Adam,
and optax's Muon as `train.py` has it, on matrices of equal shapes together.
"""

import argparse
import functools

import jax
import optax

from benchmarks import launches
from benchmarks.gpu.steps import MODELS, potential_of, shapes_of, shapes_of_batch
from benchmarks.predictions import steps
from benchmarks.predictions.devices import DEVICES
from eqfuse.train import step
from eqfuse.train.flat import Flat
from eqfuse.train.optimizer import muon

SIDES = ("Adam", "Muon")


def update_of(name: str, side: str):
    """Return the update of a network's parameters, and the shapes of its arguments."""
    shapes = shapes_of(potential_of(name, "xla"), shapes_of_batch(135, 2_700))
    flat = Flat.of(shapes)
    found = {
        "Adam": lambda: optax.chain(optax.scale_by_adam(), optax.scale(-1.0)),
        "Muon": lambda: muon(flat),
    }[side]()

    def update(state, gradient):
        return step.apply_gradient(state, gradient, 0.003, found, 0.99)

    params = jax.ShapeDtypeStruct((flat.size,), flat.dtype)
    state = jax.eval_shape(lambda p: step.init_state(p, found), params)
    return update, (state, params)


CASES = {
    f"{name}, {side}": functools.partial(update_of, name, side) for name in MODELS for side in SIDES
}


def main() -> None:
    """Print a table in Markdown; its times are predicted, not measured."""
    [device] = (d for d in DEVICES if d.name.startswith("H100"))
    print(f"| update, {device.name} | launches | predicted, µs |\n|---|---|---|")
    for name, case in CASES.items():
        compiled = launches.compiled(*case())
        seconds = sum(item.seconds for item in steps.items(compiled.text, None, device))
        print(f"| {name} | {compiled.launches.launches} | {1e6 * seconds:.0f} |", flush=True)


if __name__ == "__main__":
    argparse.ArgumentParser(description=__doc__.partition("\n")[0]).parse_args()
    main()
