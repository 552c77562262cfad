"""Train an equivariant potential: `python train.py --help`."""

import sys

from eqfuse.training.main import main

if __name__ == "__main__":
    sys.exit(main())
