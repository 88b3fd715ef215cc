"""Rank 3 fails with an error of its own. It ends slowly: all others end before it, because they lost it."""

import json
import os
import pathlib
import signal
import sys
import time
import traceback

rank = int(os.environ["RANK"])
marks = pathlib.Path(os.environ["MLENV_WORKSPACE"], "fail")
marks.mkdir(exist_ok=True)
(marks / f"here-{rank}").touch()


def wait_for(*names):
    while not all((marks / name).exists() for name in names):
        time.sleep(0.05)


def wait_for_the_end_of(*ranks):
    """Waits until the record says that the ranks have ended."""
    record = pathlib.Path(os.environ["MLENV_RUN_DIR"])
    while ranks:
        try:
            ranks = [rank for rank in ranks if "ended" not in json.loads((record / f"rank-{rank}.json").read_text())]
        except FileNotFoundError:
            pass
        time.sleep(0.05)


def train():
    if rank == 3:
        wait_for("here-0", "here-1", "here-2")  # on a busy machine they may start later than this one fails
        raise ValueError("the loss is nan at step 12")
    wait_for("failed")
    raise RuntimeError(f"[../third_party/gloo/gloo/transport/tcp/pair.cc:534] Connection closed by peer [10.0.0.{rank}]:4711")


signal.signal(signal.SIGTERM, signal.SIG_IGN)  # torchrun stops the other ranks of its node
try:
    train()
except Exception:
    traceback.print_exc()
    sys.stderr.flush()
if rank == 3:
    (marks / "failed").touch()
    wait_for_the_end_of(0, 1, 2)
    os._exit(7)
os._exit(1)
