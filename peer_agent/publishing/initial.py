"""The state every replica of a run begins from."""

from pathlib import Path

from msgspec import Struct

from peer_agent.protocol.recipe import Recipe
from peer_agent.recipes.training import NO_FILES
from peer_agent.training.replica import Replica


class Initial(Struct, frozen=True, kw_only=True):
    """The step-0 snapshot, written to `<file>.safetensors`; `file` is its sha256 in hexadecimal, `size` in bytes."""

    file: str
    size: int
    elements: int
    parameters: int
    state_digest: str


def make_initial(recipe: Recipe, out: Path, files: Path = NO_FILES) -> Initial:
    """Write the step-0 snapshot of a recipe into a folder. Raises Problem E106, E111."""
    out.mkdir(parents=True, exist_ok=True)
    replica = Replica(recipe, files=files)
    part = out / "initial.safetensors"
    digest = replica.save(part)
    path = part.replace(out / f"{digest}.safetensors")
    return Initial(
        file=digest,
        size=path.stat().st_size,
        elements=replica.layout.elements,
        parameters=sum(parameter.numel() for parameter in replica.model.parameters()),
        state_digest=replica.digest(),
    )
