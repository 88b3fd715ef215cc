# SPDX-License-Identifier: Apache-2.0
"""What ml-dev-env does in programs that do not use it: it shows their steps and losses, lets frameworks that can resume save when
they are stopped, and resumes them. sitecustomize.py calls loaded() for each module that it watches.

No error in here may end a training: a function that a framework calls does what the framework's own does, whatever happens here.
"""

import atexit
import functools
import os
import pathlib
import re
import signal
import sys
import threading
import time
import weakref

import mlenv

# Who counts the steps, the best first: a framework's own count is better than that of the optimizer below it.
_SOURCES = ("transformers", "Lightning", "DeepSpeed", "torch.optim", "tqdm")
_EVERY, _LOSSES = 1.0, 0.1  # seconds between two lines of metrics, and if a framework has a new loss

_note = None
_best = len(_SOURCES)
_line, _unwritten, _written = {}, False, 0.0
_loss = None  # the last one that the script has logged, maybe a tensor, which is read for a line that is written
_done = {}  # steps of this attempt, by who counts them
_before = 0  # steps of the checkpoint that the script has loaded, as far as its name tells


def loaded(module, name, note):
    """Changes a module that was loaded, by the function of that name below. note takes what goes wrong."""
    global _note
    if _note is None:
        atexit.register(_quiet(_flush))
    _note = note
    globals()["_" + name](module)


def _quiet(function):
    """Returns the function, which returns None where it fails, and is called no more then."""
    failed = []

    @functools.wraps(function)
    def call(*args, **kwargs):
        if not failed:
            try:
                return function(*args, **kwargs)
            except Exception:
                failed.append(True)
                _note(function.__qualname__)

    return call


def _counts(source):
    """Reports whether the source counts the steps: none that is better does. The first line of a better one is written at once."""
    global _best, _written
    if _SOURCES.index(source) < _best:
        _best, _written = _SOURCES.index(source), 0.0
    return _SOURCES[_best] == source


@_quiet
def _report(source=None, step=None, steps=None, loss=None, bar=None):
    """Notes how far the training is. steps and loss may be functions, which are called only for a line that is written."""
    global _unwritten
    counts = source is None or _counts(source)
    if mlenv._reports or _rank() != 0 or not counts:
        return
    due = time.monotonic() - _written >= (_LOSSES if loss is not None and source and not callable(loss) else _EVERY)
    steps, loss = (value() if callable(value) and due else value for value in (steps, loss))
    new = {"step": step, "source": source if step is not None else None, "loss": None if callable(loss) else loss, "bar": bar}
    if isinstance(steps, (int, float)) and 0 < steps < float("inf"):
        new["steps"] = int(steps)
    new = {name: value for name, value in new.items() if value is not None}
    _line.update(new)
    _unwritten = _unwritten or bool(new)
    if "step" in _line and due:
        _flush()


def _flush():
    global _unwritten, _written, _loss
    if _unwritten and "step" in _line and not mlenv._reports:
        if _loss is not None:
            _line["loss"], _loss = _loss.item() if hasattr(_loss, "item") else _loss, None
        _written, _unwritten = time.monotonic(), False
        mlenv._write(_line)
        _line.pop("bar", None)


def _rank():
    dist = getattr(sys.modules.get("torch"), "distributed", None)
    if dist and dist.is_available() and dist.is_initialized():
        return dist.get_rank()
    return int(os.environ.get("RANK") or os.environ.get("NODE_RANK") or "0")


def _step(source):
    _done[source] = _done.get(source, 0) + 1


def _stop(handlers=()):
    """Returns the Stop with which a framework saves after this step, on all ranks after the same one; else None."""
    if mlenv._asks or not mlenv.handle(handlers):
        return None
    return mlenv._stopping()


