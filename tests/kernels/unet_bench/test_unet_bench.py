"""The U-Net's workloads: their sites are the network's, their costs the study's, and their checks see errors."""

import gc
import math

import pytest
import torch

from scaffold.kernels.bench import ahead, workloads
from scaffold.kernels.ladder import Ladder, Rung
from scaffold.kernels.unet_bench import arms, costs, sites
from scaffold.kernels.unet_bench.sites import Convolution, Level, Network, Norm
from scaffold.model import blocks
from scaffold.model.size import parameter_count
from scaffold.model.unet import UNet

CPU = torch.device("cpu")
UNET = [name for name in workloads.WORKLOADS if not name.startswith("gated_stack")]
RECIPES = [(name, number) for name in UNET for number in range(len(workloads.recipes(name, CPU, "small")))]


@pytest.fixture(scope="module")
def network():
    return UNet(out_channels=sites.CLASSES, layers=2, base_channels=16).to(memory_format=torch.channels_last_3d)


def test_sites_are_those_of_the_network(network):
    """A site would be missing from the benchmark, or one be measured that no step has."""
    sizes = Network(edge=8, base=16, levels=3)
    norms, convolutions, ups = set(), set(), set()

    def record(module, inputs, output):
        channels, edge = inputs[0].shape[1:3]
        if isinstance(module, blocks.GroupNormReLU):
            norms.add(Norm(channels, edge, isinstance(module, blocks.GroupNormReLUPool)))
        elif isinstance(module, blocks.Convolution3):
            convolutions.add(Convolution(channels, output.shape[1], edge))
        else:
            ups.add(Level(channels // 2, 2 * edge))

    kinds = (blocks.GroupNormReLU, blocks.Convolution3, blocks.UpsampleConcatenate)
    hooks = [m.register_forward_hook(record) for m in network.modules() if isinstance(m, kinds)]
    with torch.no_grad():
        network(torch.zeros(1, 3, 8, 8, 8))
    for hook in hooks:
        hook.remove()
    assert sites.norms(sizes) == sorted(norms, key=lambda n: (-n.edge, n.pooled))
    assert set(sites.steps_up(sizes)) == ups
    found = sites.convolutions(sizes)
    assert len(found) == len(set(found))
    assert {*found, sites.stem(sizes)} == convolutions


def test_parameters_are_those_of_the_network(network):
    """The optimizer would be timed on other tensors than it has to move."""
    shapes = sites.parameter_shapes(Network(8, 16, 3))
    assert sorted(shapes) == sorted(tuple(p.shape) for p in network.parameters())
    for full, layers in zip(sites.NETWORKS["full"], (5, 4), strict=True):
        assert sum(map(math.prod, sites.parameter_shapes(full))) == parameter_count(layers, 64, sites.CLASSES)


@pytest.mark.parametrize(
    ("cost", "mbytes", "gflop"),
    [
        # gpu_kernels_study.md, sections 4.3 and 4.4: per tensor of the site, 268.4 MB at 64 @ 128^3.
        (costs.convolution(Convolution(64, 64, 128), 2), 537.1, 463.9),
        (costs.convolution(Convolution(3, 64, 128), 2), 281.0, 21.7),
        (costs.convolution(Convolution(1024, 1024, 8), 2), 58.7, 29.0),
        (costs.group_norm_forward(Norm(64, 128, False), 2), 3 * 268.4, None),
        (costs.group_norm_forward(Norm(64, 128, True), 2), 3.125 * 268.4, None),
        (costs.group_norm_backward(Norm(64, 128, False), 2), 5 * 268.4, None),
        (costs.group_norm_backward(Norm(64, 128, True), 2), 5.25 * 268.4, None),
        # The study counts the skip's copy apart: it reads and writes a tensor of the level.
        (costs.upsample_forward(Level(64, 128), 2), 335.7 + 2 * 268.4, 34.36),
        # Input and weight gradient in one pass over the half that both read.
        (costs.upsample_backward(Level(64, 128), 2), 2 * 335.7 - 268.4, 2 * 34.36),
        (costs.head_forward(Level(64, 128), 2), 293.6, 1.61),
        (costs.head_backward(Level(64, 128), 2), 293.6 + 268.4, 3.22),
        (costs.last_norm_head_forward(Level(64, 128), 2), 2 * 268.4 + 25.17, None),
        (costs.last_norm_head_backward(Level(64, 128), 2), 3 * 268.4 + 2 * 25.17, None),
        (costs.loss_sums_forward(128, 2), 25.17 + 2.1, None),
        (costs.loss_sums_backward(128, 2), 2 * 25.17 + 2.1, None),
        # 28 B a parameter for the update, 4 for the norm.
        (costs.clipped_adam(90_300_000), 90.3 * 32, None),
    ],
)
def test_costs(cost, mbytes, gflop):
    """Every fraction of a roof would be wrong."""
    assert cost.bytes == pytest.approx(mbytes * 1e6, rel=2e-3)
    assert gflop is None or cost.flops == pytest.approx(gflop * 1e9, rel=4e-3)


@pytest.mark.parametrize(("name", "number"), RECIPES)
def test_check_sees_a_wrong_result(name, number):
    """A kernel could return anything in one of its results, and the column of errors would say 1e-7."""
    case = workloads.recipes(name, CPU, "small")[number]()
    result = (case.arms[0].check or case.arms[0].run)()
    tensors = result if isinstance(result, tuple) else (result,)
    assert case.error(result) < 1e-6
    for place, tensor in enumerate(tensors):
        wrong = tuple(t * 1.01 if i == place else t for i, t in enumerate(tensors))
        assert case.error(wrong if isinstance(result, tuple) else wrong[0]) == pytest.approx(0.01, rel=1e-2), place
        assert tensor.isfinite().all()


@pytest.mark.parametrize("name", UNET)
def test_tensors_of_a_case_are_freed_with_it(name):
    """Cases would pile up on the device until one finds no memory: nothing asks for cycles to be collected there."""

    def tensors():
        return sum(issubclass(type(thing), torch.Tensor) for thing in gc.get_objects())

    gc.collect()
    gc.disable()
    try:
        before = tensors()
        case = workloads.recipes(name, CPU, "small")[0]()
        case.error((case.arms[0].check or case.arms[0].run)())
        assert tensors() > before
        del case
        assert tensors() == before
    finally:
        gc.enable()


def test_ours_is_named_as_the_rung_that_serves_it(monkeypatch):
    """The plain formula would be shown as the kernel's time where no kernel runs."""
    monkeypatch.setattr("scaffold.kernels.ladder._ladders", {})
    refusing = []
    rungs = [Rung("fast", None, lambda x: refusing[0] if refusing else None, lambda x: x)]
    probe = Ladder("probe", [*rungs, Rung("plain", None, None, lambda x: x)])
    assert arms.ours("probe", lambda: probe(1)).name == "fast"
    refusing.append("not now")
    assert arms.ours("probe", lambda: probe(1)).name == "plain"


def test_error_is_that_of_the_worst_tensor():
    """One wrong gradient would drown in others that are right."""
    right, exact = torch.ones(1000), torch.ones(1000, dtype=torch.float64)
    assert arms.relative_error([right, right + 0.5], [exact, exact]) == pytest.approx(0.5)
    assert arms.relative_error([right + 0.5, right], [exact, exact]) == pytest.approx(0.5)


def test_cases_are_compiled_ahead_in_processes(caplog):
    """Kernels would be compiled one after another while the device waits, or a failure would end the run."""
    assert ahead.compile_case("stem_forward", CPU, "small", 0) is None
    assert "IndexError" in ahead.compile_case("stem_forward", CPU, "small", 99)
    ahead.compile_ahead(["stem_forward", "head_forward"], CPU, "small")
    assert not [record for record in caplog.records if record.levelname == "WARNING"]
