"""What a run does on its devices: parallelism, profiles, memory, compiled programs."""
