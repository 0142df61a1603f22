"""The preflight check compares a run's needs with this machine, and prints a numbered sentence if the machine falls
short.
"""

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import AsyncMock

import msgspec
import pytest

from peer_agent.machine.hardware import FreeResources
from peer_agent.machine.home import Home
from peer_agent.machine.preflight import RunFacts, check_fit, needs_of
from peer_agent.protocol.codec_sizes import encoded_size
from peer_agent.protocol.errors import Problem
from peer_agent.recipes import recipe_of
from peer_agent.recipes.causal_lm import CausalLM, Model
from peer_agent.site import facts
from peer_agent.site.facts import facts_of
from tests.agent.program import Answer, credential, http_site, known_at, manyhands
from tests.golden import golden

RECIPE = CausalLM(model=Model(layers=4, width=256, heads=4, context=256), micro_batch=8, codec_up="int8")
FACTS = RunFacts(
    recipe=RECIPE,
    parameters=10_000_000,
    data_bytes=4_000_000,
    snapshot_bytes=120_000_000,
    log_bytes=60_000_000,
    pace_s=36.0,
)
PLENTY = FreeResources(10**11, 10**12)


def test_what_fits_is_said_in_a_line_each() -> None:
    assert check_fit(FACTS, PLENTY, Path("home"), "CPU").lines() == [
        "device    CPU",
        "memory    needs 1.4 GB, 100.0 GB free: OK",
        "disk      needs 344 MB, 1000.0 GB free: OK",
        "download  up to 184 MB before the first step",
        "traffic   about 1.0 GB up, 2.0 GB down per hour at the run's recent pace",
    ]


def test_no_more_data_are_kept_than_is_allowed() -> None:
    facts = msgspec.structs.replace(FACTS, data_bytes=50 * 10**9)
    kept = [check_fit(facts, PLENTY, Path("home"), "CPU", disk_gb=most).disk_bytes or 0 for most in (5, 6, 100)]
    assert (kept[1] - kept[0], kept[2] - kept[0]) == (10**9, 45 * 10**9)
    with pytest.raises(Problem, match="E124"):
        check_fit(facts, FreeResources(10**11, kept[0] - 1), Path("home"), "CPU", disk_gb=5)


def test_a_run_without_a_pace_tells_what_a_step_moves() -> None:
    facts = msgspec.structs.replace(FACTS, pace_s=None)
    assert "10 MB up, 20 MB down per step" in check_fit(facts, PLENTY, Path("home"), "CPU").lines()[-1]


def test_short_memory_reduces_samples_computed_at_a_time() -> None:
    whole = check_fit(FACTS, PLENTY, Path("home"), "CPU")
    least = needs_of(RECIPE, FACTS.parameters, at_once=1, on_gpu=False).memory
    tight = check_fit(FACTS, FreeResources(least, 10**12), Path("home"), "CPU")
    assert (whole.at_once, tight.at_once) == (0, 1)
    assert tight.memory_bytes == least < (whole.memory_bytes or 0)
    assert "samples   1 at a time instead of 8 to fit; slower, but all of them count" in tight.lines()
    between = needs_of(RECIPE, FACTS.parameters, at_once=4, on_gpu=False).memory
    assert check_fit(FACTS, FreeResources(between, 10**12), Path("home"), "CPU").at_once == 4


def test_where_one_is_too_many_layers_are_computed_twice() -> None:
    one = needs_of(RECIPE, FACTS.parameters, at_once=1, on_gpu=False).memory
    tight = check_fit(FACTS, FreeResources(one - 1, 10**12), Path("home"), "CPU")
    assert tight.recomputes
    assert tight.at_once > 1, "as many samples at a time as fit so"
    assert "layers    computed twice to fit; slower, with the same result" in tight.lines()
    assert not check_fit(FACTS, FreeResources(one, 10**12), Path("home"), "CPU").recomputes


