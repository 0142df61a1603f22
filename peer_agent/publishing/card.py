"""A release's model card, which describes the model to people. Its facts come from the site."""

import json
import re
import unicodedata
from collections.abc import Sequence
from typing import Annotated

import msgspec
from msgspec import Meta, Struct

from peer_agent.plot import Loss
from peer_agent.protocol.errors import Problem
from peer_agent.protocol.recipe import Recipe, encode_recipe

ISOLATE, END_ISOLATE = "\u2068", "\u2069"
JOINERS = "\u200c\u200d"  # joiners, without which some scripts are unreadable
UNSEEN = ("Cc", "Cf", "Cs", "Co")
CURVE = "loss-curve.svg"


class Person(Struct, frozen=True):
    """A contributor. `share` is a fraction of all tokens, 0 to 1."""

    name: str
    share: float
    samples: int = 0


class CardFacts(Struct, frozen=True, kw_only=True):
    """A run's facts as reported by the site. `loss` and `unigram_entropy` are in nats per token."""

    slug: Annotated[str, Meta(pattern="^[A-Za-z0-9_-]{1,100}$")]
    title: str
    steps: int
    loss: float
    purpose: str = ""
    address: str = ""
    heldout_loss: float | None = None
    heldout_step: int | None = None  # step of the latest measured snapshot
    heldout_figures: dict[str, float] = {}  # that snapshot's other held-out figures, by name
    best_heldout_loss: float | None = None  # the best of all snapshots up to this one
    best_heldout_step: int | None = None
    is_overfitting: bool = False  # True if held-out loss has risen since its best while training loss fell
    later_heldout_loss: float | None = None  # the latest snapshot's loss, if the run overfitted after this model
    later_heldout_step: int | None = None
    unigram_entropy: float | None = None
    samples: int = 0
    tokens: int = 0
    people: tuple[Person, ...] = ()  # contributors who agreed to be named
    unnamed: int = 0  # number of other contributors
    unnamed_share: float = 0.0  # the other contributors' share of all tokens
    unnamed_samples: int = 0
    points: tuple[Loss, ...] = ()
    data_title: str = ""
    data_licence: str = ""
    data_vouched: str = ""  # who confirmed that the data may be shared, and when
    state_digest: str = ""
    log_digest: str = ""
    snapshot: str = ""
    checked: str = ""  # How the model was verified against the log, in a sentence. Empty if it was not.

    @property
    def contributors(self) -> int:
        return max(len(self.people) + self.unnamed, 1)

    @property
    def has_curve(self) -> bool:
        return len(self.points) > 1


def unfinished(facts: CardFacts) -> CardFacts:
    """Return a snapshot's facts, with a `purpose` that says the run is still in progress."""
    said = f"A snapshot of a run that is still going on: the model after step {facts.steps:,}. {facts.purpose}"
    return msgspec.structs.replace(facts, purpose=said.strip())


def parse_facts(data: bytes) -> CardFacts:
    """Parse the facts from JSON, ignoring unknown fields. Raises Problem E312 if they are malformed."""
    try:
        return msgspec.json.decode(data, type=CardFacts)
    except msgspec.DecodeError as error:
        raise Problem.of("E312", reason=error) from error


def write_card(recipe: Recipe, facts: CardFacts, *, parameters: int) -> str:
    """Return the text of a release's README.md."""
    sections = (
        _front_matter(recipe),
        f"# {plain(facts.title)}",
        paragraph(facts.purpose),
        _summary(recipe, facts, parameters),
        _use(recipe, facts),
        _training(recipe, facts),
        _warning(facts),
        _curve(facts),
        _recipe(recipe),
        _people(facts),
        _proof(facts),
    )
    return "\n\n".join(section for section in sections if section) + "\n"


def plain(text: str) -> str:
    """Return a user's text on one line, escaped for Markdown and HTML. Invisible characters are removed, such as marks
    that change the writing direction. Text with right-to-left letters is isolated, so that it cannot reorder the text
    around it.
    """
    kept = "".join(c for c in " ".join(text.split()) if c in JOINERS or unicodedata.category(c) not in UNSEEN)
    escaped = re.sub(r"([\\`*_\[\]<>|#~!&$:@])", r"\\\1", kept)
    escaped = re.sub(r"\b(www)\.", r"\1\\.", escaped, flags=re.IGNORECASE)
    runs_left = any(unicodedata.bidirectional(c) in ("R", "AL", "AN") for c in kept)
    return f"{ISOLATE}{escaped}{END_ISOLATE}" if runs_left else escaped


def paragraph(text: str) -> str:
    """Return a user's text as `plain` does, but escaped so that it cannot start a Markdown list or rule either."""
    return re.sub(r"^(\d*)([-+=.)])", r"\1\\\2", plain(text))


def _front_matter(recipe: Recipe) -> str:
    tags = json.dumps(["manyhands", "collaborative-training"])
    task = f"pipeline_tag: {recipe.task}\n" if recipe.task else ""
    return f"---\nlibrary_name: {recipe.library}\n{task}tags: {tags}\n---"


