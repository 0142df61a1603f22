"""Choosing which snapshot to release: the best one if the run overfitted, otherwise the last, or the organizer's
choice.
"""

import time
from pathlib import Path
from typing import Any

import msgspec
import pytest
from django.test import Client

from accounts.models import Person
from jobs.queue import Kind
from jobs.runner import Later
from notices import services as notices
from notices.models import Event, Notice, Way
from peer_agent.protocol.errors import Problem
from runs import storage
from runs.background import request_after_start
from runs.models import Publication, Release, Run, Snapshot
from runs.releases import making, publishing
from runs.releases.card_facts import set_named
from runs.snapshots import retention
from tests.jobs.requests import do, forget_requests, requested, requested_kinds
from tests.runs.factories import Owned, committed, owned
from tests.web.browsing import as_

NEAR = 3.33  # too close to 3.3 to count as overfitting
FILE = {"name": "model.safetensors", "size": 3, "sha256": "0" * 64}


@pytest.fixture
def given(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, dict[str, Any]]]:
    """Record the snapshot and facts given to each child process. tests/publishing/test_release.py covers the work that
    the child does.
    """
    children: list[tuple[str, dict[str, Any]]] = []

    def child(command: list[str], **_: Any) -> dict[str, Any]:
        children.append((Path(command[2]).stem, msgspec.json.decode(Path(command[6]).read_bytes())))
        Path(command[4]).mkdir()
        return {"files": [FILE], "archive": "proverbs.zip", "sample": ""}

    monkeypatch.setattr(making, "run_child", child)
    return children


@pytest.fixture
def finished(run: Run, laptop: Owned, given: list[Any]) -> Run:
    """Return a released run whose held-out loss was only slightly better at step 2."""
    return finish(run, laptop, 4.0, 3.3, 3.6, NEAR)


@pytest.fixture
def overfitted(run: Run, laptop: Owned, given: list[Any]) -> Run:
    """Return a released run whose held-out loss was much better at step 2."""
    return finish(run, laptop, 4.0, 3.3, 3.6, 4.3)


def finish(run: Run, laptop: Owned, *measured: float | None) -> Run:
    for loss, heldout in zip((5.0, 4.0, 3.0, 2.0), measured, strict=True):
        entry = committed(run, (laptop.machine, 4), loss=loss)
        storage.snapshot_path(run, f"{entry.step:064d}").write_bytes(b"state")
        facts = {"digest": entry.digest, "state_digest": "5" * 16, "file": f"{entry.step:064d}", "size": 5}
        Snapshot.objects.create(
            run=run, index=entry.index, step=entry.step, heldout_loss=heldout, state=Snapshot.State.VERIFIED, **facts
        )
    Run.objects.filter(pk=run.pk).update(state=Run.State.FINISHING)
    Release.objects.create(run=run)
    run.refresh_from_db()
    assert making.make_release(run.pk) == Release.State.READY
    run.refresh_from_db()
    return run


@pytest.fixture
def told(organizer: Person, volunteer: Person, stranger: Person) -> None:
    for person in (organizer, volunteer, stranger):
        notices.choose(person=person, wanted=[(Event.FINISHED, Way.BROWSER)])


def test_whoever_is_in_the_run_is_told_once_that_it_is_finished(told: None, finished: Run) -> None:
    found = Notice.objects.filter(event=Event.FINISHED)
    assert set(found.values_list("person__username", "path")) == {
        (name, f"/runs/{finished.slug}/") for name in ("Amina", "Teo")
    }
    found.delete()
    making.release_best(run=finished, best=True)
    assert do(Kind.REMAKE_RELEASE, finished.pk) is None
    assert not Notice.objects.exists()


def test_the_last_step_is_released_first(finished: Run, given: list[tuple[str, dict[str, Any]]]) -> None:
    assert (finished.state, finished.release.step, finished.release.index) == (Run.State.FINISHED, 4, 4)
    ((file, facts),) = given
    assert (int(file), facts["steps"], facts["is_overfitting"]) == (4, 4, False)
    assert (facts["heldout_loss"], facts["best_heldout_loss"], facts["best_heldout_step"]) == (NEAR, 3.3, 2)
    assert facts["later_heldout_loss"] is None


def test_an_overfitted_run_releases_its_best(overfitted: Run, given: list[tuple[str, dict[str, Any]]]) -> None:
    ((file, facts),) = given
    assert (int(file), facts["steps"], facts["heldout_loss"], facts["is_overfitting"]) == (2, 2, 3.3, False)
    assert (facts["later_heldout_loss"], facts["later_heldout_step"]) == (4.3, 4)
    release = Release.objects.select_related("run__head").get(run=overfitted)
    assert (release.step, release.is_chosen, making.is_stale(release)) == (2, False, False)
    said = overfitted.activity.filter(kind="release").values_list("text", flat=True)
    assert list(said) == ["The model of step 2 is released: it is the best on held-out data."]


