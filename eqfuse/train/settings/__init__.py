"""The settings of a run: their names, defaults, presets, checks and help."""
