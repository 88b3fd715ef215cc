# SPDX-License-Identifier: Apache-2.0
"""Progress and checkpoints of a training, for ml-dev-env, which gives every rank this module. To use it elsewhere, copy this file:
it needs only Python.

    from mlenv import checkpoint_folder, finish_checkpoint, last_checkpoint, progress, stopping

    start = last_checkpoint()                    # None, or the path of the checkpoint to continue from
    ...
    progress(step=12, steps=500, loss=2.31, tokens=49152)
    ...
    path = checkpoint_folder() / "step-12"       # every rank writes its part of it, then they wait for each other
    finish_checkpoint(path)                      # one rank of the folder, after that
    ...
    if stopping():                               # every rank, after every step: save, and leave the loop
        break
"""

import atexit
import json
import os
import pathlib
import re
import signal
import sys
import threading
import time

_complained = False
_reports = False  # the script calls progress: what frameworks show is not written beside it


def progress(**values):
    """Appends a line of metrics to $MLENV_METRICS_FILE. docs/reference/metrics.md lists the keys that have a meaning.

    A tensor of one element counts as a number. A NaN is written as NaN, so that users see it. On every rank except 0, and outside
    ml-dev-env, progress does nothing. A failed write never stops the training: the first one is reported on stderr.
    """
    global _reports
    _reports = True
    _write(values)


def _write(values):
    path = os.environ.get("MLENV_METRICS_FILE")
    rank = os.environ.get("RANK") or os.environ.get("NODE_RANK") or "0"  # without a launcher: one process per node
    if not path or rank != "0" or "RANK" not in os.environ and os.environ.get("LOCAL_RANK", "0") != "0":
        return
    try:
        line = {"time": time.time()}
        for name, value in values.items():
            line[name] = value.item() if hasattr(value, "item") else value
        with open(path, "a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")
    except Exception as error:  # no error in metrics may stop the training
        global _complained
        if not _complained:
            _complained = True
            print(f"writing metrics to {path}: {error}", file=sys.stderr, flush=True)


def checkpoint_folder():
    """Returns the folder of this run's checkpoints, a pathlib.Path. A run that resumes others has the folder of the first of them."""
    name = os.environ.get("MLENV_RESUME_FROM") or os.environ.get("MLENV_RUN") or "local"
    return pathlib.Path(os.environ.get("MLENV_WORKSPACE") or "/workspace", "checkpoints", name)


def finish_checkpoint(path):
    """Marks a complete checkpoint, a file or a folder, as the newest one of its folder.

    The mark is the file `latest` next to it, as DeepSpeed has one. It is replaced at once, so a training that is killed meanwhile
    leaves the mark of the checkpoint before.
    """
    path = pathlib.Path(path)
    new = path.with_name("latest.new")
    new.write_text(path.name, encoding="utf-8")
    os.replace(new, path.with_name("latest"))


def last_checkpoint(folder=None):
    """Returns the path of the newest finished checkpoint in the folder (default: checkpoint_folder()), or None if it has none.

    In a restarted training that is $MLENV_LAST_CHECKPOINT, if it is set: ml-dev-env has verified that it is complete on every node.
    So call this before the first step. Otherwise it is the one that the file `latest` names, or without such a file the newest
    complete one that a framework has written there or some levels down; docs/reference/node.md lists the frameworks. In a run that resumes
    another one, the default includes what the earlier runs wrote at relative paths. Raises FileNotFoundError if the marked checkpoint
    is gone: a training that starts over unasked wastes days.
    """
    folder = pathlib.Path(folder or checkpoint_folder())
    verified = os.environ.get("MLENV_LAST_CHECKPOINT")
    found, level = [], [folder]
    if folder == checkpoint_folder():
        if verified is not None:
            return pathlib.Path(verified) if verified else None
        level += map(pathlib.Path, filter(None, os.environ.get("MLENV_EARLIER_WORK", "").split(":")))
    for _ in range(4):  # Lightning's are lightning_logs/version_0/checkpoints/NAME.ckpt
        level = [below for path in level for below in _look(path, found)]
    for _, path, format in sorted(found, reverse=True):
        if not format or _complete(path, format):
            return path
    mark = folder / "latest"
    if mark.is_file():
        name = mark.read_text(encoding="utf-8").strip()
        if not name:  # DeepSpeed was killed as it wrote the mark
            raise FileNotFoundError(f"looking for the newest checkpoint: {mark} is empty; want a name")
        path = mark.with_name(name)
        raise FileNotFoundError(f"looking for the newest checkpoint: {path}, which {mark} names, does not exist")
    return None


