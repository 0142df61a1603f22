"""Faults of data on their way to whoever computes: shards of a machine's own, conversations, a loop of one's own."""

from tests.mutations.mutation import Mutation

LEASES = "peer_agent/protocol/coordinator/leases.py"
DEALT = ("tests/protocol/coordinator/test_leases.py",)
CHAT, WRITTEN = "peer_agent/publishing/text/chat.py", ("tests/publishing/text/test_chat.py",)
LENT, TAKEN = "peer_agent/trainer/collaboration.py", ("tests/trainer/test_collaboration.py",)
LOOP, COMPUTED = "peer_agent/training/loop.py", ("tests/training/test_loop.py",)
BASES = "platform/runs/releases/adaptable.py"
PAGES = ("tests/web/pages/runs/test_sources.py",)

DATA: tuple[Mutation, ...] = (
    Mutation(
        "everybody goes through all shards",
        LEASES,
        "        source.own[accumulator] = own\n        return own",
        "        return own",
        DEALT,
    ),
    Mutation(
        "nobody takes units of another's shard",
        LEASES,
        "        if found is not None and not own:\n            own.append(found)\n        return found",
        "        return None",
        DEALT,
    ),
    Mutation(
        "whoever has no shard keeps none",
        LEASES,
        "        if found is not None and not own:\n            own.append(found)\n",
        "",
        DEALT,
    ),
    Mutation(
        "who is gone keeps its shards",
        LEASES,
        "            source.waiting.update(dict.fromkeys(sorted(left)))\n",
        "",
        DEALT,
    ),
    Mutation(
        "after a restart nobody goes on with its shard",
        LEASES,
        "        self._take_up(accumulator, unknown)\n",
        "",
        DEALT,
    ),
    Mutation(
        "marks of the next epoch come when it begins",
        LEASES,
        "        each = -(-lacking // max(len(ahead), 1))\n        for shard in source.shards:",
        "        each = -(-lacking // max(len(ahead), 1))\n        for shard in ():",
        DEALT,
    ),
    Mutation(
        "marks are asked for when there are none",
        "peer_agent/protocol/coordinator/workers/leasing.py",
        "state.leases.marked(member.accumulator) < AHEAD * share",
        "not units",
        ("tests/simulation/recipes/test_overlap.py", "tests/simulation/recipes/test_free_plans.py"),
    ),
    Mutation(
        "a reducer with a full disk is waited for as a slow one",
        "peer_agent/protocol/coordinator/round/watching.py",
        "    if done and idle_s > max(STALL_S, moving_s) and (whole",
        "    if not done and idle_s > max(STALL_S, moving_s) and (whole",
        ("tests/protocol/coordinator/round/test_watching.py",),
    ),
    Mutation(
        "a shard that is open is fetched ahead",
        "peer_agent/trainer/shard_cache.py",
        "islice((shard for shard in dict.fromkeys(coming) if shard not in self._open), AHEAD)",
        "islice(dict.fromkeys(coming), AHEAD)",
        ("tests/trainer/test_shard_cache.py",),
    ),
    Mutation(
        "a large text has shards without number",
        "peer_agent/publishing/text/shards.py",
        "    while size < LARGEST and text_bytes > size * TOKEN_BYTES * MANY:",
        "    while False:",
        ("tests/publishing/text/test_shards.py",),
    ),
    Mutation(
        "a chat template may run for ever",
        CHAT,
        "signal.setitimer(signal.ITIMER_REAL, RENDER_S)",
        "signal.setitimer(signal.ITIMER_REAL, 0)",
        WRITTEN,
    ),
    Mutation("a chat template may fill the memory", CHAT, "    _bound_memory()\n", "", WRITTEN),
    Mutation(
        "a text that a template writes has no end",
        CHAT,
        'if LETTER_BYTES * len(text) <= LONGEST else {"refusal": "it is too long"}',
        'if text else {"refusal": ""}',
        WRITTEN,
    ),
    Mutation(
        "a list of anything is a conversation",
        "peer_agent/publishing/text/rows.py",
        'if letters <= ROW_BYTES and all(each.message["role"] for each in said):',
        "if letters <= ROW_BYTES:",
        WRITTEN,
    ),
    Mutation(
        "conversations are cut as texts are",
        "peer_agent/publishing/text/documents.py",
        "longest = LONGEST_CONVERSATION if are_conversations else 0",
        "longest = 0",
        WRITTEN,
    ),
    Mutation(
        "a unit that was left in the middle is lost",
        LENT,
        "        while self._asks is not None or self._waits_for_one():",
        "        while self._waits_for_one():",
        TAKEN,
    ),
    Mutation(
        "a loop that forgets a step goes on",
        LENT,
        '                raise RuntimeError("the unit before has no step() yet")',
        "                pass",
        TAKEN,
    ),
    Mutation(
        "what a loop left in the gradient stays",
        LOOP,
        "            self._fresh.zero_()\n            return UnitInHand(self, unit)",
        "            return UnitInHand(self, unit)",
        COMPUTED,
    ),
    Mutation(
        "what a loop moves is not looked at",
        LOOP,
        "            is_sound = self._trainer.is_sound(self._recipe, loss_sum)",
        "            is_sound = True",
        COMPUTED,
    ),
    Mutation(
        "models of any kind are offered to be adapted",
        BASES,
        "    return bool(recipe.task) and (recipe.task, recipe.library) == (trained.task, trained.library)",
        "    return True",
        PAGES,
    ),
    Mutation(
        "models of all runs are offered",
        BASES,
        "Release.objects.filter(state=Release.State.READY, run__in=listed_runs(viewer))",
        "Release.objects.filter(state=Release.State.READY)",
        PAGES,
    ),
    Mutation(
        "what was trained here counts on nobody",
        BASES,
        '    quotas.require_disk(organizer, archive["size"])\n',
        "",
        PAGES,
    ),
    Mutation(
        "gradients beside the buffer are zeros",
        LOOP,
        "                buffer.copy_(gradient.detach())  # zero_grad() has put a new one there",
        "                pass",
        COMPUTED,
    ),
    Mutation(
        "a loss without a gradient counts", LOOP, "        if not self._fresh.any():", "        if False:", COMPUTED
    ),
    Mutation(
        "an agent that ends in a fetch is an error",
        LENT,
        "            except CancelledError:  # the agent ended while data were fetched; that is told by `end`",
        "            except ZeroDivisionError:",
        TAKEN,
    ),
    Mutation(
        "Ctrl-C in a fetch is told to the agent",
        LENT,
        "            except Exception as error:\n                self.fail(error)\n                raise",
        "            except BaseException as error:\n                self.fail(error)\n                raise",
        TAKEN,
    ),
    Mutation(
        "an agent that is gone is waited for",
        "peer_agent/trainer/shard_cache.py",
        "            if not self.loop.is_running():",
        "            if False:",
        ("tests/trainer/test_shard_cache.py",),
    ),
    Mutation(
        "what is written out has no end",
        "peer_agent/publishing/text/documents.py",
        "            if offsets[-1] > most:",
        "            if False:",
        WRITTEN,
    ),
    Mutation(
        "a template that is slow for each goes on for hours",
        CHAT,
        "        if self._seconds > max(LONG_S, MEAN_S * self._written):",
        "        if False:",
        WRITTEN,
    ),
    Mutation(
        "a list of any length becomes objects",
        "peer_agent/publishing/text/parquet.py",
        "            if compute.any(is_long).as_py():",
        "            if False:",
        WRITTEN,
    ),
    Mutation(
        "one conversation decides for all rows",
        "peer_agent/publishing/text/rows.py",
        "if 2 * count > looked_at or not found]",
        "if count]",
        WRITTEN,
    ),
    Mutation(
        "conversations that cannot be written are taken before texts",
        "peer_agent/publishing/text/rows.py",
        "    if writer is not None and said and (writer.has_template or not found):",
        "    if writer is not None and said:",
        WRITTEN,
    ),
    Mutation(
        "bytes stay of a model that came too late",
        "platform/web/pages/runs/sources.py",
        "    with whole_or_gone(file):\n        beside.add(run, file)",
        "    beside.add(run, file)",
        PAGES,
    ),
)
