"""Train an equivariant potential: `python train.py --help`."""

import sys

from eqfuse.train.main import main

if __name__ == "__main__":
    sys.exit(main())
