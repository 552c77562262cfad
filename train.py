"""Train an equivariant potential: `python train.py --help`."""

import sys

from eqfuse.cli import main

if __name__ == "__main__":
    sys.exit(main(["train", *sys.argv[1:]]))
