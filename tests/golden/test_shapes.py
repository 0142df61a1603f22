"""The API's responses have exactly the formats that other programs rely on."""

import pytest
from django.test import Client

from coordination.presence import Carried, Link
from peer_agent.protocol.identifiers import PeerId
from runs.models import Run
from tests.coordination.example_plan import outline, shown
from tests.golden import golden, shape_of
from tests.runs.factories import Owned, committed, data_folder, laptop, organizer, run, volunteer

__all__ = ["data_folder", "laptop", "organizer", "run", "volunteer"]


@pytest.mark.django_db
@pytest.mark.parametrize("path", sorted(golden("api")))
def test_the_api_has_its_shapes(path: str, run: Run, laptop: Owned) -> None:
    committed(run, (laptop.machine, 4), state_digest="0" * 16)
    mine, carried = laptop.machine.peer_id, Carried(2_125_000.0, is_floor=False)
    shown(run, outline(mine, PeerId("e" * 32)), {mine: Link("trainer", carried, carried)})
    client = Client()
    client.force_login(laptop.machine.person)
    answer = client.get(f"/api/v1/{path.replace('SLUG', run.slug)}").json()
    found = answer["items"][0] if "items" in answer else answer
    assert shape_of(found) == shape_of(golden("api")[path])


def test_a_shape_is_names_and_kinds() -> None:
    assert shape_of({"a": 1, "b": [True], "c": None}) == {"a": "number", "b": ["truth"], "c": "NoneType"}
    assert shape_of({"a": 1}) != shape_of({"a": "1"})
