echo "node $NODE_RANK of $NUM_NODES"
