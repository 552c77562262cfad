"""The settings of dynamics: names, defaults, checks and help."""

import dataclasses
import os
from typing import Literal

from eqfuse.runs import (
    BACKEND,
    DISPERSION,
    FINITE,
    NOT_NEGATIVE,
    POSITIVE,
    TYPES,
    ConfigError,
    check_ranges,
    setting,
)


@dataclasses.dataclass
class Settings:
    """The settings of one simulation."""

    ensemble: Literal["nve", "langevin", "nose-hoover", "npt"] = setting(
        "nve",
        "what is simulated; at constant temperature (NVT): langevin, with friction and noise, or "
        "nose-hoover; npt: langevin with a periodic cell that changes its volume",
    )
    temperature: float = setting(300.0, "K, of drawn velocities and of thermostats", NOT_NEGATIVE)
    steps: int = setting(1000, "number of steps in all", POSITIVE)
    equilibrate: int = setting(
        0, "steps of langevin, with a friction of 10/ps or more, before the first one", NOT_NEGATIVE
    )
    timestep: float = setting(0.5, "fs", POSITIVE)
    friction: float = setting(1.0, "1/ps, of langevin and npt", POSITIVE)
    thermostat_time: float = setting(100.0, "fs, of the chain of nose-hoover", POSITIVE)
    pressure: float = setting(0.0, "GPa, of npt", FINITE)
    pressure_time: float = setting(1000.0, "fs, in which npt approaches its pressure", POSITIVE)
    compressibility: float = setting(
        0.01, "1/GPa, roughly that of the material: 0.01 of silicon, 0.45 of water", POSITIVE
    )
    replicas: int = setting(1, "simulations of each structure; the k-th has seed + k", POSITIVE)
    frames: Literal["last", "all"] = setting("last", "of START: the last one, or all in one batch")
    types: tuple[str, ...] | None = setting(None, TYPES)
    velocities: Literal["A/fs", "A/ps", "bohr/aut", "drawn"] | None = setting(
        None,
        "unit of a column vel, velo or velocities of START: A/fs in GPUMD and QUIP, A/ps in metal "
        "units of LAMMPS, bohr/aut in i-PI; drawn: whatever START has is not read",
    )
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
    backend: str | None = setting(None, BACKEND)
    dispersion: str | None = setting(None, DISPERSION)
    run: str | None = setting(
        None, "folder that is written; null: runs/<date-time>_md", convert=os.path.expanduser
    )

    def __post_init__(self):
        check_ranges(self, "")
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
    types: tuple[str, ...] | None = setting(None, TYPES)
    pressure: float = setting(0.0, "GPa, on cells that relax", FINITE)
    dtype: Literal["float32", "float64"] | None = setting(
        None, "of the network; null: that of the run. Positions are float64"
    )
    backend: str | None = setting(None, BACKEND)
    dispersion: str | None = setting(None, DISPERSION)

    def __post_init__(self):
        check_ranges(self, "")
