"""What commands share: folders and files of runs, errors, exit codes, settings, the log."""
