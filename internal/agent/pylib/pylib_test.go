// SPDX-License-Identifier: Apache-2.0

package pylib

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// standIns stand in for transformers, Lightning, tqdm, torch, DeepSpeed and accelerate: they call callbacks as Trainer 4.30 to 5.24 and
// Lightning 2.6 do, print bars by the method that tqdm has for that, and yield batches as accelerate 0.20 to 1.15 does. make frameworks
// runs the real ones.
var standIns = map[string]string{
	"transformers/__init__.py": "",
	"transformers/trainer_callback.py": `
class TrainerCallback:
    def on_train_begin(self, *a, **k): pass
    def on_step_end(self, *a, **k): pass
    def on_prediction_step(self, *a, **k): pass
    def on_log(self, *a, **k): pass
    def on_save(self, *a, **k): pass
`,
	"transformers/trainer.py": `
import os, types
from .trainer_callback import TrainerCallback

class Trainer:
    evaluates_after = None

    def __init__(self, output_dir="out", steps=5):
        self.args = types.SimpleNamespace(output_dir=output_dir, steps=steps)
        self.callbacks = []

    def add_callback(self, callback):
        assert isinstance(callback, TrainerCallback)
        self.callbacks.append(callback)

    def _load_from_checkpoint(self, path):
        if os.path.exists(os.path.join(path, "broken")):
            raise ValueError("cannot read the checkpoint")
        return int(path.rsplit("-", 1)[1])

    def train(self, resume_from_checkpoint=None, trial=None):
        if os.environ.get("LOST"):
            raise ConnectionError("a peer was lost")
        first = self._load_from_checkpoint(resume_from_checkpoint) if resume_from_checkpoint else 0
        state = types.SimpleNamespace(global_step=first, max_steps=self.args.steps)
        if os.environ.get("ODD"):
            del state.max_steps
        control = types.SimpleNamespace(should_save=False, should_training_stop=False, should_evaluate=False)
        self.state, self.control = state, control
        def call(event, **more):
            for callback in self.callbacks:
                getattr(callback, event)(self.args, state, control, **more)
        call("on_train_begin")
        while state.global_step < self.args.steps and not control.should_training_stop:
            state.global_step += 1
            print("step", state.global_step)
            control.should_evaluate = state.global_step == self.evaluates_after
            call("on_step_end")
            call("on_log", logs={"loss": 1 / state.global_step})
            self._maybe_log_save_evaluate(call)
        return "trained"

    def _maybe_log_save_evaluate(self, call):
        if self.control.should_evaluate:
            for batch in range(2):
                print("evaluates", batch)
                if batch == 1:
                    open("stop", "w").write('{"cause": "cancelled", "reason": "why", "until": 9e9}')
                call("on_prediction_step")
            print("evaluated")
        if self.control.should_save:
            os.makedirs(os.path.join(self.args.output_dir, "checkpoint-%d" % self.state.global_step))
            call("on_save")
`,
	"lightning/__init__.py":                 "",
	"lightning/pytorch/__init__.py":         "",
	"lightning/pytorch/trainer/__init__.py": "",
	"lightning/pytorch/callbacks/__init__.py": `
class Callback:
    def on_train_start(self, *a): pass
class ModelCheckpoint(Callback):
    _last_global_step_saved = 0
    def on_train_batch_end(self, trainer, *a):
        if trainer.global_step % 2 == 0 and trainer.global_step != self._last_global_step_saved:
            self._last_global_step_saved = trainer.global_step
            print("saves", trainer.global_step)
`,
	"lightning/pytorch/trainer/trainer.py": `
import os, types
from .. import callbacks

class Trainer:
    max_steps, batches, global_step = 5, 0, 0
    lightning_module = types.SimpleNamespace(automatic_optimization=True)

    def __init__(self, accumulate_grad_batches=1):
        self.callbacks, self.accumulate_grad_batches = [], accumulate_grad_batches
        self.fit_loop = types.SimpleNamespace(epoch_loop=types.SimpleNamespace(_should_accumulate=self.gathers))

    @property
    def checkpoint_callbacks(self):
        return [each for each in self.callbacks if isinstance(each, callbacks.ModelCheckpoint)]

    def gathers(self):
        return self.batches % self.accumulate_grad_batches != 0

    def save_checkpoint(self, path):
        os.makedirs(os.path.dirname(path))
        with open(path, "w") as file:
            file.write(str(self.global_step))

    def fit(self, ckpt_path=None):
        self.global_step = int(open(ckpt_path).read()) if ckpt_path else 0
        for callback in self.callbacks:
            callback.on_train_start(self, self.lightning_module)
        loss = types.SimpleNamespace(item=lambda: 0.5)
        while self.global_step < self.max_steps:
            self.batches += 1
            if not self.gathers():
                self.global_step += 1
                print("step", self.global_step)
            for callback in self.callbacks:
                callback.on_train_batch_end(self, self.lightning_module, {"loss": loss}, None, self.batches)
`,
	"torch/__init__.py":       "__version__ = '2.6'\n",
	"torch/optim/__init__.py": "",
	"torch/optim/optimizer.py": `
import torch
hooks = []
register_optimizer_step_post_hook = hooks.append
class Optimizer:
    def step(self):
        for hook in hooks: hook(self, (), {})
`,
	"accelerate/__init__.py": "from .accelerator import Accelerator\n",
	"accelerate/accelerator.py": `
import os, types
from . import data_loader

class Accelerator:
    project_dir, num_processes, _save_model_state_pre_hook, _optimizers = ".", 1, {}, []
    def log(self, values, step=None): pass
    def save_state(self, output_dir=None, safe_serialization=True):
        os.makedirs(output_dir)
        open(output_dir + "/random_states_0.pkl", "w")
    def load_state(self, input_dir=None):
        assert os.path.isdir(input_dir)
        print("loaded", input_dir)
        self._optimizers = [types.SimpleNamespace(state={0: {"step": int(input_dir.split("_")[-1])}})]
`,
	"accelerate/data_loader.py": `
class DataLoaderShard:
    def __init__(self, batches): self.batches = batches
    def __iter__(self):
        for batch in self.batches: yield batch
class DataLoaderDispatcher(DataLoaderShard): pass
class SkipDataLoader(DataLoaderShard): pass
`,
	"deepspeed/__init__.py":         "",
	"deepspeed/runtime/__init__.py": "",
	"deepspeed/runtime/engine.py": `
import os
class DeepSpeedEngine:
    training, global_steps = True, 0
    def forward(self, loss): return loss
    def backward(self, loss): return loss
    def step(self): self.global_steps += 1
    def save_checkpoint(self, save_dir, tag=None, client_state={}, save_latest=True):
        os.makedirs("%s/%s" % (save_dir, tag or "global_step%d" % self.global_steps))
    def load_checkpoint(self, load_dir, tag=None):
        if tag is None:
            if not os.path.exists(load_dir + "/latest"): return None, {}
            tag = open(load_dir + "/latest").read()
        self.global_steps = int(tag[len("global_step"):])
        print("loaded")
        return "%s/%s/mp_rank_00_model_states.pt" % (load_dir, tag), {"ds_version": "0.17.6", "own": 1} if os.path.exists("own") else {}
`,
	"tqdm/__init__.py": "from .std import tqdm\n",
	"tqdm/std.py": "class tqdm:\n    def __init__(self, total, desc): self.n, self.total, self.desc = 0, total, desc\n" +
		"    def update(self): self.n += 1; self.display()\n    def display(self): print(self.n)\n",
}