class Stop:
    """Why a training is stopped, and how long it has to save.

    reason is "timeout", "cancelled", "container" (the pod of a node is drained, evicted or preempted), "rule" (of stop-if or
    restart-if), or "signal" outside ml-dev-env.
    message is a sentence for users. deadline is when the rank is killed, in seconds since 1970, None if it is not known.
    """

    def __init__(self, reason, message="", deadline=None):
        self.reason, self.message, self.deadline = reason, message, deadline

    @property
    def seconds_left(self):
        """How many seconds are left to save, None if it is not known."""
        return None if self.deadline is None else max(0.0, self.deadline - time.time())

    def __repr__(self):
        left = "" if self.deadline is None else f", {self.seconds_left:.0f} s left"
        return f"Stop({self.reason}{left})"


_REASONS = ("timeout", "cancelled", "container", "rule", "signal")
_CAUSES = {"deadline": "timeout", "cancelled": "cancelled", "container": "container", "node": "container",
           "rule": "rule"}
_signalled = threading.Event()
_asks = False  # the script calls stopping: frameworks are not stopped beside it
_agreement = None
_agreed = None


def stopping():
    """Returns a Stop if the training is being stopped and should save now, else None.

    If torch.distributed is initialised, all ranks must call it after the same steps: it returns a Stop on all of them after the same
    step, also if only one node is stopped, so that a checkpoint that needs every rank is possible. Otherwise each rank asks for itself.
    Save, and leave the loop with exit code 0: what runs until the deadline is killed.

    The first call makes SIGTERM harmless to this process, unless the script has a handler of its own. So call it before the first step
    if a step takes long. In a thread other than the main one the signal stays as it is.
    """
    global _asks
    _asks = True
    handle()
    return _stopping()


def handle(also=()):
    """Makes SIGTERM ask for a stop, unless a handler is there that is none of these, and returns whether it does."""
    if threading.current_thread() is threading.main_thread():
        if signal.getsignal(signal.SIGTERM) in (signal.SIG_DFL, *also):
            signal.signal(signal.SIGTERM, _signal)
    return signal.getsignal(signal.SIGTERM) is _signal


def _signal(*_):
    path = os.environ.get("MLENV_STOP_FILE")
    if path and not os.path.exists(path):  # there is no time to save: a peer has failed
        release()
        os.kill(os.getpid(), signal.SIGTERM)
    _signalled.set()


def release():
    """Lets SIGTERM end the process again, if it asked for a stop."""
    if threading.current_thread() is threading.main_thread() and signal.getsignal(signal.SIGTERM) is _signal:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


os.register_at_fork(after_in_child=release)  # whoever starts a process may end it by SIGTERM


def _stopping():
    global _agreed, _agreement
    if _agreed is None:
        if _agreement is None or _agreement.over.is_set():
            _agreement = _distributed()
        _agreed = _agreement.step() if _agreement else _told()
    return _agreed


def _told():
    """Returns the Stop of this rank's node, None if it is not being stopped."""
    path = os.environ.get("MLENV_STOP_FILE")
    try:
        notice = json.loads(pathlib.Path(path).read_text(encoding="utf-8")) if path else None
    except (OSError, ValueError):
        notice = None
    if notice:
        return Stop(_CAUSES.get(notice["cause"], "cancelled"), notice["reason"], notice["until"])
    return Stop("signal") if _signalled.is_set() else None


