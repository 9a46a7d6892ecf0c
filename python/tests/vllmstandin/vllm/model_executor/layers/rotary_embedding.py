import torch

_ROPE_DICT = {}


class RotaryEmbedding(torch.nn.Module):
    def __init__(self, head_size):
        super().__init__()
        self.register_buffer("cos_sin_cache", torch.arange(head_size, dtype=torch.float32) / 8, persistent=False)


def get_rope(head_size):
    """Return the same module for all layers, as vLLM does."""
    if head_size not in _ROPE_DICT:
        _ROPE_DICT[head_size] = RotaryEmbedding(head_size)
    return _ROPE_DICT[head_size]
