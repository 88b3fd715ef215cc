"""Writes the progress of a training as JSON lines that ml-dev-env reads. You need to copy only this file.

    import mlenv_metrics
    mlenv_metrics.log(step=12, steps=500, loss=2.31, tokens=49152)

ml-dev-env computes the progress and the estimated end from `step` and `steps`, and the speed from `tokens` or `samples` (counts
since the start). It keeps `loss` and any other number in the run's record. Outside ml-dev-env, and on every rank except 0, log
does nothing. A failed write never stops the training: the first one is reported on stderr.
"""

import json
import os
import sys
import time

_complained = False


def log(**values):
    """Appends one line to $MLENV_METRICS_FILE. A tensor of one element counts as a number. A NaN is written as NaN, so that users see it."""
    path = os.environ.get("MLENV_METRICS_FILE")
    rank = os.environ.get("RANK") or os.environ.get("NODE_RANK") or "0"  # without a launcher: one process per node
    if not path or rank != "0":
        return
    try:
        line = {"time": time.time()}
        for name, value in values.items():
            line[name] = value.item() if hasattr(value, "item") else value
        with open(path, "a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")
    except Exception as error:  # no error in metrics may stop the training
        global _complained
        if not _complained:
            _complained = True
            print(f"writing metrics to {path}: {error}", file=sys.stderr, flush=True)
