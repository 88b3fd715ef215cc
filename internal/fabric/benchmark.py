# SPDX-License-Identifier: Apache-2.0
"""Measures collectives between the ranks of some nodes, by torch.distributed.

It is run once on every node as `python3 -c THIS INPUT`, and starts the node's
ranks itself. INPUT is the JSON of fabric.Input. Lines on standard output that
begin with {"fabric": 1, are fabric.Line, one measurement or event each; rank 0
prints measurements, the first rank of every node events, and each rank its device's rates.
"""
import datetime
import json
import os
import signal
import statistics
import sys
import time

# Of `python -c` the first is the current folder, where a user's torch.py may lie.
sys.path[:] = [p for p in sys.path if p]

given = json.loads(sys.argv[1])
began = time.monotonic()


def say(**line):
    # In one write: the ranks of a node share the pipe, and lines must not mix.
    print(json.dumps({"fabric": 1, **line}) + "\n", end="", flush=True)


def start_ranks():
    """Forks a process for each rank of the node; None in the parent, which returns when all have ended."""
    local_size = given["ranksPerNode"]
    ranks = {}
    for local in range(local_size):
        # Nothing with threads is imported yet.
        pid = os.fork()
        if pid == 0:
            return local
        ranks[pid] = local
    code = 0
    while ranks:
        pid, status = os.wait()
        ranks.pop(pid, None)
        if status and not code:
            code = os.waitstatus_to_exitcode(status) if hasattr(os, "waitstatus_to_exitcode") else 1
            for other in ranks:
                os.kill(other, signal.SIGKILL)
    sys.exit(code if code >= 0 else 1)


local = start_ranks() if given["ranksPerNode"] > 1 else 0
node, nodes, per_node = given["node"], given["nodes"], given["ranksPerNode"]
rank, ranks = node * per_node + local, nodes * per_node
backend, sizes = given["backend"], given["sizes"]

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402

if backend == "nccl" and not torch.cuda.is_available():
    # The image's torch is one for CPUs, or does not go with the driver: ranks would not use GPUs either.
    backend, sizes = "gloo", [s for s in sizes if s <= given["withoutGPU"]]
    # Two show what is inside a node; more only wait for processors.
    per_node = min(per_node, 2)
    if local >= per_node:
        sys.exit()
    rank, ranks = node * per_node + local, nodes * per_node
    if local == 0:
        say(event="without-gpu")
cuda = backend == "nccl"
if cuda:
    torch.cuda.set_device(given["firstDevice"] + local)
else:
    torch.set_num_threads(1)
device = torch.device("cuda", torch.cuda.current_device()) if cuda else torch.device("cpu")
if local == 0:
    say(event="ready")


def left():
    return given["seconds"] - (time.monotonic() - began)


dist.init_process_group(
    backend, init_method="tcp://%s:%d" % (given["master"], given["port"]), rank=rank, world_size=ranks,
    timeout=datetime.timedelta(seconds=max(5, left() + 5)))


def agree(values, op=dist.ReduceOp.MAX, group=None):
    """What all ranks of the group have agreed on, element by element."""
    t = torch.tensor(values, dtype=torch.float64, device=device)
    dist.all_reduce(t, op=op, group=group)
    return t.tolist()


last_beat = 0.0


def beat():
    """Says that iterations end: whoever watches cannot tell slow ranks from hanging ones otherwise."""
    global last_beat
    if local == 0 and time.monotonic() - last_beat > 0.5:
        last_beat = time.monotonic()
        say(event="beat")


def timed(operation, count, each=True):
    """The seconds of each of count calls, on this rank. Unless each, a GPU does not wait between the calls."""
    if not cuda or each:
        times = []
        for _ in range(count):
            start = time.perf_counter()
            operation()
            if cuda:
                torch.cuda.synchronize()
            times.append(time.perf_counter() - start)
            beat()
        return times
    marks = [torch.cuda.Event(enable_timing=True) for _ in range(count + 1)]
    marks[0].record()
    for mark in marks[1:]:
        operation()
        mark.record()
    marks[-1].synchronize()
    beat()
    return [a.elapsed_time(b) / 1000 for a, b in zip(marks, marks[1:])]


