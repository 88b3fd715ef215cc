#!/bin/sh
echo "node $NODE_RANK of $NUM_NODES trained"
