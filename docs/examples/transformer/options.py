# SPDX-License-Identifier: Apache-2.0
"""The command line of train.py."""

import argparse
import os
import pathlib
import socket

import mlenv

HERE = pathlib.Path(__file__).resolve().parent


def parse():
    """Returns the parsed arguments, and exits with code 2 if they are wrong. With --single this process becomes the only rank."""
    parser = argparse.ArgumentParser(description="Trains a small transformer with DeepSpeed.", allow_abbrev=False)
    add = parser.add_argument_group("training").add_argument
    add("--steps", type=_positive, default=250, help="steps of the complete training (%(default)s)")
    add("--global-batch", type=_positive, default=16, help="sequences per step, of all ranks together (%(default)s)")
    add("--context", type=_positive, default=64, help="maximum number of bytes that a prediction sees (%(default)s)")
    add("--layers", type=_positive, default=2, help="(%(default)s)")
    add("--width", type=_positive, default=64, help="(%(default)s)")
    add("--heads", type=_positive, default=4, help="(%(default)s)")
    add("--seed", type=int, default=1, help="seed of the weights and of the order of the data (%(default)s)")
    add("--log-every", type=_positive, default=20, metavar="STEPS", help="(%(default)s)")

    add = parser.add_argument_group("machine").add_argument
    add("--dtype", choices=["auto", "fp32", "bf16"], default="auto", help="auto: bf16 on GPUs, fp32 on CPUs")
    add("--backend", choices=["auto", "gloo", "nccl"], default="auto", help="auto: nccl on GPUs, gloo on CPUs")
    add("--threads", type=_positive, default=1, help="CPU threads per rank; this model is too small for more (%(default)s)")

    add = parser.add_argument_group("checkpoints").add_argument
    add("--checkpoint-dir", default=str(mlenv.checkpoint_folder()), help="(%(default)s; empty writes none)")
    add("--checkpoint-every", type=_positive, default=100, metavar="STEPS", help="steps between checkpoints; the last step writes one too (%(default)s)")
    add("--node-local-checkpoints", action="store_true", help="each node has a --checkpoint-dir of its own")
    add("--resume", action="store_true", default=bool(os.environ.get("MLENV_RESUME_FROM")) or os.environ.get("MLENV_ATTEMPT", "1") != "1", help="continue from the newest checkpoint, if there is one")
    add("--stop-at", type=_positive, metavar="STEP", help="write a checkpoint at this step and exit without a verdict")

    add = parser.add_argument_group("proof").add_argument
    add("--single", action="store_true", help="run as one process without a launcher, as a reference for several ranks")
    add("--reference-loss", type=float, metavar="NATS", help="fail unless the held-out loss is within 5%% of this one")
    add("--no-gradient-exchange", action="store_true", help="control experiment, which must fail: see the README")

    add = parser.add_argument_group("set by launchers").add_argument
    add("--deepspeed", action="store_true", help="accepted; DeepSpeed is always used")
    add("--deepspeed_config", "--deepspeed-config", default=str(HERE / "ds_zero2.json"), help="(%(default)s)")
    add("--local_rank", "--local-rank", type=int, help="accepted and ignored; the script uses LOCAL_RANK")

    args = parser.parse_args()
    if args.single:
        if os.environ.get("RANK") and os.environ.get("WORLD_SIZE") != "1":
            parser.error(f"--single: a launcher has started {os.environ.get('WORLD_SIZE')} ranks: want none or one")
        _leave_the_others()
    if "RANK" not in os.environ:
        parser.error("RANK is not set: want a launcher (deepspeed, torchrun) or --single")
    if args.global_batch % int(os.environ["WORLD_SIZE"]):
        parser.error(f"--global-batch={args.global_batch}: want a multiple of {os.environ['WORLD_SIZE']}, the number of ranks")
    if args.width % args.heads:
        parser.error(f"--width={args.width}: want a multiple of --heads={args.heads}")
    if args.no_gradient_exchange:
        if args.dtype == "bf16":
            parser.error("--no-gradient-exchange: works in fp32 only")
        args.dtype = "fp32"
        args.checkpoint_dir = ""
    return args


def _positive(text):
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text}: want at least 1")
    return number


def _leave_the_others():
    # The variables of a node name the other nodes and their ports; replace all of them.
    with socket.socket() as any_port:
        any_port.bind(("127.0.0.1", 0))
        port = any_port.getsockname()[1]
    os.environ.update(
        RANK="0",
        LOCAL_RANK="0",
        WORLD_SIZE="1",
        MASTER_ADDR="127.0.0.1",
        MASTER_PORT=str(port),
    )
