"""Audits between honest machines of different kinds, in a short version of `training.verdicts`."""

from tests.benchmarks.training.verdicts import CODECS, kinds, measure


def test_honest_machines_of_all_kinds_pass_and_other_units_fail() -> None:
    found = measure(2)
    pairs = len(kinds()) * (len(kinds()) - 1)
    for codec in CODECS:
        assert (found["honest"][codec]["audits"], found["honest"][codec]["passed"]) == (6 * pairs, 6 * pairs)
    assert found["other_units"] == {"audits": 6, "failed": 6}
