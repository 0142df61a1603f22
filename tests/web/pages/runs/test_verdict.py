"""The card that shows what was understood of a run's data, and publishing only what was seen."""

import re

import pytest

from accounts.models import Person
from jobs.queue import Kind
from peer_agent.protocol.errors import Fault
from peer_agent.site_work.intake.verdict import Field, Finding
from runs.models import Dataset, Run
from tests.jobs.requests import requested
from tests.runs.factories import draft, pictured, understood
from tests.web.browsing import as_, page
from tests.web.requesters import given_role

MANAGE = "/runs/proverbs/manage/"
FIELDS = [Field("body", 900, 40_000, "Many <b>hands</b>"), Field("title", 1200, 9000, "Proverb 1")]
PIECES = ["Many <b>hands</b>", "مثل", "third", "fourth", ""]
SEEN = re.compile(r'name="seen" value="([^"]*)"')


@pytest.fixture
def proverbs(organizer: Person) -> Run:
    run = draft(organizer)
    noted = Fault.of("E434", name="proverbs.csv", encoding="UTF-16")
    asked = Fault.of("E429", fields="body, title", field="body")
    understood(
        run.dataset,
        format="CSV",
        field="body",
        fields=FIELDS,
        rows=1234,
        left_out={"without text": 300, "too long": 2},
        examples={"without text": ["<i>nothing</i>", "n/a"], "too long": ["Once upon a time"]},
        repeats=17,
        heldout_overlap=0.034,
        pieces=PIECES,
        findings=[Finding("E434", "note", noted.text), Finding("E429", "question", asked.text)],
    )
    Dataset.objects.update(heldout={"digest": "e" * 64, "size": 5000})
    return run


@pytest.fixture
def shown(proverbs: Run) -> str:
    """Return the HTML of the verdict's card."""
    text = page(as_(proverbs.organizer).get(MANAGE))
    return text.split('aria-labelledby="verdict"')[1].split("</section>")[0]


class TestCard:
    def test_it_says_what_was_read(self, shown: str) -> None:
        assert "<dt>Read as</dt><dd>CSV, field <b>body</b></dd>" in shown
        assert "<dt>Rows</dt><dd>1,234</dd>" in shown
        assert "<dt>Repeats</dt><dd>17</dd>" in shown
        assert "5,000 tokens" in shown
        assert "3.4% also in the training part" in shown

    def test_rows_left_out_have_a_reason_and_examples(self, shown: str) -> None:
        assert "<dt>300 without text</dt>" in shown
        assert "&lt;i&gt;nothing&lt;/i&gt;</dd>" in shown
        assert '<dt>2 too long</dt><dd class="quiet" dir="auto">Once upon a time</dd>' in shown

    def test_it_is_in_the_language_of_the_page(self, proverbs: Run) -> None:
        left_out = {"without text in the held-out part": 300, "GIF files": 2, "odd": 1}
        understood(proverbs.dataset, format="JSON and plain text, 3 files; CSV, packed", field="–", left_out=left_out)
        text = page(as_(proverbs.organizer).get(MANAGE, headers={"Accept-Language": "bn"}))
        assert "JSON ও সাধারণ লেখা, 3টি ফাইল; CSV, প্যাক করা" in text
        assert "300 আলাদা রাখা অংশে: লেখা নেই</dt>" in text
        assert "2 GIF ফাইল</dt>" in text
        assert "1 odd</dt>" in text

    def test_it_shows_five_pieces_as_plain_text(self, shown: str) -> None:
        pieces = ["Many &lt;b&gt;hands&lt;/b&gt;", "مثل", "third", "fourth", "(empty lines)"]
        assert re.findall(r'<blockquote dir="auto">([^<]*)</blockquote>', shown) == pieces

    def test_questions_come_first_and_notes_last(self, shown: str) -> None:
        order = ["Several fields with text", "Read as", "<blockquote", "Left out", "Encoding recognised"]
        assert sorted(order, key=shown.index) == order
        assert "The run learns from “body”." in shown

    def test_it_stands_above_the_button_that_publishes(self, proverbs: Run) -> None:
        text = page(as_(proverbs.organizer).get(MANAGE))
        assert text.index('id="verdict"') < text.index("Publish run")

    def test_there_is_none_until_the_data_are_ready(self, proverbs: Run) -> None:
        Dataset.objects.update(state="preparing")
        text = page(as_(proverbs.organizer).get(MANAGE))
        assert 'id="verdict"' not in text
        assert 'disabled aria-describedby="not-yet">Publish run' in text

    def test_an_open_run_shows_it_and_offers_no_other_field(self, run: Run) -> None:
        understood(run.dataset, format="CSV", field="body", fields=FIELDS)
        text = page(as_(run.organizer).get(MANAGE))
        assert "field <b>body</b>" in text
        assert "Use the field" not in text


