# SPDX-License-Identifier: Apache-2.0
"""Tests of internal/agent/pylib/mlenv.py."""

import base64
import collections
import contextlib
import io
import json
import os
import pathlib
import re
import signal
import tempfile
import threading
import time
import unittest
from unittest import mock

import mlenv


class Number:
    """What a tensor of one element has."""

    def item(self):
        return 1.5


class Mlenv(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.metrics = self.folder / "metrics.jsonl"
        self.environment()

    def environment(self, **variables):
        """Replaces all variables."""
        patch = mock.patch.dict(os.environ, {"MLENV_METRICS_FILE": str(self.metrics), **variables}, clear=True)
        patch.start()
        self.addCleanup(patch.stop)

    def lines(self):
        return [json.loads(line) for line in self.metrics.read_text().splitlines()] if self.metrics.exists() else []

    def test_progress_appends_lines(self):
        mlenv.progress(step=1, loss=Number())
        mlenv.progress(step=2, loss=float("nan"), rank_seconds=[0.5, 0.25])
        first, second = self.lines()
        self.assertEqual((first["step"], first["loss"]), (1, 1.5))
        self.assertGreater(first["time"], 1e9)
        self.assertNotEqual(second["loss"], second["loss"])
        self.assertEqual(second["rank_seconds"], [0.5, 0.25])

    def test_only_rank_0_writes(self):
        for variables in ({"RANK": "1"}, {"NODE_RANK": "1"}):
            self.environment(**variables)
            mlenv.progress(step=1)
        self.assertEqual(self.lines(), [])
        self.environment(RANK="0", NODE_RANK="1")
        mlenv.progress(step=1)
        self.assertEqual(len(self.lines()), 1)

    def test_progress_never_raises(self):
        self.metrics.mkdir()
        stderr = io.StringIO()
        with contextlib.redirect_stderr(stderr):
            mlenv.progress(step=1)
            mlenv.progress(step=object())
        self.assertEqual(stderr.getvalue().count("writing metrics"), 1)
        del os.environ["MLENV_METRICS_FILE"]
        mlenv.progress(step=1)

    def test_folder(self):
        self.assertEqual(str(mlenv.checkpoint_folder()), "/workspace/checkpoints/local")
        self.environment(MLENV_RUN="second")
        self.assertEqual(str(mlenv.checkpoint_folder()), "/workspace/checkpoints/second")
        self.environment(MLENV_RUN="second", MLENV_RESUME_FROM="first")
        self.assertEqual(str(mlenv.checkpoint_folder()), "/workspace/checkpoints/first")
        self.environment(MLENV_RUN="here", MLENV_WORKSPACE="/home/me")  # of a local run
        self.assertEqual(str(mlenv.checkpoint_folder()), "/home/me/checkpoints/here")

    def test_last_checkpoint(self):
        folder = self.folder / "checkpoints"
        self.assertIsNone(mlenv.last_checkpoint(folder))
        for name in ("step-1", "step-2", "step-3"):
            (folder / name).mkdir(parents=True)
            self.assertEqual(mlenv.last_checkpoint(folder), {"step-3": folder / "step-2", "step-2": folder / "step-1"}.get(name))
            if name != "step-3":  # which is not complete
                mlenv.finish_checkpoint(folder / name)
        self.assertEqual(mlenv.last_checkpoint(str(folder)), folder / "step-2")
        self.assertEqual(sorted(path.name for path in folder.iterdir()), ["latest", "step-1", "step-2", "step-3"])
        (folder / "step-2").rmdir()
        with self.assertRaisesRegex(FileNotFoundError, "step-2, which .*latest names"):
            mlenv.last_checkpoint(folder)
        (folder / "latest").write_text("")
        with self.assertRaisesRegex(FileNotFoundError, "latest is empty"):
            mlenv.last_checkpoint(folder)

    def test_layouts_of_frameworks(self):
        """checkpoints.txt explains its format at its beginning."""
        sets, row = {}, ""
        layouts = []
        for line in (pathlib.Path(__file__).parent / "checkpoints.txt").read_text().splitlines():
            if line.startswith("## "):
                row = line[3:]
            elif line.startswith("set "):
                sets[line[4:].partition(": ")[0]] = line.partition(": ")[2].split()
            elif line.startswith("\t"):
                layouts[-1][3].append(line.split())
            elif line and not line.startswith("#"):
                name, _, want = line.partition(": ")
                layouts.append((row, name, want, []))
        self.assertGreater(len(layouts), 40)
        for row, name, want, folders in layouts:
            with self.subTest(f"{row}: {name}"), tempfile.TemporaryDirectory() as top:
                for minute, (folder, *words) in enumerate(folders):
                    self.write(pathlib.Path(top), folder, words, sets, 1_790_000_000 + 60 * minute)
                found = mlenv.last_checkpoint(top)
                self.assertEqual(str(found.relative_to(top)) if found else "none", want)

    def test_layouts_of_libraries(self):
        """layouts/generate.py has written layouts.json. Each library is interrupted before, within and after each of its writes."""
        for layout in json.loads((pathlib.Path(__file__).parent / "layouts" / "layouts.json").read_text()):
            with self.subTest(layout["case"]), tempfile.TemporaryDirectory() as top:
                self.interrupt(pathlib.Path(top), layout)

    def interrupt(self, top, layout):
        def after(writes):
            return [name for place, (at, name) in enumerate(layout["complete"]) if at <= writes or place == 0][-1]

        def newest(when, *wants):
            found = mlenv.last_checkpoint(top)
            self.assertIn(str(found.relative_to(top)) if found else "none", wants, f"{layout['versions']}: {when}")

        def put(name, content):
            (top / name).parent.mkdir(parents=True, exist_ok=True)
            (top / name).write_bytes(content)

        for file in layout["before"]:
            put(file["path"], self.content_of(file))
        for path in (top, *top.rglob("*")):
            os.utime(path, (1_790_000_000, 1_790_000_000))
        for second, file in enumerate(layout["before"]):
            os.utime(top / file["path"], (1_790_000_000 + second, 1_790_000_000 + second))
        newest("before", after(0))
        for number, file in enumerate(layout["writes"]):
            path, content, wants = file["path"], self.content_of(file), [after(number)]
            if path == "latest":
                wants.append(after(number + 1))
            written = file.get("written", path)
            shows = path == "latest" or path.endswith((".metadata", ".safetensors", ".json")) or content.startswith(b"PK")
            for size in (0, len(content) // 2) if shows else (0,):
                put(written, content[:size])
                newest(f"{size} bytes of {path}", *wants)
            put(written, content)
            if written != path:
                newest(f"before the rename to {path}", *wants)
                (top / written).rename(top / path)
            waits = {left["path"] for left in layout["writes"][number + 1 :]}
            wants = [after(number + 1)]
            if all(re.search(r"(_|rank)[1-9]\d*\.(pth|pkl|bin)$", left) for left in waits):
                wants.append(after(len(layout["writes"])))  # of the ranks the module knows those that have written a file
            newest(f"after {path}", *wants)

    def content_of(self, file):
        head, tail = (base64.b64decode(file[part]) for part in ("head", "tail"))
        return head + bytes(max(0, file["size"] - len(head) - len(tail))) + tail[max(0, len(head) + len(tail) - file["size"]) :]

    def write(self, top, folder, words, sets, time):
        files = {}
        while words:
            word, *words = words
            if word in sets:
                words = sets[word] + words
            elif word[0] == "-":
                del files[word[1:]]
            else:
                name, _, content = word.lstrip("~").partition(":")
                files[name] = content.encode() if ":" in word else self.content(name, torn=word[0] == "~")
        for name, content in files.items():
            path = top / folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
            while path != top:
                os.utime(path, (time, time))
                path = path.parent

    def content(self, name, torn):
        kind = pathlib.Path(name).suffix or name
        header = b'{"__metadata__":{"format":"pt"},"w":{"dtype":"U8","shape":[4],"data_offsets":[0,4]}}'
        content = {
            ".json": b'{"step": 20}\n',
            ".safetensors": len(header).to_bytes(8, "little") + header + b"data",
            ".metadata": b"\x80\x02}X\x0d__0_0.distcp X __1_0.distcp u.",
        }.get(kind, b"PK\3\4 weights PK\5\6 ends")
        return content[: {".safetensors": -1, ".json": 1}.get(kind, -12)] if torn else content

    def test_relative_checkpoints_of_earlier_runs(self):
        """A run that resumes another one has a working directory of its own."""
        first, second = self.folder / "first", self.folder / "second"
        for number, path in enumerate((first / "ckpt" / "step-1", second / "ckpt" / "step-2")):
            path.mkdir(parents=True)
            (path / "model").write_text("weights")
            mlenv.finish_checkpoint(path)
            for part in (path, path / "model"):
                os.utime(part, (1_790_000_000 + number, 1_790_000_000 + number))
        self.environment(MLENV_RUN="third", MLENV_RESUME_FROM="first", MLENV_EARLIER_WORK=f"{second}:{first}")
        self.assertEqual(mlenv.last_checkpoint(), second / "ckpt" / "step-2")
        self.assertIsNone(mlenv.last_checkpoint(self.folder / "mine"))
        (second / "ckpt" / "step-2" / "model").unlink()
        (second / "ckpt" / "step-2").rmdir()
        self.assertEqual(mlenv.last_checkpoint(), first / "ckpt" / "step-1")

    def test_verified_checkpoint(self):
        folder = self.folder / "checkpoints"
        folder.mkdir()
        (folder / "step-2").write_text("weights")
        mlenv.finish_checkpoint(folder / "step-2")
        for verified, want in (("/workspace/checkpoints/run/step-1", pathlib.Path("/workspace/checkpoints/run/step-1")), ("", None)):
            self.environment(MLENV_RUN="run", MLENV_LAST_CHECKPOINT=verified)
            self.assertEqual(mlenv.last_checkpoint(), want)
            self.assertEqual(mlenv.last_checkpoint("/workspace/checkpoints/run"), want)
            self.assertEqual(mlenv.last_checkpoint(folder), folder / "step-2")  # which nobody verified

    def test_checkpoint_may_be_a_file(self):
        path = self.folder / "model.pt"
        path.write_text("weights")
        mlenv.finish_checkpoint(str(path))
        self.assertEqual(mlenv.last_checkpoint(self.folder), path)

    def new_process(self, torch=None):
        """Makes mlenv forget what it knows of a stop, as in a process that has imported this torch."""
        mlenv._signalled.clear()
        mlenv._agreement, mlenv._agreed = None, None
        patch = mock.patch.dict("sys.modules", {"torch": torch})
        patch.start()
        self.addCleanup(patch.stop)
        self.addCleanup(signal.signal, signal.SIGTERM, signal.signal(signal.SIGTERM, signal.SIG_DFL))

    def stop_file(self, cause, left):
        path = self.folder / f"{cause}.json"
        path.write_text(json.dumps({"cause": cause, "reason": "why", "until": time.time() + left}))
        self.environment(MLENV_STOP_FILE=str(path))

    def test_stopping(self):
        for cause, reason in (("deadline", "timeout"), ("cancelled", "cancelled"), ("container", "container"), ("node", "container")):
            self.new_process()
            self.environment(MLENV_STOP_FILE=str(self.folder / "not-yet"))
            self.assertIsNone(mlenv.stopping())
            self.stop_file(cause, 25)
            stop = mlenv.stopping()
            self.assertEqual((stop.reason, stop.message), (reason, "why"))
            self.assertTrue(20 < stop.seconds_left <= 25, stop)
            self.assertIs(mlenv.stopping(), stop)

    def test_stopping_outside(self):
        self.new_process()
        self.assertIsNone(mlenv.stopping())
        os.kill(os.getpid(), signal.SIGTERM)  # which this process survives
        stop = mlenv.stopping()
        self.assertEqual((stop.reason, stop.seconds_left), ("signal", None))

    def test_stopping_keeps_handlers(self):
        self.new_process()
        got = []
        signal.signal(signal.SIGTERM, lambda *_: got.append("mine"))
        mlenv.stopping()
        os.kill(os.getpid(), signal.SIGTERM)
        self.assertEqual(got, ["mine"])

    def ranks_stop(self, told, alone=False):
        """Returns the step and the Stop of three ranks that step at different speeds, of which these are told after 20 steps."""
        store, stops = Store(), {}
        started = threading.Event()

        def train(rank):
            agreement = mlenv._Agreement(Torch(store, rank, 3), store)
            for step in range(1, 100000):
                if step == 20 and rank == 1:
                    started.set()
                stop = agreement.step()
                if stop:
                    stops[rank] = step, stop
                    return
                time.sleep(0.001 * (rank + 1))

        def notice():
            name = threading.current_thread().name
            return mlenv.Stop("container", "drained", None if alone else time.time() + 20) if started.is_set() and name in told else None

        with mock.patch.object(mlenv, "_told", notice), mock.patch.object(mlenv._Agreement, "_LOOK", 0.01):
            threads = []
            for rank in range(1 if alone else 0, 3):
                thread = threading.Thread(target=train, args=(rank,), name="rank %d" % rank)
                thread.start()
                threads.append(thread)
            for thread in threads:
                thread.join()
        return stops

    def test_all_ranks_stop_at_the_same_step(self):
        own = mlenv._Agreement._follow
        for told in ({0}, {1}, {2}, {0, 1, 2}):
            def follow(agreement):
                threading.current_thread().name = "told" if agreement.rank in told else "not told"
                own(agreement)

            with mock.patch.object(mlenv._Agreement, "_follow", follow):
                stops = self.ranks_stop({"told"})
            self.assertEqual(len({step for step, _ in stops.values()}), 1, (told, stops))
            self.assertEqual(len(stops), 3)
            for _, stop in stops.values():
                self.assertEqual(stop.reason, "container")
                self.assertTrue(15 < stop.seconds_left <= 20, stop)

    def test_a_rank_that_does_not_promise_is_not_waited_for(self):
        own = mlenv._Agreement._follow

        def follow(agreement):
            threading.current_thread().name = "told"
            own(agreement)

        with mock.patch.object(mlenv._Agreement, "_follow", follow), mock.patch.object(mlenv._Agreement, "_PATIENCE", 0.2):
            stops = self.ranks_stop({"told"}, alone=True)
        self.assertEqual(len(stops), 2)

    def test_store_of_torch(self):
        """stopping asks the other ranks by the store of torch.distributed, if there is one."""
        store = Store()
        self.new_process(Torch(store))
        self.environment(MLENV_STOP_FILE=str(self.folder / "not-yet"))
        with mock.patch.object(mlenv._Agreement, "_LOOK", 0.01):
            self.assertIsNone(mlenv.stopping())
            store.set("mlenv/1", json.dumps([5, 7.5, "container"]))
            store.add("mlenv/promised", 1)
            store.set("mlenv/patience", "10")
            store.add("mlenv/wanted", 1)
            steps = 1
            while not mlenv.stopping():
                steps += 1
                time.sleep(0.001)
        stop = mlenv.stopping()
        self.assertEqual((stop.reason, stop.message), ("container", "another rank is being stopped"))
        self.assertTrue(5 < stop.seconds_left <= 7.5, stop)
        self.assertGreaterEqual(steps, 4)


class Store:
    """What mlenv uses of a store of torch.distributed."""

    def __init__(self):
        self.lock, self.values, self.counters = threading.Lock(), {}, collections.Counter()

    def add(self, key, amount):
        with self.lock:
            self.counters[key] += amount
            return self.counters[key]

    def set(self, key, value):
        with self.lock:
            self.values[key] = value.encode()

    def get(self, key):
        with self.lock:
            return self.values[key]


class Torch:
    """What mlenv uses of torch."""

    def __init__(self, store, rank=0, world=2):
        self.distributed, self.distributed_c10d, self.store, self.rank, self.world = self, self, store, rank, world

    def is_available(self):
        return True

    def is_initialized(self):
        return True

    def get_world_size(self):
        return self.world

    def get_rank(self):
        return self.rank

    def _get_default_store(self):
        return self.store


if __name__ == "__main__":
    unittest.main()