class _Numbered:
    """Checkpoints whose names end with their number of steps, so that one more can be saved when a training is stopped.

    done returns how many steps this attempt has done. The first series of names whose numbers agree with that counts.
    """

    def __init__(self, done):
        self.done, self.name, self.last = done, None, {}

    def note(self, name, save, sure=False):
        """Notes a checkpoint, and what saves one of another name. Unless sure, the steps since the one before must agree with its number."""
        found = re.match(r"(.*?)(\d+)$", os.fspath(name), re.DOTALL)
        if not found:
            return
        prefix, number, steps = found[1], int(found[2]), self.done()
        before, then = self.last.get(prefix, (0, 0))
        self.last[prefix] = number, steps
        agrees = sure or number - before == steps - then > 0
        # epoch_1_step_20 after epoch_0_step_20: the next name is not known.
        if any(other != prefix and re.sub(r"\d+", "", other) == re.sub(r"\d+", "", prefix) for other in self.last):
            agrees = False
        if agrees and self.name in (None, prefix):
            self.name, self.digits, self.save = prefix, len(found[2]), save
        elif self.name == prefix:
            self.name = None

    def path(self):
        """Returns the name of the last checkpoint."""
        return self.name + str(self.last[self.name][0]).zfill(self.digits)

    def save_now(self):
        number, steps = self.last[self.name]
        new = self.done() - steps
        if new:  # else the script has just saved
            name = self.name + str(number + new).zfill(self.digits)
            _say("saving %s, because the training is being stopped" % name)
            self.save(name)


def _own(path):
    """Reports whether a checkpoint is the one with which this attempt continues, and none that another training made."""
    own = mlenv.last_checkpoint() if os.environ.get("MLENV_LAST_CHECKPOINT") or os.environ.get("MLENV_RESUME_FROM") else None
    return own is not None and os.path.realpath(own) == os.path.realpath(path)


def _say(text):
    if _rank() == 0:
        print("ml-dev-env: " + text, file=sys.stderr, flush=True)


def _resumable(wanted):
    """Returns the path of the checkpoint with which this attempt continues, None for none. wanted returns True if it is the framework's, else
    False or, for the log, why not."""
    if not os.environ.get("MLENV_LAST_CHECKPOINT") and not os.environ.get("MLENV_RESUME_FROM"):
        return None
    path = mlenv.last_checkpoint()
    fits = path is not None and wanted(path)
    if fits is not True:
        if fits:
            _say("not resuming from %s, because %s" % (path, fits))
        return None
    if _mark(path).exists():
        _say("not resuming from %s, because that failed before; deleting %s lets it be tried again" % (path, _mark(path)))
        return None
    _say("the script names no checkpoint to resume from: resuming from %s" % path)
    return str(path)


def _places(folder):
    """Returns where a folder of this script may lie: where it names it, and in the working directories of the runs that this one resumes."""
    works = [os.getcwd(), *filter(None, os.environ.get("MLENV_EARLIER_WORK", "").split(":"))]
    return {os.path.abspath(os.path.join(work, folder)) for work in works}


def _resumable_in(folder, source):
    """Returns what _resumable does before the first step that the source counts, if it lies in this folder of the script."""
    places = _places(folder)
    return None if _done.get(source) else _resumable(lambda path: os.path.abspath(path.parent) in places)


def _mark(path):
    path = pathlib.Path(path)
    return path.with_name(path.name + ".not-resumed")


def _trained():
    return {source: steps for source, steps in _done.items() if source != "torch.optim"}


_LOADS = re.compile(r"_?(load|restore|resume)")


def _resume(found, train):
    """Calls train. If a framework fails to load the checkpoint, as one that its version cannot read, the next attempt starts over, as it
    would do without ml-dev-env."""
    before = _trained()
    try:
        return train()
    except Exception as error:
        if found and _trained() == before and "OutOfMemory" not in type(error).__name__:
            trace, names = error.__traceback__, []
            while trace is not None:
                if trace.tb_frame.f_code.co_filename != __file__:
                    names.append(trace.tb_frame.f_code.co_name)
                trace = trace.tb_next
            if any(map(_LOADS.match, names)):
                _quiet(_mark(found).touch)()
        raise
    finally:
        mlenv.release()  # what follows the training has nothing to save


