// SPDX-License-Identifier: Apache-2.0

package pyerror

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"
)

func TestLast(t *testing.T) {
	for _, tc := range []struct{ name, output, want string }{
		{"a direct cause", `[rank1]: Traceback (most recent call last):
[rank1]:   File "/w/train.py", line 6, in <module>
[rank1]:     raise ValueError("bad batch")
[rank1]: ValueError: bad batch

[rank1]: The above exception was the direct cause of the following exception:

[rank1]: Traceback (most recent call last):
[rank1]:   File "/w/train.py", line 9, in <module>
[rank1]:     raise RuntimeError("step 3 failed") from error
[rank1]: RuntimeError: step 3 failed
`, "RuntimeError: step 3 failed (/w/train.py:9) first ValueError: bad batch"},
		{"three in a chain", `Traceback (most recent call last):
  File "a.py", line 1, in f
A

During handling of the above exception, another exception occurred:

Traceback (most recent call last):
  File "a.py", line 2, in f
B: b

During handling of the above exception, another exception occurred:

Traceback (most recent call last):
  File "a.py", line 3, in f
C: c
`, "C: c (a.py:3) first A"},
		{"two that are no chain", `Traceback (most recent call last):
  File "a.py", line 1, in f
A: a
step 2
Traceback (most recent call last):
  File "a.py", line 2, in f
B: b
`, "B: b (a.py:2) first "},
		{"a class inside a function", `Traceback (most recent call last):
  File "a.py", line 7, in train
train.<locals>.BadBatch: batch 17 is empty
`, "train.<locals>.BadBatch: batch 17 is empty (a.py:7) first "},
		{"a worker of a data loader", `[rank1]: ValueError: Caught ValueError in DataLoader worker process 0.
[rank1]: Original Traceback (most recent call last):
[rank1]:   File "/usr/lib/python3/dist-packages/torch/utils/data/_utils/fetch.py", line 52, in fetch
[rank1]:     data = [self.dataset[idx] for idx in possibly_batched_index]
[rank1]:   File "a.py", line 8, in __getitem__
[rank1]:     raise ValueError("sample 20 is truncated")
[rank1]: ValueError: sample 20 is truncated
`, "ValueError: sample 20 is truncated (a.py:8) first "},
		{"a group", `[rank2]:   + Exception Group Traceback (most recent call last):
[rank2]:   |   File "a.py", line 5, in <module>
[rank2]:   |     raise ExceptionGroup("loading", errors)
[rank2]:   | ExceptionGroup: loading (2 sub-exceptions)
[rank2]:   +-+---------------- 1 ----------------
[rank2]:     | ValueError: bad shard 1
[rank2]:     +------------------------------------
`, "ExceptionGroup: loading (2 sub-exceptions) (a.py:5) first "},
		{"of a process of a pool", `multiprocess.pool.RemoteTraceback: 
"""
Traceback (most recent call last):
  File "/usr/lib/python3.12/multiprocess/pool.py", line 125, in worker
    result = (True, func(*args, **kwds))
  File "/workspace/repo/data.py", line 10, in tokenize
    return batch["text"]
KeyError: 'text'
"""

The above exception was the direct cause of the following exception:

Traceback (most recent call last):
  File "/workspace/repo/train.py", line 4, in <module>
    data.map(tokenize, num_proc=2)
  File "/usr/lib/python3.12/multiprocess/pool.py", line 774, in get
    raise self._value
KeyError: 'text'
`, "KeyError: 'text' (/workspace/repo/data.py:10) first "},
		{"of a process of a pool, from another error", `concurrent.futures.process._RemoteTraceback: 
"""
Traceback (most recent call last):
  File "data.py", line 8, in tokenize
OSError: the shard is gone

During handling of the above exception, another exception occurred:

Traceback (most recent call last):
  File "data.py", line 10, in tokenize
RuntimeError: shard 3
"""

The above exception was the direct cause of the following exception:

Traceback (most recent call last):
  File "train.py", line 4, in <module>
RuntimeError: shard 3
`, "RuntimeError: shard 3 (data.py:10) first OSError: the shard is gone"},
		{"of a process of a pool, handled", `joblib.externals.loky.process_executor._RemoteTraceback: 
"""
Traceback (most recent call last):
  File "data.py", line 8, in tokenize
OSError: the shard is gone
"""

The above exception was the direct cause of the following exception:

Traceback (most recent call last):
  File "train.py", line 4, in main
OSError: the shard is gone

During handling of the above exception, another exception occurred:

Traceback (most recent call last):
  File "train.py", line 6, in main
RuntimeError: no data
`, "RuntimeError: no data (train.py:6) first OSError: the shard is gone"},
		{"by loguru",
			`2026-11-25 10:00:00.000 | ERROR    | __main__:<module>:30 - An error has been caught in function '<module>', process ` +
				`'MainProcess' (77), thread 'MainThread' (1):
Traceback (most recent call last):

> File "train.py", line 30, in <module>
    main()
    └ <function main at 0x7f0000000000>

  File "train.py", line 20, in main
    raise ValueError(f"bad batch {n}")
                                  └ 17

ValueError: bad batch 17
`, "ValueError: bad batch 17 (train.py:20) first "},
		{"by loguru, chained",
			`2026-11-26 02:13:42.989 | ERROR    | __main__:<module>:92 - An error has been caught in function '<module>', process ` +
				`'MainProcess' (5407), thread 'MainThread' (1):
Traceback (most recent call last):

  File "/workspace/repo/data.py", line 3, in collate
    return batch["input_ids"]
           └ {'labels': 1}

KeyError: 'input_ids'


The above exception was the direct cause of the following exception:


Traceback (most recent call last):

> File "/workspace/repo/train.py", line 12, in main
    raise ValueError("bad batch 17") from error

ValueError: bad batch 17
`, "ValueError: bad batch 17 (/workspace/repo/train.py:12) first KeyError: 'input_ids'"},
		{"NCCL's last words", `[rank3]: Traceback (most recent call last):
[rank3]:   File "train.py", line 20, in main
[rank3]: torch.distributed.DistBackendError: NCCL error in: /pytorch/torch/csrc/distributed/c10d/NCCLUtils.cpp:77, unhandled cuda ` +
			`error (run with NCCL_DEBUG=INFO for details), NCCL version 2.26.2
[rank3]: ncclUnhandledCudaError: Call to CUDA function failed.
[rank3]: Last error:
[rank3]: Cuda failure 2 'out of memory'
`, "torch.distributed.DistBackendError: NCCL error in: /pytorch/torch/csrc/distributed/c10d/NCCLUtils.cpp:77, unhandled cuda error (run " +
			"with NCCL_DEBUG=INFO for details), NCCL version 2.26.2; " +
			"ncclUnhandledCudaError: Call to CUDA function failed. Cuda failure 2 'out of memory' (train.py:20) first "},
		{"the launcher's after the rank's", `[rank1]: Traceback (most recent call last):
[rank1]:   File "train.py", line 20, in main
[rank1]: ValueError: bad batch
Traceback (most recent call last):
  File "/opt/venv/lib/python3.12/site-packages/torch/distributed/launcher/api.py", line 277, in launch_agent
    raise ChildFailedError(
torch.distributed.elastic.multiprocessing.errors.ChildFailedError:
============================================================
`, "ValueError: bad batch (train.py:20) first "},
		{"in the launcher's table, as @record writes it", `Traceback (most recent call last):
  File "/opt/venv/lib/python3.12/site-packages/torch/distributed/launcher/api.py", line 269, in launch_agent
    raise ChildFailedError(
torch.distributed.elastic.multiprocessing.errors.ChildFailedError: 
============================================================
train.py FAILED
------------------------------------------------------------
Root Cause (first observed failure):
[0]:
  time      : 2026-11-26_10:07:12
  rank      : 1 (local_rank: 1)
  exitcode  : 1 (pid: 29)
  error_file: /tmp/torchelastic_vte1fz0e/none_sey8lmur/attempt_0/1/error.json
  traceback : Traceback (most recent call last):
    File "/opt/venv/lib/python3.12/site-packages/torch/distributed/elastic/multiprocessing/errors/__init__.py", line 355, in wrapper
      return f(*args, **kwargs)
    File "/workspace/repo/train.py", line 21, in step
      raise ValueError("bad batch 17")
  ValueError: bad batch 17
  
============================================================
`, "ValueError: bad batch 17 (/workspace/repo/train.py:21) first "},
		{"in the launcher's table, chained", `torch.distributed.elastic.multiprocessing.errors.ChildFailedError: 
============================================================
train.py FAILED
------------------------------------------------------------
Root Cause (first observed failure):
[0]:
  time      : 2026-11-26_10:07:12
  rank      : 1 (local_rank: 1)
  exitcode  : 1 (pid: 29)
  error_file: /tmp/torchelastic_vte1fz0e/none_sey8lmur/attempt_0/1/error.json
  traceback : Traceback (most recent call last):
    File "/opt/venv/lib/python3.12/site-packages/torch/distributed/elastic/multiprocessing/errors/__init__.py", line 355, in wrapper
      return f(*args, **kwargs)
    File "/workspace/repo/train.py", line 11, in step
      {}["input_ids"]
  KeyError: 'input_ids'
  
  The above exception was the direct cause of the following exception:
  
  Traceback (most recent call last):
    File "/workspace/repo/train.py", line 13, in step
      raise ValueError("bad batch 17") from error
  ValueError: bad batch 17
  
============================================================
`, "ValueError: bad batch 17 (/workspace/repo/train.py:13) first KeyError: 'input_ids'"},
		{"accelerate's after the script's", `Traceback (most recent call last):
  File "train.py", line 20, in main
ValueError: bad batch
Traceback (most recent call last):
  File "/opt/venv/lib/python3.12/site-packages/accelerate/commands/launch.py", line 769, in simple_launcher
    raise subprocess.CalledProcessError(returncode=process.returncode, cmd=cmd)
subprocess.CalledProcessError: Command '['/opt/venv/bin/python3', 'train.py']' returned non-zero exit status 1.
`, "ValueError: bad batch (train.py:20) first "},
		{"a program that fails while an error is handled", `Traceback (most recent call last):
  File "train.py", line 3, in main
ImportError: no flash_attn

During handling of the above exception, another exception occurred:

Traceback (most recent call last):
  File "train.py", line 5, in main
subprocess.CalledProcessError: Command 'make' returned non-zero exit status 2.
`, "subprocess.CalledProcessError: Command 'make' returned non-zero exit status 2. (train.py:5) first ImportError: no flash_attn"},
		{"an error while Python exits", `[rank2]: Traceback (most recent call last):
[rank2]:   File "train.py", line 20, in main
[rank2]: ValueError: bad batch
Exception ignored in atexit callback: <function close at 0x7f0000000000>
Traceback (most recent call last):
  File "train.py", line 4, in close
RuntimeError: the writer is closed
`, "ValueError: bad batch (train.py:20) first "},
		{"an error in a finalizer, from another one", `Traceback (most recent call last):
  File "train.py", line 20, in main
ValueError: bad batch
Exception ignored in: <function Reader.__del__ at 0x7f0000000000>
Traceback (most recent call last):
  File "data.py", line 4, in __del__
KeyError: 'handle'

During handling of the above exception, another exception occurred:

Traceback (most recent call last):
  File "data.py", line 6, in __del__
AttributeError: 'Reader' object has no attribute 'file'
`, "ValueError: bad batch (train.py:20) first "},
		{"an error in a finalizer alone", `Exception ignored in: <function Reader.__del__ at 0x7f0000000000>
Traceback (most recent call last):
  File "data.py", line 4, in __del__
KeyError: 'handle'
`, "KeyError: 'handle' (data.py:4) first "},
		{"a task that nobody awaited", `Traceback (most recent call last):
  File "train.py", line 20, in main
ValueError: bad batch
Task exception was never retrieved
future: <Task finished name='Task-2' coro=<poll() done, defined at data.py:3> exception=OSError('closed')>
Traceback (most recent call last):
  File "data.py", line 4, in poll
OSError: closed
`, "ValueError: bad batch (train.py:20) first "},
		{"a thread of a data loader that loses its worker at the end", `Traceback (most recent call last):
  File "train.py", line 20, in main
ValueError: bad batch
Exception in thread Thread-2 (_pin_memory_loop):
Traceback (most recent call last):
  File "/usr/lib/python3.12/multiprocessing/connection.py", line 395, in _recv
ConnectionResetError: [Errno 104] Connection reset by peer
`, "ValueError: bad batch (train.py:20) first "},
		{"a thread's own error", `Traceback (most recent call last):
  File "eval.py", line 20, in main
ValueError: skipped
Exception in thread Thread-2 (prefetch):
Traceback (most recent call last):
  File "data.py", line 7, in prefetch
OSError: the source is gone
`, "OSError: the source is gone (data.py:7) first "},
		{"another rank's in a checkpoint", `[rank0]: Traceback (most recent call last):
[rank0]:   File "train.py", line 20, in main
[rank0]:     save(state)
[rank0]: torch.distributed.checkpoint.api.CheckpointException: CheckpointException ranks:dict_keys([2])
[rank0]: Traceback (most recent call last): (RANK 2)
[rank0]:   File "/opt/venv/lib/python3.12/site-packages/torch/distributed/checkpoint/utils.py", line 261, in all_reduce
[rank0]:     local_data = map_fun()
[rank0]: OSError: [Errno 28] No space left on device
`, "torch.distributed.checkpoint.api.CheckpointException: CheckpointException ranks:dict_keys([2]): rank 2: OSError: [Errno 28] No space " +
			"left on device (train.py:20) first "},
		{"a message that begins with a colon's line", `Traceback (most recent call last):
  File "train.py", line 20, in main
RuntimeError: Error(s) in loading state_dict for Linear:
	size mismatch for weight: copying a param with shape torch.Size([2, 3]) from checkpoint, the shape in current model is torch.Size([2, 2]).
`, "RuntimeError: Error(s) in loading state_dict for Linear: size mismatch for weight: copying a param with shape torch.Size([2, 3]) " +
			"from checkpoint, " +
			"the shape in current model is torch.Size([2, 2]). (train.py:20) first "},
		{"a long message", "Traceback (most recent call last):\n  File \"a.py\", line 1, in f\nRuntimeError: " + strings.Repeat("x", 1000) +
			": Connection closed by peer\n",
			"RuntimeError: " + strings.Repeat("x", 1000) + ": Connection closed by peer (a.py:1) first "},
		{"the launcher's alone", `Traceback (most recent call last):
  File "/opt/venv/lib/python3.12/site-packages/torch/distributed/launcher/api.py", line 277, in launch_agent
    raise ChildFailedError(
torch.distributed.elastic.multiprocessing.errors.ChildFailedError: 
============================================================
train.py FAILED
------------------------------------------------------------
Failures:
[1]:
  rank      : 2 (local_rank: 0)
  exitcode  : -15 (pid: 70)
------------------------------------------------------------
Root Cause (first observed failure):
[0]:
  time      : 2026-11-25_10:00:00
  host      : node-1
  rank      : 3 (local_rank: 1)
  exitcode  : -9 (pid: 71)
  error_file: <N/A>
  traceback : Signal 9 (SIGKILL) received by PID 71
`, "torch.distributed.elastic.multiprocessing.errors.ChildFailedError: rank 3 (local_rank: 1), exitcode -9 (pid: 71), traceback Signal 9 " +
			"(SIGKILL) received by PID 71 (/opt/venv/lib/python3.12/site-packages/torch/distributed/launcher/api.py:277) first "},
	} {
		got := LastTraceback(SplitLines([]byte(tc.output)))
		if got == nil {
			t.Errorf("%s: no error", tc.name)
		} else if text := fmt.Sprintf("%s: %s (%s:%d) first %s", got.Type, got.Message, got.File, got.Line, got.First); text != tc.want {
			t.Errorf("%s: got %s, want %s", tc.name, text, tc.want)
		}
	}
}

