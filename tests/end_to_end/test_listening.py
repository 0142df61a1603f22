"""Two people whose machines listen train by themselves: no relay, each averages for the other and keeps the log."""

import signal
from pathlib import Path

from demo.processes import ROOT
from peer_agent.relay.place import SEEN
from tests.end_to_end.rig.swarm import Swarm

HERE = str(ROOT)  # the agent of this checkout, whichever is installed
ENDLESS = 100_000


def test_two_that_listen_need_no_relay(tmp_path: Path, english: str) -> None:
    with Swarm(tmp_path) as swarm:
        swarm.start_site(options="--no-relay")
        organizer = swarm.sign_up("organizer")
        swarm.open_run(organizer, english, trainers=2, steps=ENDLESS)
        for name in ("a", "b"):
            token = swarm.token_of(organizer)
            swarm.start_agent(name, token=token, options="--listen --host 127.0.0.1", PYTHONPATH=HERE)
        swarm.wait(lambda: swarm.made("a") >= 3 and swarm.made("b") >= 3, 180, "steps without a relay")
        assert SEEN in swarm.log("a")
        assert swarm.digests("a").items() & swarm.digests("b").items(), "the same state"
        logs = [swarm.records(swarm.folder / name) for name in ("a", "b")]
        assert all(logs), "both keep the log"
        assert len({span[4] for record in logs[0] for span in record["spans"]}) == 2, "and both average"
        swarm.processes["a"].send_signal(signal.SIGINT)
        assert swarm.processes["a"].wait(90) == 0
        for name in ("a", "b"):
            assert "Traceback" not in swarm.log(name)
