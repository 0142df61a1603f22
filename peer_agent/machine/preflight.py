"""Checks whether a run fits on this machine, before anything is loaded or downloaded."""

from pathlib import Path

from msgspec import Struct

from peer_agent.machine.hardware import FreeResources
from peer_agent.machine.language import columns_of, in_bytes, padded
from peer_agent.machine.language import gettext as _
from peer_agent.machine.limits import DISK_GB, GIGABYTE
from peer_agent.protocol.codec_sizes import encoded_size
from peer_agent.protocol.errors import Problem
from peer_agent.protocol.recipe import Recipe

# An estimate of training's peak memory. `tests/benchmarks/memory/training.py` compares it with real agents.

ELEMENT = 4  # bytes in a float32
PROGRAM_BYTES = 540 * 10**6  # Python, torch, transformers (395 MB before the model is loaded), threads and links
CUDA_BYTES, CUDA_HOST_BYTES = 600 * 10**6, 2 * 10**9  # memory used by a CUDA context, on the GPU and in main memory
# In vectors: a replica has the parameters and two moments. A trainer has the current gradient and the sum not yet
# offered. That sum is rule 9's second buffer: with staleness 1, it grows while the offer is frozen, and it always
# exists.
REPLICA, TRAINER = 3, 2
OF_A_ROUND = 3  # vectors: the offer, the average, and one of them being converted
HANDED_IN = 3  # vectors: a copy of parameters and moments during their upload
KEPT_FREE = 1  # vectors: memory freed after reading a snapshot or updates but kept by the allocator


class Needs(Struct, frozen=True):
    """The memory that an agent needs, in bytes. `gpu` is 0 if the agent computes on the CPU."""

    memory: int
    gpu: int


def needs_of(recipe: Recipe, parameters: int, *, at_once: int, on_gpu: bool, recomputes: bool = False) -> Needs:
    """Return the memory that an agent needs to compute `at_once` samples at a time. `on_gpu`: the GPU computes, and
    also stores the fixed parameters. The estimate does not allow for mixed precision, which shrinks activations.
    """
    vector = ELEMENT * parameters
    beside = (OF_A_ROUND + HANDED_IN + KEPT_FREE) * vector + encoded_size(recipe.codec_up, parameters)
    kept = recipe.recomputed_floats(at_once) if recomputes else recipe.kept_floats(at_once)
    compute = (REPLICA + TRAINER) * vector + int(ELEMENT * kept)
    fixed = ELEMENT * recipe.fixed_parameters()
    # While fixed parameters are being read, there are two copies: the file's data and the model's.
    read = fixed + sum(file.size for file in recipe.files())
    if on_gpu:
        on_device = fixed // 2 if recipe.precision == "mixed" else fixed
        return Needs(CUDA_HOST_BYTES + beside + read, CUDA_BYTES + vector + compute + on_device)
    return Needs(PROGRAM_BYTES + beside + compute + read, 0)


SPARE_DISK = 100 * 10**6
HOUR_S = 3600
LABEL_COLUMNS = 8  # minimum width of the labels


class RunSizes(Struct, frozen=True, kw_only=True):
    """A run's sizes in bytes, as reported by the site. `pace_s`: seconds per step, or None before the first step."""

    parameters: int
    data_bytes: int
    snapshot_bytes: int
    log_bytes: int
    pace_s: float | None


class RunFacts(RunSizes, frozen=True, kw_only=True):
    recipe: Recipe


