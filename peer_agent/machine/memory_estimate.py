"""How much memory training takes at its fullest. `tests/benchmarks/memory/training.py` compares it with real agents."""

from msgspec import Struct

from peer_agent.protocol.codec_sizes import encoded_size
from peer_agent.protocol.recipe import Recipe

ELEMENT = 4  # bytes of a float32
PROGRAM_BYTES = 540 * 10**6  # Python, torch, transformers: 395 before there is a model; its threads and links
CUDA_BYTES, CUDA_HOST_BYTES = 600 * 10**6, 2 * 10**9  # what a CUDA context takes on the GPU, and beside it
REPLICA, TRAINER = 3, 2  # vectors: parameters and moments; the gradient in hand and the sum of what was never offered
# With staleness 1 that sum grows while what is offered is frozen: it is the second buffer of rule 9, and always there.
OF_A_ROUND = 3  # what is offered, what comes back, and one of them on its way into the other
HANDED_IN = 3  # a copy of parameters and moments, while the site takes it
KEPT_FREE = 1  # of a snapshot that was read, and of updates: free again, and kept by the allocator


class Needs(Struct, frozen=True):
    """Bytes. `gpu` is 0 where the CPU computes."""

    memory: int
    gpu: int


def needs_of(recipe: Recipe, parameters: int, *, at_once: int, on_gpu: bool, recomputes: bool = False) -> Needs:
    """What an agent of this run takes that computes `at_once` samples at a time.

    A GPU that computes with 16 bits keeps in them what does not learn; of what it computes, that is not taken off.
    `recomputes`: it computes layers again in backward.
    """
    vector = ELEMENT * parameters
    beside = (OF_A_ROUND + HANDED_IN + KEPT_FREE) * vector + encoded_size(recipe.codec_up, parameters)
    kept = recipe.recomputed_floats(at_once) if recomputes else recipe.kept_floats(at_once)
    compute = (REPLICA + TRAINER) * vector + int(ELEMENT * kept)
    fixed = ELEMENT * recipe.fixed_parameters()
    read = fixed + sum(file.size for file in recipe.files())  # what stays as it is: in the model, and while it is read
    if on_gpu:
        on_device = fixed // 2 if recipe.precision == "mixed" else fixed
        return Needs(CUDA_HOST_BYTES + beside + read, CUDA_BYTES + vector + compute + on_device)
    return Needs(PROGRAM_BYTES + beside + compute + read, 0)
