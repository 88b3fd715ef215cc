#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Starts torchrun once on every node, with the variables that every job and shell on a node has.
# Passes its arguments to train.py.
set -eu

# A job has RANKS_PER_NODE, as the run requested; a shell has only the number of GPUs.
ranks_per_node=${RANKS_PER_NODE:-$GPUS_PER_NODE}

# Runs torchrun as a module, because a program "torchrun" can belong to another Python than the first one in PATH.
exec python3 -u -m torch.distributed.run \
  --nnodes="$NUM_NODES" \
  --node-rank="$NODE_RANK" \
  --nproc-per-node="$ranks_per_node" \
  --master-addr="$MASTER_ADDR" \
  --master-port="$MASTER_PORT" \
  "$(dirname "$0")/../transformer/train.py" "$@"
