"""As pytorch/examples imagenet: it takes the node's rank as an argument, and starts its ranks by mp.spawn."""

import argparse

import torch
import torch.distributed as dist

import shared

parser = argparse.ArgumentParser()
parser.add_argument("--world-size", type=int, default=-1, help="number of nodes")
parser.add_argument("--rank", type=int, default=-1, help="rank of the node")
parser.add_argument("--dist-url", default="tcp://127.0.0.1:23456")
parser.add_argument("--dist-backend", default="nccl")
parser.add_argument("--multiprocessing-distributed", action="store_true")


def worker(local, of_node, args):
    rank = args.rank * of_node + local
    dist.init_process_group(args.dist_backend, init_method=args.dist_url, world_size=args.world_size * of_node, rank=rank)
    net = torch.nn.parallel.DistributedDataParallel(shared.model())
    shared.trains(net, torch.optim.SGD(net.parameters(), lr=0.1), shared.rows(rank))
    shared.proves("imagenet", net)
    dist.destroy_process_group()


if __name__ == "__main__":
    options = parser.parse_args()
    processes = max(1, torch.cuda.device_count())
    torch.multiprocessing.spawn(worker, nprocs=processes, args=(processes, options))