def _distributed():
    """Returns an agreement with the other ranks, None if there are none, or torch.distributed has no store for it."""
    dist = getattr(sys.modules.get("torch"), "distributed", None)
    if not dist or not dist.is_available() or not dist.is_initialized() or dist.get_world_size() == 1:
        return None
    try:
        store = dist.distributed_c10d._get_default_store()
    except (AttributeError, RuntimeError, ValueError):
        store = None  # as with MPI
    return _Agreement(dist, store) if store is not None else None


class _Agreement:
    """Finds the step after which all ranks stop, without an operation between the ranks in each step.

    Once a second a thread of each rank looks whether its node is being stopped, or, in the store of torch.distributed, another rank.
    Then it promises not to go beyond the step that this rank is in. Rank 0 decides on the largest promise; a rank that has reached its own
    waits until then. The answer is the same on all ranks, because no step is beyond the decision.
    """

    _PATIENCE = 10.0  # seconds until a rank that does not promise is taken for dead, at least; else a third of the time left
    _LOOK = 1.0

    def __init__(self, dist, store):
        self.dist, self.store, self.rank, self.world = dist, store, dist.get_rank(), dist.get_world_size()
        self.steps, self.promise, self.decision, self.patience = 0, None, None, self._PATIENCE
        self.changed, self.over = threading.Condition(), threading.Event()
        thread = threading.Thread(target=self._follow, name="mlenv-stopping", daemon=True)
        thread.start()
        atexit.register(self._end, thread)  # a thread in the store when Python ends would end the process by a signal

    def _end(self, thread):
        self.over.set()
        thread.join(self._PATIENCE)

    def step(self):
        """Returns the Stop after the last step, else None. Call it after each step."""
        with self.changed:
            self.steps += 1
            if self.promise is None or self.steps < self.promise:
                return None
            self.changed.wait_for(lambda: self.decision is not None, self.patience)
            if self.decision is None:  # the other ranks cannot save with this one
                return _told() or Stop("signal", "another rank is being stopped")
            last, deadline, reason = self.decision
            if self.steps < last:
                return None
        mine = _told()
        return Stop(reason, mine.message if mine else "another rank is being stopped", deadline)

    def _follow(self):
        try:
            while not self.over.wait(self._LOOK):
                if not self.dist.is_initialized():
                    break
                mine = _told()
                if mine:
                    self.store.set("mlenv/patience", str(max(self._PATIENCE, (mine.seconds_left or 0) / 3)))
                # Adding nothing reads a counter, and unlike get it does not wait for one.
                if self.store.add("mlenv/wanted", 1 if mine else 0) > 0:
                    self._promise(mine)
                    return
        except Exception:  # the store is gone when its rank has ended
            pass
        self.store = None  # rank 0 serves it as long as anybody has it
        self.over.set()

    def _promise(self, mine):
        patience = float(self.store.get("mlenv/patience"))  # the same for all ranks
        with self.changed:
            self.promise, self.patience = self.steps + 1, patience
        # Seconds, because clocks of nodes differ.
        self.store.set("mlenv/%d" % self.rank, json.dumps([self.promise, mine and mine.seconds_left, mine and mine.reason]))
        if self.rank != 0:
            self.store.add("mlenv/promised", 1)
        elif self._counted("mlenv/promised", self.world - 1):
            promises = [json.loads(self.store.get("mlenv/%d" % rank)) for rank in range(self.world)]
            left = min((left for _, left, _ in promises if left is not None), default=None)
            reason = max((reason for _, _, reason in promises if reason), key=_REASONS.index, default="signal")
            self.store.set("mlenv/decision", json.dumps([max(step for step, _, _ in promises), left, reason]))
            self.store.add("mlenv/decided", 1)
        if self._counted("mlenv/decided", 1):
            last, left, reason = json.loads(self.store.get("mlenv/decision"))
            with self.changed:
                self.decision = last, None if left is None else time.time() + left, reason
                self.changed.notify_all()

    def _counted(self, key, many):
        until = time.monotonic() + self.patience
        while self.store.add(key, 0) < many:
            if self.over.wait(0.05) or time.monotonic() > until:
                return False
        return True


