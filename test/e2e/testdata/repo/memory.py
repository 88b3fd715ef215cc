"""Rank 1 allocates memory until the kernel kills it, with --later only when /workspace/release exists."""

import os
import signal
import sys
import time

print(f"node {os.environ['NODE_RANK']} begins", flush=True)
if os.environ["NODE_RANK"] == "1":
    while "--later" in sys.argv and not os.path.exists("/workspace/release"):
        time.sleep(0.2)
    taken = []
    while True:
        taken.append(b"x" * (16 << 20))
signal.pause()