@pytest.mark.usefixtures("given")
@pytest.mark.parametrize(("last", "step"), [(4.3, 2), (NEAR, 4), (2.0, 4)])
def test_a_last_snapshot_that_is_measured_later_decides_again(run: Run, laptop: Owned, last: float, step: int) -> None:
    """The release does not wait for the measurement. Until then, the last model is offered."""
    finish(run, laptop, 4.0, 3.3, 3.6, None)
    assert Release.objects.get(run=run).step == 4
    run.snapshots.filter(step=4).update(heldout_loss=last)
    for _ in range(2):
        making.choose_by_default(run=run)
    assert requested() == ([(Kind.REMAKE_RELEASE, run.pk.hex)] if step == 2 else [])
    assert do(Kind.REMAKE_RELEASE, run.pk) is None
    assert Release.objects.get(run=run).step == step


def test_what_the_organizer_chose_stays(overfitted: Run) -> None:
    making.release_best(run=overfitted, best=False)
    making.choose_by_default(run=overfitted)
    release = Release.objects.get(run=overfitted)
    assert (release.is_chosen, release.wanted_index) == (True, None)


def test_choosing_the_default_release_is_a_choice_too(overfitted: Run) -> None:
    making.release_best(run=overfitted, best=True)
    assert Release.objects.get(run=overfitted).is_chosen
    assert Kind.REMAKE_RELEASE not in requested_kinds()


