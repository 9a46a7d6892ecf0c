"""torch.distributed's bare rate: torchrun --nproc_per_node 2 barerate.py [--gib 32]"""

import argparse
import os
import time

import keeping
import torch
import torch.distributed as dist

p = argparse.ArgumentParser()
p.add_argument("--gib", type=float, default=32)
p.add_argument("--piece", type=int, default=8 << 30)
o = p.parse_args()
rank = int(os.environ["RANK"])
torch.cuda.set_device(rank)
dist.init_process_group("nccl")
size = int(o.gib * (1 << 30))
t = torch.empty(size, dtype=torch.uint8, device="cuda")
dist.broadcast(t[:1024], 0)
torch.cuda.synchronize()
dist.barrier()
begin = time.monotonic()
for at in range(0, size, o.piece):
    dist.broadcast(t[at : at + o.piece], 0)
torch.cuda.synchronize()
took = time.monotonic() - begin
if rank == 1:
    keeping.say(what="bare", bytes=size, seconds=took, rate=size / took / 1e9)
dist.destroy_process_group()
