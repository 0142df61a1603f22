"""Open datasets on the Hub that the form for a new run suggests."""

from dataclasses import dataclass

from django.conf import settings
from django.utils.functional import Promise
from django.utils.translation import gettext_lazy


@dataclass(frozen=True)
class OpenDataset:
    """A well-known dataset on the Hub that anyone may use under its licence."""

    name: str  # as the form takes it
    language: str | Promise
    about: str | Promise
    licence: str

    @property
    def address(self) -> str:
        owner, name, *_files = self.name.split("/")
        return f"{settings.HUB_ENDPOINT}/datasets/{owner}/{name}"


STORIES, WIKIPEDIA, WEB = gettext_lazy("short stories"), gettext_lazy("Wikipedia"), gettext_lazy("web pages")
OPEN_DATASETS = (
    OpenDataset("roneneldan/TinyStories/data", gettext_lazy("English"), STORIES, "CDLA-Sharing-1.0"),
    OpenDataset("wikimedia/wikipedia/20231101.simple", gettext_lazy("Simple English"), WIKIPEDIA, "CC BY-SA 3.0"),
    OpenDataset("wikimedia/wikipedia/20231101.bn", gettext_lazy("Bengali"), WIKIPEDIA, "CC BY-SA 3.0"),
    OpenDataset("wikimedia/wikipedia/20231101.hi", gettext_lazy("Hindi"), WIKIPEDIA, "CC BY-SA 3.0"),
    OpenDataset("wikimedia/wikipedia/20231101.sw", gettext_lazy("Swahili"), WIKIPEDIA, "CC BY-SA 3.0"),
    OpenDataset("wikimedia/wikipedia/20231101.es", gettext_lazy("Spanish"), WIKIPEDIA, "CC BY-SA 3.0"),
    OpenDataset("wikimedia/wikipedia/20231101.ar", gettext_lazy("Arabic"), WIKIPEDIA, "CC BY-SA 3.0"),
    OpenDataset("HuggingFaceFW/fineweb-2/data/ben_Beng/train", gettext_lazy("Bengali"), WEB, "ODC-By"),
    OpenDataset("HuggingFaceFW/fineweb-2/data/swh_Latn/train", gettext_lazy("Swahili"), WEB, "ODC-By"),
    OpenDataset("HuggingFaceFW/fineweb/sample/10BT", gettext_lazy("English"), WEB, "ODC-By"),
)
