"""Faults in a trainer: its core, its gradient sums, and its links to relays."""

from tests.mutations.mutation import Mutation

CORE, SHELL = "peer_agent/protocol/trainer/", "peer_agent/"
CORE_TESTS = "tests/protocol/trainer/"


def fault(name: str, file: str, before: str, after: str, *tests: str) -> Mutation:
    return Mutation(name, f"{CORE}{file}.py", before, after, tuple(f"{CORE_TESTS}test_{test}.py" for test in tests))


def shell(name: str, file: str, before: str, after: str, *tests: str) -> Mutation:
    return Mutation(name, f"{SHELL}{file}.py", before, after, tuple(f"tests/{test}.py" for test in tests))


CUT = "    if ignores(state, Cause.CUT) or cut.step != state.step or not _is_new(state, cut):"
VOID = "    if (void.fence, void.attempt) < (round_.cut.fence, round_.attempt):"
LEASED = "    if ignores(state, Cause.LEASED) or state.unanswered:"
BEHIND = "    if greeting.index < state.index and greeting.fence <= state.vouched:"
FETCHED = "            if payloads is not None and await keep(payloads):\n                return True"
OURS = "is_ours = round_.offer is not None and record.own is not None and record.own.accumulator == state.accumulator"

TRAINER: tuple[Mutation, ...] = (
    shell(
        "an audit computes into this machine's own gradient",
        "training/loop",
        "        self._fresh = self._own if elsewhere is None else elsewhere.fresh",
        "        self._fresh = self._own",
        "trainer/test_auditing",
    ),
    shell(
        "an audit has no end",
        "trainer/auditing",
        " or not is_wanted():",
        ":",
        "trainer/test_auditing",
    ),
    fault("a cut of another step is followed", "rounds", CUT, CUT.replace("cut.step != state.step or ", ""), "rounds"),
    fault("an old cut begins the round again", "rounds", CUT, CUT.replace(" or not _is_new(state, cut)", ""), "rounds"),
    fault("an old void ends a later attempt", "rounds", VOID, "    if False:", "rounds"),
    fault(
        "a reducer is served whatever was offered",
        "state",
        " or self.plan.own.root != self.offer.root:",
        ":",
        "state",
    ),
    fault("words of an older host are heeded", "advance", "    if fence < state.fence:", "    if False:", "work"),
    fault("a lease that crosses a hello counts", "work", LEASED, LEASED.replace(" or state.unanswered", ""), "work"),
    fault(
        "a sample in an update is computed again", "work", ", *state.kept, *state.settled}", ", *state.kept}", "work"
    ),
    fault(
        "a pass goes beyond the quota", "work", "while state.queue and room > 0 and", "while state.queue and", "work"
    ),
    fault(
        "units of a pass that a cut ends are turned round",
        "work",
        "extendleft(reversed(state.in_hand.units))",
        "extendleft(state.in_hand.units)",
        "work",
    ),
    fault(
        "all units of a pass are blamed for one",
        "work",
        "isinstance(result, NotFinite) and len(units) == 1:",
        "isinstance(result, NotFinite):",
        "work",
    ),
    fault(
        "each unit has the loss of its pass", "work", "result.loss_sum * (tokens / total)", "result.loss_sum", "work"
    ),
    shell(
        "units are put into one pass whatever that brings",
        "training/units",
        "        if rate < GAIN * before:",
        "        if False:",
        "training/test_units",
    ),
    shell(
        "passes get as long as they may",
        "training/units",
        " or 2 * samples / rate > LONGEST_S:",
        ":",
        "training/test_units",
    ),
    shell(
        "units that are whole are put into one pass",
        "training/loop",
        " or self.replica.recipe.unit_is_whole",
        "",
        "training/test_units",
    ),
    shell(
        "a pass that was too large is asked for again",
        "trainer/jobs",
        "            self.device_batch.fits(self.trainer.at_once // max(samples))",
        "            pass",
        "trainer/test_jobs",
    ),
    shell(
        "the unit to blame is never looked for",
        "trainer/jobs",
        "            self.device_batch.was_not_finite(len(samples))\n",
        "",
        "trainer/test_jobs",
    ),
    shell(
        "units of one pass weigh what the first weighs",
        "training/units",
        "tuple(map(self._loss_units_in, batches))",
        "tuple(self._loss_units_in(batches[0]) for _ in batches)",
        "training/test_units",
    ),
    shell(
        "layers add to 16 bits where the base has them",
        "training/precision",
        "            module.register_forward_hook(_widened)",
        "            pass",
        "recipes/finetune_lora/test_training",
    ),
    shell(
        "what learns is kept in 16 bits",
        "training/precision",
        "if not parameter.requires_grad and parameter.dim() > 1:",
        "if parameter.dim() > 1:",
        "recipes/finetune_lora/test_training",
    ),
    shell(
        "a base in 16 bits needs the room of one in 32",
        "machine/preflight",
        'fixed // 2 if recipe.precision == "mixed" else fixed',
        "fixed",
        "recipes/finetune_lora/test_training",
    ),
    shell(
        "a compiler that fails is asked again and again",
        "training/layers",
        "            if self.error:\n                return plain",
        "            if False:\n                return plain",
        "training/test_layers",
    ),
    shell(
        "whatever goes wrong is the compiler's fault",
        "training/layers",
        "        if self.error:\n            return False",
        "        if False:\n            return False",
        "training/test_layers",
    ),
    shell(
        "layers are compiled in another's loop",
        "trainer/jobs",
        "limits.compiles and self.collaboration is None",
        "limits.compiles",
        "trainer/test_jobs",
    ),
    fault("nobody rests", "work", " or not state.queue or state.is_full:", " or not state.queue:", "work"),
    fault(
        "an update of other units is taken out of the sum",
        "work",
        "round_ is None or round_.offer is None or {d.unit for d in round_.offer.units} != set(own.units)",
        "round_ is None or round_.offer is None",
        "work",
    ),
    fault(
        "another accumulator's update is taken out of ours",
        "work",
        "    if own is None or own.accumulator != state.accumulator:",
        "    if own is None:",
        "work",
    ),
    fault(
        "floats settle for another accumulator", "following", OURS, "is_ours = round_.offer is not None", "following"
    ),
    fault(
        "work is kept however old it is",
        "work",
        "    if may_be_old and not _is_too_old(state, state.fresh):",
        "    if may_be_old:",
        "work",
    ),
    fault("what is too old is offered again", "following", " or has_too_old(state):", ":", "work"),
    fault(
        "a replica that is beyond the site goes on",
        "following",
        "    if state.has_state and greeting.index < state.index:",
        "    if False:",
        "following",
    ),
    fault("what a host said before we went on undoes it", "following", BEHIND, BEHIND.replace("<=", "<"), "following"),
    fault(
        "records pile up",
        "following",
        "    if known is not None or len(state.pending) < PENDING or record.index == state.index + 1:",
        "    if True:",
        "following",
    ),
    fault(
        "a record of another branch is applied",
        "following",
        "    if not _follows(state) and state.phase is not Phase.APPLYING:",
        "    if False:",
        "following",
    ),
    fault(
        "a replica of another branch stays as it is",
        "following",
        "    if state.index == greeting.index and state.log_digest not in (greeting.digest, greeting.snapshot.digest):",
        "    if False:",
        "following",
    ),
    fault(
        "a reload is followed twice",
        "following",
        " or message.step <= state.reloaded_at or message.step > state.step:",
        " or message.step > state.step:",
        "following",
    ),
    fault(
        "a hello that is lost is not said again",
        "speaking",
        "    if state.unanswered and state.now - state.hello_at >= max(HELLO_S, state.hello_wait_s):",
        "    if False:",
        "speaking",
    ),
    shell(
        "what was sent stays in the sum",
        "averaging/contributor",
        "np.subtract(values, sent, out=values)",
        "np.subtract(values, 0 * sent, out=values)",
        "averaging/test_contributor",
    ),
    shell(
        "an averaged chunk of another attempt is kept",
        "averaging/assembly",
        "            and frame.attempt == span.attempt\n",
        "",
        "averaging/test_assembly",
    ),
    shell(
        "averages need no root",
        "averaging/assembly",
        "whole.digest.hex() == entry.root and is_sum",
        "is_sum",
        "averaging/test_assembly",
    ),
    shell(
        "averages may have another sum of squares than the record",
        "averaging/assembly",
        "whole.digest.hex() == entry.root and is_sum",
        "whole.digest.hex() == entry.root",
        "averaging/test_assembly",
    ),
    shell(
        "averages of another fence are taken for the record's",
        "trainer/round",
        "(record.step, record.fence) == (self.cut.step + 1, self.cut.fence)",
        "record.step == self.cut.step + 1",
        "trainer/test_round",
    ),
    shell(
        "a reducer gets again what it has",
        "trainer/round",
        "        if chunk not in received\n",
        "",
        "trainer/test_round",
    ),
    shell(
        "fetch stops at the first relay",
        "site/relay_links",
        FETCHED,
        "            return payloads is not None and await keep(payloads)",
        "site/test_relay_links",
    ),
    shell(
        "a relay may send chunks of any size",
        "site/relay_links",
        " and len(payload) <= self.largest:",
        ":",
        "site/test_relay_links",
    ),
    shell(
        "a link that ends leaves those who asked waiting",
        "site/relay_links",
        "                if place[0] == peer:",
        "                if False:",
        "site/test_relay_links",
    ),
)
