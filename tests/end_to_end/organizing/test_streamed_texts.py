"""Texts that stay on the Hub: the site fetches a sample, and machines read the rest from the Hub without a token."""

import io
from pathlib import Path

import pyarrow as pa
from pyarrow import parquet
from safetensors.numpy import load_file

from demo.recipes import LICENCE, python_text
from peer_agent.recipes.text.portion import portion_in
from tests.end_to_end.rig.swarm import SMALL, Swarm
from tests.publishing.hub_double import Hub, running_hub

STEPS = 60
ROW, GROUP = 700, 60  # characters in a row; rows in a Parquet row group
AWAY = "Hub not reachable (E346)"
FIELDS = {"title": "A run", "purpose": "", "visibility": "public", "licence": LICENCE, "may_share": "on"}


def rows() -> bytes:
    """Return two megabytes of uncompressed rows, more than the site fetches."""
    text = python_text()
    said = [text[begin : begin + ROW] for begin in range(0, len(text), ROW)]
    file = io.BytesIO()
    parquet.write_table(pa.table({"text": said}), file, row_group_size=GROUP, compression="none")
    return file.getvalue()


def test_two_machines_learn_from_what_stays_on_the_hub(tmp_path: Path) -> None:
    settings = {"MANYHANDS_HUB_LIMIT_MB": "1"}
    with running_hub() as hub, Swarm(tmp_path, {**settings, "MANYHANDS_HUB_ENDPOINT": hub.url}) as swarm:
        hub.put_files("datasets/amina/proverbs", {"train.parquet": rows()})
        swarm.start_site()
        organizer = swarm.sign_up("organizer")
        numbers = {
            "target_steps": str(STEPS),
            "minimum_trainers": "2",
            "snapshot_every": str(STEPS),
            "target_batch": "192",
        }
        organizer.submit("/runs/new/", {**SMALL, **FIELDS, **numbers, "hub": "amina/proverbs"})
        swarm.slug = organizer.slug
        organizer.publish(swarm.slug)
        swarm.wait_for_state("open", 120)
        expected = streamed(swarm)
        for name in ("first", "second"):
            swarm.start_agent(name, token=swarm.token_of(organizer), HF_ENDPOINT=hub.url)
        swarm.wait_for_step(5)
        hub.failing = 1.0
        swarm.wait(lambda: any(AWAY in swarm.log(name) for name in ("first", "second")), 300, "the Hub is missed")
        hub.failing = 0.0
        swarm.wait_finished()
        check(swarm, hub, expected)


def streamed(swarm: Swarm) -> dict[str, int]:
    """Return the token count of each shard that machines make from the Hub, by the shard's digest. The counts are read
    from the site's files.
    """
    files = swarm.data.glob("storage/datasets/*/*/shards/*.safetensors")
    return {path.stem: portion.tokens for path in files if (portion := portion_in(path)) is not None}


def check(swarm: Swarm, hub: Hub, expected: dict[str, int]) -> None:
    """Require that machines made the expected shards, with equal content and without a token, and trained on them."""
    ((listed,),) = swarm.rows("select count(*) from runs_shard")
    assert 0 < len(expected) < listed
    made = {name: {path.stem: path for path in shards(swarm, name)} for name in ("first", "second")}
    assert any(made.values())
    for held in made.values():
        for digest, path in held.items():
            assert len(load_file(path)["tokens"]) == expected[digest]
    for digest in made["first"].keys() & made["second"].keys():
        assert made["first"][digest].read_bytes() == made["second"][digest].read_bytes()
    one, other = swarm.digests("first"), swarm.digests("second")
    shared = one.keys() & other.keys()
    assert len(shared) > STEPS // 2
    assert all(one[step] == other[step] for step in shared)
    assert hub.authorizations == set(), "nobody has shown a token"
    used = {row[0] for row in swarm.rows("select shard from runs_coverage")}
    positions = swarm.rows("select position, digest from runs_shard")
    assert used & {position for position, digest in positions if digest in expected}


def shards(swarm: Swarm, name: str) -> list[Path]:
    """Return the shards that a machine has made, excluding those that exist only as descriptions."""
    found = (swarm.folder / name).glob("**/shards/*.safetensors")
    return [path for path in found if path.stem in streamed(swarm) and portion_in(path) is None]
