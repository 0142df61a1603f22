"""A run's pages and the pages that lead to it: content, permissions, and errors shown beside their field."""

import json
import re
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.core.files.uploadedfile import SimpleUploadedFile
from django.test import Client
from django.utils import timezone
from msgspec.structs import replace

from accounts import machine_control
from accounts.models import Machine, Person, Token
from accounts.services import create_machine_token, create_token
from coordination.models import Presence
from peer_agent.protocol.messages import MachineReport
from peer_agent.protocol.messages.machine import Why
from peer_agent.protocol.recipe import encode_recipe
from peer_agent.recipes.causal_lm import CausalLM, Model
from peer_agent.recipes.masked_lm import MaskedLM
from runs.models import Dataset, LogEntry, Release, Run, Snapshot
from tests.runs.factories import PASSWORD, Owned, committed, draft, opened, owned, understood
from tests.web.browsing import as_, page
from web import strokes
from web.pages.accounts.login import operator_secret

TEXT = b"Many hands make light work. " * 200


def filled(**changes: Any) -> dict[str, Any]:
    text = changes.pop("content", TEXT)
    name = changes.pop("filename", "proverbs.txt")
    fields = {
        "title": "A model of proverbs",
        "purpose": "",
        "visibility": "public",
        "licence": "CC0",
        "may_share": "on",
        "target_batch": "4",
        "micro_batch": "2",
        "text": SimpleUploadedFile(name, text),
    }
    return {name: value for name, value in {**fields, **changes}.items() if value is not None}


class TestComingAndGoing:
    def test_the_first_visit_teaches(self, client: Client, db: None) -> None:
        text = page(client.get("/"))
        assert "There are no runs yet." in text
        assert "manyhands join http://testserver/runs/" in text

    def test_signing_up_logs_in(self, client: Client, db: None) -> None:
        answer = client.post("/signup/", {"username": "Amina", "password": PASSWORD}, follow=True)
        assert "Amina" in page(answer)
        assert Person.objects.get().check_password(PASSWORD)

    def test_taken_name_and_short_password_are_told_beside_fields(self, organizer: Person) -> None:
        text = page(Client().post("/signup/", {"username": "amina", "password": "short"}))
        assert "That name is taken." in text
        assert "at least 10 characters" in text

    def test_logging_in_leads_where_one_wanted_to_go(self, organizer: Person) -> None:
        answer = Client().post("/login/?next=/machines/", {"username": "Amina", "password": PASSWORD})
        assert answer["Location"] == "/machines/"

    def test_nobody_is_sent_to_another_site(self, client: Client, db: None) -> None:
        answer = client.post(
            "/signup/", {"username": "Amina", "password": PASSWORD, "next": "https://elsewhere.example/"}
        )
        assert answer["Location"] == "/"

    def test_logging_out_takes_a_post(self, organizer: Person) -> None:
        client = as_(organizer)
        assert client.get("/logout/").status_code == 405
        client.post("/logout/")
        assert "Log in" in page(client.get("/"))

    def test_the_first_operator_takes_charge_once(self, client: Client, db: None) -> None:
        link = f"/operator/{operator_secret()}/"
        assert client.get("/operator/guess/").status_code == 404
        client.post(link, {"username": "Ines", "password": PASSWORD})
        assert Person.objects.get().is_superuser
        assert client.get(link).status_code == 404


class TestMachines:
    def test_a_new_token_is_shown_once_with_its_line(self, volunteer: Person) -> None:
        client = as_(volunteer)
        answer = client.post("/machines/")
        assert "manyhands login http://testserver --token-file -<" in page(answer)
        assert "~/manyhands/bin/manyhands login http://testserver --token-file -<" in page(answer), (
            "as the run page says"
        )
        assert re.search(r'<code id="machine-token">mh_[-\w]{43}</code>', page(answer))
        assert answer["Cache-Control"].startswith("max-age=0")
        assert "mh_" not in page(client.get("/machines/"))

    def test_a_machine_is_renamed_and_revoked_by_its_person(self, volunteer: Person, laptop: Owned) -> None:
        client, path = as_(volunteer), f"/machines/{laptop.machine.pk}/"
        client.post(path, {"name": "kitchen"})
        client.post(path, {"revoke": "1", "name": "ignored"})
        laptop.machine.refresh_from_db()
        assert laptop.machine.name == "kitchen"
        assert laptop.machine.revoked_at is not None
        assert "Revoked" in page(client.get("/machines/"))

    def test_nobody_touches_anothers_machine(self, stranger: Person, laptop: Owned) -> None:
        path = f"/machines/{laptop.machine.pk}/"
        assert as_(stranger).post(path, {"revoke": "1"}).status_code == 404
        assert "laptop" not in page(as_(stranger).get("/machines/"))
        assert Machine.objects.get().revoked_at is None

    def test_a_machine_keeps_a_name(self, volunteer: Person, laptop: Owned) -> None:
        answer = as_(volunteer).post(f"/machines/{laptop.machine.pk}/", {"name": " "})
        assert answer.status_code == 400
        assert "1 to 60 characters" in page(answer)

    def test_personal_tokens_come_and_go(self, volunteer: Person, stranger: Person) -> None:
        client = as_(volunteer)
        assert 'id="api-token">mh_' in page(client.post("/machines/tokens/", {"label": "notebook"}))
        token = Token.objects.get()
        assert as_(stranger).post(f"/machines/tokens/{token.pk}/").status_code == 404
        client.post(f"/machines/tokens/{token.pk}/")
        assert "notebook" not in page(client.get("/machines/"))


