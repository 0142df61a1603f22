"""Each recipe's figures on held-out data: at chance for an untrained model, perfect for one that knows the answers."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from demo.recipes import digits_tar
from peer_agent.recipes.causal_lm import training as causal_lm
from peer_agent.recipes.image_classification import ImageClassification
from peer_agent.recipes.image_classification import training as image_classification
from peer_agent.recipes.image_ssl import ImageSSL
from peer_agent.recipes.image_ssl import training as image_ssl
from peer_agent.recipes.images.pixels import Images, shards_of
from peer_agent.recipes.images.resnet import JUDGED, whole_images
from peer_agent.recipes.images.trunk import Trunk
from peer_agent.recipes.masked_lm import MaskedLM, Model
from peer_agent.recipes.masked_lm import training as masked_lm
from peer_agent.recipes.text.tokens import IGNORED, Sentences
from peer_agent.recipes.training import heldout_batches
from peer_agent.site_work.prepare_images import prepare
from tests.training.commits import small_recipe

TRUNK = Trunk(family="resnet10", width=8)
CLASSIFIER = ImageClassification(trunk=TRUNK, micro_batch=16, classes=tuple("0123456789"))
SSL = ImageSSL(trunk=TRUNK, micro_batch=16)
MASKED = MaskedLM(model=Model(layers=1, width=32, heads=2, context=32, embedding=16), vocab=400)


@pytest.fixture(scope="module")
def digits(tmp_path_factory: pytest.TempPathFactory) -> Images:
    folder = tmp_path_factory.mktemp("digits")
    (folder / "digits.tar").write_bytes(digits_tar())
    prepare(folder / "digits.tar", folder, SSL.preparation())
    shard = next(shards_of(folder / "shards"))
    return Images(shard.pixels[:400], shard.labels[:400])


@pytest.mark.parametrize(("loss", "perplexity"), [(0.0, 1.0), (3.0, 20.0855369), (10_000.0, np.exp(700.0))])
def test_perplexity_is_a_number_whatever_the_loss(loss: float, perplexity: float) -> None:
    recipe = small_recipe()
    assert causal_lm.figures_of(recipe, torch.nn.Identity(), np.zeros(9, np.uint16), loss, 9) == {
        "perplexity": pytest.approx(perplexity)
    }


class Told(torch.nn.Module):
    """A model that returns one known answer after another, `right` out of ten correctly."""

    def __init__(self, answers: list[torch.Tensor], choices: int, right: int) -> None:
        super().__init__()
        self.answers, self.choices, self.right, self.asked = iter(answers), choices, right, 0

    def forward(self, **_: Any) -> Any:
        answer = next(self.answers)
        places = torch.arange(self.asked, self.asked + answer.numel()).reshape(answer.shape)
        self.asked += answer.numel()
        said = torch.where(places % 10 < self.right, answer, (answer + 1) % self.choices)
        logits = torch.nn.functional.one_hot(said, self.choices).float()
        return type("Found", (tuple,), {"logits": logits})((logits,))


@pytest.mark.parametrize("right", [0, 7, 10])
def test_accuracy_is_the_share_of_images_named_rightly(digits: Images, right: int) -> None:
    labels = torch.from_numpy(digits.labels.astype(np.int64))
    model = Told([*torch.split(labels, 16)], 10, right)
    assert image_classification.figures_of(CLASSIFIER, model, digits, 0.0, 10_000) == {"accuracy": right / 10}


def test_no_more_images_than_are_needed_are_looked_at(digits: Images) -> None:
    many = Images(np.tile(digits.pixels, (12, 1, 1, 1)), np.tile(digits.labels, 12))
    assert sum(len(part) for part in whole_images(SSL, many, 10**9)) == JUDGED


def told_of_masked(labels: list[Any], right: int) -> Any:
    """Return a model that knows the answers and is asked only for the masked words."""
    told = Told([torch.from_numpy(part[part != IGNORED]) for part in labels], 400, right)

    def encoder(input_ids: torch.Tensor, **_: Any) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.zeros(*input_ids.shape, 1), torch.zeros(len(input_ids), 1)

    def words(hidden: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = told().logits
        assert len(hidden) == len(logits)
        return logits

    return SimpleNamespace(albert=encoder, predictions=words, sop_classifier=torch.nn.Identity())


@pytest.mark.parametrize("right", [0, 10])
def test_masked_accuracy_is_that_of_masked_words_alone(right: int) -> None:
    chance = np.random.Generator(np.random.Philox(1))
    heldout = Sentences(chance.integers(5, 400, 900).astype(np.uint16), np.arange(0, 900, 9, dtype=np.uint32))
    model = told_of_masked([batch[1] for batch in heldout_batches(MASKED, heldout)], right)
    assert masked_lm.figures_of(MASKED, model, heldout, 0.0, 10_000) == {"masked accuracy": right / 10}


def test_no_more_samples_than_are_needed_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    heldout = Sentences(np.full(9000, 7, np.uint16), np.arange(0, 9000, 9, dtype=np.uint32))
    monkeypatch.setattr(masked_lm, "JUDGED", 40)
    labels = [batch[1] for batch in heldout_batches(MASKED, heldout, most=40)]
    assert 40 <= sum(map(len, labels)) < 40 + MASKED.micro_batch
    model = told_of_masked(labels, 10)
    assert masked_lm.figures_of(MASKED, model, heldout, 0.0, 10_000) == {"masked accuracy": 1.0}


def test_probe_beats_chance_on_digits_and_needs_classes(digits: Images) -> None:
    torch.set_num_threads(1)
    model = image_ssl.build_model(SSL)
    found = image_ssl.figures_of(SSL, model, digits, 0.0, 10_000)
    assert 0.3 < found["probe accuracy"] <= 1.0, "a trunk that nobody trained shows some of it"
    shuffled = np.random.Generator(np.random.Philox(1)).permutation(digits.labels)
    assert image_ssl.figures_of(SSL, model, Images(digits.pixels, shuffled), 0.0, 10_000)["probe accuracy"] < 0.25
    assert image_ssl.figures_of(SSL, model, Images(digits.pixels, np.zeros(400, np.uint16)), 0.0, 10_000) == {}
