"""Write the commit that a wheel is built from into it, for `eqfuse --version`."""

import subprocess
import tempfile
from pathlib import Path

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class CustomBuildHook(BuildHookInterface):
    def initialize(self, version, build_data):
        """Add a file with the commit to a wheel that is built in a clone."""
        root = Path(self.root)
        if version == "editable" or not (root / ".git").exists():
            return
        command = ["git", "-C", str(root), "describe", "--always", "--dirty=-changed"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode == 0:
            self._folder = tempfile.TemporaryDirectory()
            file = Path(self._folder.name) / "built_from.txt"
            file.write_text(done.stdout, encoding="utf-8")
            build_data["force_include"][str(file)] = "eqfuse/built_from.txt"