class TestNewRun:
    def test_one_form_makes_a_draft(self, organizer: Person) -> None:
        answer = as_(organizer).post("/runs/new/", filled(layers="3", learning_rate="0.02"))
        run = Run.objects.get()
        recipe = run.parsed_recipe
        assert isinstance(recipe, CausalLM)
        assert answer["Location"] == f"/runs/{run.slug}/manage/"
        assert (recipe.model.layers, recipe.optimizer.learning_rate, recipe.target_batch) == (3, 0.02, 4)
        assert (run.dataset.licence, run.dataset.size) == ("CC0", len(TEXT))

    def test_the_defaults_are_a_recipe_that_works(self, organizer: Person) -> None:
        as_(organizer).post("/runs/new/", filled(content=TEXT * 10, target_batch=None, micro_batch=None))
        assert Run.objects.get().parsed_recipe.target_batch == 48

    def test_steps_that_are_left_empty_follow_from_the_text(self, organizer: Person) -> None:
        client = as_(organizer)
        form = page(client.get("/runs/new/"))
        assert "Leave empty for about 4 passes over the text." in form
        client.post("/runs/new/", filled(target_steps="", warmup_steps="1500"))
        run = Run.objects.get()
        assert run.automatic_steps
        assert run.parsed_recipe.target_steps == 1500, "until the text is known; no fewer than its warm-up"
        steps = re.search(r'<input[^>]*name="target_steps"[^>]*>', page(client.get(f"/runs/{run.slug}/edit/")))
        assert steps is not None
        assert "value=" not in steps[0]
        client.post(f"/runs/{run.slug}/edit/", filled(target_steps="700", text=None))
        run.refresh_from_db()
        assert (run.automatic_steps, run.parsed_recipe.target_steps) == (False, 700)
        assert 'name="target_steps" value="700"' in page(client.get(f"/runs/{run.slug}/edit/"))

    def test_prompts_are_lines_that_are_kept(self, organizer: Person) -> None:
        client = as_(organizer)
        client.post("/runs/new/", filled(prompts="  Many   hands \r\n\r\nA stitch"))
        run = Run.objects.get()
        assert run.prompts == "Many hands\nA stitch"
        edit = f"/runs/{run.slug}/edit/"
        assert "Many hands A stitch" in page(client.get(edit))
        client.post(edit, filled(prompts="Once", text=None))
        run.refresh_from_db()
        assert run.prompt_lines == ["Once"]
        assert run.activity.filter(text__contains="changed the prompts").count() == 1
        for much, status in (("a\nb\nc\nd", 400), ("x" * 201, 400), ("x" * 1_000_000, 413)):
            assert client.post(edit, filled(prompts=much, text=None)).status_code == status
        assert 'name="prompts"' not in page(client.get("/runs/new/?recipe=image_ssl"))

    @pytest.mark.parametrize(("preset", "steps"), [("sahajBERT, paper", 1_000_000), ("sahajBERT, small", 1000)])
    def test_a_preset_states_its_steps(self, organizer: Person, preset: str, steps: int) -> None:
        form = page(as_(organizer).get("/runs/new/", {"recipe": "masked_lm", "preset": preset}))
        assert f'name="target_steps" value="{steps}"' in form

    @pytest.mark.parametrize("recipe", ["causal_lm", "finetune_lora"])
    def test_its_only_button_leads_to_the_next_page(self, organizer: Person, recipe: str) -> None:
        form = page(as_(organizer).get(f"/runs/new/?recipe={recipe}")).split('class="send"')[1]
        assert re.findall(r"<button[^>]*>([^<]+)<", form) == ["Continue"]

    def test_it_is_not_published_before_its_data_are_seen(self, organizer: Person) -> None:
        as_(organizer).post("/runs/new/", filled(publish="1"))
        assert Run.objects.get().state == "draft"

    @pytest.mark.parametrize(
        ("field", "changes", "words"),
        [
            ("text", {"content": b""}, "(E303). The file is empty."),
            (
                "text",
                {"objective": "image_ssl"},
                "(E377). proverbs.txt does not fit this recipe, which needs a zip or tar of images",
            ),
            ("text", {"target_batch": "100000"}, "(E307). The dataset yields"),
            ("layers", {"layers": "65"}, "(E301). The recipe is not valid: layers must be between 1 and 64."),
            ("width", {"width": "65"}, "(E301). The recipe is not valid: width 65 is not a multiple of heads 4."),
            ("micro_batch", {"micro_batch": "8"}, "(E301). The recipe is not valid: micro batch 8"),
            (
                "warmup_steps",
                {"warmup_steps": "5000", "target_steps": "1000"},
                "(E301). The recipe is not valid: warm-up",
            ),
            ("may_share", {"may_share": None}, "Confirm that you may share it."),
            ("licence", {"licence": ""}, "Enter the licence."),
            ("family", {"family": "os.system"}, "Select a valid choice."),
        ],
    )
    def test_an_error_stands_beside_its_field_and_nothing_is_kept(
        self, organizer: Person, field: str, changes: dict[str, Any], words: str
    ) -> None:
        answer = as_(organizer).post("/runs/new/", filled(**changes))
        block = next(part for part in re.split(r'<div class="field', page(answer))[1:] if f'name="{field}"' in part)
        assert answer.status_code == 400
        assert words in block
        assert not Run.objects.exists()
        assert not Dataset.objects.exists()

    def test_an_empty_form_names_only_what_is_missing(self, organizer: Person) -> None:
        answer = as_(organizer).post("/runs/new/", {"objective": "causal_lm"})
        assert sorted(answer.context["form"].errors) == ["may_share", "text", "title"]
        assert "3 fields need your attention" in page(answer)
        answer = as_(organizer).post("/runs/new/", {"objective": "causal_lm", "visibility": "secret"})
        assert "visibility" in answer.context["form"].errors

    @pytest.mark.parametrize("made", [draft, opened])
    def test_visibility_that_is_not_sent_stays(self, organizer: Person, made: Callable[..., Run]) -> None:
        run = made(organizer, visibility=Run.Visibility.PRIVATE)
        as_(organizer).post(f"/runs/{run.slug}/edit/", filled(visibility=None, text=None, title="Sayings"))
        run.refresh_from_db()
        assert (run.title, run.visibility) == ("Sayings", Run.Visibility.PRIVATE)

    @pytest.mark.parametrize(("size", "goal"), [("An evening with ten laptops", 10), ("", None)])
    def test_a_size_brings_its_number_of_people(self, organizer: Person, size: str, goal: int | None) -> None:
        as_(organizer).post("/runs/new/", filled(size=size, shown_size=size))
        assert Run.objects.get().people_goal == goal

    def test_what_is_trained_is_chosen_first(self, organizer: Person) -> None:
        client = as_(organizer)
        text = page(client.get("/runs/new/?recipe=masked_lm&preset=sahajBERT%2C+small"))
        assert 'name="masked"' in text
        assert '<input type="number" name="vocab" value="4000"' in text
        assert 'name="objective" value="masked_lm"' in text
        assert text.count('aria-current="page"') == 1
        assert re.search(r'name="size" value="sahajBERT, small"[^>]* checked', text)
        assert 'name="masked"' not in page(client.get("/runs/new/?recipe=chess"))

    def test_a_form_makes_a_draft_of_its_kind(self, organizer: Person) -> None:
        values = filled(content=TEXT * 10, objective="masked_lm", family="bert", context="32", masked="0.2", layers="3")
        as_(organizer).post("/runs/new/", values)
        run = Run.objects.get()
        recipe = run.parsed_recipe
        assert isinstance(recipe, MaskedLM)
        assert (recipe.model.family, recipe.model.layers, recipe.masked) == ("bert", 3, 0.2)
        assert json.loads(run.dataset.preparation) == {
            "data": "text",
            "vocab": 4000,
            "tokenizer": "unigram",
            "sentences": True,
        }

    def test_a_file_over_the_limit_is_refused(self, organizer: Person, settings: Any) -> None:
        settings.UPLOAD_LIMIT_MB = 1
        answer = as_(organizer).post("/runs/new/", filled(content=b"x" * 1_000_001))
        assert "(E304). The upload is 2 MB; this site accepts up to 1 MB." in page(answer)
        assert not Dataset.objects.exists()


