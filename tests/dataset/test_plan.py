"""The composition of a data set follows from its settings alone."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest

from scaffold.config import RunConfig
from scaffold.dataset import plan as module
from scaffold.dataset.plan import adjustments, make_plan


def test_each_instance_is_used_once():
    """Broken when a (category, instance) pair is lost, doubled or out of range."""
    config = RunConfig(n_categories=4, n_instances_used_per_fractal=30, n_fracts_per_vol=3)
    pairs = make_plan(config).pairs
    assert pairs.shape == (40, 3, 2)
    assert sorted(map(tuple, pairs.reshape(-1, 2).tolist())) == [(c, i) for c in range(4) for i in range(30)]


def test_rounding_down_is_said_and_fills_all_volumes():
    """Broken when 145 instances, which 3 does not divide, give a partial volume or pass in silence."""
    config = RunConfig(n_instances_used_per_fractal=145)
    assert make_plan(config).pairs.shape == (240, 3, 2)
    assert make_plan(config).validation.sum() == 72
    (note,) = adjustments(config)
    assert "145 is rounded down to 144" in note
    assert adjustments(RunConfig(n_instances_used_per_fractal=144)) == []


def test_instances_repeat_above_145():
    """Broken when an instance number above 144 reaches the cloud files, which have 145."""
    config = RunConfig(n_categories=1, n_instances_used_per_fractal=300)
    uses = np.bincount(make_plan(config).pairs[..., 1].ravel())
    assert uses.tolist() == [3] * 10 + [2] * 135
    assert any("more than once" in note for note in adjustments(config))


def test_plan_is_what_it_was():
    """Broken when a NumPy version, platform or edit changes the composition, split or colours of a seed."""
    plan = make_plan(RunConfig(n_categories=3, n_instances_used_per_fractal=9))
    content = b"".join(array.tobytes() for array in (plan.pairs, plan.validation, plan.palette))
    assert hashlib.sha256(content).hexdigest()[:16] == "d292d514c5dec3a6"


@pytest.mark.parametrize("field", ["pairs", "validation", "palette"])
def test_seed_changes_everything(field):
    """Broken when a part of the plan ignores the seed."""
    one, other = (getattr(make_plan(RunConfig(seed=seed)), field) for seed in (1, 2))
    assert not np.array_equal(one, other)


def test_colours_can_be_told_apart():
    """Broken when a class is painted (nearly) like the background or another class: it could not be seen."""
    config = RunConfig(n_categories=2000)
    palette = make_plan(config).palette
    assert palette.dtype == np.float32
    assert (palette[0] == 0).all()
    assert ((palette >= 0) & (palette < 1)).all()
    assert _least_distance(palette) >= 1 / 64
    plain = np.stack([module._colour(config.seed, label, 0) for label in range(2001)])
    assert _least_distance(plain) < 1 / 64, "control: plain draws do collide"


def test_uniform_colouring_hides_the_class():
    """Broken when the classes of `coloring: uniform` differ in colour, or are invisible."""
    palette = make_plan(RunConfig(coloring="uniform")).palette
    assert (palette[1:] == palette[1]).all()
    assert palette[1].max() >= 1 / 64
    assert len(np.unique(make_plan(RunConfig()).palette, axis=0)) == 6


def test_colours_do_not_depend_on_later_categories():
    """Broken when adding categories recolours those that were there."""
    few, many = (make_plan(RunConfig(n_categories=n)).palette for n in (5, 50))
    assert np.array_equal(few, many[:6])


def test_colour_just_below_one_stays_below_one(monkeypatch):
    """Broken when the greatest double below 1 is rounded to the float32 1.0, outside [0, 1)."""
    monkeypatch.setattr(module.rng, "uniform", lambda stream, count: np.full(count, 1 - 2.0**-53))
    assert np.float32(1 - 2.0**-53) == 1, "control: plain rounding gives 1"
    assert (module._colour(1, 1, 0) < 1).all()


def _least_distance(colours: np.ndarray) -> float:
    return min(float(np.abs(colours[i + 1 :] - colours[i]).max(axis=1).min()) for i in range(len(colours) - 1))
