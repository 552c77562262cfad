"""The command `eqfuse distill`, and its settings."""

import dataclasses
import math
import os
import shutil
from pathlib import Path
from typing import Literal

from eqfuse.runs import command
from eqfuse.runs.errors import CheckpointError, ConfigError
from eqfuse.runs.files import made, write_whole
from eqfuse.runs.schema import (
    FINITE,
    NOT_NEGATIVE,
    POSITIVE,
    TYPES,
    Range,
    absolute,
    check_ranges,
    one_of,
    require,
    setting,
    word,
    written,
)
from eqfuse.runs.stopping import exit_code

PROPERTIES = ("volume", "elastic", "phonons", "dynamics")
CHANGEABLE = ("labels", "minutes", "forces", "energy")
"""What `resume=` takes besides."""
_SETTINGS, _WORDS = "distill/settings.txt", ("teacher", "start")
_ENOUGH = Range(lambda value: value >= 12, "12 or more, of which four validate")


@dataclasses.dataclass(kw_only=True)
class Distill:
    """Train a fast potential of a material on labels of a slow one, its teacher.

    Rounds of dynamics, labels and training end when the errors of new trajectories, which are never
    trained on, are below forces= and energy=, or labels= or half of minutes= are used up.
    The folder run= is a run like any other, with certificate.html, which compares both.

    Examples:
      eqfuse distill 7net-0 START.xyz temperature=300..1500 run=fast
      eqfuse distill 'tblite.ase:TBLite(method="GFN2-xTB")' molecule.xyz batch=60 run=fast
      eqfuse distill resume=fast minutes=120
    """

    teacher: str | None = word(
        "a run, the name of a published network, or a calculator of ASE: module:function(...)", None
    )
    start: Path | None = word("structures of the material, in a file of any format", None)
    temperature: str = setting("300..1000", "K, of dynamics, from..to")
    pressure: str = setting("0", "GPa, of dynamics of crystals and liquids, from..to")
    defects: tuple[str, ...] | None = setting(None, "to sample besides: vacancy, surface, or both")
    forces: float = setting(50.0, "meV/Å, aim of the RMSE on new trajectories", POSITIVE)
    energy: float = setting(2.0, "meV/atom, aim of the RMSE on new trajectories", POSITIVE)
    labels: int = setting(2000, "of the teacher at most, those of tests included", _ENOUGH)
    minutes: float = setting(60.0, "of rounds, at most half of these, and training", POSITIVE)
    batch: int = setting(160, "labels to train on in each round", _ENOUGH)
    new: int = setting(16, "labels of new trajectories, and of the student's, a round", POSITIVE)
    trajectories: int = setting(4, "in each round, over the temperatures", POSITIVE)
    every: int = setting(10, "steps between labels of a trajectory", POSITIVE)
    timestep: float | None = setting(None, "fs; null: 0.5 with hydrogen, 1 or 2 without", POSITIVE)
    atoms: int = setting(64, "up to which small cells are repeated", POSITIVE)
    strain: float = setting(0.03, "standard deviation of random strains", NOT_NEGATIVE)
    rattle: float = setting(0.05, "Å, standard deviation of random moves of atoms", POSITIVE)
    driver: Literal["teacher", "student"] = setting(
        "teacher", "of dynamics; student: of a teacher that is slow, such as DFT"
    )
    speed: float = setting(20.0, "of the student, in times of its teacher's", POSITIVE)
    student: str | None = setting(
        None, "settings of eqfuse train instead, in quotes: 'model=mace channels=32'"
    )
    training_steps: int = setting(2000, "of a round; up to 20 times as many at the end", POSITIVE)
    properties: tuple[str, ...] = setting(
        PROPERTIES, "to compare with the teacher; 'none' for none"
    )
    picoseconds: float = setting(2.0, "of the dynamics that are compared", POSITIVE)
    head: str | None = setting(None, "of a teacher with several")
    python: Path | None = setting(None, "of the environment of a calculator of ASE")
    types: tuple[str, ...] | None = setting(None, TYPES)
    seed: int = setting(0, "of all that is random", NOT_NEGATIVE)
    run: str | None = setting(None, "folder that is written; null: runs/<date-time>_distill")
    resume: Path | None = setting(None, f"folder to go on with; takes {'=, '.join(CHANGEABLE)}=")

    def __post_init__(self):
        check_ranges(self, "")
        self.properties = tuple(name for name in self.properties if name != "none")
        for name in self.properties:
            one_of("properties", name, PROPERTIES)
        for name in self.defects or ():
            one_of("defects", name, ("vacancy", "surface"))
        self.temperatures()
        self.pressures()
        least = self.batch + 3 * self.new
        require(
            least <= self.labels, "labels", self.labels, f"batch= and thrice new=, {least}, or more"
        )

    def temperatures(self) -> tuple[float, float]:
        """Return the lowest and the highest temperature, K."""
        return _range("temperature", self.temperature, POSITIVE)

    def pressures(self) -> tuple[float, float]:
        """Return the lowest and the highest pressure, GPa."""
        return _range("pressure", self.pressure, FINITE)


