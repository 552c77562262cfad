"""A job for `benchmarks.gpu.command.Worker` that does as it is told."""

import os
import time


def answer(what, arguments):
    """Answer with a variable of the environment, die, hang, or meet an error of the device."""
    if what == "die":
        os._exit(3)
    if what == "hang":
        time.sleep(60)
    result = {"answer": os.environ["WHAT"], "process": os.getpid()}
    if what == "spoil":
        result["error"] = "XlaRuntimeError: INTERNAL: illegal memory access"
    return [result]
