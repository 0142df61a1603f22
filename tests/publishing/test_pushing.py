"""The real client against a strict double of the Hub: files arrive unchanged, and other accounts' files are safe."""

import contextlib
import hashlib
import random
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from peer_agent.protocol.errors import Problem
from peer_agent.publishing import hub_client, pushing
from peer_agent.publishing.hub_client import Account, check_token
from peer_agent.publishing.pushing import Destination, Progress, Pushed, push
from tests.publishing.hub_double import Hub, running_hub

FILES = {
    "README.md": b"---\ntags: []\n---\n# A model\n",
    "model.safetensors": bytes(range(256)) * 64,
    "empty.json": b"{}",
}
TOKEN = "hf_write"
MESSAGE = "Manyhands: words, step 7"
# The client uploads a file with a parameter that its HTTP library has renamed.
pytestmark = pytest.mark.filterwarnings("ignore:Use 'content=<...>':DeprecationWarning")


@pytest.fixture(autouse=True)
def _short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hub_client, "PAUSES_S", (0.001,) * 4)


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    # another test may have loaded the client before
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_DISABLE_XET", True)
    with running_hub() as hub:
        hub.account("amina", TOKEN)
        yield hub


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name, content in FILES.items():
        (tmp_path / name).write_bytes(content)
    return tmp_path


def destination(hub: Hub, **changes: Any) -> Destination:
    return msgspec.structs.replace(Destination(repository="amina/words", endpoint=hub.url), **changes)


def pushed(hub: Hub, folder: Path, token: str = TOKEN, **changes: Any) -> Pushed:
    return push(folder, tuple(FILES), destination(hub, **changes), token, message=MESSAGE, tell=lambda _: None)


def held(hub: Hub, repository: str = "amina/words", branch: str = "main") -> dict[str, bytes]:
    files = hub.repositories[repository].files(branch) or {}
    return {name: stored.content for name, stored in files.items() if name != ".gitattributes"}


class TestToken:
    def test_a_writing_token_names_its_account(self, hub: Hub) -> None:
        assert check_token(TOKEN, hub.url) == Account(name="amina", namespaces=("amina",))

    def test_a_fine_grained_one_needs_the_scope(self, hub: Hub) -> None:
        hub.account("amina", "hf_fine", role="fineGrained", scopes=("repo.content.read", "repo.write"))
        assert check_token("hf_fine", hub.url).namespaces == ("amina",)
        hub.account("amina", "hf_narrow", role="fineGrained", scopes=("repo.content.read",))
        with pytest.raises(Problem, match=r"E343: .*can read but not write"):
            check_token("hf_narrow", hub.url)

    def test_a_reading_token_is_told_apart(self, hub: Hub) -> None:
        hub.account("amina", "hf_read", role="read")
        with pytest.raises(Problem, match=r"E343: .*can read but not write"):
            check_token("hf_read", hub.url)

    def test_an_unknown_token(self, hub: Hub) -> None:
        with pytest.raises(Problem, match="E343") as caught:
            check_token("hf_wrong", hub.url)
        assert "hf_wrong" not in str(caught.value)

    def test_a_hub_that_is_away(self) -> None:
        with pytest.raises(Problem, match="E346"):
            check_token(TOKEN, "http://127.0.0.1:9")


def test_double_holds_back_a_file_that_it_already_knows(hub: Hub, folder: Path) -> None:
    """This tests the double itself: another account may have uploaded the same bytes before."""
    hub.account("teo", "hf_teo")
    push(folder, tuple(FILES), destination(hub, repository="teo/words"), "hf_teo", message=MESSAGE, tell=lambda _: None)
    hub.held = "amina/words"
    with contextlib.suppress(Problem):
        pushed(hub, folder)
    assert hub.is_holding.is_set()


