"""When a training stops by itself."""

import pytest

from scaffold.cli.train import _deadline


@pytest.mark.parametrize(
    ("limit", "max_runtime", "minutes"),
    [
        (None, None, None),
        (240.0, None, 239.0),
        (2.0, None, 1.5),
        (None, 30.0, 30.0),
        (240.0, 30.0, 30.0),
        (30.0, 29.5, 29.0),
    ],
)
def test_time_limit_leaves_room_for_what_the_job_does_besides(
    limit: float | None, max_runtime: float | None, minutes: float | None
) -> None:
    """The scheduler's clock has run since before Python started, and it kills what has not ended by its limit."""
    assert _deadline(1000.0, limit, max_runtime) == (None if minutes is None else 1000.0 + 60 * minutes)