class TestPublishing:
    @pytest.mark.parametrize("sent", [{}, {"seen": ""}, {"seen": "0123456789abcdef"}])
    def test_unseen_data_are_not_published(self, proverbs: Run, sent: dict[str, str]) -> None:
        answer = as_(proverbs.organizer).post(MANAGE, {"action": "open", **sent})
        assert answer.status_code == 400
        assert "(E445)" in page(answer)
        assert (Run.objects.get().state, requested()) == ("draft", [])

    def test_the_page_publishes_what_it_shows(self, proverbs: Run) -> None:
        client = as_(proverbs.organizer)
        seen = SEEN.search(page(client.get(MANAGE)))
        assert seen is not None
        assert client.post(MANAGE, {"action": "open", "seen": seen[1]})["Location"] == MANAGE
        assert Run.objects.get().state == "preparing"

    def test_an_older_page_does_not_publish_newer_data(self, proverbs: Run) -> None:
        client = as_(proverbs.organizer)
        seen = SEEN.search(page(client.get(MANAGE)))
        assert seen is not None
        understood(proverbs.dataset, format="CSV", field="title", fields=FIELDS)
        answer = client.post(MANAGE, {"action": "open", "seen": seen[1]})
        assert answer.status_code == 400
        assert "field <b>title</b>" in page(answer), "the answer shows what was not seen"
        assert Run.objects.get().state == "draft"


class TestFields:
    def test_another_one_is_a_button_away(self, proverbs: Run) -> None:
        client, choose = as_(proverbs.organizer), f"/runs/proverbs/texts/{proverbs.dataset_id}/field/"
        text = page(client.get(MANAGE))
        assert f'action="{choose}"' in text
        assert 'aria-label="Use the field title"' in text
        assert 'aria-label="Use the field body"' not in text, "it is used now"
        assert client.post(choose, {"field": "title"})["Location"] == MANAGE
        dataset = Dataset.objects.get()
        assert (dataset.field, dataset.state) == ("title", "uploaded")
        assert requested() == [(Kind.PREPARE_DATASET, dataset.pk.hex)]
        assert "chose the field" in proverbs.activity.get().text

    @pytest.mark.parametrize("field", ["", "author", "x" * 10_000])
    def test_an_unknown_one_changes_nothing(self, proverbs: Run, field: str) -> None:
        choose = f"/runs/proverbs/texts/{proverbs.dataset_id}/field/"
        answer = as_(proverbs.organizer).post(choose, {"field": field})
        assert answer.status_code == 400
        assert "(E430)" in page(answer)
        dataset = Dataset.objects.get()
        assert (dataset.field, dataset.state, proverbs.activity.count()) == ("", "ready", 0)


class TestPictures:
    PICTURE = "/runs/proverbs/pictures/1.png"

    @pytest.fixture
    def animals(self, organizer: Person) -> Run:
        run = draft(organizer)
        pictured(run.dataset, "dogs", "cats", rows=24)
        return run

    def test_the_card_shows_them_with_their_classes(self, animals: Run) -> None:
        text = page(as_(animals.organizer).get(MANAGE))
        assert re.findall(r'<img src="([^"?]+)\?[^>]*><span class="quiet"><bdi>([^<]+)', text) == [
            ("/runs/proverbs/pictures/0.png", "cats"),
            (self.PICTURE, "dogs"),
        ]
        assert "<dt>Images</dt><dd>24</dd>" in text
        assert "2 classes</h4>" in text

    def test_those_who_manage_the_run_get_them(self, animals: Run, volunteer: Person) -> None:
        given_role(animals, volunteer, Run.Role.CO_ORGANIZER)
        for person in (animals.organizer, volunteer):
            answer = as_(person).get(self.PICTURE)
            assert (answer["Content-Type"], answer.content) == ("image/png", b"dogs")

    def test_nobody_else_does(self, animals: Run, volunteer: Person, stranger: Person, operator: Person) -> None:
        given_role(animals, volunteer, Run.Role.MODERATOR)
        for person in (volunteer, stranger, operator):
            assert as_(person).get(self.PICTURE).status_code == 403

    @pytest.mark.parametrize("number", ["2", "99999999999999999999", "-1", "x"])
    def test_a_wrong_number_is_not_found(self, animals: Run, number: str) -> None:
        assert as_(animals.organizer).get(f"/runs/proverbs/pictures/{number}.png").status_code == 404


def test_field_can_be_changed_after_it_failed(proverbs: Run) -> None:
    Dataset.objects.update(state="failed", fault_code="E317", fault_text="It is too small.", field="title")
    text = page(as_(proverbs.organizer).get(MANAGE))
    card = text.split('aria-labelledby="verdict"')[1].split("</section>")[0]
    assert 'name="field" value="body"' in card
    assert "Read as" not in card, "nothing of the earlier verdict holds"
