"""The whole training step against stock PyTorch, on one GPU.

    python benchmarks/step.py benchmarks/results/DEVICE --scales 7 8

Arms: PyTorch's own modules (`stock_unet.py`), eager and compiled, in both memory formats; and ours, as the
trainer runs it, with and without a CUDA graph. All have the same settings: bfloat16 autocast, gradient
clipping, fused Adam, cuDNN autotune off, the same random images and labels. Arms run interleaved, in an
order that is reversed from round to round; the last arm is the best stock one again: how far its ratio is
from 1 says how far a ratio can be trusted.

Writes `step.csv` (times, ratios, peak memory) and `step_profile.csv` (device time by class of kernel); rows of
other scales and batch sizes that are there already stay.
"""

from __future__ import annotations

import argparse
import gc
import math
import re
import statistics
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pandas as pd
import torch
from torch import Tensor

sys.path.insert(0, str(Path(__file__).parent))

import script
from stock_unet import StockUNet, stock_loss

from scaffold import atomic, provenance
from scaffold.cli.common import at_least_one
from scaffold.config import RunConfig
from scaffold.errors import UserError
from scaffold.interleave import Task, interleave
from scaffold.kernels.bench.measure import device_name
from scaffold.kernels.bench.timing import stopwatch, wait
from scaffold.model.unet import build
from scaffold.training.graph import StepGraphs
from scaffold.training.optimizer import build_optimizer
from scaffold.training.step import Compute, Learner, train_step

CLASSES = 6

KERNEL_CLASSES = {
    "Inductor": r"^triton_",
    "copy, layout": r"nchwToNhwc|nhwcToNchw|Memcpy|copy_kernel|CatArray|elementwise.*copy|memset|Memset",
    "optimizer": r"multi_tensor|FusedAdam|lpnorm|LpNorm|^(norm|scalars|update)_kernel$",
    "convolution": r"cudnn|xmma|cutlass|implicit|wgrad|dgrad|fprop|conv|nvjet|gemm",
    "pool": r"max_pool|MaxPool",
    "norm": r"GroupNorm|RowwiseMoments|ComputeInternalGradients",
    "ours": r"^[a-z_]+_kernel$",
}


@dataclass
class Arm:
    """One way to train."""

    name: str
    step: Callable[[], object]
    """One step; returns without having waited for the device."""


