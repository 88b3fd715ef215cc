"""Progress of a training, as JSON lines that ml-dev-env reads. Copy this file; nothing else is needed.

    import mlenv_metrics
    mlenv_metrics.log(step=12, steps=500, loss=2.31, tokens=49152)

`step` and `steps` give the progress and the estimated end, `tokens` or `samples` (counts since the start) the speed; `loss`
and any other number are kept in the run's record. Outside ml-dev-env, and on every rank but 0, nothing happens. A training
never fails because of its metrics: what cannot be written is said once on stderr.
"""

import json
import os
import sys
import time

_complained = False


def log(**values):
    """Appends one line to $MLENV_METRICS_FILE. Tensors of one element are taken as numbers. A loss that is NaN is written as such: it must be seen."""
    path = os.environ.get("MLENV_METRICS_FILE")
    rank = os.environ.get("RANK") or os.environ.get("NODE_RANK") or "0"  # without a launcher: one process a node
    if not path or rank != "0":
        return
    try:
        line = {"time": time.time()}
        for name, value in values.items():
            line[name] = value.item() if hasattr(value, "item") else value
        with open(path, "a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")
    except Exception as error:  # whatever it is, the training is worth more
        global _complained
        if not _complained:
            _complained = True
            print(f"writing metrics to {path}: {error}", file=sys.stderr, flush=True)
