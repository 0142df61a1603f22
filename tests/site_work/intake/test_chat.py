"""Conversations: how rows hold them, how a chat template renders them, and the limits of a template."""

import io
import json
import signal
import sys
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer
from transformers import AutoTokenizer

from peer_agent.protocol.errors import Problem
from peer_agent.recipes.finetune_lora.preparation import AdaptedText
from peer_agent.recipes.text.tokens import load_wide_shard
from peer_agent.site_work import brought_model
from peer_agent.site_work.intake import chat as module
from peer_agent.site_work.intake import texts as texts_module
from peer_agent.site_work.intake.chat import ChatTemplate, Writer
from peer_agent.site_work.intake.verdict import Verdict
from tests.recipes.finetune_lora.small_base import change, model_folder, zipped
from tests.site_work.intake.made import codes_of, json_lines, passages, put, read, table

CHATML = """{%- for message in messages %}
    {%- if message.role not in ("system", "user", "assistant") %}
        {{- raise_exception("Unknown role " ~ message.role) }}
    {%- endif %}
    {{- "<|" + message.role + "|>" + message.content | trim + eos_token }}
{%- endfor %}"""
SAID = [{"role": "user", "content": " What is 2 + 2? "}, {"role": "assistant", "content": "Vier. ünï 🤝"}]
TEXT = "<|user|>What is 2 + 2?<|endoftext|><|assistant|>Vier. ünï 🤝<|endoftext|>"
TEMPLATE, NONE = ChatTemplate(CHATML, {"eos_token": "<|endoftext|>"}), ChatTemplate("", {})
TOOLS = [{"role": "tool", "content": "4"}]
SHARED = [{"from": "human", "value": "What is 2 + 2?"}, {"from": "gpt", "value": "Vier. ünï 🤝"}]
PARTS = [{"role": each["role"], "content": [{"type": "text", "text": each["content"]}]} for each in SAID]


class Nearby(Writer):
    """Renders in this process, because a process of its own takes two seconds to start."""

    def _asked(self, question: bytes) -> bytes:
        from transformers.utils.chat_template_utils import render_jinja_template

        if not self.template.source:
            return super()._asked(question)
        said = module._answer(render_jinja_template, json.loads(question), self.template.source, self.template.special)
        return json.dumps(said).encode()


class Interrupted(BaseException):
    """Stands for the end of the process, as the timer's signal ends it."""


def _interrupt(*_: object) -> None:
    raise Interrupted


def rows(*conversations: Any, field: str = "messages", **more: Any) -> bytes:
    return json_lines(*({field: each, **more} for each in conversations))


def written_out(content: bytes, folder: Path, template: ChatTemplate = TEMPLATE) -> tuple[list[str], Verdict]:
    with Nearby(template) as writer:
        return read(put(folder, "a.jsonl", content), folder, writer=writer)


