"""Chance in a batch: keyed by where its samples are taken from, so that it is the same on every machine (rule 33)."""

import hashlib

import numpy as np

from peer_agent.recipes.training import Place


def chance_of(place: Place, sample: int) -> np.random.Generator:
    """Keyed by run, epoch, shard and sample: another one each time a sample is seen."""
    key = hashlib.sha256(f"{place.run}/{place.epoch}/{place.shard}/{sample}".encode()).digest()
    return np.random.Generator(np.random.Philox(key=np.frombuffer(key[:16], dtype="<u8")))
