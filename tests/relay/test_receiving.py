"""Before the commit, a log keeper stores the averages of a peer that has no log."""

from pathlib import Path

import pytest

from peer_agent.averaging.update_log import UpdateLog
from peer_agent.protocol import messages as m
from peer_agent.protocol.wire import Frame, Kind
from peer_agent.relay import run as run_module
from tests.agent.scripted_site import OTHER_RELAY, planned
from tests.averaging.rounds import RUN, averaged, entry_of, frame, plan_of, record_of
from tests.protocol.identities import SITE_PUBLIC
from tests.relay.scenes import commit_of, greeting, heard, offers, run_of_a_relay, settled


def averages(plan: m.Plan, payloads: dict[int, bytes]) -> list[Frame]:
    return [
        frame(plan, span.span, chunk, 0, payloads[chunk], Kind.AVERAGE)
        for span in plan.spans
        for chunk in range(span.first, span.stop)
    ]


async def test_averages_of_a_logless_peer_are_on_disk_before_a_commit(tmp_path: Path) -> None:
    """Averages may arrive before the plan, which takes a different route."""
    sendings = offers()
    attempt = plan_of(sendings, reducers=(OTHER_RELAY, OTHER_RELAY))
    spans, payloads = averaged(attempt, sendings)
    said: list[m.Message] = []
    run = run_of_a_relay(tmp_path, said)
    auxiliary = m.Listener(peer=OTHER_RELAY, url="", keeps_log=False)
    await run.handle(heard(greeting(fence=3, step=attempt.step, listeners=(auxiliary,))))
    early, *late = averages(attempt, payloads)
    await run.hear_average(OTHER_RELAY, early)
    await run.handle(heard(planned(attempt)))
    for each in late:
        await run.hear_average(OTHER_RELAY, each)
    await settled(run)
    haves = {message.span: message.root for message in said if isinstance(message, m.Have)}
    assert haves == {closed.span: closed.root for closed in spans}
    await run.handle(heard(commit_of(entry_of(record_of(attempt, spans)))))
    await settled(run)
    assert UpdateLog(tmp_path, SITE_PUBLIC).missing(RUN, 1) == []
    await run.close()


async def test_what_comes_long_before_its_plan_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_module, "EARLY_BYTES", 100)
    sendings = offers()
    attempt = plan_of(sendings, reducers=(OTHER_RELAY, OTHER_RELAY))
    run = run_of_a_relay(tmp_path, [])
    for size in (60, 41, 40):
        await run.hear_average(OTHER_RELAY, frame(attempt, 0, 0, 0, bytes(size), Kind.AVERAGE))
    assert [len(early.payload) for _, early in run._early] == [60, 40]
    await run.close()
