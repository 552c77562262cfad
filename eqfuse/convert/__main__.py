"""`python -m eqfuse.convert`."""

import sys

from eqfuse.convert.command import main

sys.exit(main())
