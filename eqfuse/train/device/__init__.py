"""The devices of a run, and the memory and the compiled programs of its process."""