def _range(name: str, text: str, within: Range) -> tuple[float, float]:
    first, _, second = text.partition("..")
    try:
        low, high = float(first), float(second or first)
        ok = low <= high < math.inf and within.holds(low)
    except ValueError:
        ok = False
    need = f"a number or two, as 300..1500, the first {within.text}, the second not below it"
    require(ok, name, text, need)
    return low, high


def main(arguments: list[str]) -> int:
    """Distill; return 1 if the teacher or the training failed, 2 if settings are refused."""
    if "--help" in arguments or "-h" in arguments:
        print(command.help_text(Distill))
        return 0
    return exit_code(lambda: _distill(arguments), refused=(CheckpointError,))


def _distill(arguments: list[str]):
    words, given = command.read(Distill, arguments)
    if resumed := given.pop("resume", None):
        folder = resumed.expanduser()
        if others := [*words, *(name for name in given if name not in CHANGEABLE)]:
            raise ConfigError(
                f"{others[0]}: resume= goes on with the settings of its folder, and takes only "
                f"{', '.join(CHANGEABLE)}"
            )
        settings = dataclasses.replace(read(folder), **given)
    else:
        settings = command.parse(Distill, arguments)
        missing = "TEACHER" if settings.teacher is None else "START"
        if settings.teacher is None or settings.start is None:
            raise ConfigError(f"{missing} is missing: eqfuse distill TEACHER START; see --help")
        if Path(settings.teacher).expanduser().exists():
            settings.teacher = absolute(settings.teacher)
        if settings.python is not None:
            settings.python = Path(os.path.abspath(settings.python))
        folder = begin(settings)
    from eqfuse.distill.rounds import Distillation  # with JAX, which takes seconds

    try:
        distillation = Distillation(settings, folder)
    except Exception:
        if not resumed:
            shutil.rmtree(folder)
        raise
    _write(settings, folder)
    distillation.run()


def begin(settings: Distill) -> Path:
    """Make the folder, with the structures, after everything that can be refused was read."""
    import ase.io

    from eqfuse.distill.sampling import cells_of
    from eqfuse.md.structures import read_frames

    starts = read_frames(settings.start, settings.types)
    cells_of(starts, settings.atoms, settings.defects or ())
    folder = made(settings.run, "distill")
    (folder / "distill").mkdir()
    ase.io.write(folder / "distill" / "start.traj", starts)
    return folder


def _write(settings: Distill, folder: Path):
    given = {f.name: getattr(settings, f.name) for f in dataclasses.fields(settings)}
    lines = [
        f"{name}={written(value)}"
        for name, value in given.items()
        if name not in (*_WORDS, "resume")
    ]
    words = [str(given[name]) for name in _WORDS]
    write_whole(folder / _SETTINGS, "\n".join([*words, *lines, ""]))


def read(folder: Path) -> Distill:
    """Return the settings of a folder."""
    try:
        lines = (folder / _SETTINGS).read_text(encoding="utf-8").splitlines()
    except (OSError, ValueError) as error:
        raise ConfigError(f"{folder} holds no distillation to go on with ({error})") from error
    given = command.read(Distill, lines[len(_WORDS) :])[1]
    return Distill(teacher=lines[0], start=Path(lines[1]), **given)