func TestShorten(t *testing.T) {
	// The output is from Python 3.13, and its last three lines are from 3.14.
	const output = `step 3
terminate called after throwing an instance of 'gloo::IoException'
Fatal Python error: Aborted

Thread 0x00007f7cb6ffd6c0 (most recent call first):
  File "/usr/lib/python3.13/threading.py", line 363 in wait
  File "data.py", line 9 in prefetch

Current thread 0x00007f7d0e2c0740 (most recent call first):
  File "/usr/lib/python3/dist-packages/torch/distributed/distributed_c10d.py", line 2811 in all_reduce
step 3 of a child
  File "train.py", line 12 in step
  File "train.py", line 20 in <module>

Current thread's C stack trace (most recent call first):
  Binary file "/usr/bin/python3", at _Py_DumpStack+0x4e [0x5bf1a1]
Extension modules: numpy._core._multiarray_umath, torch._C (total: 2)
`
	want := []string{"step 3", "terminate called after throwing an instance of 'gloo::IoException'",
		"Fatal Python error: Aborted in step (train.py:12)", "step 3 of a child"}
	if got := Shorten(SplitLines([]byte(output))); !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
	const aborted = `step 3
[rank1]:[E1125 10:00:00.000000000 ProcessGroupNCCL.cpp:683] [Rank 1] Watchdog caught collective operation timeout: ...
Exception raised from checkTimeout at /pytorch/torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp:686 (most recent call first):
frame #0: c10::Error::Error(c10::SourceLocation, std::string) + 0x80 (0x7f0000000000 in libc10.so)
[rank1]: frame #1: clone3 + 0x11 (0x7f0000000000 in libc.so.6)
terminate called after throwing an instance of 'c10::DistBackendError'
`
	if got := Shorten(SplitLines([]byte(aborted))); len(got) != 3 || !strings.HasPrefix(got[2], "terminate called") {
		t.Errorf("got %q, want no C++ stack", got)
	}
	const elsewhere = `Fatal Python error: Aborted

Thread 0x00007fbceeffd6c0 (most recent call first):
  <no Python frame>

Thread 0x00007fbd1d6b9780 (most recent call first):
  File "/usr/lib/python3/dist-packages/torch/distributed/c10d_logger.py", line 81 in wrapper
  File "train.py", line 5 in <module>
`
	if got := Shorten(SplitLines([]byte(elsewhere))); len(got) != 1 || got[0] != "Fatal Python error: Aborted in <module> (train.py:5)" {
		t.Errorf("got %q, want the place of the main thread", got)
	}
	if got := Shorten([]string{"step 3", "  ..."}); len(got) != 2 {
		t.Errorf("got %q, want all lines of an output without a dump", got)
	}
	installed := []string{"Fatal Python error: Segmentation fault", "", "Current thread 0x00007f7d0e2c0740 [python3] (most recent call " +
		"first):", `  File "/usr/lib/python3.13/ctypes/__init__.py", line 5 in string_at`}
	if got := Shorten(installed); len(got) != 1 || got[0] != "Fatal Python error: Segmentation fault in string_at "+
		"(/usr/lib/python3.13/ctypes/__init__.py:5)" {
		t.Errorf("got %q, want the only place", got)
	}
}

