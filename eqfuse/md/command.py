"""The commands `eqfuse md` and `eqfuse relax`."""

import dataclasses
from pathlib import Path

from eqfuse import data, md
from eqfuse.md.settings import RelaxSettings, Settings
from eqfuse.runs import ConfigError, TrainingFailed, command, setting, word

USAGE = "eqfuse md RUN START [name=value ...], or eqfuse md resume=FOLDER [steps=N]; see --help"


@dataclasses.dataclass(kw_only=True)
class Md(Settings):
    """Run molecular dynamics with a trained network.

    The last frame of START is taken. Its velocities are used if it has any; if not, they are drawn
    for the temperature, with no total momentum. `eqfuse md resume=FOLDER [steps=N]` continues a
    simulation, up to N steps in all. replicas=8 or frames=all simulate several structures in one
    batch, each with a folder of its own.

    Examples:
      eqfuse md first start.xyz temperature=300 steps=20000 timestep=0.5 run=nve
      eqfuse md first start.xyz ensemble=langevin friction=5 temperature=600 run=hot
      eqfuse md first start.xyz ensemble=langevin replicas=8 run=eight
      eqfuse md first start.xyz ensemble=npt temperature=300 pressure=1 run=squeezed
      eqfuse md resume=hot steps=40000
    """

    network: str = word("the folder of a run, or a file of its network")
    start: str = word("a file of atoms")
    resume: str | None = setting(None, "folder of a simulation that is continued")


@dataclasses.dataclass(kw_only=True)
class Relax(RelaxSettings):
    """Relax structures to the nearest minimum of the energy of a trained network.

    All frames are relaxed by ASE's FIRE, with the constraints that they have.

    Examples:
      eqfuse relax first candidates.xyz fmax=0.005
      eqfuse relax first crystals.cif relaxed.xyz cell=true pressure=10
    """

    run: str = word("the folder of a run, or a file of its network")
    file: Path = word("a file of atoms")
    out: Path | None = word(
        "file to write, as of eqfuse predict; without it, FILE_relaxed.xyz beside FILE", None
    )


@command.of(Md, refused=(), failures=(OSError,), read=list)
def main(arguments: list[str]):
    """Run dynamics; return 1 if a limit stopped them or a file is not readable, 2 if refused."""
    for argument in command.undashed(arguments, command.settings_of(Md)):
        if argument.lower().startswith(("ensemble=nvt", "ensemble=berendsen")):
            need = "langevin (with friction and noise) or nose-hoover (without)"
            raise ConfigError(f"{argument} is unknown; at constant temperature it must be {need}")
    words, given = command.words_and_settings(Md, arguments)
    folder = given.pop("resume", None)
    if folder is not None:
        if words or given.keys() - {"steps"}:
            raise ConfigError(f"resume= takes steps= alone: {USAGE}")
        md.resume(folder, Settings(**given).steps if given else None)
        return
    if len(words) != 2:
        raise ConfigError(f"a network and a structure are needed: {USAGE}")
    md.run(*words, Settings(**given))


@command.of(Relax, refused=(), failures=(OSError,))
def relax_main(options: Relax):
    """Relax, write and print a table; raise an error if some are not relaxed."""
    source = Path(data.indexed(options.file)[0])
    target = options.out or source.with_name(f"{source.stem}_relaxed.xyz")
    from eqfuse.inference import format_of, require_writable, write_atoms
    from eqfuse.md.relaxation import relaxations

    require_writable(target, options.file)
    if target.exists():
        raise ConfigError(f"{target} exists; remove it, or give another file")
    frames = [*data.iterate_atoms(options.file, types=options.types)]
    format = format_of(target, len(frames))
    outcomes = []
    try:
        for outcome in relaxations(options.run, frames, options):
            outcomes.append(outcome)
            _print_last(outcomes)
    finally:  # those before an error or Ctrl-C, too
        if outcomes:
            write_atoms(target, [outcome.atoms for outcome in outcomes], format)
            dispersion = outcomes[0].atoms.info.get("dispersion")
            added = "" if dispersion is None else f", with {dispersion}"
            print(f"{len(outcomes)} structures{added} in {target}")
    if missing := sum(not outcome.is_relaxed for outcome in outcomes):
        raise TrainingFailed(
            f"{missing} of {len(outcomes)} structures are not relaxed after {options.steps} "
            f"steps; relax {target} further, or give a larger fmax="
        )


def _print_last(outcomes: list):
    """Print a row of the last outcome, below those of the others."""
    number, outcome = len(outcomes) - 1, outcomes[-1]
    if not number:
        columns = f"{'E (eV)':>16}{'change (eV)':>14}{'F (eV/Å)':>11}"
        print(f"{'frame':>6}{'atoms':>7}{'steps':>7}{columns}")
    energy = outcome.atoms.get_potential_energy()
    change = energy - outcome.first_energy
    print(
        f"{number:>6}{len(outcome.atoms):>7}{outcome.steps:>7}{energy:>16.6f}{change:>14.6f}"
        f"{outcome.largest:>11.5f}{'' if outcome.is_relaxed else '  not relaxed'}",
        flush=True,
    )