class _Callback:
    """What both frameworks' callbacks have. Spawned processes get the callback of their own module."""

    def __reduce__(self):
        return _callback, (self.home,)


class _Stopped(BaseException):
    """Ends an evaluation, because there is only time to save."""


_callbacks = {}


def _callback(module):
    __import__(module)
    return _callbacks[module]()


def _trainer(module):
    from transformers.trainer_callback import TrainerCallback

    class Mlenv(_Callback, TrainerCallback):
        home, stopped, evaluates = module.__name__, False, False

        @_quiet
        def on_train_begin(self, args, state, control, **_):
            _counts("transformers")

        @_quiet
        def on_step_end(self, args, state, control, **_):
            _step("transformers")
            _report("transformers", state.global_step, getattr(state, "max_steps", None))
            self.stops(args, state, control)

        def stops(self, args, state, control):
            # Its own checkpoint when stopped, of transformers 5, has a handler for SIGTERM.
            if self.stopped or getattr(args, "enable_jit_checkpoint", False) or not _counts("transformers") or not _stop():
                return False
            control.should_save = control.should_training_stop = self.stopped = True
            control.should_evaluate = False  # there is no time for that, nor at the end of the epoch
            vars(args)["save_only_model"] = False
            _say("saving after step %d, because the training is being stopped" % state.global_step)
            return True

        @_quiet
        def on_prediction_step(self, args, state, control, **_):
            if self.evaluates and self.stops(args, state, control):
                raise _Stopped

        @_quiet
        def on_epoch_end(self, args, state, control, **_):
            if self.stopped:
                control.should_save = control.should_evaluate = False

        @_quiet
        def on_save(self, args, state, control, **_):
            saved = pathlib.Path(args.output_dir, "checkpoint-%d" % state.global_step)
            if os.environ.get("LOCAL_RANK", "0") == "0" and saved.is_dir() and (len(trained) > 1 or (saved / ORDINAL).exists()):
                (saved / ORDINAL).write_text(str(len(trained)))

        @_quiet
        def on_log(self, args, state, control, logs=None, **_):
            _report("transformers", state.global_step, getattr(state, "max_steps", None), (logs or {}).get("loss"))

    _callbacks[module.__name__] = Mlenv
    init, train, finish = module.Trainer.__init__, module.Trainer.train, getattr(module.Trainer, "_maybe_log_save_evaluate", None)
    trained = []  # of several, each continues only from a checkpoint of its own, which has the number of all but the first
    ORDINAL = "ml-dev-env-train"

    @_quiet
    def add(trainer):
        trainer._mlenv = Mlenv()
        trainer.add_callback(trainer._mlenv)

    @_quiet
    def resume(trainer):
        args = trainer.args

        def wanted(path):
            if not (path / "trainer_state.json").is_file():
                return False
            if os.path.abspath(path.parent) not in _places(args.output_dir):
                return "the output_dir is %s" % args.output_dir
            if getattr(args, "save_only_model", False) and not [*path.glob("optimizer*"), *path.glob("global_step*")]:
                return "it has no optimizer, due to save_only_model"
            ordinal = path / ORDINAL
            return int(ordinal.read_text() if ordinal.exists() else 1) == len(trained)

        return _resumable(wanted)

    @functools.wraps(init)
    def __init__(self, *args, **kwargs):
        init(self, *args, **kwargs)
        add(self)

    @functools.wraps(train)
    def trains(self, *args, **kwargs):
        found = None
        trained.append(True)
        if not args and kwargs.get("resume_from_checkpoint") is None:
            found = resume(self)
            if found:
                kwargs["resume_from_checkpoint"] = found
        result = _resume(found, lambda: train(self, *args, **kwargs))
        if getattr(getattr(self, "_mlenv", None), "stopped", False):
            sys.exit(0)  # what follows a training would run with a model that is not trained
        return result

    def finishes(self, *args, **kwargs):
        """Evaluates and saves after a step. An evaluation that is stopped leaves the saving."""
        callback = getattr(self, "_mlenv", None) or Mlenv()
        callback.evaluates = True
        try:
            return finish(self, *args, **kwargs)
        except _Stopped:
            return finish(self, *args, **kwargs)
        finally:
            callback.evaluates = False

    module.Trainer.__init__, module.Trainer.train = __init__, trains
    if finish:
        module.Trainer._maybe_log_save_evaluate = functools.wraps(finish)(finishes)


