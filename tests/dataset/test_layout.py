"""Samples, parts and files are found by arithmetic alone."""

from __future__ import annotations

from pathlib import Path

import pytest
from small_datasets import small_config

from scaffold.dataset.layout import Layout, part_directory


@pytest.mark.parametrize("per_part", [1, 7, 64, 80, 100])
def test_parts_hold_each_sample_once(per_part):
    """Broken when a sample is in no part or two, or is looked for in another row than it is written to."""
    layout = Layout(80, per_part, 16, "dense")
    listed = [(part, row) for part in range(layout.n_parts) for row in range(len(layout.samples(part)))]
    assert [layout.find(sample) for sample in range(80)] == listed
    assert [sample for part in range(layout.n_parts) for sample in layout.samples(part)] == list(range(80))


def test_layout_is_that_of_the_settings():
    """Broken when the files here are not those that the workflow, which asks the settings, waits for."""
    config = small_config()
    layout = Layout.of(config)
    assert layout.n_parts == config.n_parts
    size = sum(file.item_bytes for file in layout.arrays(Path(), 0))
    assert size == config.volume_bytes
    assert part_directory(Path("parts"), 3) == Path("parts/0003")
