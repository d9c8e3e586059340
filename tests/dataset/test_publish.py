"""A data set is published only when all of its parts are what its settings ask for."""

from __future__ import annotations

import json
import logging

import numpy as np
import pytest
from small_datasets import make, small_config

from scaffold.config import RunConfig, config_id
from scaffold.dataset.meta import load_meta
from scaffold.dataset.publish import publish
from scaffold.errors import DamagedFileError, UserError

GOLDEN = {
    4: "936020b16cbf4e2062d7faba7aad4b01fc392627c849144d5f97f18439ed5a7c",
    5: "9c0e269f2ce8659d80ba411829f0019811749ddc9b9bad6bf982ab0cb628ff7a",
}


def test_meta_describes_the_data(made):
    """Hazard 43: broken when meta.yaml differs from the files, or the splits do not share one table of labels."""
    meta = load_meta(made.directory / "meta.yaml")
    masks = np.concatenate([np.load(made.directory / "parts" / part / "masks.npy") for part in ("0000", "0001")])
    assert meta.config_id == config_id(made.config)
    assert meta.voxels == np.bincount(masks.ravel(), minlength=6).tolist()
    assert [len(meta.splits.training), len(meta.splits.validation)] == [56, 24]
    assert meta.n_classes == 6
    for split in ("training", "validation"):
        assert set(np.unique(masks[meta.samples(split)])) == set(range(6))


@pytest.mark.parametrize("scale", [4, 5])
def test_digest_is_what_it_was(tmp_path, scale):
    """Broken when the bytes of a data set change for the same settings and clouds: raise the code version then."""
    config = small_config(problem_scale=scale, unet_bottleneck_dim=2, n_categories=2, n_instances_used_per_fractal=6)
    assert make(config, tmp_path).meta.digest == GOLDEN[scale]


def test_publishing_again_gives_the_same_bytes(made, copied):
    """Broken when meta.yaml has the time of publishing in it, so that publishing again would retrain everything."""
    directory = copied(made)
    before = (directory / "meta.yaml").read_bytes()
    publish(made.config, directory / "parts", directory / "meta.yaml")
    assert (directory / "meta.yaml").read_bytes() == before


def test_digest_is_independent_of_parts(dense, tmp_path, monkeypatch):
    """Broken when the digest of a data set depends on how its samples are put into files."""
    monkeypatch.setattr(RunConfig, "volumes_per_part", property(lambda self: 7))
    other = make(dense.config, tmp_path)
    assert len(list((other.directory / "parts").iterdir())) == 12
    assert other.meta.digest == dense.meta.digest


def _edit(path, change):
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content))


@pytest.mark.parametrize(
    ("damage", "problem"),
    [
        (lambda part: (part / "masks.npy").unlink(), "masks.npy is missing"),
        (lambda part: (part / "part.json").unlink(), "part.json is missing"),
        (lambda part: (part / "part.json").write_text("{"), "part.json cannot be understood"),
        (lambda part: (part / "masks.npy").write_bytes(b"short"), "truncated"),
        (lambda part: _edit(part / "part.json", lambda i: i["settings"].update(seed=43)), "other settings .seed"),
        (lambda part: _edit(part / "part.json", lambda i: i.update(part=0)), "describes part 0"),
        (lambda part: _edit(part / "part.json", lambda i: i["samples"].pop()), "lists the samples"),
        (lambda part: _edit(part / "part.json", lambda i: i["samples"][3].update(id=64)), "lists the samples"),
        (lambda part: _edit(part / "part.json", lambda i: i["samples"][2]["fractals"].reverse()), "sample 66"),
        (lambda part: _edit(part / "part.json", lambda i: i["samples"][2]["voxels"].update({"1": 0})), "sample 66"),
    ],
)
def test_each_part_is_checked(dense, copied, damage, problem):
    """Broken when a data set is published although a part is missing, damaged, doubled or foreign."""
    directory = copied(dense)
    (directory / "meta.yaml").unlink()
    damage(directory / "parts" / "0001")
    with pytest.raises(DamagedFileError, match=problem) as caught:
        publish(dense.config, directory / "parts", directory / "meta.yaml")
    assert "--force results/copy/parts/0001/" in str(caught.value)
    assert not (directory / "meta.yaml").exists()


def test_all_damaged_parts_are_told_at_once(dense, copied, caplog):
    """Broken when the user mends one part only to be told of the next."""
    directory = copied(dense)
    for part in ("0000", "0001"):
        (directory / "parts" / part / "images.npy").unlink()
    with caplog.at_level(logging.ERROR), pytest.raises(DamagedFileError, match=r"0000/images\.npy"):
        publish(dense.config, directory / "parts", directory / "meta.yaml")
    assert "0001/images.npy is missing" in caplog.text


def test_meta_lies_beside_the_parts(dense, tmp_path):
    """Broken when meta.yaml is written where no reader would find the parts."""
    with pytest.raises(UserError, match="beside the parts"):
        publish(dense.config, dense.directory / "parts", tmp_path / "meta.yaml")
