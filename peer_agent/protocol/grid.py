"""The flat parameter vector, divided into chunks. Each chunk belongs to one span. All peers compute the same grid."""

from collections.abc import Iterator

from msgspec import Struct

ALIGNMENT = 4096  # in elements; chunk sizes are multiples of it, so no codec block straddles two chunks
SMALLEST, LARGEST = 16 * 1024, 256 * 1024  # in elements: 64 KiB and 1 MiB of fp32 (rule 37)


class Grid(Struct, frozen=True):
    """A grid of `elements` float32 values in chunks of `chunk_elements`. The last chunk may be shorter."""

    elements: int
    chunk_elements: int

    @property
    def chunks(self) -> int:
        return -(-self.elements // self.chunk_elements)

    def bounds(self, chunk: int) -> tuple[int, int]:
        """Return the index of a chunk's first element and the index just past its last one."""
        start = chunk * self.chunk_elements
        return start, min(start + self.chunk_elements, self.elements)

    def length(self, chunk: int) -> int:
        start, stop = self.bounds(chunk)
        return stop - start

    def __iter__(self) -> Iterator[int]:
        return iter(range(self.chunks))


def grid_of(elements: int) -> Grid:
    """Return a vector's grid: about 2048 chunks, each between 64 KiB and 1 MiB in fp32 (rule 37)."""
    aligned = -(-elements // 2048 // ALIGNMENT) * ALIGNMENT
    return Grid(elements, max(SMALLEST, min(aligned, LARGEST)))
