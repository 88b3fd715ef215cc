"""Inspects a container, runs a temporary agent in it, or removes that.

It runs as `python3 -B -c LOADER NAME`: NAME is the folder's, and marks the process. Standard input
is this program, an order in one line of JSON, and the agent's program.
Answers are lines of JSON on standard output.
"""
import gzip
import json
import os
import shutil
import signal
import subprocess
import sys
import time

name = sys.argv[1]
order = json.loads(sys.stdin.buffer.readline())


def say(**answer):
    print(json.dumps(answer), flush=True)


def look():
    import importlib.util
    import platform
    say(machine=platform.machine(), torch=importlib.util.find_spec("torch") is not None)


def folders():
    """Where files can lie, the likeliest first; what is mounted to be written last."""
    found = [os.path.expandvars(folder) for folder in order["folders"]]
    if order["mounts"]:
        with open("/proc/self/mounts") as mounts:
            for _, folder, kind, options, *_ in (line.split() for line in mounts):
                if "rw" in options.split(",") and not folder.startswith(("/proc", "/sys", "/dev/pts", "/dev/mqueue")):
                    found.append(folder.encode().decode("unicode_escape"))
    return [f for f in dict.fromkeys(found) if os.path.isabs(f) and os.path.isdir(f)]


def write(path, content, mode):
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
        file.write(content)


def move_in(home, program):
    """Puts the agent into a new folder, and sees that it can run there."""
    os.mkdir(home, 0o700)
    os.mkdir(os.path.join(home, "tls"), 0o700)
    for file, content in order["certificates"].items():
        write(os.path.join(home, "tls", file), content.encode(), 0o600)
    path = os.path.join(home, "mlenv-agent")
    write(path, program, 0o700)
    subprocess.run([path, "version"], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=True)
    return path


def start():
    # Whoever sends may be gone without a word; nothing is written by then.
    signal.alarm(int(order["seconds"]))
    program = sys.stdin.buffer.read(order["bytes"])
    signal.alarm(0)
    if len(program) != order["bytes"]:
        sys.exit("of %d bytes %d arrived" % (order["bytes"], len(program)))
    program, problems = gzip.decompress(program), []
    for folder in folders():
        home = os.path.join(folder, name)
        try:
            path = move_in(home, program)
        except (OSError, subprocess.SubprocessError) as error:
            shutil.rmtree(home, ignore_errors=True)
            problems.append("%s: %s" % (folder, getattr(error, "strerror", None) or error))
            continue
        nothing = os.open(os.devnull, os.O_RDONLY)
        os.dup2(nothing, 0)
        os.close(nothing)
        # The container's runtime collects the process that it started, whatever PID 1 does.
        os.execv(path, [path, "guest", "--dir=" + home] + order["arguments"])
    say(problems=problems)


def ours():
    """The processes of the guest: their command line or environment names its folder."""
    found = []
    for pid in (int(entry) for entry in os.listdir("/proc") if entry.isdigit()):
        for file in ("cmdline", "environ"):
            try:
                with open("/proc/%d/%s" % (pid, file), "rb") as content:
                    if pid != os.getpid() and name.encode() in content.read():
                        found.append(pid)
                        break
            except OSError:
                pass  # it has ended, or is somebody else's
    return found


def kill(pids, number):
    for pid in pids:
        try:
            os.kill(pid, number)
        except OSError:
            pass  # it has ended


def agents():
    found = []
    for pid in ours():
        try:
            with open("/proc/%d/cmdline" % pid, "rb") as line:
                if b"\0guest\0" in line.read():
                    found.append(pid)
        except OSError:
            pass
    return found


def wait(seconds):
    until = time.monotonic() + seconds
    while ours() and time.monotonic() < until:
        time.sleep(0.05)


def remove():
    # The agent ends its own; what is left, or never became one, is killed.
    kill(agents(), signal.SIGTERM)
    if agents():
        wait(order["seconds"])
    for _ in range(3):
        kill(ours(), signal.SIGKILL)
        wait(2)
    left = []
    for home in (os.path.join(folder, name) for folder in folders()):
        if os.path.lexists(home):
            shutil.rmtree(home, ignore_errors=True)
            if os.path.lexists(home):
                left.append(home)
    say(processes=ours(), folders=left)


{"look": look, "start": start, "remove": remove}[order["do"]]()
