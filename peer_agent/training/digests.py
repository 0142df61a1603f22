"""The cheap digest of a replica's state on any device; equal to `protocol.digests.state_digest` (rule 17)."""

import torch

from peer_agent.protocol.log.digests import BLOCK, POSITION

SIGNED_POSITION = POSITION - 2**64  # the same 64 bits; torch counts in signed integers only


def state_digest(*vectors: torch.Tensor) -> str:
    """Wrapping sum of (bit pattern x odd constant of its position) over flat float32 vectors. 16 hexadecimal digits."""
    total, offset = 0, 0
    for vector in vectors:
        for start in range(0, vector.numel(), BLOCK):
            bits = vector[start : start + BLOCK].view(torch.int32).to(torch.int64)
            first = offset + start
            place = torch.arange(first, first + bits.numel(), dtype=torch.int64, device=vector.device)
            total += int((bits * (place * SIGNED_POSITION).bitwise_or(1)).sum())
        offset += vector.numel()
    return f"{total % 2**64:016x}"
