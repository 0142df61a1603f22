"""An agent's memory estimate compared with its real use, for two models, at a real site with a relay and an agent.

For each model, print the estimate and the peak resident memory of the agent's process, in bytes. Works only on Linux
(VmHWM).
"""

import json
import re
import tempfile
from pathlib import Path

from msgspec import Struct
from msgspec import json as encoder

from demo.recipes import python_text
from tests.end_to_end.rig.swarm import Swarm

STEPS = 2
MODELS = {
    "gpt2, 7 million": {"layers": "8", "width": "256", "heads": "8", "context": "256", "micro_batch": "8"},
    "llama, 20 million": {
        "family": "llama",
        "layers": "6",
        "width": "384",
        "heads": "6",
        "context": "128",
        "micro_batch": "4",
        "vocab": "8192",
        "codec_up": "fp16",
        "codec_down": "fp16",
    },
}


class Measured(Struct, frozen=True):
    estimate: int
    peak: int
    ratio: float


def main() -> None:
    print(encoder.encode({name: measured(recipe) for name, recipe in MODELS.items()}).decode(), flush=True)


def measured(recipe: dict[str, str]) -> Measured:
    """Train for a few steps with a snapshot at each step, so that memory reaches its peak."""
    with tempfile.TemporaryDirectory() as folder, Swarm(Path(folder)) as swarm:
        swarm.start_site()
        organizer = swarm.sign_up("organizer")
        more = {"target_batch": "16", "snapshot_every": "1", **recipe}
        swarm.open_run(organizer, python_text()[:2_000_000], trainers=1, steps=1000, **more)
        swarm.start_agent("agent", token=swarm.token_of(organizer), options="--json")
        swarm.wait_for_step(STEPS, 400)
        peak = peak_of(swarm.processes["agent"].pid)
        events = [json.loads(line) for line in swarm.log("agent").splitlines() if line.startswith("{")]
    (preflight,) = [event for event in events if event["event"] == "preflight"]
    return Measured(preflight["memory_bytes"], peak, round(preflight["memory_bytes"] / peak, 3))


def peak_of(pid: int) -> int:
    found = re.search(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    assert found is not None
    return 1024 * int(found[1])


if __name__ == "__main__":
    main()
