"""The folder of a run: checkpoints, resuming, progress, report and pictures."""
