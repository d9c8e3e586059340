"""What only a GPU can show of the step up: sizes of production, races, 64-bit offsets, CUDA graphs."""

import kernel_needs
import pytest
import torch
from tensors import LAST
from upsample_case import NAMES, Case, same_values, worst_error

from scaffold.kernels.convolution import upsample

pytestmark = kernel_needs.GPU

LEVELS = [(64, 64), (128, 32), (256, 16), (512, 8), (1024, 8)]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize(("channels", "edge"), LEVELS)
def test_network_levels_agree_with_float64(channels, edge, dtype):
    """Thousands of programs at once would disturb one another, or a level's tiles or splits be wrong."""
    case = Case(channels, (edge,) * 3, dtype=dtype, device="cuda", exact=False)
    wanted = case.run(upsample.eager, torch.float64)
    bound = 4 * torch.finfo(dtype).eps
    assert worst_error(case.run(), wanted) < bound
    assert worst_error(case.run(x=case.tensors["x"].roll(1, 4)), wanted) > 10 * bound, "control"


@pytest.mark.parametrize("channels", [64, 512])
def test_integers_are_exact_at_the_size_of_a_level(channels):
    """Idea 60: one voxel of thousands would be wrong by less than a tolerance."""
    edge = 4096 // channels
    case = Case(channels, (edge,) * 3, odd=(1, 0, 1), dtype=torch.bfloat16, device="cuda", zeros=0.99)
    wanted = case.run(upsample.eager, torch.float64)
    found = case.run()
    for name in NAMES:
        exact = wanted[name].abs() <= 256
        assert exact.float().mean() > 0.5, name
        assert torch.equal(found[name][exact], wanted[name][exact].to(torch.bfloat16)), name


@pytest.mark.parametrize(("channels", "edge"), [(64, 64), (512, 8)])
def test_repeated_runs_give_the_same_bits(channels, edge):
    """Idea 20: a race, such as an operand overwritten while a product reads it, shows in one run of several only."""
    case = Case(channels, (edge,) * 3, dtype=torch.bfloat16, device="cuda", exact=False)
    first = case.run()
    for _ in range(20):
        assert same_values(case.run(), first)


def test_concatenation_of_two_to_the_31_elements():
    """Idea 67: offsets would wrap in the decoder's largest tensor at scale 8, which has exactly 2^31 elements."""
    if torch.cuda.mem_get_info()[0] < 60e9:
        pytest.skip("needs 60 GB of device memory")
    far = (slice(None), slice(None), slice(-2, None), slice(-8, None))
    case = Case(64, (128,) * 3, batch=1, dtype=torch.bfloat16, device="cuda", exact=False)
    leaves = {name: case.tensors[name].requires_grad_() for name in NAMES[1:]}
    out = upsample.upsample_concatenate(**leaves)
    assert out.numel() == 2**31
    x, skip = (case.tensors[name].detach() for name in ("x", "skip"))
    corner = {"x": x[:, :, -1:, -4:].float(), "skip": skip[far].float()}
    weight, bias = (case.tensors[name].detach().float() for name in ("weight", "bias"))
    wanted = upsample.eager(corner["x"], weight, bias, corner["skip"])
    assert torch.equal(out[far][:, :64], skip[far])
    assert (out[far] - wanted).abs().max() < 8 * torch.finfo(torch.bfloat16).eps * wanted.abs().max()
    out.backward(case.tensors["grad"])
    grad = case.tensors["grad"][far][:, 64:].float()
    wanted = torch.nn.functional.conv3d(grad, weight, stride=2)
    found = leaves["x"].grad[:, :, -1:, -4:]
    assert (found - wanted).abs().max() < 8 * torch.finfo(torch.bfloat16).eps * wanted.abs().max()
    wanted = sum(plane.double().sum((0, 2, 3)) for plane in case.tensors["grad"][:, 64:].unbind(2))
    assert (leaves["bias"].grad - wanted).abs().max() < 8 * torch.finfo(torch.bfloat16).eps * wanted.abs().max()


def test_replayed_graph_equals_the_eager_call():
    """Idea 85: a launch would synchronise, or read a buffer that the graph does not own."""
    case = Case(128, (16,) * 3, dtype=torch.bfloat16, device="cuda", exact=False)
    leaves = {
        name: case.tensors[name].clone(memory_format=torch.preserve_format).requires_grad_() for name in NAMES[1:]
    }

    def step():
        out = upsample.upsample_concatenate(**leaves)
        return out, *torch.autograd.grad(out, list(leaves.values()), case.tensors["grad"])

    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        step()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = step()
    with torch.no_grad():
        leaves["x"].copy_(torch.randn_like(leaves["x"]))
    graph.replay()
    for found, wanted in zip(captured, step(), strict=True):
        assert torch.equal(found, wanted)


def test_peak_memory_holds_one_concatenation():
    """Idea 69: an upsampled tensor, or a copy of a gradient, would be made beside the concatenation."""
    case = Case(64, (64,) * 3, dtype=torch.bfloat16, device="cuda", exact=False)
    case.run()
    whole = case.tensors["grad"].nbytes
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    with torch.no_grad():
        out = upsample.upsample_concatenate(*[case.tensors[name] for name in NAMES[1:]])
    assert torch.cuda.max_memory_allocated() - before < 1.01 * whole
    assert out.is_contiguous(memory_format=LAST)
