#!/bin/sh
# Prints the agent's settings for the rails, and the bytes that the first rail has received.
echo "node $NODE_RANK: NCCL_IB_HCA $NCCL_IB_HCA, GID index $NCCL_IB_GID_INDEX, gloo on $GLOO_SOCKET_IFNAME, net1 has received $(cat /sys/class/net/net1/statistics/rx_bytes) bytes"
