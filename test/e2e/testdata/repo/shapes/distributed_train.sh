#!/bin/bash
# As the scripts of timm and OpenMMLab: the nodes come from variables, the ranks of a node from the first argument.
NUM_PROC=$1
shift
torchrun --nnodes="${NNODES:-1}" --node_rank="${NODE_RANK:-0}" --nproc_per_node="$NUM_PROC" \
  --master_addr="${MASTER_ADDR:-127.0.0.1}" --master_port="${MASTER_PORT:-29500}" "$@"
