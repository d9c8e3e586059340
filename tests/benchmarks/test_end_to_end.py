"""The benchmark of whole trainings still runs: it is not part of the package, and nothing else would notice."""

from __future__ import annotations

import csv
import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
import yaml

from scaffold.cli import main
from scaffold.model.unet import UNet
from scaffold.training.objective import objective
from scaffold.training.restart import SWITCHES

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"

STUDY = {
    "problem_scale": 4, "unet_bottleneck_dim": 3, "unet_base_channels": 8, "n_categories": 1, "torch_amp": False,
    "n_instances_used_per_fractal": 24, "warmup_batches": 1, "dataloader_num_workers": 0, "target_dice": 1.0,
}  # fmt: skip


def script(name: str, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """Import a script of the benchmarks, which find each other in their own folder."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    spec = importlib.util.spec_from_file_location(name, BENCHMARKS / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, name, module)
    spec.loader.exec_module(module)
    return module


def test_stock_network_with_our_weights_computes_what_ours_does(monkeypatch: pytest.MonkeyPatch) -> None:
    """Weights that land in another layer of the same shape, or stay as drawn, give the arms different beginnings."""
    stock_unet = script("stock_unet", monkeypatch)
    torch.manual_seed(0)
    ours = UNet(out_channels=3, layers=2, base_channels=8, groups=4).double()
    stock = stock_unet.StockUNet(2, classes=3, base=8, groups=4).double()
    image, labels = torch.rand(2, 3, 8, 8, 8, dtype=torch.float64), torch.randint(0, 3, (2, 8, 8, 8))
    weights = torch.tensor([1.0, 20.0, 5.0], dtype=torch.float64)
    assert not torch.allclose(stock(image), ours(image)), "the networks must differ at first"
    stock_unet.copy_weights(ours, stock)
    assert sum(p.numel() for p in stock.parameters()) == sum(p.numel() for p in ours.parameters())
    torch.testing.assert_close(stock(image), ours(image), rtol=0, atol=1e-12)
    # The stock loss computes in float32.
    expected = objective(ours(image).float(), labels, weights.float()).loss
    torch.testing.assert_close(
        stock_unet.stock_loss(stock(image), labels, weights.float()), expected, rtol=1e-5, atol=0
    )


def test_networks_that_do_not_match_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """A parameter that broadcasts into another's place would go unnoticed."""
    stock_unet = script("stock_unet", monkeypatch)
    with pytest.raises(ValueError, match="shape"):
        stock_unet.copy_weights(
            UNet(out_channels=3, layers=2, base_channels=8, groups=4), stock_unet.StockUNet(2, base=8, groups=4)
        )


def test_arms_take_turns_and_continue(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An arm that begins anew, has other batches or weights, or no turn before the other's second, is no comparison."""
    end_to_end = script("end_to_end", monkeypatch)
    study, work, output = tmp_path / "study.yaml", tmp_path / "work", tmp_path / "results"
    study.write_text(yaml.safe_dump({"runs": {"tiny": STUDY}}))
    for name in SWITCHES:
        monkeypatch.delenv(name, raising=False)
    # The trainings have processes of their own, whose environment they are told apart by; the data need none.
    monkeypatch.setattr(end_to_end, "scaffold", lambda *words: main([*map(str, words)]))
    # Compiled for a CPU it would take a C++ compiler and half a minute; Dynamo traces it all the same.
    stock = end_to_end.ARMS["stock"]
    command = (*stock.command, "--backend", "eager")
    monkeypatch.setitem(end_to_end.ARMS, "stock", end_to_end.Arm(stock.label, command, stock.environment))
    turns: list[tuple[str, int]] = []
    train = end_to_end.Training.train

    def noted(training: Any, until: int, minutes: float) -> bool:
        turns.append((training.arm, until))
        return bool(train(training, until, minutes))

    monkeypatch.setattr(end_to_end.Training, "train", noted)
    words = [str(output), "--work", str(work), "--study", str(study), "--turn", "1"]
    end_to_end.main([*words, "--epochs", "2"])
    assert turns == [("ours", 1), ("stock", 1), ("ours", 2), ("stock", 2)]
    end_to_end.main([*words, "--epochs", "2"])
    assert len(turns) == 4, "what is trained is not trained again"

    with open(output / "end_to_end.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [(row["arm"], row["epoch"]) for row in rows] == [
        ("ours", "1"),
        ("ours", "2"),
        ("stock", "1"),
        ("stock", "2"),
    ]
    for ours, stock_row in zip(rows[:2], rows[2:], strict=True):
        assert ours["device"] == stock_row["device"] != ""
        assert float(ours["epoch_loss"]) == pytest.approx(float(stock_row["epoch_loss"]), rel=1e-3)
    assert float(rows[0]["epoch_loss"]) != pytest.approx(float(rows[1]["epoch_loss"]), rel=1e-2)
    assert float(rows[1]["training_s"]) > float(rows[0]["training_s"]) > 0
    with open(output / "end_to_end_starts.csv", newline="") as file:
        starts = [(row["arm"], row["first_epoch"], row["last_epoch"]) for row in csv.DictReader(file)]
    assert starts == [("ours", "1", "1"), ("ours", "2", "2"), ("stock", "1", "1"), ("stock", "2", "2")]
    assert (output / "end_to_end.svg").stat().st_size > 0

    scripts = {arm: next((work / "runs" / arm / "work").glob("*/restart.sh")).read_text() for arm in ("ours", "stock")}
    assert not [name for name in SWITCHES if name in scripts["ours"]]
    assert [name for name in SWITCHES if f"export {name}=0\n" in scripts["stock"]] == list(SWITCHES)