class TestPush:
    @pytest.mark.parametrize("large_from", [1, 4096, 1 << 30], ids=["all large", "mixed", "all small"])
    def test_what_arrives_is_what_was_sent(self, hub: Hub, folder: Path, large_from: int) -> None:
        hub.large_from = large_from
        done = pushed(hub, folder)
        assert held(hub) == FILES
        assert done.url == f"{hub.url}/amina/words"
        assert done.commit == hub.repositories["amina/words"].head
        assert len(hub.repositories["amina/words"].commits) == 2  # one commit by the Hub itself, and ours

    def test_again_changes_nothing(self, hub: Hub, folder: Path) -> None:
        assert pushed(hub, folder) == pushed(hub, folder)
        assert len(hub.repositories["amina/words"].commits) == 2

    def test_a_new_version_follows_our_own(self, hub: Hub, folder: Path) -> None:
        first = pushed(hub, folder)
        (folder / "README.md").write_bytes(b"---\ntags: []\n---\n# Another\n")
        pushed(hub, folder, known=first.commit)
        assert held(hub)["README.md"].endswith(b"Another\n")

    def test_private_stays_private(self, hub: Hub, folder: Path) -> None:
        pushed(hub, folder, private=True)
        assert hub.repositories["amina/words"].private

    def test_files_of_somebody_else_are_left_alone(self, hub: Hub, folder: Path) -> None:
        before = hub.put("amina/words", README_md=b"# Mine", notes_txt=b"keep").head
        with pytest.raises(Problem, match=r"E345: amina/words .*README.md, notes.txt"):
            pushed(hub, folder)
        assert hub.repositories["amina/words"].head == before

    def test_with_leave_they_are_replaced_and_others_stay(self, hub: Hub, folder: Path) -> None:
        hub.put("amina/words", README_md=b"# Mine", notes_txt=b"keep")
        pushed(hub, folder, replace=True)
        assert held(hub) == {**FILES, "notes.txt": b"keep"}

    def test_a_branch_of_its_own(self, hub: Hub, folder: Path) -> None:
        hub.put("amina/words", README_md=b"# Mine")
        done = pushed(hub, folder, branch="step-7", replace=True)
        assert done.url == f"{hub.url}/amina/words/tree/step-7"
        assert held(hub, branch="step-7") == FILES
        assert held(hub) == {"README.md": b"# Mine"}
        assert pushed(hub, folder, branch="step-7", replace=True) == done

    def test_a_repository_of_anothers_namespace(self, hub: Hub, folder: Path) -> None:
        hub.put("teo/words")
        with pytest.raises(Problem, match="E344"):
            pushed(hub, folder, repository="teo/words")

    def test_a_reading_token_sends_nothing(self, hub: Hub, folder: Path) -> None:
        hub.account("amina", "hf_read", role="read")
        with pytest.raises(Problem, match="E343"):
            pushed(hub, folder, token="hf_read")
        assert not hub.repositories

    @pytest.mark.parametrize("name", ["words", "a/b/c", "amina/wo rds", "amina/../x", "amina/x.git", "", "-a/b"])
    def test_a_name_that_is_none(self, hub: Hub, folder: Path, name: str) -> None:
        with pytest.raises(Problem, match="E348"):
            pushed(hub, folder, repository=name)
        assert not hub.seen


