#!/bin/sh
# What the agent has set for the rails, and what has come in on the first one.
echo "node $NODE_RANK: NCCL_IB_HCA $NCCL_IB_HCA, gloo on $GLOO_SOCKET_IFNAME, net1 has received $(cat /sys/class/net/net1/statistics/rx_bytes) bytes"
