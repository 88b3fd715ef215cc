"""torch.distributed of the stand-in: every operation takes the time of its bytes; what ranks agree on is what this one has."""
from torch import move, report


class ReduceOp:
    MAX = "max"


def init_process_group(*args, **kwargs):
    pass


def destroy_process_group():
    report()


def new_group(members):
    return members


def all_reduce(tensor, op=None, group=None):
    move(tensor.bytes)


def broadcast(tensor, src, group=None):
    move(tensor.bytes)


def all_gather_into_tensor(whole, part, group=None):
    move(whole.bytes)


def reduce_scatter_tensor(part, whole, group=None):
    move(whole.bytes)


isend, irecv = "isend", "irecv"


class P2POp:
    def __init__(self, operation, tensor, peer):
        self.operation, self.tensor = operation, tensor


def batch_isend_irecv(operations):
    move(max(o.tensor.bytes for o in operations))
    return []
