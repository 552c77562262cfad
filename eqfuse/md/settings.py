"""The settings of dynamics: names, defaults, checks and help."""

import dataclasses
import math
import os
from typing import Literal, get_args

from eqfuse.runs.errors import ConfigError
from eqfuse.runs.schema import (
    NOT_NEGATIVE,
    POSITIVE,
    check_ranges,
    described,
    nearest,
    require,
    setting,
    split,
    typed,
)

_HELP = """\
Run molecular dynamics with a trained network.

  eqfuse md RUN START [name=value ...]
  eqfuse md resume=FOLDER [steps=N]

RUN is the folder of a run, or a file of its network; START a file of atoms, whose last frame is
taken. Its velocities are used if it has any; if not, they are drawn for the
temperature, with no total momentum. resume=FOLDER continues a simulation, up to steps=N in all.
replicas=8 or frames=all simulate several structures in one batch, each with a folder of its own.

Examples
  eqfuse md first start.xyz temperature=300 steps=20000 timestep=0.5 run=nve
  eqfuse md first start.xyz ensemble=langevin friction=5 temperature=600 run=hot
  eqfuse md first start.xyz ensemble=langevin replicas=8 run=eight
  eqfuse md first start.xyz ensemble=npt temperature=300 pressure=1 run=squeezed
  eqfuse md resume=hot steps=40000

Settings (default in brackets)"""


TYPES = "elements of LAMMPS's types 1, 2, ... in a dump or data file, such as Si,O"
_OTHER_NAMES = {
    "nvt": "langevin (with friction and noise) or nose-hoover (without), at constant temperature",
    "npt": "npt, which is langevin with stochastic rescaling of the cell",
    "berendsen": "langevin or nose-hoover, at constant temperature, or npt",
    "nve": "nve",
}
"""What ensembles of other programs are here."""
_DISPERSION = (
    "is added: d3(bj) (of PBE), d3(bj,r2scan), d3(zero), ..., by dftd3 on the CPU; none: the "
    "network alone; null: that of the run's data.dispersion"
)


@dataclasses.dataclass
class Settings:
    """The settings of one simulation."""

    ensemble: Literal["nve", "langevin", "nose-hoover", "npt"] = setting(
        "nve", "what is simulated; npt: langevin with a periodic cell that changes its volume"
    )
    temperature: float = setting(300.0, "K, of drawn velocities and of thermostats", NOT_NEGATIVE)
    steps: int = setting(1000, "number of steps in all", POSITIVE)
    equilibrate: int = setting(
        0, "steps of langevin, with a friction of 10/ps or more, before the first one", NOT_NEGATIVE
    )
    timestep: float = setting(0.5, "fs", POSITIVE)
    friction: float = setting(1.0, "1/ps, of langevin and npt", POSITIVE)
    thermostat_time: float = setting(100.0, "fs, of the chain of nose-hoover", POSITIVE)
    pressure: float = setting(0.0, "GPa, of npt")
    pressure_time: float = setting(1000.0, "fs, in which npt approaches its pressure", POSITIVE)
    compressibility: float = setting(
        0.01, "1/GPa, roughly that of the material: 0.01 of silicon, 0.45 of water", POSITIVE
    )
    replicas: int = setting(1, "simulations of each structure; the k-th has seed + k", POSITIVE)
    frames: Literal["last", "all"] = setting("last", "of START: the last one, or all in one batch")
    types: str | None = setting(None, TYPES)
    seed: int = setting(0, "of drawn velocities and of noise", NOT_NEGATIVE)
    save_every: int = setting(100, "steps between frames of the trajectory", POSITIVE)
    trajectory: Literal["xyz", "xyz.gz"] = setting("xyz", "plain or compressed; ASE reads either")
    log_every: int = setting(10, "steps between rows of thermo.csv", POSITIVE)
    skin: float = setting(0.7, "Å, by which the neighbour list goes beyond the cutoff", POSITIVE)
    max_force: float = setting(100.0, "eV/Å, on an atom; a larger one stops", POSITIVE)
    max_temperature: float = setting(10000.0, "K; a higher one stops", POSITIVE)
    max_spread: float | None = setting(
        None,
        "eV, of the energy of an atom; a larger one stops. For a run after `eqfuse uncertainty`",
        POSITIVE,
    )
    dtype: Literal["float32", "float64"] | None = setting(
        None, "of the network; null: that of the run. Positions and velocities are float64"
    )
    backend: str | None = setting(None, "of the ops: triton, llvm, xla or e3nn; null: by device")
    dispersion: str | None = setting(None, _DISPERSION)
    run: str | None = setting(
        None, "folder that is written; null: runs/<date-time>_md", convert=os.path.expanduser
    )

    def __post_init__(self):
        check_ranges(self, "")
        if not math.isfinite(self.pressure):
            raise ConfigError(f"pressure={self.pressure} is impossible: it must be finite")
        if self.ensemble in ("nose-hoover", "npt") and self.temperature == 0:
            raise ConfigError(f"ensemble={self.ensemble} needs a temperature above zero")
        if self.equilibrate and self.temperature == 0:
            raise ConfigError(f"equilibrate={self.equilibrate} needs a temperature above zero")
        for name, most in (("steps", 2**31), ("seed", 2**32)):
            value = getattr(self, name)
            if value >= most:
                raise ConfigError(f"{name}={value} is impossible: it must be less than {most}")


@dataclasses.dataclass
class RelaxSettings:
    """The settings of a relaxation."""

    fmax: float = setting(0.01, "eV/Å, below which the largest force has to be", POSITIVE)
    steps: int = setting(500, "number of steps at most", POSITIVE)
    cell: bool = setting(False, "whether cells relax too")
    types: str | None = setting(None, TYPES)
    pressure: float = setting(0.0, "GPa, on cells that relax")
    dtype: Literal["float32", "float64"] | None = setting(
        None, "of the network; null: that of the run. Positions are float64"
    )
    backend: str | None = setting(None, "of the ops: triton, llvm, xla or e3nn; null: by device")
    dispersion: str | None = setting(None, _DISPERSION)

    def __post_init__(self):
        check_ranges(self, "")
        if not math.isfinite(self.pressure):
            raise ConfigError(f"pressure={self.pressure} is impossible: it must be finite")


def parse(arguments: list[str], known=None, kind=Settings) -> dict:
    """Return the settings of arguments such as "steps=100" by their names, in their types.

    The later of two overrides the earlier; only `known` names are allowed, or all for None.
    """
    fields = {f.name: f for f in dataclasses.fields(kind) if known is None or f.name in known}
    given = {}
    for argument in arguments:
        name, value = split(argument)
        if name == "ensemble" and (hint := _OTHER_NAMES.get(value.partition("-")[0].lower())):
            known = get_args(fields[name].type) if name in fields else ()
            require(value in known, name, value, hint)
        if name not in fields:
            raise ConfigError(f"{name} is not a setting here; {nearest(name, fields)}")
        given[name] = typed(name, fields[name], value)
    return given


def help_text(text: str = _HELP, kind=Settings) -> str:
    """Return the help: a text, and every setting with its default."""
    lines = [text]
    for field in dataclasses.fields(kind):
        text, default = described(field)
        lines.append(f"  {field.name:<16} {text} [{default}]")
    return "\n".join(lines)
