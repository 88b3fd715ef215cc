#!/bin/sh
# Starts torchrun by itself, once on every node, from the variables that every job and shell of a node has.
# Arguments go to train.py.
set -eu

# RANKS_PER_NODE is what a job was asked for; a shell has the GPUs only.
ranks_per_node=${RANKS_PER_NODE:-$GPUS_PER_NODE}

# A program "torchrun" may belong to another Python than the first one in PATH; this is torchrun with that one.
exec python3 -u -m torch.distributed.run \
  --nnodes="$NUM_NODES" \
  --node-rank="$NODE_RANK" \
  --nproc-per-node="$ranks_per_node" \
  --master-addr="$MASTER_ADDR" \
  --master-port="$MASTER_PORT" \
  "$(dirname "$0")/../transformer/train.py" "$@"
