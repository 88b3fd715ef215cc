#!/bin/sh
# Prints the GPUs that ranks use, and those that nvidia-smi lists.
echo "node $NODE_RANK uses $CUDA_VISIBLE_DEVICES and lists" $(nvidia-smi -L | sed 's/.*UUID: \(.*\))/\1/')
