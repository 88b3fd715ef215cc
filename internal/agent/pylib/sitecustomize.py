# SPDX-License-Identifier: Apache-2.0
"""Runs at the start of every Python of a node's jobs, because mlenv-agent puts this folder into PYTHONPATH.

It records the error that ends a rank, gives the parser of its arguments --local_rank, and watches the imports of frameworks that
mlenv_frameworks.py knows. MLENV_HOOK=none switches that off. Before the script does, it imports nothing that Python has not imported for
itself. What goes wrong here never ends a training.
"""

import os
import sys

_HERE = os.path.dirname(os.path.abspath(__file__))


def _chain():
    """Runs the sitecustomize that Python would have found without this one."""
    from _frozen_importlib import module_from_spec  # importlib's own, which Python has loaded
    from _frozen_importlib_external import PathFinder

    paths = [os.path.abspath(path) for path in sys.path]
    after = sys.path[paths.index(_HERE) + 1 :] if _HERE in paths else []  # an earlier one has run, and may have run this one
    spec = PathFinder.find_spec("sitecustomize", after)
    if spec is not None and spec.loader is not None:
        module = module_from_spec(spec)
        sys.modules["sitecustomize"] = module
        spec.loader.exec_module(module)


def _note(what):
    """Notes what went wrong in the hook: the first one of a process, in the job's record."""
    global _noted
    try:
        if not _noted:
            _noted = True
            import traceback

            with open(_path("hook-%d.txt"), "w") as file:
                file.write("%s\n%s" % (what, traceback.format_exc()))
    except Exception:
        pass


_noted = False
_MOST = 100  # files in the folder of errors


def _path(name):
    return os.path.join(os.environ["MLENV_ERRORS"], name % os.getpid())


def _errors():
    """Records the error that ends the process: before it is printed, or, if the script has a hook of its own, when the process exits.

    The audit event of PEP 578 would do both, but a process that has an audit hook pays for every id() and open().
    """
    recorded = []

    def hook(kind, value, trace):
        recorded.append(value)
        try:
            _record(value)
        except Exception:
            _note("recording an error")
        sys.__excepthook__(kind, value, trace)

    def at_exit():
        try:
            value = getattr(sys, "last_exc", None) or getattr(sys, "last_value", None)  # Python sets it, whatever the hook is
            if isinstance(value, BaseException) and value not in recorded:
                _record(value, when_known=False)
        except Exception:
            _note("recording an error at the exit")

    import atexit

    sys.excepthook = hook
    atexit.register(at_exit)


def _record(error, into="%d.json", when_known=True):
    """Writes an exception as JSON: first the one that was raised last, then the one during whose handling it was raised.

    when_known is False if it was not raised now. The time is 0 then.
    """
    import json
    import time
    import traceback

    if len(os.listdir(os.path.dirname(_path("%d")))) >= _MOST:
        return  # a program may start others without end, whose errors it handles

    value, chain = error, []
    while value is not None and len(chain) < 20:
        members = _members(value)
        while len(members) == 1:
            value, members = members[0], _members(members[0])
        kind = type(value)
        frames = [[frame.filename, frame.lineno] for frame in traceback.extract_tb(value.__traceback__)[-100:]]
        if isinstance(value, SyntaxError) and value.filename:
            frames.append([value.filename, value.lineno or 0])
        name = kind.__qualname__ if kind.__module__ in ("builtins", "__main__") else kind.__module__ + "." + kind.__qualname__
        message = value.msg if isinstance(value, SyntaxError) else value
        if members:
            message = "%s: %s: %s" % (message, type(members[0]).__name__, members[0])
        chain.append({"type": name, "message": str(message)[:20000], "frames": frames})
        value = value.__cause__ or (None if value.__suppress_context__ else value.__context__)
    lines = "".join(traceback.format_exception(type(error), error, error.__traceback__))
    path = _path(into)
    with open(path + ".new", "w", encoding="utf-8", errors="replace") as file:
        json.dump({"time": time.time() if when_known else 0, "chain": chain, "printed": lines[-100000:]}, file)
    os.replace(path + ".new", path)


