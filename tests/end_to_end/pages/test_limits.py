"""A real machine obeys the limits that its owner sets on the page, as measured from the outside."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from demo.processes import ROOT
from tests.end_to_end.rig.network_change import ALONE, networks_can_be_made

OURS = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "platform")])}
SOON_S = 10.0  # seconds to press a button, get the answer and see it; half a second on an idle machine
QUIET_MBPS = 0.05  # rate of a control link that is only kept alive
HEADERS = 1.1  # factor on the limit: bytes on the cable include headers
AT_ONCE_MB = 4.0  # megabits that buffers may hold: four chunks, and the system's buffer of a link
QUIET_SHARE = 0.25  # CPU share of a waiting agent, including its check of running programs


def is_quiet(found: dict[str, Any]) -> bool:
    quiet_link = max(found["up_mbps"], found["down_mbps"]) < QUIET_MBPS
    return bool(quiet_link and found["computed"] < QUIET_SHARE)


@pytest.mark.skipif(not networks_can_be_made(), reason="this system lets no test make a network (ip, unshare)")
def test_each_limit_is_obeyed(tmp_path: Path) -> None:
    command = [*ALONE, sys.executable, "-m", "tests.end_to_end.rig.limited_machine", str(tmp_path)]
    done = subprocess.run(command, env=OURS, cwd=ROOT, capture_output=True, text=True, timeout=900, check=False)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    facts = json.loads(done.stdout.splitlines()[-1])
    print(json.dumps({name: found for name, found in facts.items() if name != "log"}))
    assert facts["pause"]["answered_s"] < SOON_S
    assert facts["pause"]["said"]
    assert facts["program"]["answered_s"] < SOON_S
    assert facts["program"]["detail"] == "quiet-game"
    assert 0 <= facts["hours"]["late_s"] < SOON_S
    assert facts["hours"]["said"]
    for name in ("pause", "program", "hours", "month"):
        assert is_quiet(facts[name]), (name, facts[name])
    assert 0.8 < facts["month"]["counted"] / facts["month"]["cable"] < 1.01, "bytes on the cable have headers"
    rate = facts["rate"]
    assert rate["free_up"] > 1.5 * rate["limit"], "there is something to limit"
    most = HEADERS * rate["limit"] + AT_ONCE_MB / rate["seconds"]
    for way in ("up", "down"):
        assert 0.1 * rate["limit"] < rate[way] < most, (way, "it works on, as fast as it may")
    duty = facts["duty"]
    assert 0 < duty["part"] < 0.7 * duty["free"]
    assert facts["move"] == {"could_not": "E305", "head": facts["move"]["head"], "left": True}
    assert facts["finish"] == {"code": 0}
    assert "Traceback" not in facts["log"]
