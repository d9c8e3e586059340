"""The benchmark of whole trainings still runs: it is not part of the package, and nothing else would notice."""

from __future__ import annotations

import csv
import importlib.util
from pathlib import Path

import pytest
import yaml

from scaffold.cli import main
from scaffold.training.restart import SWITCHES

_spec = importlib.util.spec_from_file_location("end_to_end", Path(__file__).parents[2] / "benchmarks" / "end_to_end.py")
assert _spec is not None
assert _spec.loader is not None
end_to_end = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(end_to_end)

STUDY = {
    "problem_scale": 4, "unet_bottleneck_dim": 3, "unet_base_channels": 8, "n_categories": 1,
    "n_instances_used_per_fractal": 24, "warmup_batches": 0, "dataloader_num_workers": 0, "target_dice": 1.0,
}  # fmt: skip


def test_both_arms_train_on_the_same_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """At scale 4, one epoch: a verb with another option stops it, or the stock arm keeps a fast path."""
    study, work = tmp_path / "study.yaml", tmp_path / "work"
    study.write_text(yaml.safe_dump({"runs": {"tiny": STUDY}}))
    for name in SWITCHES:
        monkeypatch.delenv(name, raising=False)
    real = end_to_end.scaffold

    def scaffold(verb: str, *arguments: object, **options: object) -> int:
        # The trainings have processes of their own, whose environment they are told apart by.
        return real(verb, *arguments, **options) if verb == "train" else main([verb, *map(str, arguments)])

    monkeypatch.setattr(end_to_end, "scaffold", scaffold)
    output = tmp_path / "results"
    end_to_end.main([str(output), "--work", str(work), "--study", str(study), "--set", "epochs=1"])
    with open(output / "end_to_end.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [(row["arm"], row["epoch"]) for row in rows] == [("ours", "1"), ("stock", "1")]
    assert rows[0]["epoch_loss"] == rows[1]["epoch_loss"], "on a CPU the kernels of both are PyTorch's"
    scripts = {arm: next((work / "runs" / arm / "work").glob("*/restart.sh")).read_text() for arm in end_to_end.ARMS}
    assert not [name for name in SWITCHES if name in scripts["ours"]]
    assert [name for name in SWITCHES if f"export {name}=0\n" in scripts["stock"]] == list(SWITCHES)
