"""The commands `eqfuse md` and `eqfuse relax`."""

from collections.abc import Callable
from pathlib import Path

from eqfuse.md.settings import RelaxSettings, Settings, help_text, parse
from eqfuse.runs.errors import ConfigError, TrainingFailed
from eqfuse.runs.stopping import exit_code

USAGE = "eqfuse md RUN START [name=value ...], or eqfuse md resume=FOLDER [steps=N]; see --help"
_RELAX_HELP = """\
Relax structures to the nearest minimum of the energy of a trained network.

  eqfuse relax RUN FILE [OUT] [name=value ...]

RUN is the folder of a run, or a file of its network; FILE is a file of atoms, all frames of which
are relaxed by ASE's FIRE, with the constraints that they have. OUT is extended XYZ; without it,
FILE_relaxed.xyz beside FILE.

Examples
  eqfuse relax first candidates.xyz fmax=0.005
  eqfuse relax first crystals.cif relaxed.xyz cell=true pressure=10

Settings (default in brackets)"""


def main(arguments: list[str]) -> int:
    """Run dynamics; return 1 if a limit stopped them or a file is not readable, 2 if refused."""
    return _run(arguments, help_text(), _simulate)


def relax_main(arguments: list[str]) -> int:
    """Relax structures; return 1 if one is not relaxed or a file fails, 2 if refused."""
    return _run(arguments, help_text(_RELAX_HELP, RelaxSettings), _relax)


def _run(arguments: list[str], help: str, task: Callable) -> int:
    if "--help" in arguments or "-h" in arguments:
        print(help)
        return 0
    return exit_code(lambda: task(arguments), failures=(OSError,))


def _simulate(arguments: list[str]):
    resumed = [a.partition("=")[2] for a in arguments if a.startswith("resume=")]
    if resumed:
        others = [a for a in arguments if not a.startswith("resume=")]
        steps = Settings(**parse(others, ("steps",))).steps if others else None
        from eqfuse.md.simulation import resume

        resume(resumed[-1], steps)
        return
    if len(arguments) < 2 or any("=" in a for a in arguments[:2]):
        raise ConfigError(f"a network and a structure are needed: {USAGE}")
    network, start, *others = arguments
    settings = Settings(**parse(others))
    from eqfuse.md.simulation import run  # with JAX, which takes seconds

    run(network, start, settings)


def _relax(arguments: list[str]):
    """Relax, write and print a table; raise an error if some are not relaxed."""
    names = [a for a in arguments if "=" not in a]
    settings = RelaxSettings(**parse([a for a in arguments if "=" in a], kind=RelaxSettings))
    if len(names) not in (2, 3):
        raise ConfigError("a network and a file are needed: eqfuse relax RUN FILE [OUT]")
    network, source, *others = names
    target = Path(*others or [Path(source).with_name(f"{Path(source).stem}_relaxed.xyz")])
    if target.exists():
        raise ConfigError(f"{target} exists; remove it, or give another file")
    from eqfuse.inference.commands import write_atoms
    from eqfuse.md.relaxation import relax
    from eqfuse.md.structures import read_frames

    outcomes = relax(network, read_frames(source, settings.types), settings)
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
            f"{missing} of {len(outcomes)} structures are not relaxed after {settings.steps} "
            f"steps; relax {target} further, or give a larger fmax="
        )