def test_overfitted_run_releases_its_last_if_its_best_cannot_be(
    run: Run, laptop: Owned, given: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(making, "_can_be_released", lambda _: False)
    assert finish(run, laptop, 4.0, 3.3, 3.6, 4.3).release.step == 4


def test_the_best_is_released_and_the_last_again(finished: Run, given: list[tuple[str, dict[str, Any]]]) -> None:
    making.release_best(run=finished, best=True)
    assert Kind.REMAKE_RELEASE in requested_kinds()
    forget_requests()
    making.release_best(run=finished, best=True)
    assert requested() == [], "asked twice, it is done once"
    assert do(Kind.REMAKE_RELEASE, finished.pk) is None
    assert do(Kind.REMAKE_RELEASE, finished.pk) is None
    assert len(given) == 2, "it is made once"
    file, facts = given[-1]
    assert (int(file), facts["steps"], facts["samples"], len(facts["points"])) == (2, 2, 8, 2), "what was given so far"
    release = Release.objects.get(run=finished)
    assert (release.step, release.index, release.state) == (2, 2, Release.State.READY)
    making.release_best(run=finished, best=False)
    assert do(Kind.REMAKE_RELEASE, finished.pk) is None
    assert int(given[-1][0]) == 4
    assert Release.objects.get(run=finished).step == 4


def test_a_start_of_the_site_remakes_what_is_out_of_date(finished: Run) -> None:
    request_after_start()
    assert Kind.REMAKE_RELEASE not in requested_kinds()
    making.release_best(run=finished, best=True)
    forget_requests()
    request_after_start()
    assert requested() == [(Kind.REMAKE_RELEASE, finished.pk.hex)]


@pytest.mark.parametrize("changes", [{"state": Snapshot.State.ADMITTED}, {"is_stored": False}])
def test_a_snapshot_that_cannot_be_released_is_not_offered(finished: Run, changes: dict[str, Any]) -> None:
    """The snapshot is unverified, or its file is gone."""
    finished.snapshots.filter(step=2).update(**changes)
    assert making.better_snapshot(finished) is None
    with pytest.raises(Problem, match="E315"):
        making.release_best(run=finished, best=True)


def test_a_run_whose_last_snapshot_is_best_has_nothing_to_choose(finished: Run) -> None:
    finished.snapshots.filter(step=4).update(heldout_loss=1.0)
    assert making.better_snapshot(finished) is None


def test_unmeasured_last_snapshot_has_no_better_one(finished: Run) -> None:
    """The site makes the release before it measures the last snapshot's held-out loss."""
    finished.snapshots.filter(step=4).update(heldout_loss=None)
    assert making.better_snapshot(finished) is None


def test_card_of_an_earlier_step_names_only_its_contributors(finished: Run, laptop: Owned, given: list[Any]) -> None:
    late = owned(finished.organizer, "late").machine
    committed(finished, (late, 4))
    for person in (late.person, laptop.machine.person):
        set_named(run=finished, person=person, agreed=True)
    making.release_best(run=finished, best=True)
    assert do(Kind.REMAKE_RELEASE, finished.pk) is None
    release = Release.objects.get(run=finished)
    assert (release.step, release.named) == (2, ["Teo"])
    assert not making.is_stale(release), "Amina gave nothing up to that step"
    set_named(run=finished, person=laptop.machine.person, agreed=False)
    assert making.is_stale(release)


def test_what_was_chosen_while_another_was_made_is_made_next(
    finished: Run, given: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    making.release_best(run=finished, best=True)
    child = vars(making)["run_child"]

    def changes_their_mind(command: list[str], **more: Any) -> Any:
        Release.objects.update(wanted_index=None)
        monkeypatch.setattr(making, "run_child", child)
        return child(command, **more)

    monkeypatch.setattr(making, "run_child", changes_their_mind)
    monkeypatch.setattr("runs.releases.publishing.send_again", lambda _: pytest.fail("the Hub is not told of it"))
    assert do(Kind.REMAKE_RELEASE, finished.pk) is None
    assert Release.objects.get(run=finished).step == 4

    def fails(*_: Any, **__: Any) -> Any:
        raise Problem.of("E106", path="/", reason="full")

    making.release_best(run=finished, best=True)
    monkeypatch.setattr(making, "run_child", fails)
    later = do(Kind.REMAKE_RELEASE, finished.pk)
    assert isinstance(later, Later)
    assert later.fault


def test_the_hub_is_told_of_the_step_that_is_released(finished: Run) -> None:
    making.release_best(run=finished, best=True)
    assert do(Kind.REMAKE_RELEASE, finished.pk) is None
    release = Release.objects.select_related("run__head").get(run=finished)
    publication = Publication(run=release.run, repository="amina/proverbs")
    assert "--message=Manyhands: proverbs, step 2" in publishing._command(publication, release)


def test_a_run_that_is_not_finished_has_nothing_to_release(run: Run) -> None:
    with pytest.raises(Problem, match="E315"):
        making.release_best(run=run, best=False)


def test_the_best_and_the_released_snapshot_are_kept(finished: Run, laptop: Owned) -> None:
    making.release_best(run=finished, best=True)
    needed = {2, 4}
    for _ in range(3 * retention.MOST):
        entry = committed(finished, (laptop.machine, 4))
        Snapshot.objects.create(
            run=finished, index=entry.index, step=entry.step, state_digest="", file=f"{entry.step:064d}", size=1
        )
    finished.snapshots.filter(step=1).update(heldout_loss=2.0)
    retention.thin_snapshots(finished.pk, now=time.time() + 2 * retention.ASKED_FOR_S)
    kept = set(finished.snapshots.filter(is_stored=True).values_list("index", flat=True))
    assert {*needed, 1} <= kept
    assert len(kept) == retention.MOST


class TestPage:
    def test_everybody_gets_the_best_and_its_organizer_releases_it(self, finished: Run, client: Client) -> None:
        text = client.get("/runs/proverbs/").content.decode()
        assert "Step 2 has the best held-out loss (3.30)" in text
        assert "Release step 2 instead" not in text
        state: Any = client.get("/api/v1/runs/proverbs/states/2")
        assert b"".join(state.streaming_content) == b"state"
        organizer = as_(finished.organizer)
        assert "Release step 2 instead" in organizer.get("/runs/proverbs/").content.decode()
        assert organizer.post("/runs/proverbs/release/", {"snapshot": "best"}).status_code == 302
        text = organizer.get("/runs/proverbs/").content.decode()
        assert "The files are being rebuilt" in text
        assert do(Kind.REMAKE_RELEASE, finished.pk) is None
        text = organizer.get("/runs/proverbs/").content.decode()
        assert "This model is from step 2, the best step of this run on held-out data." in text
        assert "Release the last step instead" in text
        assert organizer.post("/runs/proverbs/release/", {"snapshot": "last"}).status_code == 302
        assert Release.objects.get(run=finished).wanted_index is None

    def test_what_an_overfitted_run_offers_is_told(self, overfitted: Run, client: Client) -> None:
        text = client.get("/runs/proverbs/").content.decode()
        assert "This model is from step 2, the best step of this run on held-out data." in text
        assert "The last step, 4, has a held-out loss of 4.30" in text
        assert "The model overfitted: held-out loss rose from 3.30 at step 2 to 4.30 at step 4" in text
        assert "The snapshot of step 2 is the best." in text
        facts = client.get("/api/v1/runs/proverbs").json()
        assert (facts["released_step"], facts["heldout"]["best_step"], facts["heldout"]["step"]) == (2, 2, 4)
        assert "Release the last step instead" in as_(overfitted.organizer).get("/runs/proverbs/").content.decode()

    def test_what_cannot_be_released_is_told(self, run: Run) -> None:
        answer = as_(run.organizer).post("/runs/proverbs/release/", {"snapshot": "best"})
        assert answer.status_code == 409
        assert "E315" in answer.content.decode()

    def test_a_state_that_is_gone_is_told(self, finished: Run, client: Client) -> None:
        storage.snapshot_path(finished, f"{2:064d}").unlink()
        assert client.get("/api/v1/runs/proverbs/states/2").json()["code"] == "E326"
        assert client.get("/api/v1/runs/proverbs/states/99").status_code == 404
        finished.snapshots.filter(step=2).update(state=Snapshot.State.ADMITTED)
        assert client.get("/api/v1/runs/proverbs/states/2").status_code == 404, "nobody has checked it"
