# SPDX-License-Identifier: Apache-2.0
"""Prints what dumps of torch's flight recorder have about each process group, as one line of JSON: by file, a list of groups with their
last collective and their first operation that is not completed. The arguments are for how many seconds to wait for the dumps, and their
files.

Up to torch 2.5 a batch of P2P also counts as a collective: its end is no P2P, and has the number of the P2P before it. In torch 2.3 all
P2P counts. Then the number is counted here, or -1 if the recorder has forgotten the first operations."""

import json
import os
import pickle
import re
import sys
import time

P2P = re.compile(r":(send|recv) \d+(->|<-)\d+$")


class Unpickler(pickle.Unpickler):
    """Reads what torch writes, which are lists, texts and numbers: a rank may write anything, and a class of a pickle is code that runs."""

    def find_class(self, module, name):
        raise pickle.UnpicklingError(f"{module}.{name} in a dump")


def load(name):
    # A FIFO does not block, and has no end.
    with open(os.open(name, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW), "rb") as file:
        return Unpickler(file).load()


def modern(dump):
    """Returns a dump of torch 2.3 as later versions write it."""
    config, same = {}, {}
    for number, ranks in sorted(dump["pg_config"].items()):
        # The number is the rank's own, because a rank counts only the groups to which it belongs. All ranks of a group create it after the
        # same number of earlier groups with the same ranks.
        earlier = same.setdefault(tuple(ranks), [])
        config[number] = {
            "id": str(len(earlier)), "desc": f"process group {number}" if number else "default_pg", "ranks": json.dumps(ranks)}
        earlier.append(number)
    entries = []
    for e in dump["entries"]:
        entries.append({
            **e, "process_group": [e["pg_id"]], "collective_seq_id": e["seq_id"], "p2p_seq_id": e["seq_id"],
            "is_p2p": P2P.search(e["profiling_name"]) is not None})
    return {"pg_config": config, "entries": entries, "p2p_counts": True}


def value(kind, it):
    """Returns it, if it is of a kind and has a size that the reader of the output can read."""
    if not isinstance(it, kind) or kind is int and abs(it) >= 1 << 62:
        raise ValueError(f"{it!r:.100} in a dump")
    return it


def operation(number, entry):
    return {
        "number": value(int, number),
        "operation": entry["profiling_name"].rpartition(":")[2],
        "state": value(str, entry["state"]),
        "entered": max(0, time.time() - value(int, entry["time_created_ns"]) / 1e9),
    }


def read(dump):
    if dump.get("version", "").startswith("1."):
        dump = modern(dump)
    entries = sorted(dump.get("entries", []), key=lambda e: e["record_id"])
    whole = not entries or entries[0]["record_id"] == 0
    by_group = {}
    for entry in entries:
        group = entry["process_group"]
        by_group.setdefault(group if isinstance(group, str) else group[0], []).append(entry)
    for key, config in dump.get("pg_config", {}).items():
        last, pending, numbers, p2p, batched = None, None, set(), set(), False
        # The operations inside a batch have no state of their own.
        ends = {(e["collective_seq_id"], e.get("p2p_seq_id")) for e in by_group.get(key, []) if e["profiling_name"].endswith(":coalesced")}
        for e in by_group.get(key, []):
            number = e["collective_seq_id"]
            if e.get("is_p2p"):
                p2p.add(number)
                batched = batched or "p2p_counts" in dump
            elif number in p2p:
                batched = True
            else:
                last = e if last is None or number >= last["collective_seq_id"] else last
                numbers.add(number)
            inside = (number, e.get("p2p_seq_id")) in ends and not e["profiling_name"].endswith(":coalesced")
            if pending is None and e["state"] != "completed" and not inside:
                pending = operation(e.get("p2p_seq_id", 0) if e.get("is_p2p") else number, e)
        ranks = [value(int, rank) for rank in json.loads(config["ranks"])]
        result = {"id": value(str, config.get("id", key)), "group": value(str, config.get("desc") or key), "ranks": ranks}
        if last is None:
            last = {"collective_seq_id": 0, "profiling_name": "", "state": "", "time_created_ns": 0}
        result |= operation(last["collective_seq_id"], last)
        if batched:
            result["number"] = len(numbers) if whole else -1
        if pending:
            result["pending"] = pending
        yield result


found, left = {}, sys.argv[2:]
deadline = time.monotonic() + float(sys.argv[1])
while left and time.monotonic() < deadline:
    for name in list(left):
        try:
            dump = load(name)
        except Exception:  # not there yet, or not complete
            continue
        left.remove(name)
        try:
            found[name] = list(read(dump))
        except Exception:  # of a version that is not known, such as torch 2.2's without the ranks of a group; or a rank wrote anything
            pass
    time.sleep(0.1)
print(json.dumps(found))
