"""Switches: what an environment variable may say, and what overrides it."""

import pytest

from scaffold.kernels import ladder, switches

NAME = "SCAFFOLD_TEST_SWITCH"


@pytest.mark.parametrize(
    ("word", "meaning"),
    [
        ("1", True), ("true", True), ("on", True), (" YES ", True),
        ("0", False), ("false", False), ("Off", False), ("no", False),
        ("", None), (None, None),
    ],
)  # fmt: skip
def test_words(monkeypatch, caplog, word, meaning):
    """A word that is misread measures another implementation than the one asked for."""
    monkeypatch.delenv(NAME, raising=False)
    if word is not None:
        monkeypatch.setenv(NAME, word)
    assert switches.read(NAME) is meaning
    assert not caplog.records


def test_another_word_is_ignored_with_one_warning(monkeypatch, caplog):
    """A typing error must not end a job in the queue, nor pass unnoticed, nor fill the log at each call."""
    monkeypatch.setattr(switches, "_told", set())
    monkeypatch.setenv(NAME, "disable")
    assert [switches.read(NAME) for _ in range(3)] == [None] * 3
    (record,) = caplog.records
    for part in (NAME, "disable", "off"):
        assert part in record.getMessage()


def test_an_override_stands_for_the_environment(monkeypatch):
    """Code that measures two implementations in one process sets what the environment cannot."""
    monkeypatch.setenv(NAME, "0")
    assert switches.override(NAME, True) is None
    assert switches.read(NAME) is True
    assert switches.override(NAME, None) is True
    assert switches.read(NAME) is False


def test_every_ladder_s_switch_is_listed():
    """A restarted training would forget it, and the stock arm of a benchmark leave that kernel on."""
    rungs = [rung for op in ladder._ladders.values() for rung in op.rungs]
    assert {rung.switch for rung in rungs if rung.switch} == set(switches.KERNELS)