class Preflight(Struct, frozen=True, kw_only=True):
    """The resources that a run needs and those that are free, in bytes. None means that the site does not report them.

    `at_once`: samples computed together if fewer than a micro-batch, otherwise 0. `recomputes`: True if the run fits
    only if layers are recomputed. `up_bytes`, `down_bytes`: traffic per hour, or per step if `pace_s` is None.
    """

    device: str
    at_once: int = 0
    recomputes: bool = False
    micro_batch: int | None = None
    memory_bytes: int | None = None
    memory_free_bytes: int | None = None
    gpu_bytes: int | None = None
    gpu_free_bytes: int | None = None
    disk_bytes: int | None = None
    disk_free_bytes: int | None = None
    download_bytes: int | None = None
    up_bytes: int | None = None
    down_bytes: int | None = None
    pace_s: float | None = None

    def lines(self) -> list[str]:
        if self.memory_bytes is None:
            unknown = _("The site doesn't say how large this run is; trying anyway.")
            return [*in_columns([(_("device"), self.device)]), unknown]
        return in_columns(
            [
                (_("device"), self.device),
                (_("memory"), _fits(self.memory_bytes, self.memory_free_bytes)),
                *self._compromises(),
                (_("disk"), _fits(self.disk_bytes, self.disk_free_bytes)),
                (
                    _("download"),
                    _("up to {size} before the first step").format(size=in_bytes(self.download_bytes or 0)),
                ),
                (_("traffic"), self._traffic()),
            ]
        )

    def _compromises(self) -> list[tuple[str, str]]:
        rows = [(_("GPU"), _fits(self.gpu_bytes, self.gpu_free_bytes))] if self.gpu_bytes else []
        if self.at_once:
            fewer = _("{count} at a time instead of {usual} to fit; slower, but all of them count")
            rows.append((_("samples"), fewer.format(count=self.at_once, usual=self.micro_batch)))
        if self.recomputes:
            rows.append((_("layers"), _("computed twice to fit; slower, with the same result")))
        return rows

    def _traffic(self) -> str:
        up, down = in_bytes(self.up_bytes or 0), in_bytes(self.down_bytes or 0)
        if self.pace_s is None:
            return _("{up} up, {down} down per step (speed not known yet)").format(up=up, down=down)
        return _("about {up} up, {down} down per hour at the run's recent pace").format(up=up, down=down)


def in_columns(rows: list[tuple[str, str]]) -> list[str]:
    widest = max([LABEL_COLUMNS, *(columns_of(label) for label, text in rows)])
    return [f"{padded(label, widest)}  {text}" for label, text in rows]


def _fits(needed: int | None, free: int | None) -> str:
    words = _("needs {needed}, {free} free: OK")
    return words.format(needed=in_bytes(needed or 0), free=in_bytes(free or 0))


def check_fit(facts: RunFacts, free: FreeResources, folder: Path, device: str, *, disk_gb: int = DISK_GB) -> Preflight:
    """Return the fastest settings with which the run fits on this machine.

    Raises Problem E123 if there is too little memory, E124 if there is too little disk space, and E125 if there is too
    little GPU memory.
    """
    recipe = facts.recipe
    at_once, recomputes, needs = _largest_that_fits(facts, free)
    data = min(facts.data_bytes, disk_gb * GIGABYTE)
    disk = 2 * facts.snapshot_bytes + data + SPARE_DISK  # updates in the log are applied as they arrive, not stored
    if disk > free.disk:
        raise Problem.of("E124", path=folder, needed=in_bytes(disk), free=in_bytes(free.disk))
    steps = HOUR_S / facts.pace_s if facts.pace_s else 1
    up, down = (int(steps * encoded_size(codec, facts.parameters)) for codec in (recipe.codec_up, recipe.codec_down))
    return Preflight(
        device=device,
        at_once=at_once if at_once < recipe.micro_batch else 0,
        recomputes=recomputes,
        micro_batch=recipe.micro_batch,
        memory_bytes=needs.memory,
        memory_free_bytes=free.memory,
        gpu_bytes=None if free.gpu is None else needs.gpu,
        gpu_free_bytes=free.gpu,
        disk_bytes=disk,
        disk_free_bytes=free.disk,
        download_bytes=facts.snapshot_bytes + facts.data_bytes + facts.log_bytes,
        up_bytes=up,
        down_bytes=down,
        pace_s=facts.pace_s,
    )


def _largest_that_fits(facts: RunFacts, free: FreeResources) -> tuple[int, bool, Needs]:
    """Halve the micro-batch until it fits, if the recipe allows it. If no size fits, try again with recomputation.

    Return how many samples to compute together, True if layers must be recomputed, and the memory needed. Raises
    Problem E123 or E125 if nothing fits.
    """
    whole = facts.recipe.micro_batch
    sizes = [whole] if facts.recipe.unit_is_whole else [whole >> halved for halved in range(whole.bit_length())]
    for recomputes in (False, True):
        for at_once in sizes:
            needs = needs_of(
                facts.recipe, facts.parameters, at_once=at_once, on_gpu=free.gpu is not None, recomputes=recomputes
            )
            if needs.memory <= free.memory and needs.gpu <= (free.gpu or 0):
                return at_once, recomputes, needs
    if needs.memory > free.memory:
        raise Problem.of("E123", needed=in_bytes(needs.memory), free=in_bytes(free.memory))
    raise Problem.of("E125", needed=in_bytes(needs.gpu), free=in_bytes(free.gpu or 0))
