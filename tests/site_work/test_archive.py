"""The site's archive gets averages from relays on this machine and over the network, and only if they are right."""

import time
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from peer_agent.averaging.update_log import read_span, span_path
from peer_agent.protocol.credentials import Role, public_bytes
from peer_agent.protocol.log.records import RecordHead, from_lines, open_head
from peer_agent.site_work.archive import archive
from peer_agent.site_work.relay_logs import Reach, RelayLogs, write_reach
from tests.site_work.test_relay_logs import READER, Relays, credential, has_nothing, relays, story
from tests.site_work.test_replay import STEPS, Story
from tests.training.commits import RUN, SITE_KEY

__all__ = ["relays", "story"]


def heads(story: Story) -> list[RecordHead]:
    paths = sorted(story.records.iterdir())
    return [open_head(from_lines(path.read_bytes()).head, public_bytes(SITE_KEY)) for path in paths]


def log_of(story: Story) -> Path:
    return story.span(1).parent.parent


def archived(story: Story, folder: Path, logs: list[Path], relays: Relays | None = None) -> list[int]:
    if relays is None:
        return [made.index for made in archive(heads(story), folder, logs, None)]
    key = Ed25519PrivateKey.generate()
    reach = story.folder / f"reach-{time.monotonic_ns()}"
    signed = credential(key, READER, Role.READER)
    write_reach(reach, Reach(run=RUN, peer=READER, credential=signed, relays=relays.listeners))
    with RelayLogs(reach, key, public_bytes(SITE_KEY)) as fetched:
        return [made.index for made in archive(heads(story), folder, logs, fetched)]


def test_files_of_a_relay_on_this_machine_get_a_second_name(story: Story, tmp_path: Path) -> None:
    folder = tmp_path / "archive"
    assert archived(story, folder, [tmp_path / "none", log_of(story)]) == list(range(1, STEPS + 1))
    for index in range(1, STEPS + 1):
        assert span_path(folder, index, 0).samefile(story.span(index))
        story.span(index).unlink()
    assert archived(story, folder, []) == list(range(1, STEPS + 1)), "what is there is not copied again"


def test_it_ends_at_the_first_entry_that_no_log_has(story: Story, tmp_path: Path) -> None:
    story.span(3).unlink()
    assert archived(story, tmp_path / "archive", [log_of(story)]) == [1, 2]


@pytest.mark.parametrize("damage", ["cut", "another"])
def test_damaged_file_is_not_taken(story: Story, tmp_path: Path, damage: str) -> None:
    data = story.span(2).read_bytes()
    story.span(2).write_bytes(data[:-1] if damage == "cut" else story.span(1).read_bytes())
    assert archived(story, tmp_path / "archive", [log_of(story)]) == [1]
    assert not span_path(tmp_path / "archive", 2, 0).exists()


def test_the_rest_comes_from_relays(story: Story, relays: Relays, tmp_path: Path) -> None:
    relays.add(relays.answering(has_nothing))
    relays.add(relays.honest(story, tmp_path / "relay"))
    folder = tmp_path / "archive"
    assert archived(story, folder, [], relays) == list(range(1, STEPS + 1))
    for index in range(1, STEPS + 1):
        ours, theirs = read_span(span_path(folder, index, 0)), read_span(story.span(index))
        assert ours is not None
        assert theirs is not None
        assert ours.leaves == theirs.leaves
        assert [bytes(part) for part in ours.payloads] == [bytes(part) for part in theirs.payloads]


def test_disk_that_is_full_is_told(story: Story, tmp_path: Path) -> None:
    (tmp_path / "archive").write_text("not a folder")
    with pytest.raises(Exception, match="E106"):
        archived(story, tmp_path / "archive", [log_of(story)])