def test_a_gpu_has_a_memory_of_its_own() -> None:
    on_gpu = check_fit(FACTS, FreeResources(10**11, 10**12, gpu=10**11), Path("home"), "RTX 4090")
    assert [line.split()[0] for line in on_gpu.lines()][:3] == ["device", "memory", "GPU"]
    least = needs_of(RECIPE, FACTS.parameters, at_once=1, on_gpu=True).gpu
    assert check_fit(FACTS, FreeResources(10**11, 10**12, gpu=least), Path("home"), "RTX 4090").at_once == 1
    least = needs_of(RECIPE, FACTS.parameters, at_once=1, on_gpu=True, recomputes=True).gpu
    assert check_fit(FACTS, FreeResources(10**11, 10**12, gpu=least), Path("home"), "RTX 4090").recomputes
    with pytest.raises(Problem, match=r"E125: This run needs about .* of GPU memory"):
        check_fit(FACTS, FreeResources(10**11, 10**12, gpu=least - 1), Path("home"), "RTX 4090")


@pytest.mark.parametrize(
    ("free", "words"),
    [
        (
            FreeResources(5 * 10**8, 10**12),
            "E123: This run needs about 1.0 GB of memory; 500 MB is free",
        ),
        (
            FreeResources(10**11, 10**8),
            "E124: This run needs about 344 MB on the disk of home; 100 MB is free",
        ),
    ],
)
def test_what_does_not_fit_says_what_would_be_needed(free: FreeResources, words: str) -> None:
    with pytest.raises(Problem) as raised:
        check_fit(FACTS, free, Path("home"), "CPU")
    assert str(raised.value).startswith(words)


def site_of_size(parameters: int) -> Callable[[str], Answer]:
    """Return a site with the API's own response formats, a run with steps of 2 and 4 seconds, and two snapshots."""
    run = golden("api")["runs/SLUG"] | {"slug": "a", "step": 30, "parameters": parameters}
    steps = [golden("api")["runs/SLUG/steps"] | {"duration_s": duration_s} for duration_s in (2.0, 4.0)]
    snapshots = [{"step": 10, "size": 500}, {"step": 20, "size": 700}]

    def answer(path: str) -> Answer:
        lists: dict[str, list[dict[str, Any]]] = {"steps": steps, "snapshots": snapshots}
        name = path.split("?", maxsplit=1)[0].rsplit("/", 1)[-1]
        return (200, {"items": lists[name], "next": None}) if name in lists else (200, run)

    return answer


async def test_facts_are_read_from_the_api() -> None:
    with http_site(site_of_size(1000)) as url:
        facts = await facts_of(f"{url}/api/v1/runs/a", {})
    recipe = recipe_of(golden("api")["runs/SLUG"]["recipe"])
    assert facts == RunFacts(
        recipe=recipe,
        parameters=1000,
        data_bytes=400_000,
        snapshot_bytes=700,
        log_bytes=10 * encoded_size("fp16", 1000),
        pace_s=3.0,
    )


@pytest.mark.parametrize(
    "answer", [(404, {"code": "404", "text": "-"}), (200, {}), (200, {"step": "x"}), (200, "<html>")]
)
async def test_a_site_that_does_not_tell(answer: Answer) -> None:
    with http_site(lambda _: answer) as url:
        assert await facts_of(f"{url}/api/v1/runs/a", {}) is None


async def test_data_that_are_not_kept_need_no_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    large = msgspec.structs.replace(FACTS, data_bytes=50 * 10**9)
    monkeypatch.setattr(facts, "facts_of", AsyncMock(return_value=large))
    monkeypatch.setattr(facts, "free_resources", lambda *_, **__: PLENTY)
    access: Any = SimpleNamespace(site=SimpleNamespace(url=""), slug="a", headers=dict, home=Home(tmp_path))
    needed = [(await facts.run_preflight(access, disk_gb=most)).disk_bytes or 0 for most in (5, 6)]
    assert needed[1] - needed[0] == 10**9


def test_join_stops_before_torch_is_loaded(tmp_path: Path) -> None:
    tells = site_of_size(10**11)
    with http_site(lambda path: issued if path.endswith("/credential") else tells(path)) as url:
        issued: Answer = (200, credential(tmp_path, "ws://127.0.0.1:9/"))
        known_at(tmp_path, url)
        done = manyhands(tmp_path, "join", f"{url}/runs/a/")
    assert (done.returncode, done.stderr[:6]) == (1, "E123: ")
    assert not (Home(tmp_path).cache / "snapshots").exists()