def _lightning(module):
    callbacks = sys.modules[module.__name__[: -len("trainer.trainer")] + "callbacks"]

    class Mlenv(_Callback, callbacks.Callback):
        home = module.__name__

        def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx, *_):
            if self.stops(trainer, outputs):
                self.save(trainer)
                sys.exit(0)

        @_quiet
        def on_train_start(self, trainer, pl_module):
            _counts("Lightning")
            for callback in trainer.checkpoint_callbacks:
                # Lightning forgets it, and would save the step that it has loaded again while it gathers the next one's gradients.
                if getattr(callback, "_last_global_step_saved", None) == 0:
                    callback._last_global_step_saved = trainer.global_step

        @_quiet
        def stops(self, trainer, outputs):
            _step("Lightning")
            loss = outputs.get("loss") if isinstance(outputs, dict) else outputs
            automatic = trainer.lightning_module.automatic_optimization  # else global_step counts the steps of all optimizers

            def steps():
                return trainer.max_steps if trainer.max_steps > 0 else trainer.estimated_stepping_batches if automatic else None

            _report("Lightning", trainer.global_step, steps,
                    lambda: loss.item() * (trainer.accumulate_grad_batches if automatic else 1) if hasattr(loss, "item") else None)
            own = signal.getsignal(signal.SIGTERM)  # Lightning's makes the training fail
            gathers = trainer.fit_loop.epoch_loop._should_accumulate()  # gradients, which no checkpoint has
            return not gathers and _counts("Lightning") and _stop([own] if type(own).__name__ == "_HandlersCompose" else [])

        @_quiet
        def save(self, trainer):
            path = mlenv.checkpoint_folder() / (stopped() + "step=%d.ckpt" % trainer.global_step)
            _say("saving %s, because the training is being stopped" % path)
            trainer.save_checkpoint(str(path))

    _callbacks[module.__name__] = Mlenv
    init, fit = module.Trainer.__init__, module.Trainer.fit
    fitted = []
    SECOND = ".ml-dev-env-second-fit"  # what is saved after it was written is not the first fit's

    def stopped():
        return "stopped-" if len(fitted) < 2 else "stopped-%d-" % len(fitted)  # of several fits, which one was stopped

    @_quiet
    def add(trainer):
        trainer.callbacks.append(Mlenv())  # the others have seen the step when it saves

    @_quiet
    def begins():
        fitted.append(True)
        if len(fitted) == 2 and os.environ.get("LOCAL_RANK", "0") == "0":
            pathlib.Path(SECOND).touch()

    @_quiet
    def resume():
        def wanted(path):
            if path.name.startswith("stopped-"):
                return path.name.startswith(stopped() + "step=")
            marks = filter(os.path.exists, _places(SECOND))
            return len(fitted) == 1 and path.suffix == ".ckpt" and all(path.stat().st_mtime < os.stat(mark).st_mtime for mark in marks)

        return _resumable(wanted)

    @_quiet
    def chosen(trainer):
        """Reports whether the script or another callback, such as the search for a learning rate, decides where the fit begins."""
        connector = getattr(trainer, "_checkpoint_connector", None)
        return (any(hasattr(callback, "_early_exit") for callback in trainer.callbacks) or getattr(trainer, "ckpt_path", None)
                or getattr(connector, "resume_from_checkpoint_fit_path", None))

    @functools.wraps(init)
    def __init__(self, *args, **kwargs):
        init(self, *args, **kwargs)
        add(self)

    @functools.wraps(fit)
    def resumed(self, *args, **kwargs):
        found = None
        if not chosen(self):
            begins()
            if len(args) < 5 and kwargs.get("ckpt_path") is None:
                found = resume()
                if found:
                    kwargs["ckpt_path"] = found
        return _resume(found, lambda: fit(self, *args, **kwargs))

    module.Trainer.__init__, module.Trainer.fit = __init__, resumed


