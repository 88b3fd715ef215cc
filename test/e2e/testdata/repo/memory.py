"""Rank 1 needs memory until the kernel kills it. With --group it needs memory that counts for the container alone, once
/workspace/release exists."""

import os
import signal
import sys
import time


def first_is_killed():
    """Reports whether the container's first process has SIGKILL pending, or no memory any more."""
    with open("/proc/1/status") as file:
        status = dict(line.rstrip().split(":\t", 1) for line in file)
    return "VmRSS" not in status or int(status["ShdPnd"], 16) & 1 << (signal.SIGKILL - 1)


print(f"node {os.environ['NODE_RANK']} begins", flush=True)
if os.environ["NODE_RANK"] == "1" and "--group" in sys.argv:
    while not os.path.exists("/workspace/release"):
        time.sleep(0.2)
    file = os.memfd_create("memory")
    while not first_is_killed():  # or the kernel might choose a second process before the first one has ended
        os.write(file, b"x" * (1 << 16))
elif os.environ["NODE_RANK"] == "1":
    taken = []
    while True:
        taken.append(b"x" * (16 << 20))
signal.pause()
