"""PyTorch: a fresh CUDA tensor sent as torch.multiprocessing sends it.

The tensor is pickled and unpickled with multiprocessing's own pickler, as a
connection or a queue does. PyTorch's allocator keeps what it frees, so its cache is emptied after every handoff.
"""

import sys

import rival

torch = rival.need("torch", "torch")
rival.need("torch.multiprocessing", "torch")  # teaches the pickler about tensors


class Torch(rival.Side):
    name = "torch"

    def __init__(self):
        torch.cuda.set_device(0)
        torch.cuda.synchronize()  # makes the primary context
        self.tensor = None

    def info(self):
        return f"PyTorch {torch.__version__}"

    def make(self, size, salt):
        self.tensor = torch.empty(size, dtype=torch.uint8, device="cuda:0")
        host = torch.frombuffer(bytearray(salt), dtype=torch.uint8)
        self.tensor[:8].copy_(host)
        self.tensor[-8:].copy_(host)
        torch.cuda.synchronize()

    def give(self, conn):
        conn.send_bytes(rival.dumps(self.tensor))

    def free(self):
        self.tensor = None
        torch.cuda.ipc_collect()
        torch.cuda.empty_cache()
        held = torch.cuda.memory_reserved()
        if held:
            raise RuntimeError(f"PyTorch still holds {held} bytes: the next buffer would not be fresh")

    def take(self, conn, data):
        self.tensor = rival.loads(data)

    def read(self):
        return [bytes(self.tensor[at].cpu().tolist()) for at in (slice(None, 8), slice(-8, None))]

    def drop(self):
        self.tensor = None
        torch.cuda.ipc_collect()


if __name__ == "__main__":
    sys.exit(rival.run(Torch))
