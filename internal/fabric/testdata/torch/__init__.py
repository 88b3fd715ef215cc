"""A stand-in for torch: one rank of several, on a network whose time is reckoned and not waited for.

BYTES_PER_SECOND is the network's rate. At the end it prints the longest silence and the whole time, in seconds of that reckoning.
"""
import builtins
import json
import os
import time

now = began = printed = time.monotonic()
silence = 0.0
time.monotonic = time.perf_counter = lambda: now
float32, float64 = 4, 8
real_print = print


def noted_print(*args, **kwargs):
    global printed, silence
    silence, printed = max(silence, now - printed), now
    real_print(*args, **kwargs)


builtins.print = noted_print


def report():
    real_print(json.dumps({"silence": silence, "whole": now - began}), flush=True)


def move(size):
    global now
    now += 20e-6 + size / float(os.environ["BYTES_PER_SECOND"])


class Tensor:
    def __init__(self, count, dtype, values=None):
        self.count, self.bytes, self.values = count, count * dtype, values

    def numel(self):
        return self.count

    def copy_(self, source, non_blocking=False):
        global now
        now += source.bytes / 50e9

    def tolist(self):
        return self.values


def ones(count, dtype=float32, device=None, pin_memory=False):
    return Tensor(count, dtype)


def empty_like(other):
    return Tensor(other.count, float32)


def tensor(values, dtype=float32, device=None):
    return Tensor(len(values), dtype, values)


def device(*args):
    return args


class cuda:
    is_available = staticmethod(lambda: True)
    set_device = staticmethod(lambda number: None)
    current_device = staticmethod(lambda: 0)
    synchronize = staticmethod(lambda: None)

    class Event:
        def __init__(self, enable_timing=False):
            self.at = 0.0

        def record(self):
            self.at = now

        def synchronize(self):
            pass

        def elapsed_time(self, other):
            return (other.at - self.at) * 1000


__version__ = "stand-in"