# What follows is the search that ml-dev-env's agent makes on every node; test/images/checkpoints.txt has the layouts for both.

_PART = re.compile(r"(pytorch_model_fsdp_\d+|optimizer_\d+|pytorch_model(_\d+)?)$")
_PARTS = {"model", "optim", "optimizer"}  # folders of torch.distributed.checkpoint that scripts write for one checkpoint
_OF_MODEL_RANK = re.compile(r"(mp_rank_\d+(_\d+)*|tp_rank_\d+_pp_rank_\d+)$")  # a folder with one rank's part of a checkpoint
_SHARD = re.compile(rb"__\d+_\d+\.distcp")
_DEEPSPEED = re.compile(r"((bf16_)?zero_pp_rank_\d+_)?mp_rank_\d+_(model|optim)_states\.pt$")
_TRAINER = re.compile(
    r"(trainer_state\.json|training_args\.bin|rng_state(_\d+)?\.pth|(model|pytorch_model|adapter_model)\b.*\.(safetensors|bin))$"
)
_OF_RANK = re.compile(r"(rng_state_|random_states_|.*_rank|(?:bf16_)?zero_pp_rank_)(\d+)(\.\w+|_mp_rank_\d+_\w+\.pt)$")
_DATED = re.compile(r"(trainer_state\.json|rng_state(_\d+)?\.pth|random_states_\d+\.pkl|\.metadata|.*_states\.pt)$")
_OF_MANY = re.compile(r"(.*-)\d{5}-of-(\d{5})(\.\w+)$")


def _look(folder, found):
    """Adds (time, path, format) of the checkpoints in a folder to found, and returns its other folders."""
    marked = _marked(folder)
    if marked:  # whatever is newer was not finished
        found.append((_modified(marked), marked, ""))
        return []
    below = []
    for path in folder.iterdir() if folder.is_dir() else ():
        if path.is_symlink() or path.name.startswith("."):
            continue
        format = _format(path)
        if format == "DeepSpeed" and not any(path.glob("*_optim_states.pt")):
            # Only a mark distinguishes it from one that was not finished: here, a later one that names nothing.
            mark = folder / "latest"
            if not mark.is_file() or mark.lstat().st_mtime < _modified(path):
                continue
        unfinished = folder / (re.sub(r"\.ckpt$", "", path.name) + "-unfinished")  # NeMo
        if format and (unfinished.exists() or _OF_MODEL_RANK.match(folder.name)):
            continue
        if format == "torch" and path.name in _PARTS:
            continue  # the other folders of the checkpoint are missing
        if format:
            found.append((_modified(path), path, format))
        elif path.is_dir():
            below.append(path)
    return below


def _marked(folder):
    """Returns the path that DeepSpeed, this module, Megatron-LM or verl has marked as the newest of its folder, or None."""
    for mark in ("latest", "latest_checkpointed_iteration.txt"):
        try:
            name = (folder / mark).read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError):
            continue
        number = int(name) if name.isdecimal() and mark != "latest" else None
        for name in (name,) if number is None else (f"iter_{number:07d}", f"global_step_{number}"):
            if name and "/" not in name and (folder / name).exists():
                return folder / name
    return None


def _modified(path):
    """Returns when a checkpoint was written: the newest file that frameworks write at each save, or else the newest one."""
    times = [(bool(_DATED.match(file.name)), file.lstat().st_mtime) for file in (*path.glob("*"), *path.glob("*/*"))]
    return max(times, default=(False, path.lstat().st_mtime))[1]


