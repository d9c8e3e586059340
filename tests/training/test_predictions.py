"""The slices for the gallery."""

import numpy as np
import torch
from tiny_learner import TinySamples, tiny_learner

from scaffold.training import predictions


class Numbered(TinySamples):
    """Samples that know their number, of which one is empty and one full."""

    def sample_id(self, index):
        return 100 + index

    def mask(self, index):
        mask = super().mask(index)
        return {1: torch.zeros_like(mask), 3: torch.ones_like(mask)}.get(index, mask)


def test_the_fullest_samples_come_first():
    """Empty volumes in the gallery show nothing."""
    order = predictions.fullest(Numbered(6))
    assert order[0] == 3
    assert len(order) == 4
    assert 1 not in order
    assert predictions.fullest(Numbered(1)) == [0]


def test_the_file_has_the_promised_arrays(tmp_path):
    """The report reads them by name, type and shape, without pickles."""
    learner, samples = tiny_learner(torch.float32), Numbered(5)
    learner.model.train()
    predictions.write(tmp_path / "predictions.npz", learner, samples)
    assert learner.model.training
    with np.load(tmp_path / "predictions.npz", allow_pickle=False) as file:
        found = dict(file)
    assert {name: (array.dtype.str, array.shape) for name, array in found.items()} == {
        "image": ("<f4", (4, 3, 8, 8)),
        "truth": ("<i2", (4, 8, 8)),
        "prediction": ("<i2", (4, 8, 8)),
        "sample_id": ("<i8", (4,)),
        "depth": ("<i8", (4,)),
        "dice": ("<f4", (4,)),
        "palette": ("<f4", (3, 3)),
    }
    assert found["sample_id"][0] == 103
    for at, index in enumerate((found["sample_id"] - 100).tolist()):
        mask, depth = samples.mask(index), found["depth"][at]
        assert np.array_equal(found["truth"][at], mask[depth])
        assert (mask > 0).sum(dim=(1, 2)).max() == (mask[depth] > 0).sum()
        image = found["palette"][found["truth"][at]].transpose(2, 0, 1)
        assert np.array_equal(found["image"][at], image)
    assert (found["dice"] >= 0).all()
    assert (found["dice"] <= 1).all()
