"""Programs that tests need: where one is missing, it is seen."""

from __future__ import annotations

import pytest
from tools import needed


def test_a_program_that_is_there_is_found() -> None:
    assert needed("sh", "dash").endswith("/sh")


def test_a_missing_program_skips_the_test_and_fails_it_in_continuous_integration(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("CI", "")
    with pytest.raises(pytest.skip.Exception, match="needs no-such-program: apt-get install some-package"):
        needed("no-such-program", "some-package")
    monkeypatch.setenv("CI", "true")
    with pytest.raises(pytest.fail.Exception, match="needs no-such-program: apt-get install some-package"):
        needed("no-such-program", "some-package")
