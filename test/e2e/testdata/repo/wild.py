"""Node 0 prints what breaks readers of logs: a line of 10 MB, bytes that are no UTF-8, and 300,000 lines as fast as it can."""

import os
import sys

out = sys.stdout.buffer
if os.environ["NODE_RANK"] == "0":
    out.write(b"x" * 10_000_000 + b"\n")
    out.write(bytes(range(256)) + b"\xff\xfe\xed\xa0\x80\x1b]0;title\x07\n")
    for number in range(300_000):
        out.write(b"line %d\n" % number)
    out.write(b"the end, without a newline")
    with open(os.environ["MLENV_METRICS_FILE"], "a") as metrics:
        metrics.write('{"step": 3, "steps": 3, "loss": 0.5}\n')