def _summary(recipe: Recipe, facts: CardFacts, parameters: int) -> str:
    where = f" The run's page: <{facts.address}>." if re.fullmatch(r"https?://[^\s<>]+", facts.address) else ""
    return (
        f"{recipe.summary()[:1].upper()}{recipe.summary()[1:]}, {parameters:,} parameters, trained together by "
        f"{facts.contributors:,} {'person' if facts.contributors == 1 else 'people'} with Manyhands.{where}"
    )


def _use(recipe: Recipe, facts: CardFacts) -> str:
    where = "`model` is the folder of this file, or its name on the Hub."
    return f"## Use it\n\n{where}\n\n```python\n{recipe.usage(json.dumps(facts.slug))}\n```"


def _training(recipe: Recipe, facts: CardFacts) -> str:
    optimizer, (_, many) = recipe.optimizer, recipe.loss_unit
    entropy = facts.unigram_entropy
    known = [] if entropy is None else [("Unigram baseline", _nats(recipe, entropy))]
    rows = [
        ("Steps", f"{facts.steps:,}"),
        ("Samples", f"{facts.samples:,}"),
        (many.capitalize(), f"{facts.tokens:,}"),
        ("Training loss (median of the last steps)", _nats(recipe, facts.loss)),
        ("Held-out loss", _heldout(recipe, facts)),
        *((f"Held-out {plain(name)}", figure(name, value)) for name, value in _figures(facts)),
        *known,
        ("Optimizer", f"{optimizer.name}, learning rate {optimizer.learning_rate:g}, {optimizer.decay} decay"),
        ("Batch size", f"{recipe.target_batch:,}"),
        ("Data", plain(facts.data_title) or "not named"),
        ("Licence of the data", plain(facts.data_licence) or "not stated"),
        *([("Sharing confirmed by", plain(facts.data_vouched))] if facts.data_vouched else []),
    ]
    return "## Training\n\n" + _table(("", ""), rows)


def _nats(recipe: Recipe, value: float | None) -> str:
    return "not measured" if value is None else f"{value:.3f} nats per {recipe.loss_unit[0]}"


def _heldout(recipe: Recipe, facts: CardFacts) -> str:
    """Return the held-out loss for the card.

    Its step is added unless it is the model's last step. The best loss is added if it belongs to another step.
    """
    is_last = facts.heldout_step in (None, facts.steps)
    told = _nats(recipe, facts.heldout_loss) + ("" if is_last else f", at step {facts.heldout_step:,}")
    if facts.best_heldout_loss is None or facts.best_heldout_step == facts.heldout_step:
        return told
    return f"{told}; best {facts.best_heldout_loss:.3f} at step {facts.best_heldout_step:,}"


def _warning(facts: CardFacts) -> str:
    """Return a warning if an earlier snapshot is better on held-out data or a later one is worse, otherwise ""."""
    if facts.later_heldout_loss is not None and facts.heldout_loss is not None:
        return (
            f"**The run overfitted after this model.** Held-out loss rose from {facts.heldout_loss:.3f} at step "
            f"{facts.steps:,} to {facts.later_heldout_loss:.3f} at step {facts.later_heldout_step:,} while training "
            "loss fell: of the run's snapshots, this one is the best on data it has not seen."
        )
    if not facts.is_overfitting:
        return ""
    return (
        f"**This model is overfitting.** Its held-out loss rose after step {facts.best_heldout_step:,} while its "
        "training loss fell: the snapshot of that step is better on data it has not seen."
    )


def _figures(facts: CardFacts) -> list[tuple[str, float]]:
    return sorted(facts.heldout_figures.items())


def figure(name: str, value: float) -> str:
    """Format a figure for people: accuracies as percentages, anything else with one decimal."""
    return f"{100 * value:.1f}%" if name.endswith("accuracy") else f"{value:,.1f}"


def _curve(facts: CardFacts) -> str:
    if not facts.has_curve:
        return ""
    (first, begin), (last, end) = facts.points[0], facts.points[-1]
    return f"![Loss from {begin:.2f} at step {first:,} to {end:.2f} at step {last:,}]({CURVE})"


def _recipe(recipe: Recipe) -> str:
    text = json.dumps(json.loads(encode_recipe(recipe)), indent=2)
    return f"## Recipe\n\n```json\n{text}\n```"


def _people(facts: CardFacts) -> str:
    rows = [(plain(person.name), f"{person.samples:,}", f"{person.share:.1%}") for person in facts.people]
    if facts.unnamed:
        more = f"{facts.unnamed:,} {'more ' if rows else ''}{'person' if facts.unnamed == 1 else 'people'}"
        rows.append((f"{'and ' if rows else ''}{more}", f"{facts.unnamed_samples:,}", f"{facts.unnamed_share:.1%}"))
    return "## People\n\n" + _table(("Who", "Samples", "Share"), rows) if rows else ""


def _proof(facts: CardFacts) -> str:
    known = (
        ("Snapshot, sha256", facts.snapshot),
        ("State digest", facts.state_digest),
        ("Log digest", facts.log_digest),
    )
    rows = [(name, f"`{plain(value)}`") for name, value in known if value]
    text = "## Check it\n\n`SHA256SUMS` lists the digest of every file (`sha256sum -c SHA256SUMS`)."
    said = f"\n\n{plain(facts.checked)}" if facts.checked else ""
    return text + said + ("\n\n" + _table(("", ""), rows) if rows else "")


def _table(head: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> str:
    lines = [head, ("---",) * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