def _deepspeed(module):
    engine = module.DeepSpeedEngine
    step, forward, backward, save, load = engine.step, engine.forward, engine.backward, engine.save_checkpoint, engine.load_checkpoint
    folders = {}  # of the engines that have saved, None for one that has several

    @_quiet
    def after(self):
        """Returns what saves a checkpoint if the training is being stopped after this step, else None."""
        if self.global_steps == getattr(self, "_mlenv_steps", 0):
            return None
        self._mlenv_steps = self.global_steps
        _step("DeepSpeed")
        loss = getattr(self, "_mlenv_loss", None)
        _report("DeepSpeed", self.global_steps, None, lambda: loss.item() if hasattr(loss, "item") else None)
        # Only a script that saves can resume from what is saved here: it loads it from the same folder, and expects nothing of its own in it.
        saves = getattr(self, "_mlenv_saves", None) if len(folders) < 2 else None
        return saves if saves and _counts("DeepSpeed") and _stop() else None

    @_quiet
    def noted(self, loss):
        loss = loss[0] if isinstance(loss, tuple) and loss else getattr(loss, "loss", loss)
        if self.training and hasattr(loss, "numel") and loss.numel() == 1:
            self._mlenv_loss = loss.detach()

    @_quiet
    def saved(self, folder, tag=None, client_state=None, *args, **kwargs):
        """Notes how the script saves: by DeepSpeed's own names, or by tags that end with the number of steps, and without a state of its own."""
        self._mlenv_saves = None
        if folders.setdefault(id(self), folder) != folder:
            folders[id(self)] = None  # one is of its best checkpoints, or the like
        if client_state or folders[id(self)] is None:
            return
        if tag is None:
            self._mlenv_saves = lambda: save(self, folder, None, {}, *args, **kwargs)
        else:
            tags = self._mlenv_tags = getattr(self, "_mlenv_tags", None) or _Numbered(lambda: self.global_steps)
            tags.note(str(tag), lambda tag: save(self, folder, tag, {}, *args, **kwargs))
            self._mlenv_saves = tags.save_now if tags.name is not None else None

    @_quiet
    def loaded_from(self, folder, path, states):
        self._mlenv_steps = self.global_steps
        path = path and os.path.dirname(path)
        if path and not set(states or ()) - _ENGINE_STATES and re.match(r"global_step\d+$", os.path.basename(path)) and _own(path):
            folders[id(self)] = folder
            self._mlenv_saves = lambda: save(self, folder)

    resume = _quiet(_resumable_in)

    @functools.wraps(forward)
    def forwards(self, *args, **kwargs):
        result = forward(self, *args, **kwargs)
        noted(self, result)
        return result

    @functools.wraps(backward)
    def backwards(self, loss, *args, **kwargs):
        noted(self, loss)
        return backward(self, loss, *args, **kwargs)

    @functools.wraps(save)
    def saves(self, *args, **kwargs):
        result = save(self, *args, **kwargs)
        saved(self, *args, **kwargs)
        return result

    @functools.wraps(load)
    def loads(self, load_dir, *args, **kwargs):
        result = load(self, load_dir, *args, **kwargs)
        if not args and not kwargs:
            found = result[0] is None and resume(load_dir, "DeepSpeed")  # its FP16_Optimizer steps when it is made
            if found:
                result = _resume(found, lambda: load(self, os.path.dirname(found), os.path.basename(found)))
            loaded_from(self, load_dir, *result)
        return result

    @functools.wraps(step)
    def steps(self, *args, **kwargs):
        result = step(self, *args, **kwargs)
        saves = after(self)
        if saves:
            _say("saving, because the training is being stopped")
            saves()
            sys.exit(0)
        return result

    engine.step, engine.forward, engine.backward, engine.save_checkpoint, engine.load_checkpoint = steps, forwards, backwards, saves, loads


