"""Write reference/networks.md from the registry of published networks.

python docs/networks.py            # write it
python docs/networks.py --check    # fail where it is not what would be written
"""

import argparse
import sys
from pathlib import Path

from eqfuse.convert.registry import Published, published

PAGE = Path(__file__).parent / "reference" / "networks.md"
_HEAD = """\
# Published networks

<!-- written by docs/networks.py -->

`eqfuse convert NAME RUN` writes one of these networks as a run. It takes the file from the
program's package, or from where that program keeps its downloads, or names the file to fetch.
What a wheel holds is downloaded from your package index. The licence is that of the weights.
*Verified*: conversions were compared with the program on these very weights, the others on
random ones. Files with a published checksum are checked before they are read.

| name | program | elements | file | licence | cite | verified |
|---|---|---|---|---|---|---|
"""


def row(network: Published) -> str:
    """Return the row of a network."""
    wheel = network.in_wheel and f"wheel of {network.package['name']} {network.package['version']}"
    name = f"`{network.name}`" + (f" ({network.choices})" if network.choices else "")
    cells = [
        name,
        network.program,
        str(network.elements or "not given"),
        wheel or f"[{network.url.rpartition('/')[2]}]({network.url})",
        network.licence,
        network.citation,
        "yes" if network.verified else "no",
    ]
    return f"| {' | '.join(cells)} |\n"


def page() -> str:
    """Return the page."""
    return _HEAD + "".join(map(row, published().values()))


def main() -> None:
    """Write the page, or compare it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true")
    if not parser.parse_args().check:
        PAGE.write_text(page(), encoding="utf-8")
    elif PAGE.read_text(encoding="utf-8") != page():
        sys.exit(f"{PAGE} is out of date; run python docs/networks.py")


if __name__ == "__main__":
    main()
