#!/bin/bash
# As DeepSpeed-Chat's scripts: all output of its launcher goes into a file. Theirs starts the other nodes by ssh, and shows nothing.
OUTPUT=${1:-./output}
mkdir -p "$OUTPUT"
deepspeed --no_ssh --hostfile="$DEEPSPEED_HOSTFILE" --node_rank="$NODE_RANK" --master_addr="$MASTER_ADDR" --master_port="$MASTER_PORT" \
  shapes/chat.py --deepspeed --output_dir "$OUTPUT" &> "$OUTPUT/training-$NODE_RANK.log" && cat "$OUTPUT/training-$NODE_RANK.log"
