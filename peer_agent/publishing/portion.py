"""A shard of texts that stay on the Hub, made on a volunteer's machine, in a process of its own."""

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

from tokenizers import Tokenizer

from peer_agent.protocol.errors import Problem, codes, disk_errors
from peer_agent.publishing.hub.names import check_name
from peer_agent.publishing.hub.ranges import RangeFile
from peer_agent.publishing.text.portions import make_shard
from peer_agent.publishing.text.row_groups import GROUP_BYTES, Groups, faults_of_this_machine
from peer_agent.recipes.preparation import DataFile
from peer_agent.recipes.text.portion import Portion, portion_in

READ_BYTES = 256 << 20 | GROUP_BYTES  # of the Hub's file: its footer, and what is wanted of it


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
        with disk_errors(out), faults_of_this_machine(portion.repository, portion.file):
            _copy_rows(portion, rows, endpoint, tell)
            make_shard(portion, rows, Tokenizer.from_file(str(tokenizer)), out)
    finally:
        rows.unlink(missing_ok=True)
    return DataFile(file.stem, portion.tokens)


def _copy_rows(portion: Portion, rows: Path, endpoint: str, tell: Callable[[int], None]) -> None:
    about: dict[str, Any] = {"size": portion.size, "endpoint": endpoint, "most": READ_BYTES, "tell": tell}
    with RangeFile(portion.repository, portion.commit, portion.file, **about) as remote:
        try:
            groups = Groups(cast("io.BytesIO", remote))
        except Problem as problem:  # the site has read it: what came is something else
            if problem.fault.code != codes.NOT_PARQUET:
                raise
            said = {"repository": portion.repository, "name": portion.file, "reason": "it is no Parquet file"}
            raise Problem.of("E414", **said) from problem
        groups.copy(range(portion.first, portion.first + portion.groups), [portion.column], rows)
