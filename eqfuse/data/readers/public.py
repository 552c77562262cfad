"""Public data sets of molecules, downloaded when they are asked for.

3BPA: Kovács et al. 2021, doi:10.1021/acs.jctc.1c00647. AcAc: Batatia et al. 2022,
arXiv:2205.06643. rMD17: Christensen and von Lilienfeld 2020, doi:10.1088/2632-2153/abba6f. MD22:
Chmiela et al. 2023, doi:10.1126/sciadv.adf0873.

The SHA-256 of 3BPA and AcAc are those of copies that were trained on, the MD5 of rMD17 those that
figshare gives. Of MD22 and of the test sets no checksum is published.
"""

import contextlib
import logging
import os
import sys
from pathlib import Path
from typing import NamedTuple

from eqfuse.data.structures import DataError


class RemoteFile(NamedTuple):
    """A file on the network."""

    name: str  # of the local copy
    url: str
    checksum: str | None = None  # "sha256:..." or "md5:...", if it is known


_BOTNET = (
    "https://raw.githubusercontent.com/davkovacs/BOTNet-datasets/"
    "4a5ea06c3f514f24164428823ba1f5e2d2233b58/"
)
_FIGSHARE = "https://ndownloader.figshare.com/files/"
_MD22 = "https://www.quantum-machine.org/gdml/repo/datasets/"


def _botnet(folder: str, files: dict[str, str | None]) -> dict[str, RemoteFile]:
    return {
        name: RemoteFile(name, f"{_BOTNET}{folder}/{name}", digest and f"sha256:{digest}")
        for name, digest in files.items()
    }


PUBLIC: dict[str, dict[str, RemoteFile]] = {
    "3bpa": _botnet(
        "dataset_3BPA",
        {
            "train_300K.xyz": "d109971fab90e2231ad931a83eb704c8d940f5c7d7a8de27fe3b84ea18634c0a",
            "iso_atoms.xyz": "e12a2465a2612bf38fd5dabdf64d4b57fc58ce9610a858c54ea1142d517c053f",
            "test_300K.xyz": None,
            "test_600K.xyz": None,
            "test_1200K.xyz": None,
            "test_dih.xyz": None,
        },
    ),
    "acac": _botnet(
        "dataset_acac",
        {
            "train_300K.xyz": "8f5706d6902360555a5be59395612d2afc3489a75688388a58e7275fdad68af3",
            "isolated_atoms.xyz": (
                "b74f321b453374621b447d65c60979f70df1b7182c8ee0215388b2c574f33823"
            ),
            "test_dihedral.xyz": None,
            "test_H_transfer.xyz": None,
        },
    ),
    "rmd17": {
        name: RemoteFile(name, f"{_FIGSHARE}{number}", f"md5:{digest}")
        for name, (number, digest) in {
            "rmd17_aspirin.npz": (62265757, "17fd6fb69066888613f7e16b358a7553"),
            "rmd17_azobenzene.npz": (62265754, "be79df918468eb3579aa73a0becf7390"),
            "rmd17_benzene.npz": (62265739, "18c9242bc90fbf28215f6dd81e650f16"),
            "rmd17_ethanol.npz": (62265733, "eb837fb8deb27d4e0d52f71a03aff776"),
            "rmd17_malonaldehyde.npz": (62265736, "cdc1d70c0c34062ddde6e5071eb6fe21"),
            "rmd17_naphthalene.npz": (62265751, "0efba19c9907e3852318b1e6008b3b9e"),
            "rmd17_paracetamol.npz": (62265760, "ba10784f7b67635427085f6d7ec2dd97"),
            "rmd17_salicylic.npz": (62265748, "900fedf242da438400fa4293348d7dd1"),
            "rmd17_toluene.npz": (62265742, "0f2913d51f8149c90ab28d697a076f64"),
            "rmd17_uracil.npz": (62265745, "992a4479c28a07e0cce6da964805be31"),
            "index_train_01.csv": (62265793, "22264dcf2e42d6133362411abbbe4ce8"),
            "index_test_01.csv": (62265781, "124c8a0849e84e244d6ce8424e1c05cf"),
        }.items()
    },
    "md22": {
        name: RemoteFile(name, _MD22 + name)
        for name in (
            "md22_Ac-Ala3-NHMe.npz",
            "md22_DHA.npz",
            "md22_stachyose.npz",
            "md22_AT-AT.npz",
            "md22_AT-AT-CG-CG.npz",
            "md22_buckyball-catcher.npz",
            "md22_double-walled_nanotube.npz",
        )
    },
}
"""Files by set and name."""


def default_folder() -> Path:
    """Return the folder of downloads: `$XDG_CACHE_HOME/eqfuse`, or `~/.cache/eqfuse`."""
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(cache) / "eqfuse"


def fetch_public(name: str, file: str, folder: str | os.PathLike | None = None) -> Path:
    """Return the local copy of a file of a public set, downloaded once.

    Args:
      name: a key of `PUBLIC`, such as "3bpa".
      file: one of its files, such as "test_600K.xyz".
      folder: where to keep it; None for `default_folder`.
    Returns:
      its path.
    Raises:
      DataError: an unknown set or file, no network, another checksum (none is published for MD22
        and the test files of 3BPA and AcAc).
    """
    files = PUBLIC.get(name)
    if files is None or file not in files:
        known = ", ".join(files or PUBLIC)
        raise DataError(f"there is no public file {name}/{file}; choose from: {known}")
    parent = Path(folder) if folder is not None else default_folder()
    if folder is None:  # the cache of kernels, beside it, must not be writable by others
        with contextlib.suppress(OSError):  # `fetch` reports the error
            parent.parent.mkdir(parents=True, exist_ok=True)
            parent.mkdir(mode=0o700)
    return fetch(files[file], parent / name)


def fetch(remote: RemoteFile, folder: Path) -> Path:
    """Return the whole, checked copy of a file in a folder, downloaded if it is not there yet."""
    import pooch  # imported here, since it takes 0.3 s and most runs download nothing
    import requests

    path = Path(folder) / remote.name
    files = {"registry": {remote.name: remote.checksum}, "urls": {remote.name: remote.url}}
    try:
        if path.exists():
            if remote.checksum and not pooch.hashes.hash_matches(path, remote.checksum):
                raise ValueError  # it may be the user's own, and is not replaced
            return path
        pooch.get_logger().setLevel(logging.ERROR)
        print(f"download   {remote.url}", file=sys.stderr, flush=True)
        client = pooch.create(path.parent, base_url="", retry_if_failed=2, **files)
        downloader = pooch.HTTPDownloader(progressbar=sys.stderr.isatty())
        client.fetch(remote.name, downloader=downloader)
    except requests.RequestException as error:
        raise DataError(
            f"{remote.url} cannot be downloaded: {error}. Download it where there is a network, "
            f"and put it at {path} or give data=FILE"
        ) from error
    except ValueError as error:
        raise DataError(
            f"{path}, of {remote.url}, does not have the checksum {remote.checksum}: it is damaged "
            "or has changed. Remove it and try again, or train on a file that you trust by "
            "data=FILE"
        ) from error
    except OSError as error:
        reason = os.strerror(error.errno) if error.errno else error
        raise DataError(f"{path} cannot be read or written: {reason}") from error
    return path