class TestTemplates:
    def test_the_text_is_what_transformers_renders(self, tmp_path: Path) -> None:
        tokenizer = AutoTokenizer.from_pretrained(model_folder(tmp_path))
        with Writer(TEMPLATE) as writer:
            assert writer.write(SAID) == TEXT
            assert tokenizer.apply_chat_template(SAID, tokenize=False, chat_template=CHATML) == TEXT
            assert writer.write(TOOLS) is None
            assert writer.refusal == "Unknown role tool"
            assert writer.write(SAID[:1]) == "<|user|>What is 2 + 2?<|endoftext|>", "and it goes on"

    @pytest.mark.parametrize(
        ("source", "reason"),
        [
            pytest.param(
                "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
                "took more than 5 s",
                marks=pytest.mark.check,
            ),
            ("{{ 'x' * 3000000000 }}", "took more than 1,024 MB"),
            (
                "{% set n = namespace(x='x' * 99999) %}{% for a in range(99) %}{% set n.x = n.x ~ n.x %}{% endfor %}",
                "took more than 1,024 MB",
            ),
        ],
    )
    def test_one_that_takes_too_much_is_ended(self, source: str, reason: str) -> None:
        with Writer(ChatTemplate(source, {})) as writer, pytest.raises(Problem, match=f"E394.*{reason}"):
            writer.write(SAID)

    def test_one_that_runs_too_long_is_interrupted(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(module, "RENDER_S", 0.05)
        monkeypatch.setattr(module, "_bound_memory", lambda: None)
        loops = "{% for a in range(99999) %}{% for b in range(50) %}{% endfor %}{% endfor %}"
        questions = io.BytesIO(module._line([loops, {}]) + module._line(SAID))
        before = signal.signal(signal.SIGALRM, _interrupt)
        try:
            with pytest.raises(Interrupted):
                module.main(questions, io.BytesIO())
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before)

    def test_one_that_is_always_slow_is_given_up(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(module, "LONG_S", 0.2)
        monkeypatch.setattr(module, "MEAN_S", 0.001)
        with Writer(ChatTemplate("{% for a in range(99999) %}{{ a }}{% endfor %}", {})) as writer:
            with pytest.raises(Problem, match=r"E394.*1 ms in the mean"):
                list(map(writer.write, [SAID] * 1000))
            assert writer._written > 1, "a few may take long"

    def test_what_it_repeats_is_limited(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(texts_module, "UNPACKED_LEAST", 1 << 20)
        template = ChatTemplate("{{ 'x' * 1000000 }}", {})
        assert len(written_out(rows(SAID), tmp_path, template)[0]) > 1
        with pytest.raises(Problem, match=r"E395.*more than 1 MB"):
            written_out(rows(*[SAID] * 5), tmp_path, template)

    @pytest.mark.parametrize(
        ("source", "words"),
        [
            ("{% for %}", "xpected"),
            ("{{ messages[0].content.__class__.__mro__ }}", "unsafe"),
            ("{{ cycler.__init__.__globals__ }}", "unsafe"),
            ("{{ messages.nothing.there }}", "no attribute"),
            ("{{ 'x' * 9000000 }}", "it is too long"),
        ],
    )
    def test_one_that_is_wrong_refuses(self, source: str, words: str) -> None:
        with Nearby(ChatTemplate(source, {})) as writer:
            assert writer.write(SAID) is None
            assert words in writer.refusal

    def test_a_process_that_does_not_start_is_told(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(sys, "executable", "/bin/false")
        with Writer(TEMPLATE) as writer, pytest.raises(Problem, match=r"E394.*does not start"):
            writer.write(SAID)

    @pytest.mark.parametrize(
        ("template", "said", "code"), [(NONE, SAID, "E393"), (TEMPLATE, TOOLS, r"E394.*Unknown role tool")]
    )
    def test_without_a_usable_one_the_source_is_refused(
        self, tmp_path: Path, template: ChatTemplate, said: Any, code: str
    ) -> None:
        with pytest.raises(Problem, match=code):
            written_out(rows(*[said] * 30), tmp_path, template)


class TestRows:
    @pytest.mark.parametrize("kind", ["json", "parquet"])
    @pytest.mark.parametrize(
        ("field", "said"), [("messages", SAID), ("conversations", SHARED), ("dialogue", SAID), ("messages", PARTS)]
    )
    def test_each_conversation_is_a_document(self, tmp_path: Path, kind: str, field: str, said: Any) -> None:
        made = [{field: said, "text": "A text beside it."}] * 30
        found, verdict = written_out(json_lines(*made) if kind == "json" else table(made), tmp_path)
        assert found == [TEXT] * 30
        assert (verdict.field, verdict.rows) == (field, 30)

    def test_a_conversation_is_not_cut_as_a_text_is(self, tmp_path: Path) -> None:
        long = [{"role": "user", "content": "words and words. " * 300}]
        assert len(written_out(rows(long), tmp_path)[0]) == 1
        longer = [{"role": "user", "content": "words and words. " * 5000}]
        assert len(written_out(rows(longer), tmp_path)[0]) > 20

    def test_what_a_template_refuses_is_counted(self, tmp_path: Path) -> None:
        empty = [{"role": "user", "content": None}]
        found, verdict = written_out(rows(SAID, TOOLS, [], [{"id": 5}], [5], empty, SAID) + b"{\n", tmp_path)
        assert found == [TEXT, "<|user|><|endoftext|>", TEXT]
        assert verdict.left_out == {"refused by the template": 1, "without text": 3, "broken": 1}
        assert verdict.examples["refused by the template"] == ["row 2: Unknown role tool"]

    def test_messages_with_images_are_counted(self, tmp_path: Path) -> None:
        seen = [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]
        found, verdict = written_out(rows(SAID, seen, SAID), tmp_path)
        assert found == [TEXT] * 2
        assert verdict.left_out == {"with parts that are not text": 1}

    def test_a_list_that_is_no_conversation_spoils_no_row(self, tmp_path: Path) -> None:
        found, _ = written_out(rows(*[[5, 6]] * 30, text="A text."), tmp_path)
        assert found == ["A text."] * 30

    def test_the_form_of_most_rows_is_taken(self, tmp_path: Path) -> None:
        texts = [f"Text {number}." for number in range(30)]
        found, _ = written_out(json_lines(*({"text": text} for text in texts)) + rows(SAID), tmp_path)
        assert found == texts

    def test_texts_are_taken_if_there_is_no_template(self, tmp_path: Path) -> None:
        said = rows(*[SAID] * 30, text="A text beside it, with some more words.")
        assert written_out(said, tmp_path, NONE)[0] == ["A text beside it, with some more words."] * 30
        with Writer(NONE) as writer:
            assert read(put(tmp_path, "a.txt", "Plain words.\n" * 30), tmp_path, writer=writer)[0]

    @pytest.mark.parametrize("kind", ["json", "parquet"])
    @pytest.mark.parametrize("has_writer", [False, True])
    def test_a_field_of_that_name_may_have_texts(self, tmp_path: Path, kind: str, *, has_writer: bool) -> None:
        made = [{"messages": "A text."}] * 30
        path = put(tmp_path, "a", json_lines(*made) if kind == "json" else table(made))
        with Nearby(TEMPLATE) as writer:
            assert read(path, tmp_path, writer=writer if has_writer else None)[0] == ["A text."] * 30

    def test_without_a_model_roles_are_written_plainly(self, tmp_path: Path) -> None:
        found, verdict = read(put(tmp_path, "a.jsonl", rows(*[SHARED] * 3)), tmp_path)
        assert found == ["user: What is 2 + 2?\n\nassistant: Vier. ünï 🤝"] * 3
        assert codes_of(verdict)[0] == "E436"

    def test_identifiers_are_not_preferred_to_conversations(self, tmp_path: Path) -> None:
        """Datasets in the form of ShareGPT have an id beside each conversation."""
        said = ([{"from": "human", "value": "Go on."}, {"from": "gpt", "value": text}] for text in passages(30))
        content = json_lines(*({"id": f"identity_{n}", "conversations": each} for n, each in enumerate(said)))
        found, verdict = read(put(tmp_path, "a.jsonl", content), tmp_path)
        assert verdict.field == "conversations"
        assert "user: Go on." in found[0]


def test_a_base_model_is_adapted_to_conversations(tmp_path: Path) -> None:
    folder = model_folder(tmp_path / "base")
    change(folder / "tokenizer_config.json", {"chat_template": CHATML})
    path = put(tmp_path, "a.jsonl", rows(*[SAID] * 400))
    made = brought_model.prepare(path, tmp_path / "out", AdaptedText(), base=zipped(folder))
    assert "the field 'messages' of 400 rows" in made.ready
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    shard = load_wide_shard(tmp_path / "out" / "shards" / f"{made.shards[0].digest}.safetensors")
    end = tokenizer.token_to_id("<|endoftext|>")
    assert end is not None
    document = tokenizer.encode(TEXT, add_special_tokens=False).ids
    assert document.count(end) == 2, "its special tokens are tokens"
    assert shard[: len(document) + 1].tolist() == [*document, end]