def stock(
    scale: int, images: Tensor, labels: Tensor, memory_format: torch.memory_format, compiled: bool
) -> Callable[[], Tensor]:
    """Return a step of the stock network."""
    torch.manual_seed(1)
    network: torch.nn.Module = StockUNet(scale - 3).to(images.device, memory_format=memory_format)  # type: ignore[call-overload]
    optimizer = torch.optim.Adam(network.parameters(), lr=1e-3, fused=images.is_cuda)
    weights = torch.ones(CLASSES, device=images.device)
    images, truth = images.contiguous(memory_format=memory_format), labels.long()

    def loss_of(x: Tensor, y: Tensor) -> Tensor:
        with torch.autocast(x.device.type, torch.bfloat16):
            logits = network(x)
        return stock_loss(logits, y, weights)

    objective = torch.compile(loss_of, dynamic=False) if compiled else loss_of

    def step() -> Tensor:
        loss = objective(images, truth)
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(network.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss.detach()

    return step


def ours(scale: int, images: Tensor, labels: Tensor, graph: bool) -> Callable[[], Tensor]:
    """Return a step of the benchmark's own network, as the trainer takes it."""
    torch.manual_seed(1)
    config = RunConfig(problem_scale=scale, local_batch_size=len(images), n_categories=CLASSES - 1)
    network = build(config).to(images.device)
    optimizer = build_optimizer(config, network.parameters())
    compute = Compute(images.device, torch.zeros(CLASSES, 3, device=images.device), amp=True)
    graphs = StepGraphs.of(network, optimizer, images.device) if graph else StepGraphs.off("not asked for")
    learner = Learner(network, optimizer, None, torch.ones(CLASSES, device=images.device), compute, graphs)
    batch = {"image": images, "mask": labels}
    return lambda: train_step(learner, batch).loss


_LAST, _CONTIGUOUS = torch.channels_last_3d, torch.contiguous_format

ARMS: dict[str, Callable[[int, Tensor, Tensor], Callable[[], object]]] = {
    "stock eager, contiguous": partial(stock, memory_format=_CONTIGUOUS, compiled=False),
    "stock eager, channels last": partial(stock, memory_format=_LAST, compiled=False),
    "stock compiled, contiguous": partial(stock, memory_format=_CONTIGUOUS, compiled=True),
    "stock compiled, channels last": partial(stock, memory_format=_LAST, compiled=True),
    "ours, step by step": partial(ours, graph=False),
    "ours": partial(ours, graph=True),
}
"""What makes the step of each arm, of a scale, images and labels."""


def build_arms(scale: int, batch: int, device: torch.device, wanted: Sequence[str]) -> Iterator[Arm]:
    """Yield the arms named in ``wanted``, each built when it is asked for."""
    edge = 2**scale
    torch.manual_seed(0)
    images = torch.rand((batch, 3, edge, edge, edge), device=device)
    labels = torch.randint(0, CLASSES, (batch, edge, edge, edge), device=device).to(torch.uint8)
    for name, make in ARMS.items():
        if name in wanted:
            yield Arm(name, make(scale, images, labels))


def measure(arms: Sequence[Arm], rounds: int, steps: int, device: torch.device) -> dict[str, list[float]]:
    """Return the milliseconds per step of each arm, one value a round; arms alternate in order.

    An arm's turn begins with one untimed step, which meets the caches and the allocator as they are. The
    timed ones begin on an idle device: what others left queued would hide that the host cannot feed this arm.
    """

    def turn(step: Task) -> Callable[[], float]:
        step()
        wait(device)
        return stopwatch(device)(lambda: _repeat(step, steps))

    times = interleave([arm.step for arm in arms], rounds, turn)
    return {arm.name: [s / steps * 1e3 for s in own] for arm, own in zip(arms, times, strict=True)}


def profile(arm: Arm, steps: int, step_ms: float) -> pd.DataFrame:
    """Return the device time of each class of kernel, ms a step; what is left of ``step_ms`` is gaps."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as trace:
        for _ in range(steps):
            arm.step()
        torch.cuda.synchronize()
    classes: dict[str, float] = {}
    kernels = [event for event in trace.key_averages() if event.self_device_time_total > 0]
    for event in kernels:
        name = kernel_class(event.key)
        classes[name] = classes.get(name, 0.0) + event.self_device_time_total / 1e3 / steps
    classes["gaps"] = step_ms - sum(classes.values())
    return pd.DataFrame([{"arm": arm.name, "class": name, "ms": ms} for name, ms in classes.items()])


def kernel_class(name: str) -> str:
    """Return the class of a kernel by its name."""
    return next((label for label, pattern in KERNEL_CLASSES.items() if re.search(pattern, name)), "other")


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure and write the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("output", type=Path, help="folder for step.csv and step_profile.csv")
    parser.add_argument("--scales", type=int, choices=range(4, 10), nargs="+", default=[6, 7, 8])
    parser.add_argument("--batches", type=at_least_one, nargs="+", default=[1])
    parser.add_argument("--arms", nargs="+", choices=list(ARMS), default=list(ARMS), help="default: all")
    parser.add_argument("--rounds", type=at_least_one, default=9)
    parser.add_argument("--steps", type=at_least_one, default=5, help="timed steps a round")
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    options = parser.parse_args(arguments)
    device = torch.device(options.device)
    if device.type == "cuda" and not torch.cuda.is_available():
        raise UserError("no GPU is visible to PyTorch; try --device cpu --scales 4 to see the benchmark work")
    torch.backends.cudnn.benchmark = False
    for scale in options.scales:
        for batch in options.batches:
            # The compiler would take the next size for a reason to compile for any size.
            torch.compiler.reset()
            profiles: list[pd.DataFrame] = []
            rows = _cell(scale, batch, options, device, profiles)
            _replace(options.output / "step.csv", pd.DataFrame(rows))
            if profiles:
                _replace(options.output / "step_profile.csv", pd.concat(profiles))


def _replace(path: Path, table: pd.DataFrame) -> None:
    """Put the rows of one scale and batch size into a table, in the place of earlier ones."""
    if path.exists():
        before = pd.read_csv(path)
        cell = table.iloc[0][["scale", "batch"]]
        others = before[(before["scale"] != cell["scale"]) | (before["batch"] != cell["batch"])]
        table = pd.concat([others, table]).sort_values(["scale", "batch"], kind="stable")
    atomic.write_text(path, table.to_csv(index=False))


def _cell(
    scale: int, batch: int, options: argparse.Namespace, device: torch.device, profiles: list[pd.DataFrame]
) -> list[dict[str, object]]:
    arms: list[Arm] = []
    peaks: dict[str, float] = {}
    builder = build_arms(scale, batch, device, options.arms)
    while (built := _with_peak(builder, device)) is not None:
        arm, peaks[built[0].name] = built
        arms.append(arm)
    stocks = [arm for arm in arms if arm.name.startswith("stock")] or arms[:1]
    first = measure(stocks, 1, 2, device)
    best = min(stocks, key=lambda arm: first[arm.name])
    again = Arm(f"{best.name} (again)", best.step)
    times = measure([*arms, again], options.rounds, options.steps, device)
    made = {key: str(provenance.stamp()[key]) for key in ("commit", "created_at")} | provenance.library_versions()
    rows: list[dict[str, object]] = []
    for name, values in times.items():
        ratios = [base / own for base, own in zip(times[best.name], values, strict=True)]
        row = {
            "scale": scale, "batch": batch, "arm": name,
            "ms": statistics.median(values), "ms_low": min(values), "ms_high": max(values),
            "speedup": statistics.median(ratios), "speedup_low": min(ratios), "speedup_high": max(ratios),
            "over": best.name, "peak_gib": peaks.get(name), "rounds": options.rounds, "steps": options.steps,
            "device": device_name(device), **made,
        }  # fmt: skip
        rows.append(row)
        spread = f"[{row['ms_low']:.2f}, {row['ms_high']:.2f}]"
        ratio = f"{row['speedup']:.3f}x [{row['speedup_low']:.3f}, {row['speedup_high']:.3f}]"
        memory = f"  {peaks[name]:.1f} GiB" if name in peaks and device.type == "cuda" else ""
        print(f"scale {scale} batch {batch} {name:<38}{row['ms']:>9.2f} ms {spread}  {ratio}{memory}", flush=True)
    if device.type == "cuda":
        for arm in arms:
            table = profile(arm, 3, statistics.median(times[arm.name]))
            profiles.append(table.assign(scale=scale, batch=batch))
            print(
                arm.name,
                "; ".join(
                    f"{row['class']} {row.ms:.2f}" for _, row in table.sort_values("ms", ascending=False).iterrows()
                ),
            )
    return rows


def _repeat(step: Task, steps: int) -> None:
    for _ in range(steps):
        step()


def _with_peak(builder: Iterator[Arm], device: torch.device) -> tuple[Arm, float] | None:
    """Build the next arm and take three steps, which also compile and capture; return it and its peak memory, GiB."""
    gpu = device.type == "cuda"
    if gpu:
        gc.collect()
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(device)
    before = torch.cuda.memory_allocated(device) if gpu else 0
    arm = next(builder, None)
    if arm is None:
        return None
    for _ in range(3):
        arm.step()
    return arm, (torch.cuda.max_memory_allocated(device) - before) / 2**30 if gpu else math.nan


if __name__ == "__main__":
    script.run(main)
