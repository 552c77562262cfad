"""What settings of mace and nequip are called here."""

from importlib import resources

import yaml

_FILE = resources.files(__package__) / "other_names.yaml"
OTHER_NAMES: dict[str, str] = {
    theirs: ours
    for ours, names in yaml.safe_load(_FILE.read_text(encoding="utf-8")).items()
    for theirs in names
}
"""By their name: what to write here."""
