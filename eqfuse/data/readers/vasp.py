"""Structures from the output of VASP: vasprun.xml and OUTCAR."""

import itertools
import logging
import os
import re
import xml.etree.ElementTree as ET
from collections.abc import Iterator

import ase
from ase.io.formats import open_with_compression

from eqfuse.data.readers.ase_files import read_by_ase
from eqfuse.data.readers.format import lines_of, require_file
from eqfuse.data.structures import counted


def frames_of_vasp(path: str | os.PathLike, format: str) -> Iterator[ase.Atoms | None]:
    """Yield the ionic steps of a vasprun.xml ("vasp-xml") or an OUTCAR ("vasp-out").

    `energy` is the free energy (TOTEN, e_fr_energy), whose derivatives the forces are;
    `energy_zero` is the one extrapolated to no smearing (e_0_energy). Steps whose electrons did not
    converge within NELM are None, and counted in a line on stderr.

    References: https://www.vasp.at/wiki/index.php/NELM
    """
    require_file(path)
    converged, left_out = _of_xml if format == "vasp-xml" else _of_outcar, 0
    for atoms, is_converged in itertools.zip_longest(read_by_ase(path, format), converged(path)):
        if atoms is None:
            break
        if is_converged is False:
            left_out += 1
            yield None
            continue
        if atoms.calc is not None:
            results = atoms.calc.results
            results["energy_zero"] = results.get("energy")
            results["energy"] = results.get("free_energy", results["energy_zero"])
        yield atoms
    if left_out:
        steps = counted(left_out, "step")
        text = f"{path}: {steps} left out, as the electrons did not converge within NELM"
        logging.getLogger("eqfuse.data").warning("%s", text)


def _of_xml(path) -> Iterator[bool]:
    """Yield whether the electrons of each step took fewer steps than NELM."""
    most, count = 0, 0
    with open_with_compression(os.fspath(path), "rb") as file:
        try:
            for _, element in ET.iterparse(file):
                if element.tag == "i" and element.get("name") == "NELM":
                    most = int(element.text)
                count += element.tag == "scstep"
                if element.tag == "calculation":
                    yield most < 2 or count < most
                    count = 0
                if element.tag in ("scstep", "calculation"):
                    element.clear()
        except (ET.ParseError, ValueError):  # of a run that was cut off; ASE reads what is whole
            yield most < 2 or count < most


def _of_outcar(path) -> Iterator[bool]:
    most, last, reached, aborted = 0, 0, False, False
    for line in lines_of(path):
        if found := re.match(r"\s*NELM\s*=\s*(\d+)", line):
            most = int(found[1])
        elif found := re.search(r"Iteration\s+\d+\(\s*(\d+)\)", line):
            last = int(found[1])
        reached |= "aborting loop because EDIFF is reached" in line
        aborted |= "aborting loop EDIFF was not reached" in line
        if "FREE ENERGIE OF THE ION-ELECTRON SYSTEM" in line:
            yield reached or (not aborted and (most < 2 or last < most))
            last, reached, aborted = 0, False, False