class TestRunPage:
    def test_a_draft_says_what_it_waits_for(self, client: Client, organizer: Person) -> None:
        run = draft(organizer)
        text = page(client.get(f"/runs/{run.slug}/"))
        assert "volunteers can join once Amina publishes it" in text
        assert "Join in" not in text
        assert "refresh" not in text
        stage = text[: text.index('id="part-result"')]
        offered = ["Are you Amina? Log in to publish it.", "All runs"]
        assert re.findall(r'<a class="button[^>]*>([^<]+)<', stage) == offered
        assert f'href="/login/?next=/runs/{run.slug}/"' in stage
        assert "hero-curve" not in text
        assert "language model of 2 layers of width" in text

    def test_a_model_of_one_layer_has_one_layer(self, client: Client, organizer: Person) -> None:
        recipe = CausalLM(model=Model(layers=1, context=8), target_batch=1, micro_batch=1)
        run = draft(organizer, recipe=encode_recipe(recipe).decode())
        text = page(client.get(f"/runs/{run.slug}/"))
        assert "language model of 1 layer of width" in text
        assert "1 sample per step" in text

    def test_a_loss_is_said_to_be_a_mean_over_what_it_is(
        self, client: Client, organizer: Person, laptop: Owned
    ) -> None:
        run = opened(organizer, recipe=encode_recipe(MaskedLM()).decode())
        committed(run, (laptop.machine, 4))
        committed(run, (laptop.machine, 4), loss=4.0)
        text = page(client.get(f"/runs/{run.slug}/"))
        assert "per token" not in text
        assert "from 5.00 to 4.00 nats per masked word" in text

    def test_an_open_run_without_volunteers_says_so(self, client: Client, run: Run) -> None:
        text = page(client.get(f"/runs/{run.slug}/"))
        assert "Nobody is training right now" in text
        stage = text[: text.index('id="part-result"')]
        assert "manyhands join http://testserver/runs/proverbs/" in stage
        assert "You need about" in stage
        assert text.count("You need about") == 1
        assert '<noscript><meta http-equiv="refresh" content="5"></noscript>' in text

    @pytest.mark.parametrize(("state", "is_offered"), [("open", True), ("paused", False)])
    def test_one_that_stands_still_is_not_offered(self, client: Client, run: Run, state: str, is_offered: bool) -> None:
        Run.objects.filter(pk=run.pk).update(state=state)
        head, rest = client.get("/runs/proverbs/").content.decode().split('id="part-result"', 1)
        assert ("Run this command to join" in head) is is_offered
        assert 'id="join"' in rest, "how it is done stands below"

    def test_who_trains_may_add_another_machine(self, run: Run, laptop: Owned, organizer: Person) -> None:
        member: dict[str, object] = {"peer": laptop.machine.peer_id, "name": laptop.machine.person.username}
        member |= {"role": "trainer", "state": "ready", "done": 0, "samples_per_s": 1.0}
        Presence.objects.create(run=run, phase="accumulate", done=0, target=4, members=[member])
        folded = '<details><summary id="join-title">Add another machine</summary>'
        for reader, is_there in ((laptop.machine.person, True), (organizer, False)):
            text = page(as_(reader).get(f"/runs/{run.slug}/"))
            assert (folded in text) is is_there
            assert ('<h2 id="join-title">Join in</h2>' in text) is not is_there

    def test_a_failed_run_says_what_happened_and_what_is_kept(self, run: Run, laptop: Owned) -> None:
        committed(run, (laptop.machine, 4))
        Run.objects.filter(pk=run.pk).update(state="finishing")
        fault = "E312: The release could not be made. Run `make setup` <now>."
        Release.objects.create(run=run, state=Release.State.FAILED, fault=fault)
        for reader, may in ((run.organizer, True), (laptop.machine.person, False)):
            text = page(as_(reader).get(f"/runs/{run.slug}/"))
            assert ("Run <code>make setup</code> &lt;now&gt;." in text) is may
            said = "The release could not be made (E312). Nothing was lost. The site will try again"
            assert (said in text) is not may
            assert "The 1 step and everyone's credit are kept." in text
            assert ("ask the operator of this site" in text) is may

    def test_a_citation_counts_the_organizer_once(self, run: Run, laptop: Owned) -> None:
        Release.objects.create(run=run, state=Release.State.READY, index=1, step=1, archive="a.zip", files=[])
        committed(run, (laptop.machine, 4), (owned(run.organizer).machine, 4))
        for reader in (run.organizer, laptop.machine.person):
            assert "Amina and 1 volunteer: <bdi>" in page(as_(reader).get(f"/runs/{run.slug}/"))

    def test_a_run_paused_before_its_first_step_can_be_joined(self, run: Run) -> None:
        Run.objects.filter(pk=run.pk).update(state="paused")
        assert "Join now and your machine waits." in page(Client().get(f"/runs/{run.slug}/"))

    def test_a_run_that_finishes_says_what_comes_next(self, run: Run, laptop: Owned) -> None:
        committed(run, (laptop.machine, 4))
        Run.objects.filter(pk=run.pk).update(state="finishing")
        text = page(as_(laptop.machine.person).get(f"/runs/{run.slug}/"))
        assert "The site checks the final model and packages it." in text
        assert "Run this command to join" not in text

    def test_a_paused_run_says_why_and_its_organizer_can_resume_it(
        self, run: Run, laptop: Owned, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        committed(run, (laptop.machine, 4))
        monkeypatch.setattr(strokes, "hero", None)  # nothing draws what the page does not show
        Run.objects.filter(pk=run.pk).update(state="paused", announcement="We go on at nine.")
        resume = '<button class="main" name="action" value="resume">Resume the run</button>'
        for reader, may in ((run.organizer, True), (laptop.machine.person, False)):
            text = page(as_(reader).get(f"/runs/{run.slug}/"))
            assert '<p class="words" dir="auto">We go on at nine.</p>' in text
            assert "hero-curve" not in text
            assert text.count('id="part-loss"') == 1, "the loss is drawn once"
            assert text.index('id="part-loss"') < text.index('id="part-result"'), "on the stage"
            assert (resume in text) is may
            assert ("Amina can resume it." in text) is not may

    def test_a_run_whose_loss_rose_says_so_and_offers_its_managers_to_roll_back(
        self, run: Run, laptop: Owned, client: Client
    ) -> None:
        committed(run, (laptop.machine, 8))
        reason = "the loss rose from 3 to 5 by step 1; roll back to an earlier snapshot, or resume"
        Run.objects.filter(pk=run.pk).update(state="paused", waiting_for=reason)
        assert f"Paused by the site at step 1: {reason}." in page(client.get("/runs/proverbs/"))
        link = f'href="/runs/{run.slug}/manage/#rollback"'
        assert link not in page(client.get("/runs/proverbs/"))
        assert link in page(as_(run.organizer).get("/runs/proverbs/"))

    def test_a_run_paused_before_its_first_step_is_laid_out_like_a_waiting_one(self, client: Client, run: Run) -> None:
        Run.objects.filter(pk=run.pk).update(state="paused")
        text = page(client.get(f"/runs/{run.slug}/"))
        stage = text[: text.index('id="part-result"')]
        assert '<div class="gathering">' in stage
        assert "Amina can resume it." in stage
        assert "What it takes" in stage
        assert re.findall(r'<a class="button[^>]*>([^<]+)<', stage) == ["Follow by RSS"]

    @pytest.mark.parametrize("state", ["open", "paused", "finishing", "finished"])
    def test_what_can_be_done_comes_before_the_chart(self, client: Client, run: Run, laptop: Owned, state: str) -> None:
        committed(run, (laptop.machine, 4))
        Release.objects.create(run=run, state="ready", files=[], archive="proverbs.zip", step=0)
        Run.objects.filter(pk=run.pk).update(state=state)
        text = page(client.get(f"/runs/{run.slug}/"))
        assert text.index('id="part-head"') < text.index('class="mine-card"') < text.index('id="part-loss"')

    def test_a_running_run_shows_curve_people_and_step(self, client: Client, run: Run, laptop: Owned) -> None:
        committed(run, (laptop.machine, 4), loss=7.25)
        committed(run, (laptop.machine, 4), loss=6.5)
        run.log.filter(step=1).update(at=timezone.now() - timedelta(seconds=60))
        peer = {
            "peer": laptop.machine.peer_id,
            "name": "Teo",
            "role": "trainer",
            "state": "ready",
            "done": 2,
            "samples_per_s": 3.5,
        }
        Presence.objects.create(run=run, phase="accumulate", done=2, target=4, members=[peer])
        text = page(client.get(f"/runs/{run.slug}/"))
        assert "1 person on 1 machine is working on step 3." in text
        assert '<eased-number class="big figure" digits="2" value="6.8750">6.88</eased-number>' in text
        assert "Training loss fell from 7.25 to 6.50 nats per token." in text
        assert 'guessing by frequency <span class="figure" data-panel="as=loss">6.10</span>' in text
        assert 'Teo <span class="now">● now</span>' in text
        assert ">2</eased-number> / 4</span> samples · gathering samples" in text
        assert "Step 2 of 100" in text
        assert 'class="no-bar"' not in text
        run.log.filter(step=1).update(at=timezone.now() - timedelta(seconds=2))
        text = page(client.get(f"/runs/{run.slug}/"))
        assert '<eased-number value="8">8</eased-number></span> samples by person' in text

    def test_loss_is_shown_as_perplexity_on_request_if_known(self, client: Client, run: Run, laptop: Owned) -> None:
        committed(run, (laptop.machine, 4))
        known = {"index": 1, "step": 1, "state_digest": "1" * 16, "file": "f" * 64, "size": 5, "heldout_loss": 3.3}
        snapshot = run.snapshots.create(**known)
        assert "Show perplexity" not in page(client.get("/runs/proverbs/")), "its recipe does not say so"
        snapshot.heldout_figures = {"perplexity": 27.1}
        snapshot.save()
        for query, shown, other in (("", "loss", "perplexity"), ("?as=perplexity", "perplexity", "loss")):
            text = page(client.get(f"/runs/proverbs/{query}"))
            assert f'<div data-panel="as={shown}"> <h2' in text
            assert f'<div data-panel="as={other}" hidden> <h2' in text
            assert f'data-tab="as={other}" data-panel="as={shown}">Show {other}</a>' in text
        assert 'Held-out perplexity <span class="big figure">27.1</span>' in text

    def test_further_charts_are_pictures_of_their_own_address(self, client: Client, run: Run, laptop: Owned) -> None:
        assert 'aria-label="Charts"' not in page(client.get("/runs/proverbs/")), "nothing to choose from yet"
        committed(run, (laptop.machine, 4), loss=6.5)
        run.log.update(bytes_averaged=12_400_000)
        shown, loss = "Gradients averaged in step 1: 12.4 MB.", "Training loss is 6.50 nats per token at step 1."
        text = page(client.get("/runs/proverbs/"))
        assert f'<span data-panel="chart=bytes" hidden>{shown}</span>' in text
        assert '<a href="?chart=bytes#loss" data-tab="chart=bytes">Data per step</a>' in text
        assert "Learning rate</a>" not in text, "rows from before do not have it"
        text = page(client.get("/runs/proverbs/?chart=bytes"))
        assert '<a href="?chart=bytes#loss" data-tab="chart=bytes" aria-current="true">Data per step</a>' in text
        assert text.count(f'role="img" aria-label="{shown}"') == 2, "wide and narrow"
        assert f'<span data-panel="chart=bytes">{shown}</span>' in text
        assert 'class="unigram"' not in text
        for other in ("rate", "<script>"):
            assert f'<span data-panel="chart=loss">{loss}' in page(client.get("/runs/proverbs/", {"chart": other}))

    def test_trainers_see_their_machines_instead_of_an_invitation(self, run: Run, laptop: Owned) -> None:
        path, teo = f"/runs/{run.slug}/", as_(laptop.machine.person)
        peer = {"peer": "a" * 32, "name": "Teo", "role": "trainer", "state": "ready", "done": 0, "samples_per_s": 1.0}
        Presence.objects.create(run=run, phase="accumulate", done=0, target=4, members=[peer])
        assert "Your machine: no samples yet" in page(teo.get(path))
        committed(run, (laptop.machine, 1204))
        LogEntry.objects.update(at=timezone.now() - timedelta(days=2))
        text = page(teo.get(path))
        assert '<p class="mine-now">Your machine: 1,204 samples, 1st</p>' in text
        assert "mine-now" not in page(Client().get(path))
        assert "mine-now" not in page(as_(run.organizer).get(path))
        Presence.objects.update(members=[peer, {**peer, "peer": "b" * 32}])
        assert "Your 2 machines: 1,204 samples, 1st" in page(teo.get(path))
        Presence.objects.update(members=[{**peer, "role": "relay"}])
        assert "mine-now" not in page(teo.get(path)), "it gives no samples"

    def test_readers_first_credit_is_news_until_it_is_old_or_one_of_many(self, run: Run, laptop: Owned) -> None:
        path, teo = f"/runs/{run.slug}/own/", as_(laptop.machine.person)
        news, others = "You’re in. Your first 64 samples are part of step 2.", (Client(), as_(run.organizer))

        def is_news(*, after: timedelta) -> bool:
            LogEntry.objects.filter(step=2).update(at=timezone.now() - after)
            return news in page(teo.get(path))

        committed(run, (owned(run.organizer).machine, 128))
        assert "You’re in" not in page(teo.get(path)), "nothing of Teo's is committed"
        committed(run, (laptop.machine, 40), (owned(laptop.machine.person, "desk").machine, 24))
        assert news in page(teo.get(f"/runs/{run.slug}/"))
        assert [is_news(after=timedelta(**age)) for age in ({"hours": 23}, {"hours": 25})] == [True, False]
        assert [news in page(other.get(path)) for other in others] == [False, False]
        committed(run, (laptop.machine, 9))
        assert [is_news(after=timedelta(**age)) for age in ({"minutes": 1}, {"minutes": 3})] == [True, False]
        LogEntry.objects.filter(step__gte=2).update(is_undone=True)
        assert not is_news(after=timedelta()), "a rollback took it out of the model"

    def test_parts_for_the_reader_keep_the_line_that_joins(self, run: Run, volunteer: Person) -> None:
        line = "<code>manyhands join http://testserver/runs/proverbs/</code>"
        for path in (f"/runs/{run.slug}/", f"/runs/{run.slug}/own/"):
            mine = page(as_(volunteer).get(path)).partition('id="part-mine"')[2].partition("part-you")[0]
            assert line in mine, path

    def test_trainer_of_one_machine_can_pause_it_here(self, run: Run, laptop: Owned) -> None:
        path, teo = f"/runs/{run.slug}/", as_(laptop.machine.person)
        peer = {"peer": laptop.machine.peer_id, "name": "Teo", "role": "trainer", "state": "ready", "done": 0}
        facts = {"phase": "accumulate", "done": 0, "target": 4, "members": [{**peer, "samples_per_s": 1.0}]}
        Presence.objects.create(run=run, **facts)
        text = page(teo.get(path))
        assert f'action="/machines/{laptop.machine.pk}/"' in text
        assert '<button class="plain" name="pause" value="2h">For 2 hours</button>' in text
        assert 'name="pause"' not in page(as_(run.organizer).get(path))

    def test_owner_of_a_paused_machine_is_offered_to_resume_it(self, run: Run, laptop: Owned) -> None:
        path, teo = f"/runs/{run.slug}/", as_(laptop.machine.person)
        resume = f'action="/machines/{laptop.machine.pk}/"'
        machine_control.change(machine=laptop.machine, to=lambda wanted: replace(wanted, pause=True))
        assert resume not in page(teo.get(path)), "its agent does not run, so it needs the command"
        report = MachineReport(run=run.run_id, revision=1, why=Why.PAUSED)
        machine_control.take_report(machine_id=laptop.machine.peer_id, report=report)
        text = page(teo.get(path))
        assert resume in text
        assert "Resume laptop</button>" in text
        assert ">Join in</a>" not in text
        assert resume not in page(as_(run.organizer).get(path))
        machine_control.change(machine=laptop.machine, to=lambda wanted: replace(wanted, pause=False))
        assert resume not in page(teo.get(path))

    def test_a_finished_run_begins_with_its_model_and_thanks(self, client: Client, run: Run, laptop: Owned) -> None:
        committed(run, (laptop.machine, 300), (owned(run.organizer).machine, 100))
        Release.objects.create(
            run=run, state="ready", files=[], archive="proverbs.zip", sample="A bird in the hand", step=0
        )
        Run.objects.filter(pk=run.pk).update(state=Run.State.FINISHED)
        text = page(client.get(f"/runs/{run.slug}/"))
        places = [
            text.index(words) for words in ("Download the model", "A bird in the hand", "Thank you.", 'id="loss"')
        ]
        assert places == sorted(places)
        assert text.count('id="home"') == 1
        assert "400 samples from 2 people on 2 machines." in text
        assert "You contributed" not in text
        own = page(as_(laptop.machine.person).get(f"/runs/{run.slug}/"))
        assert "You contributed 300 of the samples (75.0%)." in own
        facts: dict[str, Any] = {
            "state_digest": "",
            "file": "f" * 64,
            "size": 1,
            "written": [["A bird", " in the hand"]],
        }
        Snapshot.objects.create(run=run, index=1, step=0, **facts)
        best = '<blockquote class="said best" dir="auto"><strong>A bird</strong> in the hand</blockquote>'
        assert best in page(client.get(f"/runs/{run.slug}/"))

    def test_people_who_are_gone_are_not_shown_as_here(self, client: Client, run: Run) -> None:
        Presence.objects.create(run=run, phase="accumulate", members=[])
        Presence.objects.update(at=timezone.now() - timedelta(minutes=5))
        assert "Nobody is training right now" in page(client.get(f"/runs/{run.slug}/"))

    def test_a_finished_run_offers_its_files_with_digests(self, client: Client, run: Run) -> None:
        Run.objects.update(state="finished")
        file = {"name": "proverbs.zip", "size": 4_500_000, "sha256": "c" * 64}
        Release.objects.create(run=run, state="ready", files=[file], archive="proverbs.zip", sample="Many <hands>")
        text = page(client.get(f"/runs/{run.slug}/"))
        stage = text[: text.index('id="part-result"')]
        assert 'class="button main" href="/api/v1/runs/proverbs/release/proverbs.zip"' in stage
        assert "64 parameters · 4.5 MB" in stage
        assert text.count('class="button main"') == 1
        assert "c" * 64 in text
        assert "Many &lt;hands&gt;" in text
        assert "refresh" not in text


def test_what_a_model_wrote_is_shown_without_gaps(client: Client, run: Run, laptop: Owned) -> None:
    committed(run, (laptop.machine, 4))
    written = [["Once", "\n\n upon a\ufffd\n\n\n\ntime  \n\ufffd\n"]]
    Snapshot.objects.create(run=run, index=1, step=1, state_digest="", file="f" * 64, size=1, written=written)
    text = client.get("/runs/proverbs/").content.decode()
    assert text.count("<strong>Once</strong>\n upon a\ntime</blockquote>") == 2, "on the stage, and with all texts"
    assert "broken characters are left out" in text


class TestManaging:
    @pytest.mark.parametrize(
        ("action", "before", "after"),
        [("pause", "open", "paused"), ("resume", "paused", "open"), ("open", "draft", "preparing")],
    )
    def test_the_organizer_opens_pauses_and_resumes(
        self, run: Run, organizer: Person, action: str, before: str, after: str
    ) -> None:
        Run.objects.update(state=before)
        as_(organizer).post("/runs/proverbs/manage/", {"action": action, "seen": understood(run.dataset)})
        run.refresh_from_db()
        assert run.state == after

    def test_others_do_not(self, run: Run, stranger: Person, operator: Person) -> None:
        for person in (stranger, operator):
            answer = as_(person).post("/runs/proverbs/manage/", {"action": "pause"})
            assert answer.status_code == 403
            assert "Your role in this run does not allow this" in page(answer)
        assert Client().get("/runs/proverbs/manage/")["Location"] == "/login/?next=/runs/proverbs/manage/"
        run.refresh_from_db()
        assert run.state == "open"

    def test_what_stands_in_the_way_is_told_with_its_number(self, organizer: Person) -> None:
        run = draft(organizer)
        run.dataset.shards.update(tokens=8)
        seen = understood(run.dataset)
        answer = as_(organizer).post("/runs/proverbs/manage/", {"action": "open", "seen": seen})
        assert "(E307). The dataset yields only 1 samples, and a step needs 4." in page(answer)

    def test_an_action_that_does_not_exist(self, run: Run, organizer: Person) -> None:
        assert as_(organizer).post("/runs/proverbs/manage/", {"action": "delete"}).status_code == 404


class TestTheSite:
    def test_a_run_that_is_not_there_has_a_number(self, client: Client, db: None) -> None:
        answer = client.get("/runs/none/")
        assert answer.status_code == 404
        assert "<h1>Run not found</h1>" in page(answer)
        assert "E305" in page(answer)

    @pytest.mark.parametrize("path", ["/", "/login/", "/nothing/", "/api/v1/runs"])
    def test_every_answer_forbids_what_is_inline(self, client: Client, db: None, path: str) -> None:
        policy = client.get(path)["Content-Security-Policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy

    def test_no_page_has_anything_inline(self, run: Run, organizer: Person, laptop: Owned) -> None:
        committed(run, (laptop.machine, 4))
        for path in ("/", "/machines/", "/runs/new/", "/runs/proverbs/", "/runs/proverbs/manage/", "/nothing/"):
            assert not re.search(
                r"<script(?! type=\"module\" src=\"/static/)|<style|style=|\son\w+=|javascript:",
                page(as_(organizer).get(path)),
            )

    def test_every_field_has_a_label(self, run: Run, organizer: Person, laptop: Owned) -> None:
        laptop.machine.person = organizer
        laptop.machine.save()
        for path in ("/machines/", "/runs/new/", "/runs/proverbs/manage/"):
            text = page(as_(organizer).get(path))
            for tag in re.findall(r'<(?:input|select|textarea)(?! type="hidden")[^>]*>', text):
                name = re.search(r'id="([^"]+)"', tag)
                is_inside = f"<label>{tag}" in text
                assert is_inside or "aria-label=" in tag or (name and f'for="{name[1]}"' in text), tag

    def test_secrets_are_not_in_the_api_or_pages(self, run: Run, volunteer: Person) -> None:
        secrets = [
            create_machine_token(person=volunteer).secret,
            create_token(person=volunteer, purpose=Token.Purpose.API).secret,
        ]
        text = page(as_(volunteer).get("/machines/")) + page(as_(volunteer).get("/runs/proverbs/"))
        assert not any(secret in text for secret in secrets)
