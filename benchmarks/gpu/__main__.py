"""Run `python -m benchmarks.gpu [name=value ...]`; `--help` lists the settings."""

import sys

from benchmarks.gpu.command import main

if __name__ == "__main__":
    sys.exit(main())
