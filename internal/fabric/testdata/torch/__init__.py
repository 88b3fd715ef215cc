"""A stand-in for torch: one rank of several, on a network whose time is reckoned and not waited for.

BYTES_PER_SECOND is the network's rate, FLOP_PER_SECOND the device's. DEVICE is the GPU's name; with "" there is no GPU. At the end it prints the longest
silence and the whole time, in seconds of that reckoning. QUOTA is the part of each 0.1 s in which a processor computes. FREE and MAJOR
are the GPU's free bytes and its compute capability; FAULT is the error of each product.
"""
import builtins
import json
import os
import time

now = began = printed = time.monotonic()
silence = 0.0
time.monotonic = time.perf_counter = lambda: now
float16, float32, float64 = 2, 4, 8


class bfloat16(int):
    """As long as float16, and another type."""


bfloat16 = bfloat16(2)
names = {"float32": float32, "float16": float16, "bfloat16": bfloat16}
period = 0.1
real_print = print


def noted_print(*args, **kwargs):
    global printed, silence
    silence, printed = max(silence, now - printed), now
    real_print(*args, **kwargs)


builtins.print = noted_print


def report():
    # In one write, as the ranks share the pipe.
    real_print(json.dumps({"silence": silence, "whole": now - began}) + "\n", end="", flush=True)


def move(size):
    global now
    now += 20e-6 + size / float(os.environ["BYTES_PER_SECOND"])


def compute(seconds):
    """Lets the time pass that the device needs, which works in a part of each period only, as by a cgroup's quota."""
    global now
    quota = float(os.environ.get("QUOTA", 1)) * period
    while seconds > 1e-12:
        into = (now - began) % period
        if quota - into > 1e-9:
            now, seconds = now + min(seconds, quota - into), seconds - (quota - into)
        else:
            now += max(period - into, 1e-9)


class Tensor:
    def __init__(self, count, dtype, values=None):
        self.count, self.bytes, self.values = count, count * dtype, values

    def numel(self):
        return self.count

    def copy_(self, source, non_blocking=False):
        compute(source.bytes / 50e9)

    def chunk(self, parts):
        return [self] * parts

    def tolist(self):
        return self.values


def ones(count, dtype=float32, device=None, pin_memory=False):
    return Tensor(count, dtype)


def empty_like(other):
    return Tensor(other.count, other.bytes // other.count)


def randn(rows, columns, dtype=float32, device=None):
    return Tensor(rows * columns, dtype)


def mm(a, b, out):
    if "FAULT" in os.environ:
        raise RuntimeError(os.environ["FAULT"])
    compute(2 * a.count ** 1.5 / float(os.environ["FLOP_PER_SECOND"]))


def set_num_threads(count):
    pass


def tensor(values, dtype=float32, device=None):
    return Tensor(len(values), dtype, values)


def device(*args):
    return args


class cuda:
    is_available = staticmethod(lambda: os.environ.get("DEVICE") != "")
    get_device_name = staticmethod(lambda number: os.environ["DEVICE"])
    get_device_capability = staticmethod(lambda number: (int(os.environ["MAJOR"]), 0))
    mem_get_info = staticmethod(lambda: (int(os.environ["FREE"]), 80 << 30))
    empty_cache = staticmethod(lambda: None)
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
