"""Two sites train on the same bytes: the digests of whole data sets, from the search to ``meta.yaml``."""

from pathlib import Path

import pytest

from scaffold.config import RunConfig
from scaffold.dataset.layout import part_directory
from scaffold.dataset.publish import publish
from scaffold.dataset.render import render_part
from scaffold.fractals.instances import generate_instances
from scaffold.fractals.search import find_categories
from scaffold.parallel.team import Solo

# If one of these changes, every published figure of merit loses its data set: raise the code version
# of the stage that changed, in scaffold/config/keys.py, and say so in the release notes.
GOLDEN = {
    4: "0949349cebd8d1d24ea9f889cd0027aeede0fc626874e4a701ded2b6f44ecc38",
    5: "3e64026f3b5082054d510c87ea344b12000d097552652ce69dd4030ac496df63",
}


def make_dataset(config: RunConfig, folder: Path) -> str:
    """Make a data set in ``folder`` by all stages; return its digest."""
    library = find_categories(config)
    for category, params in enumerate(library.params):
        generate_instances(config, params, category, folder / "instances" / f"{category}.npy")
    for part in range(config.n_parts):
        render_part(config, part, folder / "instances", part_directory(folder / "parts", part), Solo())
    return publish(config, folder / "parts", folder / "meta.yaml").digest


@pytest.mark.parametrize("scale", GOLDEN)
def test_digest_is_the_published_one(scale: int, tmp_path: Path) -> None:
    """Fails if any stage gives other bytes on this machine, or with these versions of NumPy and numba."""
    config = RunConfig(problem_scale=scale, n_categories=3, n_instances_used_per_fractal=24)
    assert make_dataset(config, tmp_path) == GOLDEN[scale]


def test_another_seed_is_another_data_set(tmp_path: Path) -> None:
    """The control: a digest that did not depend on the content would pass the test above."""
    config = RunConfig(problem_scale=4, n_categories=3, n_instances_used_per_fractal=24, seed=43)
    assert make_dataset(config, tmp_path) != GOLDEN[4]
