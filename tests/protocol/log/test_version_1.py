"""Records of version 1 mean today what they meant."""

import hashlib

from peer_agent.protocol.log.reading import open_record
from peer_agent.protocol.log.records import ChunkRange, digest_of, from_lines, is_everywhere, to_lines
from tests.golden import FOLDER
from tests.protocol.cast import SITE_PUBLIC


def test_a_record_of_version_1_means_what_it_meant() -> None:
    """Written by the program of version 1, with its signature over the contributions too."""
    data = (FOLDER / "record_1.lines").read_bytes()
    record = open_record(from_lines(data), SITE_PUBLIC)
    assert to_lines(from_lines(data)) == data
    assert digest_of(from_lines(data)) == hashlib.sha256(data.split(b"\n")[0]).hexdigest()
    assert (record.index, record.step, record.loss, record.samples, record.contributors) == (1, 1, 7.5, 8, 2)
    assert [(span.first, span.stop, span.root[:2]) for span in record.spans] == [(0, 2, "ab"), (2, 5, "cd")]
    amina, teo = record.contributions
    assert (amina.included, amina.clipped) == ((ChunkRange(0, 5),), False)
    assert (teo.included, teo.clipped) == ((ChunkRange(0, 3),), True)
    assert (is_everywhere(amina, record), is_everywhere(teo, record)) == (True, False)
