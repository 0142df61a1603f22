"""The site's secrets and keys: created once, shared by all processes, and kept in files that only their owner can
read.
"""

import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from accounts.keys import site_key
from config.environment import kept_secret
from peer_agent.protocol.credentials import public_bytes


def test_a_secret_is_made_once(tmp_path: Path) -> None:
    assert kept_secret(tmp_path / "keys" / "one") == kept_secret(tmp_path / "keys" / "one")


def test_only_its_owner_can_read_it(tmp_path: Path) -> None:
    kept_secret(tmp_path / "keys" / "one")
    assert stat.S_IMODE((tmp_path / "keys" / "one").stat().st_mode) == 0o600
    assert stat.S_IMODE((tmp_path / "keys").stat().st_mode) == 0o700


def test_all_who_come_first_read_the_same(tmp_path: Path) -> None:
    with ThreadPoolExecutor(16) as pool:
        secrets = set(pool.map(lambda _: kept_secret(tmp_path / "keys" / "one"), range(64)))
    assert len(secrets) == 1
    assert [path.name for path in (tmp_path / "keys").iterdir()] == ["one"]


def test_hosts_that_share_no_folder_derive_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept_secret(tmp_path / "before" / "site")
    monkeypatch.setenv("MANYHANDS_SECRET_KEY", "a long secret")
    assert kept_secret(tmp_path / "a" / "site") == kept_secret(tmp_path / "b" / "site")
    assert kept_secret(tmp_path / "a" / "site") != kept_secret(tmp_path / "a" / "operator")
    assert kept_secret(tmp_path / "before" / "site").hex() == (tmp_path / "before" / "site").read_text()


def test_the_site_signs_with_the_same_key_after_a_restart(data_folder: Path) -> None:
    assert public_bytes(site_key()) == public_bytes(site_key())
    assert (data_folder / "keys" / "site").exists()
