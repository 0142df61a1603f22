"""The reason why a run is waiting, recognized from the coordinator's sentence."""

import string

import pytest

from peer_agent.protocol import reasons
from peer_agent.protocol.reasons import REASONS, in_words

ALL = [value for name, value in vars(reasons).items() if name.isupper() and isinstance(value, str)]


def marked(english: str) -> str:
    return f"⟦{english}⟧"


def test_all_of_them_are_looked_for() -> None:
    assert sorted(ALL) == sorted(REASONS)


@pytest.mark.parametrize("english", REASONS)
def test_each_is_found_again_and_is_no_other(english: str) -> None:
    details = {name: f"<{name}>, Noor's PC and 2 more" for _, name, *_ in string.Formatter().parse(english) if name}
    assert in_words(english.format(**details), marked) == marked(english).format(**details)


@pytest.mark.parametrize("reason", ["", "of another version", "E312: No memory.", "waiting for volunteers now"])
def test_what_is_none_of_them_stays(reason: str) -> None:
    assert in_words(reason, marked) == reason


def test_a_machine_may_be_called_as_it_wants() -> None:
    for name in ("{names}", " to load the model", "%s", ""):
        said = reasons.COMPUTING.format(names=name)
        assert name in in_words(said, marked)
