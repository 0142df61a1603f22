"""The estimate of electricity: measured where the system tells, otherwise from processor time and stated watts."""

import os
from pathlib import Path

import pytest

from peer_agent.machine import energy, hardware
from peer_agent.machine.energy import DESKTOP_W, Meter, Reading, Used, processor_joules, used_in_words


def test_without_counters_processor_time_counts_at_stated_watts() -> None:
    cores = os.cpu_count() or 1
    before, now = Reading(0.0, 10.0, 50.0, ()), Reading(60.0, 10.0 + 60 * cores, 900.0, ())
    assert processor_joules(before, now, DESKTOP_W) == pytest.approx(60 * DESKTOP_W), "a minute on all cores"
    assert processor_joules(now, now, DESKTOP_W) == 0, "it rested"


def test_measured_energy_is_shared_by_processor_time_even_if_a_counter_begins_again() -> None:
    before = Reading(0.0, 0.0, 100.0, ((9_000_000, 10_000_000), (0, 10_000_000)))
    now = Reading(10.0, 5.0, 120.0, ((1_000_000, 10_000_000), (6_000_000, 10_000_000)))
    assert processor_joules(before, now, DESKTOP_W) == pytest.approx(8 * 5 / 20)
    assert processor_joules(before, now._replace(counters=()), DESKTOP_W) > 0, "they cannot be read any more"


def test_packages_are_read_and_their_parts_are_not(tmp_path: Path) -> None:
    for folder, name in (("intel-rapl:0", "package-0"), ("intel-rapl:0:0", "core"), ("intel-rapl:1", "psys")):
        (tmp_path / folder).mkdir()
        for file, text in (("name", name), ("energy_uj", "5000"), ("max_energy_range_uj", "9000")):
            (tmp_path / folder / file).write_text(f"{text}\n")
    assert energy._counters(tmp_path) == [(5000, 9000)]
    (tmp_path / "intel-rapl:0" / "energy_uj").write_text("")
    assert energy._counters(tmp_path) == []


def test_a_gpu_counts_only_while_the_machine_works(monkeypatch: pytest.MonkeyPatch) -> None:
    told = {"power.draw": "[N/A]", "power.limit": "360.00"}
    monkeypatch.setattr(hardware, "_of_gpu", told.get)
    monkeypatch.setattr(energy, "_is_on_gpu", lambda: True)
    readings = iter(Reading(at, 0.0, 0.0, ()) for at in (0.0, 10.0, 30.0))
    monkeypatch.setattr(Meter, "_read", lambda _: next(readings))
    meter = Meter()
    meter.look(works=True)
    assert meter.energy_wh == pytest.approx(1.0), "ten seconds at its limit"
    meter.look(works=False)
    assert meter.energy_wh == pytest.approx(1.0), "a game may be drawing this"


@pytest.mark.parametrize(
    ("used", "words"),
    [
        (Used(0.9, 10**9), ""),
        (Used(12.3, 4_200_000), "About 12 Wh and 4.2 MB up so far."),
        (Used(412.0, 2_700_000_000), "About 0.4 kWh and 2.7 GB up so far."),
    ],
)
def test_what_was_used_is_one_sentence(used: Used, words: str) -> None:
    assert used_in_words(used) == words
