"""Progress and checkpoints of a training, for ml-dev-env. The training images have this module; into any other image you
copy this file, which needs only Python.

    from mlenv import checkpoint_folder, finish_checkpoint, last_checkpoint, progress

    start = last_checkpoint()                    # None, or the path of the checkpoint to continue from
    ...
    progress(step=12, steps=500, loss=2.31, tokens=49152)
    ...
    path = checkpoint_folder() / "step-12"       # every rank writes its part of it, then they wait for each other
    finish_checkpoint(path)                      # one rank of the folder, after that
"""

import json
import os
import pathlib
import sys
import time

_complained = False


def progress(**values):
    """Appends a line of metrics to $MLENV_METRICS_FILE. docs/metrics.md lists the keys that have a meaning.

    A tensor of one element counts as a number. A NaN is written as NaN, so that users see it. On every rank except 0, and outside
    ml-dev-env, progress does nothing. A failed write never stops the training: the first one is reported on stderr.
    """
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


def checkpoint_folder():
    """Returns the folder of this run's checkpoints, a pathlib.Path. A run that resumes another one has that run's folder."""
    name = os.environ.get("MLENV_RESUME_FROM") or os.environ.get("MLENV_RUN") or "local"
    return pathlib.Path("/workspace/checkpoints", name)


def finish_checkpoint(path):
    """Marks a complete checkpoint, a file or a folder, as the newest one of its folder.

    The mark is the file `latest` next to it, as DeepSpeed has one. It is replaced at once, so a training that is killed meanwhile
    leaves the mark of the checkpoint before.
    """
    path = pathlib.Path(path)
    new = path.with_name("latest.new")
    new.write_text(path.name, encoding="utf-8")
    os.replace(new, path.with_name("latest"))


def last_checkpoint(folder=None):
    """Returns the path of the newest finished checkpoint in the folder (default: checkpoint_folder()), or None if it has none.

    In a restarted training that is $MLENV_LAST_CHECKPOINT, if it is set: ml-dev-env has verified that it is complete on every node.
    So call this before the first step. Raises FileNotFoundError if the marked checkpoint is gone: a training that starts over
    unasked wastes days.
    """
    folder = pathlib.Path(folder or checkpoint_folder())
    verified = os.environ.get("MLENV_LAST_CHECKPOINT")
    if verified is not None and folder == checkpoint_folder():
        return pathlib.Path(verified) if verified else None
    mark = folder / "latest"
    try:
        path = mark.with_name(mark.read_text(encoding="utf-8").strip())
    except FileNotFoundError:
        return None
    if not path.exists():
        raise FileNotFoundError(f"looking for the newest checkpoint: {path}, which {mark} names, does not exist")
    return path
