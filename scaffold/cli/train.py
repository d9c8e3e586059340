"""Verbs of the train stages."""

from __future__ import annotations

from scaffold.cli.common import Verbs


def register(verbs: Verbs) -> None:
    """Add the verbs of this group."""
