"""Rank 1 needs memory until the kernel kills it. With --group it needs memory that counts for the container alone, once
/workspace/release exists."""

import os
import signal
import sys
import time

print(f"node {os.environ['NODE_RANK']} begins", flush=True)
if os.environ["NODE_RANK"] == "1" and "--group" in sys.argv:
    while not os.path.exists("/workspace/release"):
        time.sleep(0.2)
    file = os.memfd_create("memory")
    while True:
        os.write(file, b"x" * (1 << 20))
if os.environ["NODE_RANK"] == "1":
    taken = []
    while True:
        taken.append(b"x" * (16 << 20))
signal.pause()
