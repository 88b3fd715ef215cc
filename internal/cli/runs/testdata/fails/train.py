# SPDX-License-Identifier: Apache-2.0
import os, socket, sys
rank = int(os.environ["RANK"])
print("rank", rank, "of", os.environ["WORLD_SIZE"], "on", os.environ["NODE_RANK"], sys.argv[1:], flush=True)
address = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
if rank == 0:
    server = socket.create_server(address)
    for _ in range(int(os.environ["WORLD_SIZE"]) - 1):
        peer, _ = server.accept()
        peer.sendall(b"go")
else:
    while True:
        try:
            peer = socket.create_connection(address)
            break
        except ConnectionRefusedError:
            pass
    peer.recv(2)
step = 12
if rank == 3:
    raise ValueError(f"the loss is nan at step {step}")
import time
time.sleep(600)