class TestInterruptions:
    def test_a_stale_parent_is_read_anew(self, hub: Hub, folder: Path) -> None:
        hub.interlopers = 2
        pushed(hub, folder, replace=True)
        assert held(hub) == {**FILES, "notes.txt": b"0"}

    def test_who_came_between_is_not_overrun_without_leave(self, hub: Hub, folder: Path) -> None:
        hub.interlopers = 1
        with pytest.raises(Problem, match=r"E345: .*notes\.txt"):
            pushed(hub, folder)

    def test_somebody_who_never_stops(self, hub: Hub, folder: Path) -> None:
        hub.interlopers = 1000
        with pytest.raises(Problem, match="E349"):
            pushed(hub, folder, replace=True)
        assert hub.interlopers == 1000 - pushing.TRIES

    def test_nothing_large_is_resent_after_a_crash_before_the_commit(self, hub: Hub, folder: Path) -> None:
        hub.broken = len(hub_client.PAUSES_S) + 1
        with pytest.raises(Problem, match="E346"):
            pushed(hub, folder)
        assert not hub.broken
        pushed(hub, folder)
        assert held(hub) == FILES
        assert [method for method, _ in hub.seen].count("PUT") == 1

    @pytest.mark.parametrize("seed", range(8))
    def test_one_that_fails_half_of_its_calls_has_it_in_the_end(
        self, hub: Hub, folder: Path, seed: int, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The failures include calls that the Hub carried out but reported as errors."""
        monkeypatch.setattr(time, "sleep", lambda _: None)  # the Hub's own client, which sends files, sleeps too
        hub.failing, hub.chance = 0.5, random.Random(seed)
        for _ in range(20):
            with contextlib.suppress(Problem):
                pushed(hub, folder)
                break
        else:
            pytest.fail("never sent")
        assert held(hub) == FILES
        assert len(hub.repositories) == 1
        assert [title for title in hub.repositories["amina/words"].titles.values() if title] == [MESSAGE]

    @pytest.mark.parametrize("seed", range(4))
    def test_one_that_fails_each_call_once_is_asked_again_at_once(
        self, hub: Hub, folder: Path, seed: int, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(time, "sleep", lambda _: None)
        hub.failing, hub.most_in_a_row, hub.chance = 1.0, 1, random.Random(seed)
        pushed(hub, folder)
        assert held(hub) == FILES

    def test_one_that_takes_no_more_calls_counts_as_away(
        self, hub: Hub, folder: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(time, "sleep", lambda _: None)
        hub.limited = 1000
        with pytest.raises(Problem, match="E346"):
            pushed(hub, folder)

    def test_a_commit_whose_answer_was_lost_is_built_upon(self, hub: Hub, folder: Path) -> None:
        pushed(hub, folder)  # the site did not record the commit
        (folder / "README.md").write_bytes(b"---\ntags: []\n---\n# Of a later step\n")
        pushed(hub, folder)
        assert held(hub)["README.md"].endswith(b"later step\n")

    def test_one_that_somebody_came_after_is_not(self, hub: Hub, folder: Path) -> None:
        pushed(hub, folder)
        hub.put("amina/words", notes_txt=b"mine")
        (folder / "README.md").write_bytes(b"---\ntags: []\n---\n# Of a later step\n")
        with pytest.raises(Problem, match=r"E345: .*notes\.txt"):
            pushed(hub, folder)

    def test_nor_one_of_another_run(self, hub: Hub, folder: Path) -> None:
        pushed(hub, folder)
        (folder / "README.md").write_bytes(b"---\ntags: []\n---\n# Of another run\n")
        with pytest.raises(Problem, match=r"E345: .*README\.md"):
            push(folder, tuple(FILES), destination(hub), TOKEN, message="Manyhands: word, step 7", tell=lambda _: None)

    def test_a_limit_on_calls_is_waited_for(self, hub: Hub, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        waited: list[float] = []
        monkeypatch.setattr(time, "sleep", waited.append)
        hub.limited = 2
        pushed(hub, folder)
        assert held(hub) == FILES
        assert waited == [7.0, 7.0]

    def test_a_hub_that_keeps_other_bytes_is_found_out(self, hub: Hub, folder: Path) -> None:
        hub.damage_uploads = True
        with pytest.raises(Problem, match=r"E350: .*model\.safetensors"):
            pushed(hub, folder)

    def test_progress_is_told_in_bytes(self, hub: Hub, folder: Path) -> None:
        told: list[Progress] = []
        push(folder, tuple(FILES), destination(hub), TOKEN, message="Step 7", tell=told.append)
        whole = sum(map(len, FILES.values()))
        assert (told[-2].stage, told[-2].done, told[-2].total) == ("committing", whole, whole)
        assert [step.done for step in told[1:-1]] == sorted(step.done for step in told[1:-1])


def test_only_the_hub_sees_the_token(hub: Hub, folder: Path) -> None:
    pushed(hub, folder)
    assert hub.authorizations == {f"Bearer {TOKEN}"}
    assert all(TOKEN not in path for _, path in hub.seen)
    assert hashlib.sha256(held(hub)["model.safetensors"]).hexdigest() in hub.large
