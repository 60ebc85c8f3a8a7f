"""Signing secrets at rest: sealed with the first key, opened with any, never guessed."""

from __future__ import annotations

import base64

import pytest
from cryptography.fernet import Fernet

from dualtrack.webhooks.sealing import MARK, Sealer, SecretUnreadable

SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
OLD, NEW, OTHER = (base64.urlsafe_b64encode(bytes([n]) * 32).decode() for n in range(3))


def test_what_is_sealed_says_nothing_and_is_opened_again() -> None:
    sealer = Sealer([NEW])
    stored = sealer.seal(SECRET)
    assert stored.startswith(MARK)
    assert SECRET not in stored
    assert sealer.open(stored) == SECRET
    assert sealer.seal(SECRET) != stored  # equal secrets don't show
    assert Fernet(NEW).decrypt(stored.removeprefix(MARK)).decode() == SECRET


def test_without_keys_all_is_as_it_was() -> None:
    sealer = Sealer()
    assert (sealer.seals, sealer.seal(SECRET), sealer.open(SECRET), sealer.is_current(SECRET)) == (False, SECRET, SECRET, False)
    with pytest.raises(SecretUnreadable, match="no key"):
        sealer.open(Sealer([NEW]).seal(SECRET))


def test_keys_rotate() -> None:
    under_old = Sealer([OLD]).seal(SECRET)
    both = Sealer([NEW, OLD])
    assert (both.open(under_old), both.open(SECRET)) == (SECRET, SECRET)
    anew = both.seal(both.open(under_old))
    assert [both.is_current(text) for text in (anew, under_old, SECRET)] == [True, False, False]
    assert Sealer([NEW]).open(anew) == SECRET
    for keys in ([NEW], [OTHER]):
        with pytest.raises(SecretUnreadable, match="put that key back"):
            Sealer(keys).open(under_old)


def test_a_record_that_is_copied_is_sealed_once_and_needs_no_key_then() -> None:
    stored = Sealer([NEW]).sealed(SECRET)
    assert Sealer([NEW]).open(stored) == SECRET
    assert [Sealer(keys).sealed(stored) for keys in ([NEW], [OTHER], [])] == [stored] * 3
    assert Sealer().sealed(SECRET) == SECRET


def test_a_changed_record_is_not_opened() -> None:
    stored = Sealer([NEW]).seal(SECRET)
    for broken in (stored[:-8], stored.replace(MARK, f"{MARK}A"), MARK):
        with pytest.raises(SecretUnreadable):
            Sealer([NEW]).open(broken)


@pytest.mark.parametrize("key", ["", "x", OLD[:-1], base64.urlsafe_b64encode(b"short").decode(), "ä" * 44, OLD + OLD])
def test_no_key(key: str) -> None:
    with pytest.raises(ValueError, match="32 random bytes"):
        Sealer([key])
