"""Publishing, from the organizer's token to a commit on the Hub, with a real child process and client and a strict
double.
"""

import errno
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from django.utils import timezone

from accounts.keys import Unreadable, seal, unseal
from accounts.models import Person
from jobs.models import Job
from jobs.queue import Kind
from jobs.runner import Later
from peer_agent.protocol.errors import Problem
from runs import processes, storage
from runs.lifecycle import roles
from runs.models import HubAccount, Publication, Release, Run
from runs.releases import publishing
from tests.jobs.requests import do, requested
from tests.publishing.hub_double import Hub, running_hub
from tests.web.requesters import given_role

TOKEN = "hf_of_amina"
FILES = {"README.md": b"---\ntags: []\n---\n# Proverbs\n", "model.safetensors": b"weights" * 2000}


@pytest.fixture
def hub(settings: Any) -> Iterator[Hub]:
    with running_hub() as hub:
        hub.account("amina", TOKEN)
        settings.HUB_ENDPOINT = hub.url
        yield hub


@pytest.fixture
def release(run: Run) -> Release:
    folder = f"runs/{run.id.hex}/release"
    files = [{"name": name, "size": len(content), "sha256": ""} for name, content in FILES.items()]
    archive = {"name": "proverbs.zip", "size": 1, "sha256": ""}
    (storage.root() / folder).mkdir(parents=True)
    for name, content in {**FILES, "proverbs.zip": b"z"}.items():
        (storage.root() / folder / name).write_bytes(content)
    return Release.objects.create(
        run=run, state=Release.State.READY, folder=folder, files=[*files, archive], archive="proverbs.zip"
    )


def held(hub: Hub) -> dict[str, bytes]:
    files = hub.repositories["amina/proverbs"].commits[-1][1]
    return {name: stored.content for name, stored in files.items() if name != ".gitattributes"}


def ask(run: Run, **changes: Any) -> Publication:
    usual: dict[str, Any] = {"repository": "amina/proverbs", "private": False, "replace": False}
    publishing.ask_to_publish(run=run, **usual | changes)
    return Publication.objects.get(run=run)


def meanwhile(monkeypatch: pytest.MonkeyPatch, act: Callable[[], object]) -> None:
    """Run `act` once while the site is sending a release."""
    acts = [act]

    def run_child(*arguments: Any, **more: Any) -> Any:
        if acts:
            acts.pop()()
        return processes.run_child(*arguments, **more)

    monkeypatch.setattr(publishing, "run_child", run_child)


class TestToken:
    def test_it_is_tried_sealed_and_unsealed(self, hub: Hub, organizer: Person) -> None:
        account = publishing.save_token(person=organizer, token=TOKEN)
        assert (account.name, account.namespaces) == ("amina", ["amina"])
        assert TOKEN not in str(HubAccount.objects.values())
        assert unseal(account.sealed_token) == TOKEN

    @pytest.mark.parametrize("token", ["hf_read", "hf_unknown"])
    def test_one_that_may_not_write_is_not_kept(self, hub: Hub, organizer: Person, token: str) -> None:
        hub.account("amina", "hf_read", role="read")
        with pytest.raises(Problem, match="E343") as caught:
            publishing.save_token(person=organizer, token=token)
        assert token not in str(caught.value)
        assert not HubAccount.objects.exists()

    def test_another_secret_reads_nothing(self, settings: Any) -> None:
        sealed = seal(TOKEN)
        settings.SECRET_KEY = "another"
        with pytest.raises(Unreadable):
            unseal(sealed)

    def test_removing_it_stops_what_waits(self, hub: Hub, run: Run) -> None:
        publishing.save_token(person=run.organizer, token=TOKEN)
        ask(run)
        publishing.remove_token(person=run.organizer)
        publication = Publication.objects.get()
        assert (publication.state, publication.fault[:4]) == ("failed", "E351")
        assert not HubAccount.objects.exists()