def _members(error):
    members = getattr(error, "exceptions", ())  # of a group
    return members if isinstance(members, tuple) else ()


def _logging(module):
    """Records the errors that a program logs: some exit then, and what logged them may draw the traceback in its own way."""
    handle, last = module.Logger.handle, [0.0]

    def handles(self, record):
        try:
            if record.created - last[0] >= 1 and record.exc_info and record.levelno >= module.ERROR and isinstance(record.exc_info[1], BaseException):
                last[0] = record.created
                _record(record.exc_info[1], "%d-logged.json")
        except Exception:
            _note("recording a logged error")
        return handle(self, record)

    module.Logger.handle = handles


def _arguments(module):
    """Gives the rank's own parser --local_rank=N if it takes that, and takes it away if it does not: launcher auto has only read the script."""
    parse, within = module.ArgumentParser.parse_known_args, []
    ours = "--local_rank=" + os.environ.get("LOCAL_RANK", "0")

    def completed(parser, given):
        options = parser._option_string_actions
        takes = [name for name in ("--local_rank", "--local-rank") if getattr(options.get(name), "nargs", 0) != 0]
        args = [text for text in given if text != ours]
        if takes and not any(text.split("=")[0] in takes for text in args):
            args.insert(0, takes[0] + ours[len("--local_rank") :])
        return args

    def parses(self, args=None, *others, **named):
        try:
            given = sys.argv[1:] if args is None else args
            if within or list(given) == sys.argv[1:]:  # a subparser's, or the command line
                args = completed(self, given)
        except Exception:
            _note("completing arguments")
        within.append(True)
        try:
            return parse(self, args, *others, **named)
        finally:
            within.pop()

    module.ArgumentParser.parse_known_args = parses


class _Watch:
    """A finder of modules that finds those of _WATCHED as others do, and changes each one after it was loaded."""

    def __init__(self, watched):
        self.watched = watched

    def find_spec(self, name, path=None, target=None):
        if name not in self.watched:
            return None
        for finder in sys.meta_path:
            if finder is not self and hasattr(finder, "find_spec"):
                spec = finder.find_spec(name, path, target)
                if spec is not None:
                    self.watch(spec)
                    return spec
        return None

    def watch(self, spec):
        load = getattr(spec.loader, "exec_module", None)

        def exec_module(module):
            load(module)
            try:
                if spec.name in _OURS:
                    return _OURS[spec.name](module)
                import mlenv_frameworks

                mlenv_frameworks.loaded(module, self.watched[spec.name], _note)
            except Exception:
                _note("watching " + spec.name)

        try:
            if load is not None:
                spec.loader.exec_module = exec_module
        except Exception:
            _note("watching " + spec.name)


# Modules, and the functions that change them: of this file, and of mlenv_frameworks.py.
_OURS = {"logging": _logging}
_WATCHED = {
    "transformers.trainer": "trainer",
    "lightning.pytorch.trainer.trainer": "lightning",
    "pytorch_lightning.trainer.trainer": "lightning",
    "lightning.fabric.loggers.csv_logs": "fabric",
    "lightning_fabric.loggers.csv_logs": "fabric",
    "accelerate.accelerator": "accelerate",
    "deepspeed.runtime.engine": "deepspeed",
    "torch.utils.tensorboard.writer": "tensorboard",
    "tensorboardX.writer": "tensorboard",
    "torch": "torch",
    "torch.optim.optimizer": "optimizer",
    "tqdm.std": "tqdm",
}


def _start():
    if sys.version_info < (3, 7) or os.environ.get("MLENV_HOOK") == "none" or not os.environ.get("MLENV_ERRORS"):
        return
    try:
        os.makedirs(os.environ["MLENV_ERRORS"], exist_ok=True)  # shows that errors are recorded
    except OSError:
        pass
    _errors()
    if os.environ.get("MLENV_AUTO_LAUNCHER") == str(os.getppid()):
        _OURS["argparse"] = _arguments
    sys.meta_path.insert(0, _Watch(dict(_WATCHED, **_OURS)))


try:
    _start()
except Exception:
    _note("starting")
if sys.version_info >= (3,):
    _chain()  # its errors are printed by Python's site module, as without this one
