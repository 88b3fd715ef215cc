#!/bin/sh
# Calls torchrun itself, with only the agent's variables.
set -eu
echo "node $NODE_RANK of $NUM_NODES: $GPUS_PER_NODE GPUs, $WORLD_SIZE ranks in all; uid $(id -u) gid $(id -g)"
sed 's/^/hostfile: /' "$DEEPSPEED_HOSTFILE"
exec python3 -u -m torch.distributed.run --nnodes="$NUM_NODES" --node-rank="$NODE_RANK" --nproc-per-node="$GPUS_PER_NODE" \
  --master-addr="$MASTER_ADDR" --master-port="$MASTER_PORT" test_multi_gpu.py