class TestPush:
    def test_the_release_arrives_without_its_archive(self, hub: Hub, run: Run, release: Release) -> None:
        publishing.save_token(person=run.organizer, token=TOKEN)
        ask(run)
        assert requested() == [(Kind.PUBLISH_RELEASE, run.pk.hex)]
        assert publishing.push_release(run.pk) is None
        publication = Publication.objects.get()
        assert (publication.state, publication.fault) == ("published", "")
        assert publication.url == f"{hub.url}/amina/proverbs"
        assert publication.commit == hub.repositories["amina/proverbs"].head
        assert held(hub) == FILES
        assert run.activity.filter(kind="published").count() == 1

    def test_without_a_token_nothing_can_be_asked(self, run: Run, release: Release) -> None:
        with pytest.raises(Problem, match="E351"):
            ask(run)

    def test_co_organizer_publishes_with_own_token_while_in_the_role(
        self, hub: Hub, run: Run, release: Release, volunteer: Person
    ) -> None:
        publishing.save_token(person=run.organizer, token=TOKEN)
        role = given_role(run, volunteer, Run.Role.CO_ORGANIZER)
        with pytest.raises(Problem, match="E351"):
            ask(run, by=volunteer)
        hub.account("teo", "hf_of_teo")
        publishing.save_token(person=volunteer, token="hf_of_teo")
        assert ask(run, by=volunteer, repository="teo/proverbs").asked_by == volunteer
        assert publishing.push_release(run.pk) is None
        assert list(hub.repositories) == ["teo/proverbs"]
        assert run.activity.get(kind="publishing").text.startswith("Teo wants the model on the Hub as")
        ask(run, by=volunteer, repository="teo/again")
        roles.give_up(offered=role)
        assert publishing.push_release(run.pk) is None
        assert (Publication.objects.get().state, Publication.objects.get().fault[:4]) == ("failed", "E351")
        assert list(hub.repositories) == ["teo/proverbs"]

    def test_removing_a_token_leaves_pushes_by_other_tokens(self, hub: Hub, run: Run, volunteer: Person) -> None:
        publishing.save_token(person=run.organizer, token=TOKEN)
        given_role(run, volunteer, Run.Role.CO_ORGANIZER)
        hub.account("teo", "hf_of_teo")
        publishing.save_token(person=volunteer, token="hf_of_teo")
        ask(run, by=volunteer, repository="teo/proverbs")
        publishing.remove_token(person=run.organizer)
        assert Publication.objects.get().state == "waiting"
        publishing.remove_token(person=volunteer)
        assert Publication.objects.get().state == "failed"

    def test_before_there_is_a_release_it_waits(self, hub: Hub, run: Run) -> None:
        publishing.save_token(person=run.organizer, token=TOKEN)
        assert ask(run).state == "waiting"
        assert publishing.push_release(run.pk) is None
        assert Publication.objects.get().state == "waiting"

    @pytest.mark.check
    def test_a_hub_that_is_away_is_tried_again(self, hub: Hub, run: Run, release: Release, settings: Any) -> None:
        publishing.save_token(person=run.organizer, token=TOKEN)
        ask(run)
        settings.HUB_ENDPOINT = "http://127.0.0.1:9"
        assert do(Kind.PUBLISH_RELEASE, run.pk) == Later(fault=Publication.objects.get().fault)
        assert (Publication.objects.get().state, Publication.objects.get().fault[:4]) == ("waiting", "E346")
        settings.HUB_ENDPOINT = hub.url
        assert publishing.push_release(run.pk) is None
        assert held(hub) == FILES

    @pytest.mark.check
    def test_one_that_stays_away_is_given_up(self, hub: Hub, run: Run, release: Release, settings: Any) -> None:
        publishing.save_token(person=run.organizer, token=TOKEN)
        ask(run)
        settings.HUB_ENDPOINT = "http://127.0.0.1:9"
        assert do(Kind.PUBLISH_RELEASE, run.pk) == Later(fault=Publication.objects.get().fault)
        # checkpoints have failed for so long
        Publication.objects.update(failing_since=timezone.now() - publishing.GIVE_UP)
        assert do(Kind.PUBLISH_RELEASE, run.pk) == Later(fault=Publication.objects.get().fault)
        assert Publication.objects.get().state == "waiting", "of the day before there was nothing to send"
        Release.objects.update(created_at=timezone.now() - publishing.GIVE_UP)
        assert publishing.push_release(run.pk) is None
        assert (Publication.objects.get().state, Publication.objects.get().fault[:4]) == ("failed", "E346")

    def test_asking_again_ends_the_wait_for_a_retry(self, hub: Hub, run: Run) -> None:
        publishing.save_token(person=run.organizer, token=TOKEN)
        ask(run)
        Job.objects.update(failures=9, due=timezone.now() + publishing.GIVE_UP)
        ask(run)
        assert Job.objects.get().due < timezone.now() + publishing.LONG

    def test_somebody_elses_files_need_the_tick(self, hub: Hub, run: Run, release: Release) -> None:
        hub.put("amina/proverbs", README_md=b"# mine")
        publishing.save_token(person=run.organizer, token=TOKEN)
        ask(run)
        publishing.push_release(run.pk)
        assert Publication.objects.get().fault.startswith("E345")
        assert held(hub) == {"README.md": b"# mine"}
        ask(run, replace=True)
        publishing.push_release(run.pk)
        assert held(hub) == FILES

    def test_another_address_asked_for_meanwhile_wins(
        self, hub: Hub, run: Run, release: Release, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        publishing.save_token(person=run.organizer, token=TOKEN)
        ask(run)
        meanwhile(monkeypatch, lambda: ask(run, repository="amina/other"))
        publishing.push_release(run.pk)
        publication = Publication.objects.get()
        assert (publication.repository, publication.state, publication.url) == ("amina/other", "waiting", "")
        publishing.push_release(run.pk)
        assert Publication.objects.get().url == f"{hub.url}/amina/other"

    @pytest.mark.parametrize("is_cut", [False, True])
    def test_a_release_made_anew_while_it_is_sent_is_sent_again(
        self, hub: Hub, run: Run, release: Release, monkeypatch: pytest.MonkeyPatch, *, is_cut: bool
    ) -> None:
        publishing.save_token(person=run.organizer, token=TOKEN)
        ask(run)

        def made_anew() -> None:
            assert publishing.send_again(run.pk)
            if is_cut:  # the files of the interrupted upload are gone by now
                raise Problem.of("E347", reason="no such file")

        meanwhile(monkeypatch, made_anew)
        publishing.push_release(run.pk)
        assert (Publication.objects.get().state, Publication.objects.get().fault) == ("waiting", "")
        card = storage.release_path(release, "README.md")
        card.write_bytes(b"# Proverbs, anew\n")
        publishing.push_release(run.pk)
        assert Publication.objects.get().state == "published"
        assert held(hub) == {**FILES, "README.md": card.read_bytes()}

    def test_the_timeline_does_not_name_what_only_its_owner_sees(self, hub: Hub, run: Run, release: Release) -> None:
        publishing.save_token(person=run.organizer, token=TOKEN)
        ask(run, private=True)
        publishing.push_release(run.pk)
        assert "amina/proverbs" not in run.activity.get(kind="published").text

    def test_a_full_disk_is_told(self, hub: Hub, run: Run, release: Release, monkeypatch: pytest.MonkeyPatch) -> None:
        def full() -> None:
            raise OSError(errno.ENOSPC, "No space left on device")

        publishing.save_token(person=run.organizer, token=TOKEN)
        ask(run)
        monkeypatch.setattr(storage, "workspace", full)
        publishing.push_release(run.pk)
        assert (Publication.objects.get().state, Publication.objects.get().fault[:4]) == ("failed", "E328")

    def test_a_secret_that_has_changed_is_told(self, hub: Hub, run: Run, release: Release, settings: Any) -> None:
        publishing.save_token(person=run.organizer, token=TOKEN)
        ask(run)
        settings.SECRET_KEY = "another"
        publishing.push_release(run.pk)
        assert Publication.objects.get().fault.startswith("E352")