def _format(path):
    """Returns the format of a file or folder, or "" if no framework writes it."""
    if not path.is_dir():
        return "file" if path.suffix == ".ckpt" and path.is_file() else ""
    files = {entry.name: entry.is_dir() for entry in path.iterdir()}
    torch = ".metadata" in files or any(_SHARD.match(name.encode()) for name in files)
    parts = any(_PART.match(name) for name, is_folder in files.items() if is_folder)
    if path.suffix == ".ckpt" and (torch or "checkpoint" in files):
        return "Lightning"
    if torch:
        return "torch"
    if files.get("model") and (files.get("optim") or files.get("optimizer")) or files.get("weights") and files.get("context"):
        return "parts"
    if any(map(_DEEPSPEED.match, files)):
        return "DeepSpeed"
    if any(name.startswith("random_states_") for name in files):
        return "accelerate"
    if re.match(r"checkpoint-\d+$", path.name) and (parts or any(map(_TRAINER.match, files))):
        return "Trainer"
    return "accelerate" if parts else ""


def _complete(path, format):
    """Returns whether a checkpoint has all its files, each written to its end."""
    if format == "file":
        return _whole(path)
    files = {entry.name: entry for entry in path.iterdir()}
    wanted = {"Trainer": {"trainer_state.json"}, "accelerate": {"random_states_0.pkl"}}.get(format, set())
    if format == "torch" or format == "Lightning" and "checkpoint" not in files:
        metadata = (path / ".metadata").read_bytes() if ".metadata" in files else b""
        if not metadata.endswith(b"."):  # a pickle's last byte
            return False
        wanted |= {name.decode() for name in _SHARD.findall(metadata)} | ({"meta.pt"} if format == "Lightning" else set())
    if format == "DeepSpeed" and not any(name.endswith("_model_states.pt") and "zero" in name for name in files):
        wanted.add("mp_rank_00_model_states.pt")
    for name, entry in files.items():
        if entry.is_dir():
            inner = _format(entry)
            if inner == "DeepSpeed":
                wanted.add("latest")
            if inner and not _complete(entry, inner) or not inner and re.match(r"(pytorch_model_fsdp|optimizer)_\d+$", name):
                return False
            if format == "parts" and name in {*_PARTS, "weights"} and inner != "torch":
                return False
        of, is_index, _ = name.partition(".index.json")
        if is_index and of not in files and not any(path.glob(re.sub(r"(\.\w+)$", r"-*-of-*\1", of))):
            return False
        for begin, many, end in _OF_MANY.findall(name):
            wanted |= {f"{begin}{number + 1:05d}-of-{many}{end}" for number in range(int(many))}
    ranked = [match for match in map(_OF_RANK.match, files) if match]
    last = max((int(match[2]) for match in ranked), default=0)  # each rank writes the same files
    wanted |= {f"{match[1]}{rank}{match[3]}" for match in ranked for rank in range(min(last, len(files)) + 1)}
    return wanted <= files.keys() and all(map(_whole, files.values()))


def _whole(path):
    """Returns whether a file was written to its end. It is true for kinds of files that do not show it."""
    if path.is_dir() or path.suffix not in (".ckpt", ".pt", ".pth", ".bin", ".pkl", ".distcp", ".safetensors", ".json"):
        return True
    with open(path, "rb") as file:
        begin, size = file.read(8), path.stat().st_size
        if path.suffix == ".safetensors":  # the length of a header, the header with the place of each tensor, tensors
            length = int.from_bytes(begin, "little")
            if size < 8 + length:
                return False
            tensors = json.loads(file.read(length)).values()
            return size >= 8 + length + max((tensor["data_offsets"][1] for tensor in tensors if "data_offsets" in tensor), default=0)
        file.seek(max(0, size - 8192))
        end = file.read()
    if begin.startswith(b"PK\3\4"):  # torch.save writes zip files
        return b"PK\5\6" in end
    return size > 0 and (path.suffix != ".json" or not begin.startswith(b"{") or end.rstrip().endswith(b"}"))
