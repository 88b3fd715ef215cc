"""Prints the last collective of each process group in dumps of torch's flight recorder, as one line of JSON: by file, a list of
groups. The arguments are for how many seconds to wait for the dumps, and their files."""

import json
import pickle
import sys
import time

found, left = {}, sys.argv[2:]
deadline = time.monotonic() + float(sys.argv[1])
while left and time.monotonic() < deadline:
    for name in list(left):
        try:
            with open(name, "rb") as file:
                dump = pickle.load(file)
            last = {}
            for entry in dump.get("entries", []):
                if entry.get("is_p2p"):
                    continue
                group = entry["process_group"]
                key = group if isinstance(group, str) else group[0]
                if key not in last or entry["collective_seq_id"] >= last[key]["collective_seq_id"]:
                    last[key] = entry
            groups = []
            for key, config in dump.get("pg_config", {}).items():
                entry = last.get(key, {"collective_seq_id": 0, "profiling_name": "", "state": "", "time_created_ns": 0})
                groups.append({
                    "id": key,
                    "group": config.get("desc") or key,
                    "ranks": json.loads(config["ranks"]),
                    "number": entry["collective_seq_id"],
                    "operation": entry["profiling_name"].rpartition(":")[2],
                    "state": entry["state"],
                    "entered": max(0, time.time() - entry["time_created_ns"] / 1e9),
                })
            found[name] = groups
            left.remove(name)
        except Exception:  # not there yet, or not complete
            pass
    time.sleep(0.1)
print(json.dumps(found))
