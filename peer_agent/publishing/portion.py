"""A shard of texts that stay on the Hub, made on a volunteer's machine, in a process of its own."""

import io
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

from tokenizers import Tokenizer

from peer_agent.protocol.errors import Problem
from peer_agent.protocol.errors.disk import disk_errors
from peer_agent.publishing.hub.names import check_name
from peer_agent.publishing.hub.ranges import RangeFile
from peer_agent.publishing.text.portions import make_shard
from peer_agent.publishing.text.row_groups import GROUP_BYTES, OF_THIS_MACHINE, Groups
from peer_agent.recipes.preparation import DataFile
from peer_agent.recipes.text.portion import Portion, portion_in

READ_BYTES = 256 << 20 | GROUP_BYTES  # of the Hub's file: its footer, and what is wanted of it
MEMORY_BYTES = 6 << 30  # that this process may ask for, where the system can hold it to that
NOT_PARQUET = "E381"


def make_portion(
    file: Path, tokenizer: Path, out: Path, endpoint: str, tell: Callable[[int], None] = lambda _: None
) -> DataFile:
    """Read what a shard's file says it is made of, and write the shard to `out`. `tell`: as of `RangeFile`.

    Raises Problem E106 where the disk is full, E346, E347, E397, E414, and E416 where this machine cannot do it.
    """
    portion = portion_in(file)
    if portion is None:
        raise Problem.of("E414", repository="the Hub", name=file.name, reason="it says of nothing where that is")
    check_name(portion.repository)
    rows = out.with_name(out.name + ".parquet")
    try:
        with disk_errors(out):
            _copy_rows(portion, rows, endpoint, tell)
            make_shard(portion, rows, Tokenizer.from_file(str(tokenizer)), out)
    except (*OF_THIS_MACHINE, MemoryError) as error:
        reason = " ".join(f"{type(error).__name__} {error}".split())[:200]
        raise Problem.of("E416", repository=portion.repository, name=portion.file, reason=reason) from error
    finally:
        rows.unlink(missing_ok=True)
    return DataFile(file.stem, portion.tokens)


def _copy_rows(portion: Portion, rows: Path, endpoint: str, tell: Callable[[int], None]) -> None:
    about: dict[str, Any] = {"size": portion.size, "endpoint": endpoint, "most": READ_BYTES, "tell": tell}
    with RangeFile(portion.repository, portion.commit, portion.file, **about) as remote:
        try:
            groups = Groups(cast("io.BytesIO", remote))
        except Problem as problem:  # the site has read it: what came is something else
            if problem.fault.code != NOT_PARQUET:
                raise
            said = {"repository": portion.repository, "name": portion.file, "reason": "it is no Parquet file"}
            raise Problem.of("E414", **said) from problem
        groups.copy(range(portion.first, portion.first + portion.groups), [portion.column], rows)


def limit_memory() -> None:
    """Of this process: rows of strangers are unpacked in it."""
    if sys.platform != "win32":
        import resource

        _, most = resource.getrlimit(resource.RLIMIT_AS)
        wanted = MEMORY_BYTES if most == resource.RLIM_INFINITY else min(MEMORY_BYTES, most)
        resource.setrlimit(resource.RLIMIT_AS, (wanted, most))
