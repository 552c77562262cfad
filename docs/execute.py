"""Execute the examples of a page, in order, in a folder of their own.

    python docs/execute.py docs/tutorials/train.md [--pictures]

Blocks of `bash` and `python` are executed; a failing command or an exception ends the execution.
Those of `bash not-executed` and `python not-executed` are not; `text` is output or a file.
Python blocks of a page share their names. A picture of a page follows a comment that names the file
that the page drew, as in `<!-- drawn: runs/first/parity.png -->`; with --pictures these files take
the place of the pictures in the repository.
"""

import argparse
import contextlib
import os
import re
import shutil
import stat
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
_BLOCK = re.compile(r"^```(bash|python)\n(.*?)^```", re.MULTILINE | re.DOTALL)
_PICTURE = re.compile(r"<!-- drawn: (\S+) -->\s*!\[[^]]*\]\(([^)]+)\)")


def execute(page: Path, folder: Path, given: dict | None = None, **variables: str) -> None:
    """Execute the blocks of a page in a folder.

    Args:
      page: a file of Markdown.
      folder: where they run and write.
      given: names that the first block of Python already has.
      variables: of the environment.
    Raises:
      RuntimeError: a command that fails, with its output, or a picture that was not drawn.
    """
    text = page.read_text(encoding="utf-8")
    variables = variables | {"PYTHONPATH": str(ROOT), "EQFUSE_REPOSITORY": str(ROOT)}
    environment = os.environ | variables
    environment["PATH"] = f"{_with_command(folder)}{os.pathsep}{environment['PATH']}"
    names = {"__name__": "__main__"} | (given or {})
    for language, block in _BLOCK.findall(text):
        if language == "python":
            with contextlib.chdir(folder), _variables(variables):
                exec(compile(block, str(page), "exec"), names)
            continue
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", block],
            cwd=folder,
            env=environment,
            capture_output=True,
            text=True,
        )
        if done.returncode:
            raise RuntimeError(f"{page.name}: {block}\n{done.stdout}\n{done.stderr}")
    for drawn, _ in _PICTURE.findall(text):
        if not (folder / drawn).is_file():
            raise RuntimeError(f"{page.name} did not draw {drawn}")


def keep_pictures(page: Path, folder: Path) -> None:
    """Copy the pictures that were drawn in a folder to where the page has them."""
    for drawn, link in _PICTURE.findall(page.read_text(encoding="utf-8")):
        shutil.copyfile(folder / drawn, page.parent / link)


@contextlib.contextmanager
def _variables(variables: dict[str, str]):
    before = dict(os.environ)
    os.environ.update(variables)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


def _with_command(folder: Path) -> Path:
    """Return a folder with the command `eqfuse` of this repository, installed or not."""
    commands = folder / ".commands"
    commands.mkdir(exist_ok=True)
    for name, arguments in (("eqfuse", "-m eqfuse"), ("python", "")):
        file = commands / name
        file.write_text(f'#!/bin/sh\nexec "{sys.executable}" {arguments} "$@"\n')
        file.chmod(file.stat().st_mode | stat.S_IXUSR)
    return commands


def main() -> None:
    """Execute a page, and keep its pictures where that is asked for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("page", type=Path)
    parser.add_argument("--pictures", action="store_true", help="keep the pictures that it draws")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        execute(options.page.resolve(), Path(folder))
        if options.pictures:
            keep_pictures(options.page.resolve(), Path(folder))


if __name__ == "__main__":
    main()
