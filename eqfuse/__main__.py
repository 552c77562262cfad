"""The command `eqfuse` where its script is not on the path: `python -m eqfuse`."""

import sys

from eqfuse.cli import main

sys.exit(main())
