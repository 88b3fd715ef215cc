"""A loop with accelerate: it saves as accelerate's own examples do, and asks mlenv for the checkpoint to load, for which they have an argument."""

import torch
from accelerate import Accelerator, InitProcessGroupKwargs

import chaos_common as chaos
import mlenv

accelerator = Accelerator(cpu=True, kwargs_handlers=[InitProcessGroupKwargs(backend="gloo")])
assert accelerator.num_processes == 2
accelerator.init_trackers("chaos")  # none; accelerate 0.20 wants the call
net = chaos.net()
optimizer = torch.optim.AdamW(net.parameters(), lr=1e-2)
schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 - step / 10000)
loader = torch.utils.data.DataLoader(range(4096), batch_size=2)
model, optimizer, schedule, loader = accelerator.prepare(net, optimizer, schedule, loader)

start, first = mlenv.last_checkpoint(), 0
if start:
    accelerator.load_state(start)
    first = int(start.name.removeprefix("step_"))
chaos.continues(first)
for step, _ in enumerate(accelerator.skip_first_batches(loader, first), first + 1):
    loss = chaos.loss_of(model, chaos.batch(step))
    accelerator.backward(loss)
    optimizer.step()
    schedule.step()
    optimizer.zero_grad()
    accelerator.log({"train_loss": loss.detach()}, step=step)
    chaos.stepped(step)
    if step % chaos.EVERY == 0:
        accelerator.save_state(f"out/step_{step}")
    if step == chaos.STEPS:
        break
chaos.ended(accelerator.unwrap_model(model))
