"""The published networks of SevenNet, which are in the wheel of `sevenn`."""

import hashlib
import importlib.metadata
import os
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from eqfuse.convert.errors import ConvertError

VERSION = "0.13.0"
WHEEL = "9378f7df2b75fe83274483a5f804790ae1023dd22ddeb6a48c1a03de97e22620"
"""SHA-256 of sevenn-0.13.0-py3-none-any.whl."""
_FOLDER = "sevenn/pretrained_potentials/"
NETWORKS = {
    "7net-0": (
        f"{_FOLDER}SevenNet_0__11Jul2024/checkpoint_sevennet_0.pth",
        "7052cb42b7b3be42b40b97fa0d21077a48c54b5548948fc4dcf346629f813c36",
    ),
    "7net-0_22may2024": (
        f"{_FOLDER}SevenNet_0__22May2024/checkpoint_sevennet_0.pth",
        "5d389fafd512e6ae2830d74d0b66ffc49a55d3832653ff8e7bf7f1343013c1d1",
    ),
    "7net-l3i5": (
        f"{_FOLDER}SevenNet_l3i5/checkpoint_l3i5.pth",
        "a7ff190d41efe5b8317a03d20a468e4036a1a3e64e0b14fdbab64ac3f4bfc09d",
    ),
    "7net-mf-0": (
        f"{_FOLDER}SevenNet_MF_0/checkpoint_sevennet_mf_0.pth",
        "81791329b37d445f46b531578c182c41792d98c7814222c9e5dde276402225fd",
    ),
}
"""Path in the wheel, and SHA-256 of the file, by the name that sevenn gives the network."""


def sevennet_file(name: str, *, download: bool = True) -> Path:
    """Return the checkpoint of a published network.

    It is taken from an installed `sevenn`, of which nothing is imported, else from a copy that an
    earlier call has made, else from the wheel of `sevenn`, which pip downloads from the package
    index that it is configured for. All are checked by their hashes.

    Args:
      name: one of `NETWORKS`, in letters of either case.
      download: whether the wheel may be downloaded.
    Raises:
      ConvertError: an unknown name, a file that is nowhere, or one with another hash.
    """
    if name.lower() not in NETWORKS:
        raise ConvertError(
            f"{name} is no file, and no network of sevenn that is known here; these are "
            f"{', '.join(NETWORKS)}"
        )
    member, checksum = NETWORKS[name.lower()]
    copy = _cache() / f"{name.lower()}.pth"
    installed = _installed(member)
    if installed is not None:
        return _checked(installed, checksum)
    if not copy.exists():
        if not download:
            raise ConvertError(
                f"the network {name} is in the wheel of sevenn, which is not installed; "
                f"`eqfuse convert sevennet {name} RUN` downloads it"
            )
        _extract(member, copy)
    return _checked(copy, checksum)


def _installed(member: str) -> Path | None:
    """Return the file of an installed `sevenn`, or None."""
    try:
        path = Path(importlib.metadata.distribution("sevenn").locate_file(member))
    except importlib.metadata.PackageNotFoundError:
        return None
    return path if path.is_file() else None


def _cache() -> Path:
    default = Path.home() / ".cache"
    return Path(os.environ.get("XDG_CACHE_HOME") or default) / "eqfuse" / "sevennet"


def _checked(path: Path, checksum: str) -> Path:
    try:
        digest = hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError as error:
        raise ConvertError(f"{path} cannot be read: {error.strerror}") from error
    if digest != checksum:
        raise ConvertError(
            f"{path} has the SHA-256 {digest} and not {checksum}: it is damaged or of another "
            "version. Remove it and try again, or give a file that you trust instead of the name"
        )
    return path


def _extract(member: str, copy: Path):
    """Download the wheel by pip, which checks its hash, and copy one file out of it."""
    with tempfile.TemporaryDirectory() as folder:
        requirement = Path(folder) / "requirements.txt"
        requirement.write_text(f"sevenn=={VERSION} --hash=sha256:{WHEEL}\n", encoding="utf-8")
        print(f"download   sevenn {VERSION} (43 MB), by pip", file=sys.stderr, flush=True)
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
        command += ["--only-binary=:all:", "--require-hashes", "-d", folder, "-r", str(requirement)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        wheels = list(Path(folder).glob("*.whl"))
        if done.returncode or len(wheels) != 1:
            last = (done.stderr.strip() or "no message").splitlines()[-1]
            raise ConvertError(
                f"pip cannot download sevenn {VERSION} ({last}); install sevenn, or give the file "
                "of a checkpoint"
            )
        with zipfile.ZipFile(wheels[0]) as archive:
            data = archive.read(member)
    copy.parent.mkdir(parents=True, exist_ok=True)
    partial = copy.with_suffix(f".{os.getpid()}.part")
    partial.write_bytes(data)
    partial.replace(copy)
