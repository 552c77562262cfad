"""The commands `eqfuse md` and `eqfuse relax`."""

import dataclasses
from pathlib import Path

from eqfuse.md.settings import HELP, RelaxSettings, Settings, parse
from eqfuse.runs import command
from eqfuse.runs.errors import ConfigError, TrainingFailed
from eqfuse.runs.schema import word
from eqfuse.runs.stopping import exit_code

USAGE = "eqfuse md RUN START [name=value ...], or eqfuse md resume=FOLDER [steps=N]; see --help"


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
    out: Path | None = word("extended XYZ to write; without it, FILE_relaxed.xyz beside FILE", None)


def main(arguments: list[str]) -> int:
    """Run dynamics; return 1 if a limit stopped them or a file is not readable, 2 if refused."""
    if "--help" in arguments or "-h" in arguments:
        print(HELP, command.settings_help(Settings), sep="\n\n")
        return 0
    return exit_code(lambda: _simulate(arguments), failures=(OSError,))


def _simulate(arguments: list[str]):
    arguments = command.undashed(arguments, command.settings_of(Settings))
    resumed = [a.partition("=")[2] for a in arguments if a.startswith("resume=")]
    words, given = parse([a for a in arguments if not a.startswith("resume=")])
    if resumed:
        if words or given.keys() - {"steps"}:
            raise ConfigError(f"resume= takes steps= alone: {USAGE}")
        from eqfuse.md.simulation import resume

        resume(resumed[-1], Settings(**given).steps if given else None)
        return
    if len(words) != 2:
        raise ConfigError(f"a network and a structure are needed: {USAGE}")
    settings = Settings(**given)
    from eqfuse.md.simulation import run  # with JAX, which takes seconds

    run(*words, settings)


@command.of(Relax, refused=(), failures=(OSError,))
def relax_main(options: Relax):
    """Relax, write and print a table; raise an error if some are not relaxed."""
    target = options.out or options.file.with_name(f"{options.file.stem}_relaxed.xyz")
    if target.exists():
        raise ConfigError(f"{target} exists; remove it, or give another file")
    from eqfuse.inference.commands import write_atoms
    from eqfuse.md.relaxation import relax
    from eqfuse.md.structures import read_frames

    outcomes = relax(options.run, read_frames(options.file, options.types), options)
    print(f"{'frame':>6}{'atoms':>7}{'steps':>7}{'E (eV)':>16}{'change (eV)':>14}{'F (eV/Å)':>11}")
    for number, outcome in enumerate(outcomes):
        energy = outcome.atoms.get_potential_energy()
        change = energy - outcome.first_energy
        print(
            f"{number:>6}{len(outcome.atoms):>7}{outcome.steps:>7}{energy:>16.6f}{change:>14.6f}"
            f"{outcome.largest:>11.5f}{'' if outcome.is_relaxed else '  not relaxed'}"
        )
    write_atoms(target, [outcome.atoms for outcome in outcomes], "extxyz")
    dispersion = outcomes[0].atoms.info.get("dispersion")
    added = "" if dispersion is None else f", with {dispersion}"
    print(f"{len(outcomes)} structures{added} in {target}")
    if missing := sum(not outcome.is_relaxed for outcome in outcomes):
        raise TrainingFailed(
            f"{missing} of {len(outcomes)} structures are not relaxed after {options.steps} "
            f"steps; relax {target} further, or give a larger fmax="
        )
