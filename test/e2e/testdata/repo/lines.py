"""Every rank prints 100,000 numbered lines. It waits at 50,000 and at 99,000."""

import os
import pathlib
import time

rank = os.environ["RANK"]


def lines(first, last):
    for number in range(first, last):
        print(f"rank {rank} line {number}")


def wait_for(name):
    while not pathlib.Path("/workspace", name).exists():
        time.sleep(0.05)


lines(0, 50_000)
wait_for("middle")
lines(50_000, 99_000)
wait_for("end")
lines(99_000, 100_000)
