#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes layouts.json: the files of checkpoints as the real libraries write them, in the order in which they write them.

    python3 -m venv VENV && VENV/bin/pip install -r requirements.txt
    VENV/bin/python generate.py [CASE...]     the cases of write.py; default: all. Those that fail stay as they are

Needs strace. No weights are kept: of each file its size, and the bytes that show its kind and its end.
"""

import base64
import importlib.metadata
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).parent
LISTING = HERE / "layouts.json"
# Without a GPU accelerate, and so the Trainer, uses neither FSDP nor DeepSpeed, although it is asked to, and Lightning refuses both.
# The row in docs/reference/node.md, the packages whose versions matter, and the checkpoints in their order; "none": not to be found without a mark.
CASES = {
    "trainer": ("transformers Trainer", "transformers", "out/checkpoint-2", "out/checkpoint-4"),
    "trainer_only_model": ("transformers Trainer", "transformers", "out/checkpoint-2", "out/checkpoint-4"),
    "trainer_keeps_two": ("transformers Trainer", "transformers", "out/checkpoint-2", "out/checkpoint-4", "out/checkpoint-6"),
    "trainer_shards": ("transformers Trainer", "transformers", "out/checkpoint-2", "out/checkpoint-4"),
    "trainer_peft": ("transformers Trainer", "transformers peft", "out/checkpoint-2", "out/checkpoint-4"),
    "accelerate_automatic": ("Accelerate", "accelerate", "checkpoints/checkpoint_0", "checkpoints/checkpoint_1"),
    "accelerate_named": ("Accelerate", "accelerate", "step_10", "step_20"),
    "accelerate_in_folders": ("Accelerate", "accelerate", "ckpt/epoch-0", "ckpt/epoch-1"),
    "accelerate_unsafe": ("Accelerate", "accelerate", "step_10", "step_20"),
    "lightning_logged": ("Lightning", "lightning", "lightning_logs/version_0/checkpoints/epoch=0-step=2.ckpt", "lightning_logs/version_0/checkpoints/epoch=1-step=4.ckpt"),
    "lightning_plain": ("Lightning", "lightning", "checkpoints/epoch=0-step=2.ckpt", "checkpoints/epoch=1-step=4.ckpt"),
    "lightning_last": ("Lightning", "lightning", "checkpoints/last.ckpt", "checkpoints/epoch=1-step=4.ckpt", "checkpoints/last.ckpt"),
    "pytorch_lightning": ("Lightning", "pytorch-lightning", "checkpoints/epoch=0-step=2.ckpt", "checkpoints/epoch=1-step=4.ckpt"),
    "fabric": ("Lightning", "lightning", "step-10.ckpt", "step-20.ckpt"),
    "dcp_files": ("torch.distributed.checkpoint", "", "step-10", "step-20"),
    "dcp_async": ("torch.distributed.checkpoint", "", "step-10", "step-20"),
    "dcp_file_of_each_tensor": ("torch.distributed.checkpoint", "", "step-10", "step-20"),
    "dcp_safetensors": ("torch.distributed.checkpoint", "safetensors", "none"),
    "dcp_model_and_optimizer": ("torch.distributed.checkpoint", "", "step-10", "step-20"),
    "deepspeed_zero0": ("DeepSpeed", "deepspeed", "global_step1", "global_step2"),
    "deepspeed_zero1": ("DeepSpeed", "deepspeed", "global_step1", "global_step2"),
    "deepspeed_zero2": ("DeepSpeed", "deepspeed", "global_step1", "global_step2"),
    "deepspeed_zero3": ("DeepSpeed", "deepspeed", "global_step1", "global_step2"),
    "deepspeed_bf16": ("DeepSpeed", "deepspeed", "global_step1", "global_step2"),
    "deepspeed_tag": ("DeepSpeed", "deepspeed", "step-10", "step-20"),
    "module_mlenv": ("any other file or folder", "", "step-10", "step-20"),
    "torch_save": ("any other file or folder", "", "none"),
    "pretrained": ("any other file or folder", "transformers", "none"),
}
ENDS = (b"PK\x05\x06", 256)  # the end of a zip file's directory, and how near the end it is looked for
# Files of a checkpoint that no library needs to load it.
SPARE = re.compile(r"(^|/)(zero_to_fp32\.py|README\.md|events\.out\.tfevents\..*|\w+\.(csv|yaml))$")
MARKS = {"latest", "latest_checkpointed_iteration.txt", ".metadata"}


def shown(path):
    """Returns the bytes of a file that matter: those at its beginning and its end."""
    content = path.read_bytes()
    if path.name in MARKS:
        return content, b""
    if path.suffix == ".safetensors":
        return content[: 8 + int.from_bytes(content[:8], "little")], b""
    if path.suffix == ".json":
        return content[:1], content[-2:]
    end = content[-ENDS[1]:]
    if content.startswith(b"PK\x03\x04") and ENDS[0] in end:
        return content[:4], end[end.rindex(ENDS[0]):]
    return content[:2], content[-1:]


def files(top):
    found = {}
    for path in sorted(top.rglob("*")):
        if path.is_file():
            head, tail = shown(path)
            found[str(path.relative_to(top))] = {
                "path": str(path.relative_to(top)), "size": path.stat().st_size,
                "head": base64.b64encode(head).decode(), "tail": base64.b64encode(tail).decode(),
            }
    return found


CALL = re.compile(
    r'^(\d+\.\d+) (?:(openat|creat)\((?:AT_FDCWD, )?"([^"]+)", ?([A-Z_|0-9]*).*\) = \d+|'
    r'rename(?:at2?)?\((?:AT_FDCWD, )?"([^"]+)", (?:AT_FDCWD, )?"([^"]+)".*\) = 0)'
)


def calls(traces, top):
    """Yields (time, the path that was opened or "", the old and the new name), in the order of time."""
    found = []
    for trace in traces.iterdir():
        for line in trace.read_text(errors="replace").splitlines():
            match = CALL.match(line)
            if not match:
                continue
            path, old, new = match[3] or "", match[5] or "", match[6] or ""
            writes = match[2] == "creat" or re.search("O_WRONLY|O_RDWR", match[4] or "")
            if new and new.startswith(f"{top}/") or path.startswith(f"{top}/") and writes:
                found.append((float(match[1]), path, old, new))
    return sorted(found)


def run(cases, work):
    """Runs write.py for two ranks, and returns the folder with the traces of their system calls."""
    traces = work / "traces"
    traces.mkdir()
    environment = {
        **os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo", "ACCELERATE_USE_CPU": "true", "DS_ACCELERATOR": "cpu",
        "DS_BUILD_OPS": "0", "CUDA_VISIBLE_DEVICES": "", "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false", "WORLD_SIZE": "2",
        "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29600", "TORCHELASTIC_RUN_ID": "none", "GROUP_RANK": "0",
        "PYTHONPATH": str(HERE.parents[2] / "internal" / "agent" / "pylib"), "HOME": str(work), "PYTHONDONTWRITEBYTECODE": "1",
    }
    calls = "trace=openat,creat,rename,renameat,renameat2"
    ranks = []
    for rank in "01":
        command = ["strace", "-ff", "--seccomp-bpf", "-ttt", "-s", "4096", "-e", calls, "-e", "signal=none", "-o", str(traces / f"rank-{rank}"),
                   sys.executable, str(HERE / "write.py"), str(work), *cases]
        ranks.append(subprocess.Popen(command, env={**environment, "RANK": rank, "LOCAL_RANK": rank}, cwd=work))
    for rank in ranks:
        if rank.wait():
            raise RuntimeError(f"write.py exited with {rank.returncode}")
    return traces


def layout(case, work, traces):
    top = work / case
    for rank in "01":
        ended = pathlib.Path(f"{top}.{rank}").read_text()
        if ended != "0":
            raise RuntimeError(f"rank {rank} exited with {ended}:\n" + pathlib.Path(f"{top}.log.{rank}").read_text(errors="replace")[-3000:])
    row, packages, *checkpoints = CASES[case]
    before, after = files(pathlib.Path(f"{top}.before")), files(top)
    copied = (pathlib.Path(f"{top}.before")).stat().st_ctime
    order, names = {}, {}
    for time, path, old, new in calls(traces, top):
        if time < copied:
            continue
        if path:
            name = str(pathlib.Path(path).relative_to(top))
            order.pop(name, None)
            order[name] = ""
            continue
        old, new = (str(pathlib.Path(p).relative_to(top)) if p.startswith(f"{top}/") else "" for p in (old, new))
        for name in [name for name in order if old and (name == old or name.startswith(old + "/"))]:
            order.pop(name)
            order[new + name[len(old):]] = name
        if not old:
            order[new] = ""
    writes = []
    for name, written in order.items():
        if name in after:
            writes.append({**after[name], **({"written": written} if written else {})})
    missed = [name for name in after if after[name] != before.get(name) and name not in order]
    if missed:
        raise RuntimeError(f"{case}: not seen in the trace: {missed}")
    versions = [f"{p} {importlib.metadata.version(p)}" for p in ["torch", *packages.split()]]
    return {"case": case, "row": row, "versions": ", ".join(versions), "before": list(before.values()), "writes": writes,
            "complete": [[needed(checkpoint, writes), checkpoint] for checkpoint in checkpoints]}


def needed(checkpoint, writes):
    """Returns how many of the writes there must have been until the checkpoint is complete."""
    of_it = [
        number for number, file in enumerate(writes, 1)
        if file["path"] == checkpoint or file["path"].startswith(checkpoint + "/") and not SPARE.search(file["path"])
        or file["path"] == "latest"  # which names the last one
    ]
    return max(of_it, default=0)


def main():
    known = {entry["case"]: entry for entry in json.loads(LISTING.read_text())} if LISTING.exists() else {}
    failed = []
    cases = sys.argv[1:] or list(CASES)
    with tempfile.TemporaryDirectory() as folder:
        work = pathlib.Path(folder)
        traces = run(cases, work)
        for case in cases:
            try:
                known[case] = layout(case, work, traces)
                print(f"{case}: {len(known[case]['before'])} files, then {len(known[case]['writes'])}", flush=True)
            except (OSError, RuntimeError) as error:
                failed.append(case)
                print(f"{case} failed: {error}", flush=True)
    lines = [json.dumps(known[case]) for case in CASES if case in known]
    LISTING.write_text("[\n" + ",\n".join(lines) + "\n]\n")
    if failed:
        sys.exit(f"failed: {' '.join(failed)}")


if __name__ == "__main__":
    main()
