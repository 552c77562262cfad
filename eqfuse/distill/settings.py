"""The settings of a distillation, and the kinds of its frames."""

import dataclasses
import math
import os
import shlex
from pathlib import Path
from typing import Literal

from eqfuse.runs import (
    NOT_NEGATIVE,
    POSITIVE,
    ConfigError,
    Range,
    naming,
    read_json,
    require,
    schema,
    setting,
    word,
)

KINDS = ("labels", "new", "own", "last")
"""Frames to train on, of new trajectories of the teacher, the student's and the last student's."""
PROPERTIES = ("volume", "elastic", "phonons", "dynamics")
CHANGEABLE = ("labels", "minutes", "forces", "energy")  # what resume= takes besides
SETTINGS = "distill/settings.json"
FEWEST = 12  # labels to train on, of which four validate
_ENOUGH = Range(lambda value: value >= FEWEST, f"{FEWEST} or more, of which four validate")


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

    teacher: str | None = word("a run, a published network, or module:function(...) of ASE", None)
    start: str | None = word("structures of the material, in a file of any format", None)
    temperature: str = setting("300..1000", "K, of dynamics, from..to")
    pressure: str = setting("0", "GPa, of dynamics of crystals and liquids, from..to")
    defects: tuple[Literal["vacancy", "surface"], ...] | None = setting(
        None, "to sample besides: vacancy, surface, or both"
    )
    forces: float = setting(50.0, "meV/Å, aim of the RMSE on new trajectories", POSITIVE)
    energy: float = setting(2.0, "meV/atom, aim of the RMSE on new trajectories", POSITIVE)
    labels: int = setting(2000, "of the teacher at most, those of tests included")
    minutes: float = setting(60.0, "of rounds, at most half of these, and training", POSITIVE)
    batch: int = setting(
        160, "labels of a round, or what labels= and minutes= suffice for", _ENOUGH
    )
    new: int = setting(16, "labels of new trajectories, and of the student's, a round", POSITIVE)
    trajectories: int = setting(4, "in each round, over the temperatures", POSITIVE)
    atoms: int = setting(64, "up to which small cells are repeated", POSITIVE)
    driver: Literal["teacher", "student"] = setting("teacher", "of dynamics; student: for slow DFT")
    speed: float = setting(10.0, "of the student, in times of its teacher's", POSITIVE)
    student: str | None = setting(None, "settings of eqfuse train instead: 'model=mace lmax=1'")
    training_steps: int = setting(2000, "of a round; up to 100 times at the end", POSITIVE)
    properties: tuple[Literal["none", *PROPERTIES], ...] = setting(PROPERTIES, "to compare")
    picoseconds: float = setting(2.0, "of the dynamics that are compared", POSITIVE)
    head: str | None = setting(None, "of a teacher with several")
    python: str | None = setting(None, "of a calculator's environment", convert=schema.absolute)
    seed: int = setting(0, "of all that is random", NOT_NEGATIVE)
    run: str | None = setting(None, "folder that is written; null: runs/<date-time>_distill")
    resume: str | None = setting(None, f"folder to go on with; takes {'=, '.join(CHANGEABLE)}=")

    def __post_init__(self):
        schema.check_ranges(self, "")
        self.properties = tuple(name for name in self.properties if name != "none")
        self.kelvin = _range("temperature", self.temperature, POSITIVE)
        self.gpa = _range("pressure", self.pressure, schema.FINITE)
        need = FEWEST + 3 * self.new
        text = f"{need}: {FEWEST} to train on, and thrice new="
        require(need <= self.labels, "labels", self.labels, text)


def _range(name: str, text: str, within: Range) -> tuple[float, float]:
    """Return the lowest and the highest value of a setting, "low..high" or one number."""
    first, _, second = text.partition("..")
    try:
        low, high = float(first), float(second or first)
    except ValueError:
        low = high = math.nan
    need = f"a number or two, as 300..1500, the first {within.text}, the second not below it"
    require(low <= high < math.inf and within.holds(low), name, text, need)
    return low, high


def is_code(teacher: str) -> bool:
    """Return True for module:function(...), which is executed; False for a run or a network."""
    return ":" in teacher and not os.path.exists(os.path.expanduser(teacher))


def settings_of(folder: Path, teacher: str | None = None, **changes) -> Distill:
    """Return the settings of a folder, with changes by name.

    A folder is data: what is executed, a teacher that `is_code` and its python=, is given again.
    """
    try:
        plain = read_json(folder / SETTINGS)
    except (OSError, ValueError) as error:
        raise ConfigError(f"{folder} holds no distillation to go on with ({error})") from error
    with naming(str(folder / SETTINGS)):
        fields, given = Distill.__dataclass_fields__, {}
        for name, value in plain.items():
            schema.one_of("setting", name, fields)
            value = tuple(value) if isinstance(value, list) else value
            given[name] = schema.typed(name, fields[name], schema.written(value))
        known = Distill(**given | changes)
    own, python = known.teacher or "", given.get("python")
    if teacher is not None and own not in (teacher, schema.absolute(teacher)):
        raise ConfigError(f"{folder} has labels of the teacher {own!r}, and not of {teacher!r}")
    if is_code(own) and (teacher is None or (python and "python" not in changes)):
        again = shlex.quote(own) + (f" python={shlex.quote(python)}" if python else "")
        raise ConfigError(
            f"the teacher of {folder} is a program, and no program that a file names is executed; "
            f"if it is the one that you mean, write eqfuse distill resume={folder} {again}"
        )
    return dataclasses.replace(known, python=changes.get("python"))
