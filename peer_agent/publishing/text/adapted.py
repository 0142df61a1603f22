"""From texts and a model that is there already to shards of that model's tokens, its tokenizer and its parameters."""

from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

import msgspec
from tokenizers import Tokenizer

from peer_agent.protocol.errors import Problem, disk_errors
from peer_agent.publishing.text.base import read_base
from peer_agent.publishing.text.chat import Writer
from peer_agent.publishing.text.documents import open_documents
from peer_agent.publishing.text.prepare import PreparedText, cut
from peer_agent.recipes.finetune_lora import Base
from peer_agent.recipes.finetune_lora.preparation import AdaptedText


class PreparedAdapted(PreparedText, frozen=True, kw_only=True):
    """The same for a base, which lies in `out`/model."""

    base: Base


def prepare(
    text: Path, out: Path, preparation: AdaptedText, further: Sequence[Path] = (), *, base: Path | None = None
) -> PreparedAdapted:
    """Write `out`/model, `out`/tokenizer, `out`/shards and `out`/heldout.safetensors.

    `base`: the model's folder or a zip of it, whose chat template writes conversations out. Raises Problem E387 where
    there is none, and as `read_base`, `prepare` and `open_documents`.
    """
    del preparation  # it has no values: all follows from the base
    if base is None:
        raise Problem.of("E387")
    with disk_errors(out), ExitStack() as stack:
        read = read_base(base, out)
        writer = stack.enter_context(Writer(read.template))
        files = enumerate((text, *further))
        texts = [stack.enter_context(open_documents(path, out / f"rows-{number}", writer)) for number, path in files]
        tokenizer = Tokenizer.from_file(str(out / "tokenizer" / "tokenizer.json"))
        made = cut(texts, out, tokenizer, end=read.end)
    return msgspec.convert(msgspec.structs.asdict(made) | {"base": read.base}, PreparedAdapted)
