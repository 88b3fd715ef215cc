"""Rank 1 allocates memory until the kernel kills it."""

import os
import signal

if os.environ["NODE_RANK"] == "1":
    taken = []
    while True:
        taken.append(b"x" * (16 << 20))
signal.pause()