// accelerated returns a script for accelerate that saves after every second step, and is stopped after a step.
func accelerated(first int, name string, stopped int) string {
	return fmt.Sprintf(`
import os, signal
from accelerate import Accelerator
from accelerate.data_loader import DataLoaderShard
from torch.optim.optimizer import Optimizer
accelerator, optimizer, first = Accelerator(), Optimizer(), %d
if first:
    accelerator.load_state("out/step_%%d" %% first)
for step in DataLoaderShard(range(first + 1, 9)):
    optimizer.step()
    print("step", step)
    if step %% 2 == 0:
        accelerator.save_state("out/" + %s)
    if step == %d:
        open("stop", "w").write('{"cause": "cancelled", "reason": "why", "until": 9e9}')
`, first, name, stopped)
}

// engine returns a script for DeepSpeed that saves after every second step, and is stopped after a step.
func engine(first string, save string, stopped int) string {
	return fmt.Sprintf(`
from deepspeed.runtime.engine import DeepSpeedEngine
class Loss(float):
    detach = lambda self: self
    item = lambda self: float(self)
    numel = lambda self: 1
engine = DeepSpeedEngine()
%s
while engine.global_steps < 8:
    engine.forward(Loss(0.5))
    engine.step()
    step = engine.global_steps
    print("step", step)
    if step %% 2 == 0:
        engine.save_checkpoint("out", %s)
    if step == %d:
        open("stop", "w").write('{"cause": "cancelled", "reason": "why", "until": 9e9}')
`, first, save, stopped)
}

