"""Structures from the output of VASP: vasprun.xml and OUTCAR."""

import itertools
import logging
import os
import re
import xml.etree.ElementTree as ET
from collections.abc import Iterator

import ase
from ase.io.formats import open_with_compression
from ase.io.vasp_parsers.vasp_outcar_parsers import outcarchunks

from eqfuse.data.readers.ase_files import by_ase, read_by_ase
from eqfuse.data.readers.format import lines_of, require_file
from eqfuse.data.structures import counted

_PREDICTED = "ML FREE ENERGIE"


def frames_of_vasp(path: str | os.PathLike, format: str) -> Iterator[ase.Atoms | None]:
    """Yield the ionic steps of a vasprun.xml ("vasp-xml") or an OUTCAR ("vasp-out").

    `energy` is the free energy (TOTEN, e_fr_energy), whose derivatives the forces are;
    `energy_zero` is the one extrapolated to no smearing (e_0_energy). Steps whose electrons did not
    converge within NELM are None, and counted in a line on stderr, as those are that only a force
    field of VASP computed (ML_LMLFF).

    References: https://www.vasp.at/wiki/index.php/NELM
    """
    require_file(path)
    is_xml, left_out = format == "vasp-xml", 0
    steps = read_by_ase(path, format) if is_xml else _without_force_field(path)
    converged = _of_xml(path) if is_xml else _of_outcar(path)
    for atoms, is_converged in itertools.zip_longest(steps, converged):
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
    _say(path, left_out, "as the electrons did not converge within NELM")


def _say(path, left_out: int, why: str):
    if left_out:
        text = f"{path}: {counted(left_out, 'step')} left out, {why}"
        logging.getLogger("eqfuse.data").warning("%s", text)


def _without_force_field(path) -> Iterator[ase.Atoms]:
    """Yield the steps of an OUTCAR that electrons computed."""
    with by_ase(path), open_with_compression(os.fspath(path)) as file:
        for step in outcarchunks(file):
            if not any(_PREDICTED in line for line in step.lines):
                yield step.build()


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
    alone, is_predicted = 0, False  # a step is, before its electrons are computed, or are not
    for line in lines_of(path):
        if found := re.match(r"\s*NELM\s*=\s*(\d+)", line):
            most = int(found[1])
        elif found := re.search(r"Iteration\s+\d+\(\s*(\d+)\)", line):
            last, is_predicted = int(found[1]), False
        reached |= "aborting loop because EDIFF is reached" in line
        aborted |= "aborting loop EDIFF was not reached" in line
        if _PREDICTED in line:
            alone, is_predicted = alone + is_predicted, True
        elif "FREE ENERGIE OF THE ION-ELECTRON SYSTEM" in line:
            yield reached or (not aborted and (most < 2 or last < most))
            last, reached, aborted = 0, False, False
    _say(path, alone + is_predicted, "which only VASP's force field computed")
