# Starts a program of the image by the launcher in the first argument, once on each node.
set -eu
launcher=$1
shift
case $launcher in
torchrun)
  exec python3 -m torch.distributed.run --nnodes="$NUM_NODES" --node-rank="$NODE_RANK" --nproc-per-node="$RANKS_PER_NODE" \
    --master-addr="$MASTER_ADDR" --master-port="$MASTER_PORT" "$@" ;;
accelerate)
  # With --cpu it starts the program without a rank, on each node alone. --multi_gpu is torchrun, on nodes without GPUs, too.
  exec accelerate launch --multi_gpu --num_machines="$NUM_NODES" --machine_rank="$NODE_RANK" --num_processes="$((NUM_NODES * RANKS_PER_NODE))" \
    --main_process_ip="$MASTER_ADDR" --main_process_port="$MASTER_PORT" "$@" ;;
deepspeed)
  exec deepspeed --no_ssh --hostfile="$DEEPSPEED_HOSTFILE" --node_rank="$NODE_RANK" --master_addr="$MASTER_ADDR" --master_port="$MASTER_PORT" "$@" ;;
esac