# What load_checkpoint of DeepSpeed 0.10 to 0.19 returns beside the states of the script.
_ENGINE_STATES = set("""buffer_names param_shapes frozen_param_shapes frozen_param_fragments shared_params global_samples ds_config ds_version
lr_scheduler optimizer""".split())


_LOSS = re.compile(r"(?:^|[/_. ])loss(?:$|[/_. ])", re.IGNORECASE)
_OTHER = re.compile(r"val|eval|test|dev", re.IGNORECASE)


@_quiet
def _logged(*values):
    """Takes the loss of the training from what a script logs: a dictionary of values, or else a name and a value."""
    global _loss, _unwritten
    named = next((value for value in values if isinstance(value, dict)), None)
    if named is None:
        named = {values[0]: values[1]}
    for name, value in named.items():
        if _LOSS.search(str(name)) and not _OTHER.search(str(name)) and _rank() == 0:
            _loss, _unwritten = value.detach() if hasattr(value, "detach") else value, True
            return _report()


def _shows_loss(owner, method):
    log = getattr(owner, method)

    @functools.wraps(log)
    def logs(self, *args, **kwargs):
        _logged(*args, *kwargs.values())
        return log(self, *args, **kwargs)

    setattr(owner, method, logs)


def _accelerate(module):
    accelerator, data = module.Accelerator, sys.modules["accelerate.data_loader"]
    save, load = accelerator.save_state, accelerator.load_state
    savers, checked, whole = set(), [0], {}

    def done():
        """Returns how many steps this attempt has done, by the engine or else the optimizer; 0 in a Trainer, which saves for itself."""
        return _done.get(_SOURCES[_best], 0) if _SOURCES.index("DeepSpeed") <= _best < len(_SOURCES) else 0

    folders = _Numbered(done)

    @_quiet
    def saved(self, folder, *args, **kwargs):
        savers.add(id(self))
        folders.note(folder, lambda folder: save(self, folder, *args, **kwargs))
        whole.update(of=self, at=done(), known=None)

    @_quiet
    def loaded_from(self, folder):
        """Continues to count if the name of this training's own checkpoint has the number of steps that its optimizer has."""
        global _before
        found = re.match(r"(?:.*[/_-])?step[_-]?(\d+)$", os.fspath(folder), re.DOTALL)
        states = [state["step"] for optimizer in self._optimizers for state in optimizer.state.values() if "step" in state]
        if found and states and {int(step) for step in states} == {int(found[1])} and _own(folder):
            savers.add(id(self))
            folders.note(folder, lambda folder: save(self, folder), sure=True)
            whole.update(of=self, at=done(), known=None)
            _before = int(found[1]) - done()

    @_quiet
    def resume(self):
        return _resumable_in(os.path.join(self.project_dir, "checkpoints"), "torch.optim")

    def all_saved():
        """Reports whether every rank saves, and only accelerate does: a step later, the last checkpoint has no other files."""
        if whole["known"] is None:
            names, own = os.listdir(folders.path()), whole["of"]._save_model_state_pre_hook
            ranks = {"random_states_%d.pkl" % rank for rank in range(whole["of"].num_processes)}
            whole["known"] = ranks <= set(names) and (bool(own) or all(map(_ACCELERATES.match, names)))
        return whole["known"]

    @_quiet
    def stops():
        """Reports whether to save before the next batch: then the step before is over, with its schedulers and what the script saves."""
        main = threading.current_thread() is threading.main_thread()
        if folders.name is None or len(savers) > 1 or done() == checked[0] or not main:
            return False
        checked[0] = done()
        return done() > whole["at"] and all_saved() and _stop()

    @functools.wraps(save)
    def save_state(self, output_dir=None, *args, **kwargs):
        result = save(self, output_dir, *args, **kwargs)
        if output_dir is not None:
            saved(self, output_dir, *args, **kwargs)
        return result

    @functools.wraps(load)
    def load_state(self, input_dir=None, *args, **kwargs):
        found = resume(self) if input_dir is None else None  # accelerate would take the last one, whole or not
        result = _resume(found, lambda: load(self, found, *args, **kwargs)) if found else load(self, input_dir, *args, **kwargs)
        if input_dir is not None:
            loaded_from(self, input_dir)
        return result

    def batches(loader):
        inner = loader.__iter__

        @functools.wraps(inner)
        def __iter__(self):
            begun = None
            try:
                for batch in inner(self):
                    # Not before the first one, nor after the last one, when what ends an epoch may be missing.
                    if begun is None:
                        begun = done()
                    elif done() > begun and stops():
                        folders.save_now()
                        sys.exit(0)
                    yield batch
            finally:
                if begun is not None and done() > begun and not mlenv._asks:
                    mlenv.release()  # what follows, such as an evaluation, has nothing to save

        loader.__iter__ = __iter__

    accelerator.save_state, accelerator.load_state = save_state, load_state
    _shows_loss(accelerator, "log")
    for name in ("DataLoaderShard", "DataLoaderDispatcher", "SkipDataLoader"):
        batches(getattr(data, name))