const torchWarns = "import os, torch\nprint(os.environ.get('TORCH_NCCL_TRACE_BUFFER_SIZE'), os.environ['TORCH_FR_BUFFER_SIZE'])\n"

var recorders = []string{"TORCH_NCCL_TRACE_BUFFER_SIZE=20", "TORCH_FR_BUFFER_SIZE=20"}

func TestFrameworks(t *testing.T) {
	const allSteps = "step 1\nstep 2\nstep 3\nstep 4\nstep 5\n"
	const fit = "from lightning.pytorch.trainer.trainer import Trainer\n"
	const trainer = "from transformers.trainer import Trainer\nprint(Trainer().train())\n"
	for name, tc := range map[string]struct {
		script string
		env    []string
		files  map[string]string
		// ends is how stdout ends.
		ends string
		// last has the keys of the last line of metrics, all but the time; "" for no metrics.
		last string
		// left is a file that exists then.
		left string
	}{
		"a Trainer": {script: trainer, ends: "step 5\ntrained\n", last: "loss=0.2 source=transformers step=5 steps=5"},
		"a Trainer that is stopped": {script: trainer, files: map[string]string{"stop": `{"cause": "cancelled", "reason": "why", "until": 9e9}`},
			env: []string{"MLENV_STOP_FILE=stop"}, ends: "step 1\n", last: "loss=1 source=transformers step=1 steps=5", left: "out/checkpoint-1"},
		"a Trainer that is stopped while it evaluates": {script: "from transformers.trainer import Trainer\nTrainer.evaluates_after = 2\n" +
			"print(Trainer().train())\n", env: []string{"MLENV_STOP_FILE=stop"}, ends: "step 2\nevaluates 0\nevaluates 1\n",
			last: "loss=0.5 source=transformers step=2 steps=5", left: "out/checkpoint-2"},
		"a script that is asked, and trains on": {script: "import mlenv\nmlenv.stopping()\n" + trainer,
			files: map[string]string{"stop": `{"cause": "cancelled", "reason": "why", "until": 9e9}`},
			env:   []string{"MLENV_STOP_FILE=stop"}, ends: "step 5\ntrained\n", last: "loss=0.2 source=transformers step=5 steps=5"},
		"a script with a handler of its own": {script: "import signal\nsignal.signal(signal.SIGTERM, print)\n" + trainer,
			files: map[string]string{"stop": `{"cause": "cancelled", "reason": "why", "until": 9e9}`},
			env:   []string{"MLENV_STOP_FILE=stop"}, ends: "step 5\ntrained\n", last: "loss=0.2 source=transformers step=5 steps=5"},
		"a Trainer in a restart": {script: trainer, files: map[string]string{"out/checkpoint-3/trainer_state.json": "{}"},
			env: []string{"MLENV_LAST_CHECKPOINT=out/checkpoint-3"}, ends: "step 4\nstep 5\ntrained\n",
			last: "loss=0.2 source=transformers step=5 steps=5"},
		"a checkpoint of another Trainer": {script: trainer, files: map[string]string{"other/checkpoint-3/trainer_state.json": "{}"},
			env: []string{"MLENV_LAST_CHECKPOINT=other/checkpoint-3"}, ends: "step 5\ntrained\n",
			last: "loss=0.2 source=transformers step=5 steps=5"},
		"a script that chooses where to begin": {script: "from transformers.trainer import Trainer\n" +
			"Trainer().train(resume_from_checkpoint=False)\n",
			files: map[string]string{"out/checkpoint-3/trainer_state.json": "{}"}, env: []string{"MLENV_LAST_CHECKPOINT=out/checkpoint-3"},
			ends: allSteps, last: "loss=0.2 source=transformers step=5 steps=5"},
		"a checkpoint that cannot be read": {script: "from transformers.trainer import Trainer\ntry:\n" +
			"    Trainer().train()\nexcept ValueError as e:\n    print(e)\nprint(Trainer().train())\n",
			files: map[string]string{"out/checkpoint-3/trainer_state.json": "{}", "out/checkpoint-3/broken": ""},
			env:   []string{"MLENV_LAST_CHECKPOINT=out/checkpoint-3"}, ends: "cannot read the checkpoint\n" + allSteps + "trained\n",
			last: "loss=0.2 source=transformers step=5 steps=5", left: "out/checkpoint-3.not-resumed"},
		"a failure before the checkpoint is read": {script: "from transformers.trainer import Trainer\ntry:\n" +
			"    Trainer().train()\nexcept ConnectionError:\n    import glob\n    print(glob.glob('out/*'))\n",
			files: map[string]string{"out/checkpoint-3/trainer_state.json": "{}"},
			env:   []string{"MLENV_LAST_CHECKPOINT=out/checkpoint-3", "LOST=1"}, ends: "['out/checkpoint-3']\n"},
		"a second Trainer": {script: "from transformers.trainer import Trainer\nTrainer().train()\nprint(Trainer().train())\n",
			files: map[string]string{"out/checkpoint-3/trainer_state.json": "{}"}, env: []string{"MLENV_LAST_CHECKPOINT=out/checkpoint-3"},
			ends: "step 4\nstep 5\n" + allSteps + "trained\n", last: "loss=0.2 source=transformers step=5 steps=5"},
		"a second Trainer that is stopped": {script: "from transformers.trainer import Trainer\nTrainer().train()\n" +
			"open('stop', 'w').write('{\"cause\": \"cancelled\", \"reason\": \"why\", \"until\": 9e9}')\nTrainer().train()\n",
			env: []string{"MLENV_STOP_FILE=stop"}, ends: "step 5\nstep 1\n", last: "loss=1 source=transformers step=1 steps=5",
			left: "out/checkpoint-1/ml-dev-env-train"},
		"a checkpoint of a second Trainer": {script: "from transformers.trainer import Trainer\nTrainer().train()\nprint(Trainer().train())\n",
			files: map[string]string{"out/checkpoint-3/trainer_state.json": "{}", "out/checkpoint-3/ml-dev-env-train": "2"},
			env:   []string{"MLENV_LAST_CHECKPOINT=out/checkpoint-3"}, ends: allSteps + "step 4\nstep 5\ntrained\n",
			last: "loss=0.2 source=transformers step=5 steps=5"},
		"a checkpoint without an optimizer": {script: "from transformers.trainer import Trainer\ntrainer = Trainer()\n" +
			"trainer.args.save_only_model = True\nprint(trainer.train())\n", files: map[string]string{"out/checkpoint-3/trainer_state.json": "{}"},
			env: []string{"MLENV_LAST_CHECKPOINT=out/checkpoint-3"}, ends: allSteps + "trained\n",
			last: "loss=0.2 source=transformers step=5 steps=5"},
		"Lightning that is stopped while it gathers gradients": {script: fit + "Trainer(accumulate_grad_batches=2).fit()\n",
			files: map[string]string{"stop": `{"cause": "cancelled", "reason": "why", "until": 9e9}`},
			env:   []string{"MLENV_STOP_FILE=stop", "MLENV_WORKSPACE=."}, ends: "step 1\n", last: "loss=1 source=Lightning step=1 steps=5",
			left: "checkpoints/local/stopped-step=1.ckpt"},
		"Lightning in a restart": {script: fit + "Trainer().fit()\n", files: map[string]string{"a.ckpt": "3"},
			env: []string{"MLENV_LAST_CHECKPOINT=a.ckpt"}, ends: "step 4\nstep 5\n", last: "loss=0.5 source=Lightning step=5 steps=5"},
		"Lightning in a restart that gathers gradients": {script: fit + "from lightning.pytorch.callbacks import ModelCheckpoint\n" +
			"trainer = Trainer(accumulate_grad_batches=2)\ntrainer.callbacks.append(ModelCheckpoint())\nprint('begins')\ntrainer.fit()\n",
			files: map[string]string{"a.ckpt": "2"}, env: []string{"MLENV_LAST_CHECKPOINT=a.ckpt"},
			ends: "begins\nstep 3\nstep 4\nsaves 4\nstep 5\n", last: "loss=1 source=Lightning step=5 steps=5"},
		"Lightning in a restart, with the checkpoint of a second fit": {script: fit + "import os\nos.utime('.ml-dev-env-second-fit', (1, 1))\n" +
			"Trainer().fit()\nTrainer().fit()\n", files: map[string]string{"a.ckpt": "3", ".ml-dev-env-second-fit": ""},
			env: []string{"MLENV_LAST_CHECKPOINT=a.ckpt"}, ends: allSteps + allSteps, last: "loss=0.5 source=Lightning step=5 steps=5"},
		"a pickled Trainer": {script: "import pickle\nfrom transformers.trainer import Trainer\n" +
			"print(pickle.loads(pickle.dumps(Trainer())).train())\n", ends: "trained\n",
			last: "loss=0.2 source=transformers step=5 steps=5"},
		"a process below a Trainer": {script: "import multiprocessing, time\n" + trainer +
			"import mlenv\nmlenv.handle()\nfork = multiprocessing.get_context('fork')\nup = fork.Event()\n" +
			"child = fork.Process(target=lambda: (up.set(), time.sleep(1000)))\nchild.start()\nup.wait()\n" +
			"child.terminate()\nchild.join()\nprint(child.exitcode)\n", ends: "trained\n-15\n",
			last: "loss=0.2 source=transformers step=5 steps=5"},
		"a Trainer of an unknown shape": {script: trainer, env: []string{"ODD=1"}, ends: "step 5\ntrained\n",
			last: "loss=0.2 source=transformers step=5"},
		"a script that measures itself": {script: "import mlenv\nmlenv.progress(step=7)\n" + trainer, ends: "trained\n", last: "step=7"},
		"no hook":                       {script: trainer, env: []string{"MLENV_HOOK=none"}, ends: "trained\n"},
		"another rank":                  {script: trainer, env: []string{"RANK=1"}, ends: "trained\n"},
		"a hook that fails": {script: "from transformers.trainer import Trainer\ntrainer = Trainer()\n" +
			"class Arguments:\n    output_dir, steps, enable_jit_checkpoint = 'out', 5, property(lambda self: 1 / 0)\n" +
			"trainer.args = Arguments()\nprint(trainer.train())\n", ends: "step 5\ntrained\n",
			last: "loss=0.2 source=transformers step=5 steps=5", left: "errors/hook-"},
		"DeepSpeed that is stopped": {script: engine("", "", 3), env: []string{"MLENV_STOP_FILE=stop"}, ends: "step 3\n",
			last: "loss=0.5 source=DeepSpeed step=4", left: "out/global_step4"},
		"DeepSpeed that has loaded": {script: engine("engine.load_checkpoint('out')", "", 5),
			env:   []string{"MLENV_STOP_FILE=stop", "MLENV_LAST_CHECKPOINT=out/global_step4"},
			files: map[string]string{"out/latest": "global_step4"}, ends: "step 5\n", last: "loss=0.5 source=DeepSpeed step=6",
			left: "out/global_step6"},
		"DeepSpeed that has loaded its own state": {script: engine("engine.load_checkpoint('out')", "client_state={'own': 1}", 5),
			files: map[string]string{"own": "", "out/latest": "global_step4"}, env: []string{"MLENV_STOP_FILE=stop"}, ends: "step 8\n",
			last: "loss=0.5 source=DeepSpeed step=8", left: "out/global_step8"},
		"DeepSpeed that has loaded another training": {script: engine("engine.load_checkpoint('base')", "client_state={'own': 1}", 5),
			files: map[string]string{"base/latest": "global_step4"}, env: []string{"MLENV_STOP_FILE=stop"}, ends: "step 8\n",
			last: "loss=0.5 source=DeepSpeed step=8"},
		"DeepSpeed with two folders": {script: engine("engine.save_checkpoint('best')", "", 3), env: []string{"MLENV_STOP_FILE=stop"},
			ends: "step 8\n", last: "loss=0.5 source=DeepSpeed step=8", left: "out/global_step8"},
		"DeepSpeed in another folder": {script: "from torch.optim.optimizer import Optimizer\nOptimizer().step()\n" +
			engine("engine.load_checkpoint('out')", "", 9), ends: "loaded\nstep 7\nstep 8\n",
			files: map[string]string{"a1/out/global_step6/zero_pp_rank_0_mp_rank_00_optim_states.pt": ""}, env: []string{"MLENV_EARLIER_WORK=a1",
				"MLENV_RESUME_FROM=first", "MLENV_LAST_CHECKPOINT=a1/out/global_step6"}, last: "loss=0.5 source=DeepSpeed step=8"},
		"DeepSpeed with tags": {script: engine("", "f'step-{step:03}'", 3), env: []string{"MLENV_STOP_FILE=stop"}, ends: "step 3\n",
			last: "loss=0.5 source=DeepSpeed step=4", left: "out/step-004"},
		"DeepSpeed with tags that are no steps": {script: engine("", "step // 2", 5), env: []string{"MLENV_STOP_FILE=stop"}, ends: "step 8\n",
			last: "loss=0.5 source=DeepSpeed step=8", left: "out/4"},
		"a torch that knows both names": {script: torchWarns, files: map[string]string{"torch/__init__.py": "__version__ = '2.10.0'\n"},
			env: recorders, ends: "20 20\n"},
		"a torch that warns of the older name": {script: torchWarns, files: map[string]string{"torch/__init__.py": "__version__ = '2.11.0'\n"},
			env: recorders, ends: "None 20\n"},
		"TensorBoard": {script: "from torch.utils.tensorboard.writer import SummaryWriter\nfrom torch.optim.optimizer import Optimizer\n" +
			"Optimizer().step()\nwriter = SummaryWriter()\nwriter.add_scalar('loss/val', 9, 1)\n" +
			"writer.add_scalar(tag='loss/train', scalar_value=0.5, global_step=1)\n",
			files: map[string]string{"torch/utils/tensorboard/writer.py": "class SummaryWriter:\n" +
				"    def add_scalar(self, tag, scalar_value, global_step=None): print(tag)\n"},
			ends: "loss/train\n", last: "loss=0.5 source=torch.optim step=1"},
		"accelerate that is stopped": {script: accelerated(0, `"step_%d" % step`, 5), env: []string{"MLENV_STOP_FILE=stop"},
			ends: "step 5\n", last: "source=torch.optim step=5", left: "out/step_5"},
		"accelerate that is stopped where it saves": {script: accelerated(0, `"checkpoint-%03d" % step`, 4),
			env: []string{"MLENV_STOP_FILE=stop"}, ends: "step 5\n", last: "source=torch.optim step=5", left: "out/checkpoint-005"},
		"accelerate that has not saved": {script: accelerated(0, `"step_%d" % step`, 1), env: []string{"MLENV_STOP_FILE=stop"},
			ends: "step 3\n", last: "source=torch.optim step=3", left: "out/step_3"},
		"accelerate beside files of the script": {script: strings.Replace(accelerated(0, `"step_%d" % step`, 5), "    if step == 5",
			"    if step % 2 == 0: open('out/step_%d/extra.pt' % step, 'w')\n    if step == 5", 1), env: []string{"MLENV_STOP_FILE=stop"},
			ends: "step 8\n", last: "source=torch.optim step=8", left: "out/step_8"},
		"accelerate of which one rank saves": {script: "from accelerate import Accelerator\nAccelerator.num_processes = 2\n" +
			accelerated(0, `"step_%d" % step`, 5), env: []string{"MLENV_STOP_FILE=stop"}, ends: "step 8\n", last: "source=torch.optim step=8"},
		"accelerate that has loaded another training": {script: accelerated(4, `"x_%d" % (step // 2)`, 5),
			files: map[string]string{"out/step_4/random_states_0.pkl": ""}, env: []string{"MLENV_STOP_FILE=stop"}, ends: "step 8\n",
			last: "source=torch.optim step=4"},
		"accelerate that logs a tensor": {script: "from accelerate import Accelerator\nfrom torch.optim.optimizer import Optimizer\n" +
			"class Tensor:\n    detach, item = lambda self: self, lambda self: 0.5\n" +
			"for step in range(3):\n    Optimizer().step()\n    Accelerator().log({'train_loss': Tensor(), 'eval_loss': 9}, step=step)\n",
			last: "loss=0.5 source=torch.optim step=3"},
		"accelerate that logs nothing": {script: "from accelerate import Accelerator\nAccelerator().log({})\nprint('logged')\n",
			ends: "logged\n"},
		"accelerate that has loaded": {script: accelerated(4, `"step_%d" % step`, 5),
			files: map[string]string{"out/step_4/random_states_0.pkl": ""},
			env:   []string{"MLENV_STOP_FILE=stop", "MLENV_LAST_CHECKPOINT=out/step_4"}, ends: "step 5\n",
			last: "source=torch.optim step=5", left: "out/step_5"},
		"accelerate that names no checkpoint": {script: "from accelerate import Accelerator\nAccelerator().load_state()\n",
			files: map[string]string{"a1/checkpoints/checkpoint_3/random_states_0.pkl": ""}, ends: "loaded a1/checkpoints/checkpoint_3\n",
			env: []string{"MLENV_EARLIER_WORK=a1", "MLENV_RESUME_FROM=first", "MLENV_LAST_CHECKPOINT=a1/checkpoints/checkpoint_3"}},
		"accelerate whose numbers are no steps": {script: accelerated(0, `"checkpoint_%d" % (step // 2)`, 3),
			env: []string{"MLENV_STOP_FILE=stop"}, ends: "step 8\n", last: "source=torch.optim step=8", left: "out/checkpoint_4"},
		"a bar": {script: "from tqdm import tqdm\nbar = tqdm(3, 'epochs: ')\nfor _ in range(3): bar.update()\n", ends: "1\n2\n3\n",
			last: "bar=epochs 3 of 3 source=tqdm step=3 steps=3"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir, lib := t.TempDir(), filepath.Join(t.TempDir(), "site-packages")
			if err := Write(lib); err != nil {
				t.Fatal(err)
			}
			for _, files := range []map[string]string{standIns, tc.files, {"train.py": tc.script}} {
				for path, content := range files {
					path = filepath.Join(dir, path)
					if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
						t.Fatal(err)
					}
					if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
						t.Fatal(err)
					}
				}
			}
			command := exec.CommandContext(t.Context(), "python3", "train.py")
			command.Dir = dir
			command.Env = append([]string{"PATH=" + os.Getenv("PATH"), "PYTHONPATH=" + lib, "MLENV_METRICS_FILE=metrics.jsonl", "RANK=0",
				ErrorsVariable + "=" + filepath.Join(dir, "errors")}, tc.env...)
			if out, err := command.Output(); err != nil || !strings.HasSuffix(string(out), tc.ends) {
				t.Errorf("got %v, %q; want %q at its end", err, out, tc.ends)
			}
			if got := lastLine(t, filepath.Join(dir, "metrics.jsonl")); got != tc.last {
				t.Errorf("the last metrics are %q, want %q", got, tc.last)
			}
			left, _ := filepath.Glob(filepath.Join(dir, tc.left) + "*")
			if tc.left != "" && left == nil {
				t.Errorf("there is no %s", tc.left)
			}
			if notes, _ := filepath.Glob(filepath.Join(dir, "errors", "*")); notes != nil && !strings.HasPrefix(tc.left, "errors/") {
				content, _ := os.ReadFile(notes[0])
				t.Errorf("the hook noted %s", content)
			}
		})
	}
}

// lastLine returns the keys and values of the last line of metrics, "" for none.
func lastLine(t *testing.T, path string) string {
	t.Helper()
	content, _ := os.ReadFile(path)
	lines := strings.Split(strings.TrimSpace(string(content)), "\n")
	values := map[string]any{}
	if err := json.Unmarshal([]byte(lines[len(lines)-1]), &values); err != nil && len(content) > 0 {
		t.Fatal(err)
	}
	delete(values, "time")
	return strings.TrimSuffix(strings.TrimPrefix(strings.ReplaceAll(fmt.Sprint(values), ":", "="), "map["), "]")
}
