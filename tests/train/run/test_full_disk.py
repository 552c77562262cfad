"""A disk that is full ends a run with one line, and loses nothing."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[3]


def test_a_checkpoint_that_fails_at_any_byte_leaves_the_one_before(tmp_path):
    program = Path(__file__).with_name("full_disk_program.py")
    result = subprocess.run(
        [sys.executable, program, tmp_path],
        env={**os.environ, "PYTHONPATH": str(ROOT), "JAX_PLATFORMS": "cpu"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert result.returncode == 0, result.stderr[-3000:]
    assert "full disk ok" in result.stdout