// FuzzLast reads anything that a rank prints: lines and the error have bounds, and the error is one of the lines.
func FuzzLast(f *testing.F) {
	f.Add([]byte("Traceback (most recent call last):\n  File \"a.py\", line 7, in f\n    f()\nValueError: bad batch\n"))
	f.Add([]byte("[rank1]: Traceback (most recent call last):\n[rank1]:   File \"/usr/lib/python3.12/x.py\", line 1, in f\n[rank1]: " +
		"torch.cuda.OutOfMemoryError: CUDA out of memory\n"))
	f.Add([]byte("  File \"a.py\", line 3\n    x = = 1\n        ^\nSyntaxError: invalid syntax\n"))
	f.Add([]byte("10%\r20%\r\xff\n" + strings.Repeat("x", 600)))
	f.Add([]byte("Traceback (most recent call last):\n" + strings.Repeat("  File \"a.py\", line 99999999999999999999, in f\n", 50) + "E\n"))
	f.Fuzz(func(t *testing.T, output []byte) {
		lines := SplitLines(output)
		for _, line := range lines {
			if len(line) > longestLine+len("…") || !utf8.ValidString(line) || strings.Contains(line, "\n") {
				t.Fatalf("line %q", line)
			}
		}
		found := LastTraceback(lines)
		if found == nil {
			return
		}
		if found.Type == "" || found.Line < 0 || len(found.Traceback) == 0 || len(found.Traceback) > longest {
			t.Fatalf("error %+v, want a type and 1 to %d lines", found, longest)
		}
		text := strings.Join(lines, "\n")
		for _, part := range []string{found.Type, found.File, found.First} { // a message may have parts of several lines
			if !strings.Contains(text, part) {
				t.Fatalf("%q is not in the output %q", part, text)
			}
		}
	})
}
