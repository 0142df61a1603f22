"""Faults in handling texts that stay on the Hub: reading untrusted rows, and making shards of them."""

from tests.mutations.mutation import Mutation

GROUPS, PORTIONS = "peer_agent/publishing/row_groups.py", "peer_agent/publishing/portions.py"
RANGES, WAITING = "peer_agent/publishing/portions.py", "peer_agent/trainer/shards.py"
STREAMED, READ = ("tests/site_work/test_streaming.py",), ("tests/publishing/test_portions.py",)
MADE = ("tests/trainer/test_shards.py",)

STREAMED_TEXTS: tuple[Mutation, ...] = (
    Mutation("what rows unpack to has no end", GROUPS, "if written > WRITTEN_BYTES:", "if False:", STREAMED),
    Mutation("what is read of row groups has no end", GROUPS, "if read > GROUP_BYTES:", "if False:", STREAMED),
    Mutation(
        "a machine without a codec makes another shard",
        GROUPS,
        "OF_THIS_MACHINE:\n                raise\n            except UNREADABLE:",
        "UNREADABLE:",
        STREAMED,
    ),
    Mutation(
        "portions come in the order of files",
        PORTIONS,
        'return [portions[number] for number in np.argsort(draws, kind="stable")]',
        "return portions",
        STREAMED,
    ),
    Mutation("parts of a row group are all of it", PORTIONS, "[portion.part :: portion.parts]", "", STREAMED),
    Mutation(
        "a column is looked for again",
        PORTIONS,
        "open_column(rows, portion.column, scratch)",
        'open_column(rows, "note", scratch)',
        STREAMED,
    ),
    Mutation(
        "what nobody else may read is streamed",
        "peer_agent/site_work/fetching.py",
        "and _is_for_all(info) and",
        "and",
        STREAMED,
    ),
    Mutation("another file is read", RANGES, "if int(said[2]) != self.size:", "if False:", READ),
    Mutation("bytes of the Hub do not count", WAITING, "TRAFFIC.add(received=count)", "pass", MADE),
    Mutation("bytes of the Hub do not wait", WAITING, "await DOWNLINK.came(count)", "pass", MADE),
    Mutation("slow is silent", WAITING, "limit.reschedule(loop.time() + SILENT_S)", "pass", MADE),
)
