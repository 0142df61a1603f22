"""The facts of the card that shows what was understood of a run's data."""

from typing import Any

from peer_agent.protocol.errors import Fault
from runs.models import Dataset
from runs.storage import pictures_of
from web.words import in_words_of_page, title_of_page

MOST_FIELDS, MOST_CLASSES = 12, 40  # rows and tags that the card shows


def verdict_facts(dataset: Dataset) -> dict[str, Any]:
    """Return the verdict as the card shows it, and its mark. Empty until the data are prepared."""
    is_failed = dataset.state == Dataset.State.FAILED and bool(dataset.field)  # another field can still be chosen
    if dataset.verdict is None or not (dataset.state == Dataset.State.READY or is_failed):
        return {"mark": dataset.mark, "verdict": None}
    verdict: dict[str, Any] = dataset.verdict
    classes = sorted(verdict["classes"].items(), key=lambda each: (-each[1], each[0]))
    findings = [_finding(each) for each in verdict["findings"]]
    return {
        "mark": dataset.mark,
        "is_outdated": is_failed,
        "heldout_size": (dataset.heldout or {}).get("size"),
        "verdict": {
            **verdict,
            "fields": verdict["fields"][:MOST_FIELDS],
            "asked": [each for each in findings if each["severity"] != "note"],
            "noted": [each for each in findings if each["severity"] == "note"],
            "overlap_percent": f"{100 * verdict['heldout_overlap']:.1f}".removesuffix(".0"),
            "texts": [piece for piece in verdict["pieces"] if isinstance(piece, str)],
            "shown_classes": classes[:MOST_CLASSES],
            "more_classes": max(0, len(classes) - MOST_CLASSES),
            "reasons": [
                (reason, count, verdict["examples"].get(reason, ())) for reason, count in verdict["left_out"].items()
            ],
            "pictures": [{"number": number, "name": name} for number, name, _ in pictures_of(dataset)],
        },
    }


def _finding(said: dict[str, str]) -> dict[str, str]:
    fault = Fault(said["code"], said["text"])
    return {**said, "title": title_of_page(fault.title), "text": in_words_of_page(fault).text}
