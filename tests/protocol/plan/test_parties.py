"""The planner's input: unmeasured links, refused values, and sums that have the same bits on every machine."""

import numpy as np
import pytest
from msgspec.structs import replace

from peer_agent.protocol.plan import parties as module
from peer_agent.protocol.plan.parties import Table, of_kind, total
from tests.protocol.plan.instances import auxiliary, peer, trainer, trainers


def test_parties_stand_in_the_order_of_their_ids() -> None:
    table = Table([auxiliary(2, 3.0), trainer(0, 1.0), trainer(1, 2.0)])
    assert table.peers == [peer(0), peer(1), peer(2)]
    assert table.upload.tolist() == [1.0, 2.0, 3.0]
    assert table.is_volunteer.tolist() == [True, True, False]


def test_unmeasured_rate_is_the_slowest_of_its_kind_or_unlimited() -> None:
    is_volunteer = np.array([True, True, False, False, True])
    assert of_kind(np.array([0.0, 5.0, 0.0, 0.0, 3.0]), is_volunteer).tolist() == [3.0, 5.0, np.inf, np.inf, 3.0]


@pytest.mark.parametrize(
    "wrong",
    [{"up_bytes": -1.0}, {"upload_bps": np.inf}, {"duplex_bps": np.nan}, {"upload_bps": 1e-19}, {"download_bps": 1e19}],
)
def test_numbers_that_are_none_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="finite"):
        Table([replace(trainer(0, 1.0), **wrong)])


def test_nobody_is_there_twice_and_not_everybody_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match="twice"):
        Table([trainer(0, 1.0), auxiliary(0, 1.0)])
    monkeypatch.setattr(module, "MOST_PARTIES", 3)
    Table(trainers(3, 1.0))
    with pytest.raises(ValueError, match="more than 3"):
        Table(trainers(4, 1.0))


def test_a_sum_adds_one_after_another() -> None:
    values = np.random.default_rng(1).uniform(0, 1, 1000)
    one_by_one = 0.0
    for value in values.tolist():
        one_by_one += value
    assert float(total(values)) == one_by_one
    assert one_by_one != float(np.sum(values)), "else this shows nothing"
    assert total(np.zeros((3, 0))).tolist() == [0.0, 0.0, 0.0]
