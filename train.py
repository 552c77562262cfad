"""Train an equivariant potential: `python train.py --help`.

Without data it runs an example: a network learns the Tetris shapes, see `examples/tetris.py`.

    python train.py model=nequip layers=3
"""

import sys

from eqfuse.cli import main

OF_DATA = ("data", "heads.", "config=", "resume=", "start_from=", "seeds=", "-")
"""Beginnings of the arguments of which a run on molecules has one, and the example none."""

if __name__ == "__main__":
    arguments = [argument for argument in sys.argv[1:] if argument != "data=tetris"]
    if any(argument.startswith(OF_DATA) for argument in arguments):
        sys.exit(main(["train", *arguments]))
    from examples import tetris  # which imports JAX, for which --help does not wait

    sys.exit(tetris.main(arguments))