# Of one size: a call that connects, one for the estimate, and the fewest that are measured.
FEWEST = 3
CALLS = 2 + FEWEST


def fits(seconds, group=None):
    """Whether all ranks of the group have the time."""
    return seconds <= -agree([-left()], group=group)[0]


def often(estimate, share, most):
    """How often a call of so many seconds is repeated, and whether each is waited for: only where that takes no part of its time."""
    return max(FEWEST, min(most, int(share / estimate))), estimate > 0.1


def iterate(operation, share, group=None):
    """The times of as many iterations as fit into share seconds, each the slowest rank's.

    None where even the fewest would take longer than there is time.
    """
    timed(operation, 1)  # connects
    estimate = max(agree(timed(operation, 1), group=group)[0], 1e-6)
    if not fits(estimate * FEWEST, group):
        return None
    return agree(timed(operation, *often(estimate, share, 50)), group=group)


def operations(size, members, group):
    """Each collective on size bytes, counted as nccl-tests does: of all_gather and reduce_scatter the whole buffer."""
    n = len(members)
    whole = torch.ones(max(1, size // 4), dtype=torch.float32, device=device)
    part = torch.ones(max(1, size // 4 // n), dtype=torch.float32, device=device)
    all_parts = torch.ones(part.numel() * n, dtype=torch.float32, device=device)
    calls = {
        "all_reduce": lambda: dist.all_reduce(whole, group=group),
        "broadcast": lambda: dist.broadcast(whole, src=members[0], group=group),
        "all_gather": lambda: dist.all_gather_into_tensor(all_parts, part, group=group),
        "reduce_scatter": lambda: dist.reduce_scatter_tensor(part, all_parts, group=group),
    }
    if not cuda:
        # gloo has these two in new versions of torch alone, and copies in all of them.
        parts = list(all_parts.chunk(n))
        calls["all_gather"] = lambda: dist.all_gather(parts, part, group=group)
        calls["reduce_scatter"] = lambda: dist.reduce_scatter(part, parts, group=group)
    return calls


def collective(name, sizes, members, group, share, teller, **scope):
    """Measures one collective over sizes, as far as time goes, and returns those that were measured."""
    done, predicted = [], 0.0
    for size in sizes:
        # On a slow network even one call of the next size may take longer than there is time, of which half is for other
        # measurements. Below a megabyte a call's time is its latency.
        if not fits(2 * CALLS * predicted * size / max(done[-1:] + [1 << 20]), group):
            break
        try:
            times = iterate(operations(size, members, group)[name], share, group)
        except RuntimeError as error:
            # All ranks see this alike, and before they talk.
            if "support" in str(error):
                break
            raise
        if times is None:
            break
        predicted = statistics.median(times)
        done.append(size)
        if rank == teller:
            tell(name, size, members, times, **scope)
    return done


def tell(name, size, members, times, **scope):
    """Prints one measurement: the median of the iterations' times."""
    say(operation=name, bytes=max(4, size // 4 * 4), ranks=len(members), time=int(statistics.median(times) * 1e9), iterations=len(times), **scope)


def exchange(a, b, size):
    """Sends and receives at once between all ranks of two nodes; nothing on other nodes."""
    if node not in (a, b):
        return lambda: None
    peer = (b if node == a else a) * per_node + local
    out = torch.ones(max(1, size // 4), dtype=torch.float32, device=device)
    back = torch.empty_like(out)

    def operation():
        for work in dist.batch_isend_irecv([dist.P2POp(dist.isend, out, peer), dist.P2POp(dist.irecv, back, peer)]):
            work.wait()
    return operation


def pairs(rounds, size, share):
    """Measures pairs of nodes; those of one round at once."""
    for number, together in enumerate(rounds):
        mine = next((p for p in together if node in p), None)
        operation = exchange(*mine, size) if mine else lambda: None
        if not fits(0):
            return
        timed(operation, 1)
        estimate = max(agree(timed(operation, 1))[0], 1e-6)
        if not fits(estimate * FEWEST):
            return
        # As often on all, so that pairs run side by side.
        count, each = often(estimate, share, 20)
        own = [0.0] * nodes
        own[node] = statistics.median(timed(operation, count, each)) if mine else 0.0
        slowest = agree(own)
        if rank == 0:
            for a, b in together:
                say(operation="send_recv", scope="pair", pair=[a, b], round=number, bytes=size, ranks=2 * per_node,
                    time=int(max(slowest[a], slowest[b]) * 1e9), iterations=count)


def rails(sizes, share, turns=5):
    """Measures each interface by itself, by turns, and tells its best turn: a rail that is slow is so in all of them, and
    what disturbs the processors for a moment is not.

    gloo looks which interface to use whenever a group is made.
    """
    everyone = list(range(ranks))
    before = os.environ.get("GLOO_SOCKET_IFNAME")
    groups = []
    for number, interface in enumerate(given["rails"]):
        on_rail(number)
        os.environ["GLOO_SOCKET_IFNAME"] = interface
        groups.append(dist.new_group(everyone))
    os.environ.pop("GLOO_SOCKET_IFNAME")
    if before is not None:
        os.environ["GLOO_SOCKET_IFNAME"] = before
    for size in sizes:
        calls = [operations(size, everyone, group)["all_reduce"] for group in groups]
        times = [[] for _ in groups]
        for _ in range(turns):
            for number, group in enumerate(groups):
                on_rail(number)
                times[number].append(iterate(calls[number], share / turns, group) or [])
        for number, of_rail in enumerate(times):
            best = min(filter(None, of_rail), key=statistics.median, default=None)
            if rank == 0 and best:
                tell("all_reduce", size, everyone, best, scope="rail", rail=number)


def host_copies(size):
    """Measures copies from the host's memory to each GPU, all GPUs of a node at once; a node's figure is that of its slowest."""
    own = [0.0] * nodes
    try:
        source = torch.ones(size // 4, dtype=torch.float32, pin_memory=True)
        target = torch.ones(size // 4, dtype=torch.float32, device=device)
        timed(lambda: target.copy_(source, non_blocking=True), 1)
        own[node] = statistics.median(timed(lambda: target.copy_(source, non_blocking=True), 10))
    except RuntimeError:
        pass  # a container may not be allowed to pin memory
    slowest = agree(own)[node]
    if local == 0 and slowest > 0:
        say(operation="host_copy", scope="node", node=node, bytes=size, ranks=per_node, time=int(slowest * 1e9), iterations=10)


def kind_of_device():
    """The GPU's name, or the processor's."""
    if cuda:
        return torch.cuda.get_device_name(torch.cuda.current_device())
    try:
        with open("/proc/cpuinfo") as file:
            return next(line.split(":", 1)[1].strip() for line in file if line.startswith("model name"))
    except (OSError, StopIteration):
        return "CPU"


def precision_of_device():
    """The shortest floating point type that matrix units of the device multiply and trainings use."""
    if not cuda:
        return "float32"
    major = torch.cuda.get_device_capability(torch.cuda.current_device())[0]
    return "bfloat16" if major >= 8 else "float16" if major >= 7 else "float32"


def need(size):
    """Raises unless size bytes are a quarter of the GPU's free memory at most, so that its other processes keep room.

    A smaller size instead would be slower on a healthy GPU, too, and could not be compared with others.
    """
    if cuda:
        free, whole = torch.cuda.mem_get_info()
        if 4 * size > free:
            raise RuntimeError("%.1f GB of %.1f GB are free, want %.1f GB" % (free / 1e9, whole / 1e9, 4 * size / 1e9))


def product():
    """A product of matrices, and its floating point operations."""
    precision = getattr(torch, precision_of_device())
    n, width, library = (8192, 4 if precision == torch.float32 else 2, 64 << 20) if cuda else (128, 4, 0)
    need(3 * n * n * width + library)
    # Of random numbers: a GPU needs less power for ones.
    a, b, c = (torch.randn(n, n, dtype=precision, device=device) for _ in range(3))
    return lambda: torch.mm(a, b, out=c), 2 * n ** 3


def copies():
    """A copy within the device's memory that no cache holds, and the bytes that it reads and writes."""
    size = (256 if cuda else 16) << 20
    need(2 * size)
    source = torch.ones(size // 4, dtype=torch.float32, device=device)
    target = torch.empty_like(source)
    return lambda: target.copy_(source), 2 * size


def rate(operation, amount, seconds):
    """The amount per second that the device reaches.

    A GPU is the rank's own: the median of many short windows is what it reaches for long. A processor has other users, and the best
    window is what it can. Its windows are two periods of a cgroup's quota, so that a throttled rank cannot hide in the part of a
    period in which it runs, or in the ends of two. The first window only warms up: it has what is left of a period, and a GPU's low clock.
    """
    window, pick = (0.02, statistics.median) if cuda else (0.2, max)

    def elapsed(count):
        start = time.perf_counter()
        for _ in range(count):
            operation()
        if cuda:
            torch.cuda.synchronize()
        return time.perf_counter() - start

    # A GPU is waited for only once in a window.
    batch = max(1, int(window / max(elapsed(1), 1e-6))) if cuda else 1
    rates, measured = [], -window
    while measured < seconds or len(rates) < 2:
        taken = calls = 0
        while taken < window:
            taken, calls = taken + elapsed(batch), calls + batch
        rates.append(amount * calls / taken)
        measured += taken
        beat()
    return int(pick(rates[1:]))


def devices(seconds):
    """Tells how fast the rank's device multiplies matrices and copies, while all others do the same, as in a training.

    Whatever fails on one rank, all agree equally often.
    """
    found, failed = {}, []
    for key, name, prepare, share in (("flopsPerSecond", "matrix product", product, 0.6), ("copyBytesPerSecond", "copy", copies, 0.4)):
        operation = None
        try:
            operation, amount = prepare()
            timed(operation, 1)
        except RuntimeError as error:
            operation = None
            failed.append((name, error))
        agree([0.0])
        try:
            if operation:
                found[key] = rate(operation, amount, share * seconds)
        except RuntimeError as error:
            failed.append((name, error))
        operation = None
        if cuda:
            torch.cuda.empty_cache()
    if failed:
        found["notMeasured"] = "; ".join("%s: %s" % (name, str(error).split("\n")[0][:200]) for name, error in failed)
    say(event="device", device={"rank": rank, "kind": kind_of_device(), "precision": precision_of_device(), **found})


def on_rail(number):
    """Says whose turn it is: where all hang, it is on that rail."""
    if rank == 0:
        say(event="rail", rail=number)


everyone = list(range(ranks))
iterate(lambda: dist.all_reduce(torch.ones(1, device=device)), 0.1)
if local == 0:
    say(event="joined")
if given.get("devices") and fits(10 * given["devices"]):
    devices(given["devices"])
# What matters most comes first; each size has its share of the time, which must be the same on
# all ranks, as the number of iterations follows from it.
share = given.get("share") or max(0.05, -agree([-left()])[0] / (4 * len(sizes)))
# What takes too long for all_reduce does so for the others.
sizes = collective("all_reduce", sizes, everyone, None, share, 0, scope="world") or sizes[:1]
largest = sizes[-1]
if given.get("pairs"):
    # In a pair each rank sends all of it, in a ring all ranks of a node together about twice of it.
    pairs(given["pairs"], min(given["pairBytes"], max(sizes[0], largest // per_node)), share)
if given.get("rails") and not cuda:
    rails(sizes[-2:], share / 2)
if given.get("others"):
    for name in ("all_gather", "reduce_scatter", "broadcast"):
        collective(name, sizes[-2:], everyone, None, share / 4, 0, scope="world")
if given.get("inside") and per_node > 1:
    # Every rank makes all groups, in the same order.
    members = [[n * per_node + i for i in range(per_node)] for n in range(nodes)]
    groups = [dist.new_group(m) for m in members]
    collective("all_reduce", [sizes[0], largest], members[node], groups[node], share / 4, members[node][0], scope="node", node=node)
if given.get("inside") and cuda and fits(0):
    host_copies(64 << 20)
agree([0.0])
if local == 0:
    say(event="done")
dist.destroy_process_group()
# The end of an interpreter that has imported torch takes longer than what is measured in short.
os._exit(0)