# What accelerate 0.20 to 1.15 writes into a checkpoint.
_ACCELERATES = re.compile(r"(pytorch_)?model|optimizer|scheduler|scaler|sampler|random_states_|custom_checkpoint_|dl_state_dict")


def _tensorboard(module):
    _shows_loss(module.SummaryWriter, "add_scalar")


def _fabric(module):
    _shows_loss(module.CSVLogger, "log_metrics")


def _torch(module):
    """Takes away the older name of a variable that the agent sets in both: torch warns of it on every rank, and from 2.11 on reads only
    the newer one."""
    version = re.match(r"(\d+)\.(\d+)", module.__version__)
    old, new = "TORCH_NCCL_TRACE_BUFFER_SIZE", "TORCH_FR_BUFFER_SIZE"
    if version and (int(version[1]), int(version[2])) >= (2, 11) and os.environ.get(old) == os.environ.get(new):
        os.environ.pop(old, None)


def _optimizer(module):
    register = getattr(module, "register_optimizer_step_post_hook", None)  # from torch 2.0 on
    if register is None:
        return
    first = []
    torch = module.torch

    def stepped(optimizer, args, kwargs):
        if not (hasattr(torch, "compiler") and hasattr(torch.compiler, "is_compiling") and torch.compiler.is_compiling()):
            step(optimizer)  # which no graph should contain

    @_quiet
    def step(optimizer):
        global _written
        if not first:
            first.append(weakref.ref(optimizer))
        if first[0]() in (optimizer, None):
            if first[0]() is None:
                first[0] = weakref.ref(optimizer)
            _step("torch.optim")
            if _done["torch.optim"] == 1 and _counts("torch.optim"):
                _written = time.monotonic()  # not the first step at once: the script may count its steps itself, and report after this
            _report("torch.optim", _before + _done["torch.optim"])

    register(stepped)


def _tqdm(module):
    display = module.tqdm.display

    @_quiet
    def shown(bar):
        if bar.total:
            name = (bar.desc or "").strip().rstrip(":")
            # With torch, bars are of data as well, and the optimizer counts the steps.
            step, steps = (None, None) if "torch" in sys.modules else (bar.n, bar.total)
            _report("tqdm" if step is not None else None, step, steps, bar=("%s %s of %s" % (name, bar.n, bar.total)).strip())

    @functools.wraps(display)
    def displays(self, *args, **kwargs):
        shown(self)
        return display(self, *args, **kwargs)

    module.tqdm.display = displays
