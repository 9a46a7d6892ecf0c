import contextlib

import torch


@contextlib.contextmanager
def set_default_torch_dtype(dtype):
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)
