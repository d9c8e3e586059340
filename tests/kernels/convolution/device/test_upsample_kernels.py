"""The step up's kernels against PyTorch's operators, in every size and layout that they take."""

import pytest
import torch
from mutants import mutant
from tensors import LAST
from upsample_case import NAMES, Case, same_values, worst_error

from scaffold.kernels.convolution import upsample, upsample_kernels, upsample_launch
from scaffold.kernels.convolution import upsample_plan as plan

DTYPES = [torch.float32, torch.bfloat16] + ([torch.float16] if torch.cuda.is_available() else [])
SIZES = {
    "even": Case(16, (2, 3, 2), batch=2),
    "odd depth": Case(16, (2, 3, 2), odd=(1, 0, 0), batch=2),
    "odd everywhere": Case(16, (2, 1, 3), odd=(1, 1, 1), batch=2),
    "one voxel": Case(16, (1, 1, 1)),
    "channels no power of two": Case(48, (1, 2, 2), odd=(0, 0, 1), zeros=0.7),
    "more voxels than a tile": Case(16, (5, 6, 5), odd=(0, 1, 0), zeros=0.9),
}
"""In bfloat16 integers are exact up to 256, which no sum of these passes."""


def on(device, case, dtype=torch.float32):
    return Case(case.channels, case.coarse, case.odd, case.batch, dtype, device, case.exact, case.zeros)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", SIZES)
def test_output_and_gradients_are_exact_for_small_integers(name, dtype, device):
    """A tap, a channel, a voxel or a mask would be another's; the far planes would not be zero."""
    case = on(device, SIZES[name], dtype)
    wanted = case.run(upsample.eager, torch.float64)
    assert max(wanted[name].abs().max() for name in NAMES) <= 256
    found = case.run()
    assert all(found[name].dtype == dtype for name in NAMES)
    assert same_values(found, wanted)
    # Control: other taps, or a voxel further on, would have been noticed.
    assert not same_values(found, case.run(upsample.eager, torch.float64, weight=case.tensors["weight"].flip(2, 3, 4)))
    if case.coarse[2] > 1:
        assert not same_values(found, case.run(upsample.eager, torch.float64, x=case.tensors["x"].roll(1, 4)))


@pytest.mark.parametrize("tap", range(8))
def test_each_tap_goes_to_its_own_voxels(tap, device):
    """Idea 74: two taps would change places, which a symmetric weight hides."""
    case = on(device, SIZES["even"])
    weight = torch.zeros_like(case.tensors["weight"])
    kd, kh, kw = tap // 4, tap // 2 % 2, tap % 2
    weight[range(3, 19), range(16), kd, kh, kw] = 1
    bias = torch.zeros_like(case.tensors["bias"])
    up = upsample.upsample_concatenate(case.tensors["x"], weight, bias, case.tensors["skip"])[:, 16:]
    assert torch.equal(up[:, :, kd::2, kh::2, kw::2], case.tensors["x"][:, 3:19])
    assert up.abs().sum() == case.tensors["x"][:, 3:19].abs().sum(), "another tap is written too"


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_random_values_agree_with_float64(dtype, device):
    """Sums would be formed in the storage type: the error may be a few roundings of the result."""
    case = Case(32, (4, 4, 6), odd=(0, 1, 0), dtype=dtype, device=device, exact=False)
    wanted = case.run(upsample.eager, torch.float64)
    roundings = 4 * torch.finfo(dtype).eps
    assert worst_error(case.run(), wanted) < roundings
    # Control: one voxel's step further the errors are of order one.
    assert worst_error(case.run(x=case.tensors["x"].roll(1, 4)), wanted) > 10 * roundings


def test_float32_is_not_tf32(device):
    """Idea 66: float32 products would silently lose 13 bits."""
    case = on(device, SIZES["one voxel"])
    case.tensors["x"].fill_(1 + 2**-12)
    case.tensors["weight"].zero_()[5] = 1
    case.tensors["bias"].zero_()
    found = case.run()
    assert (found["out"][:, 16:] == 1 + 2**-12).all()
    case.tensors["grad"].fill_(1 + 2**-12)
    assert (case.run()["weight"] == (1 + 2**-12) ** 2).all()


@pytest.mark.parametrize("name", ["odd everywhere", "more voxels than a tile"])
def test_every_element_is_written(name, device):
    """Padding, or an empty share of a split sum, would be what the allocator left there: NaN in this mode."""
    case = on(device, SIZES[name])
    assert not any(result.isnan().any() for result in case.run().values())


def test_a_nan_stays_in_its_voxel_and_in_its_column(device):
    """A masked lane would take part in a sum, or a NaN be hidden."""
    case = on(device, SIZES["even"])
    clean = case.run()["out"]
    case.tensors["x"][1, 4, 1, 2, 0] = float("nan")
    found = case.run()["out"]
    hit = torch.zeros_like(found, dtype=torch.bool)
    hit[1, 16:, 2:4, 4:6, 0:2] = True
    assert found[hit].isnan().all()
    assert torch.equal(found[~hit], clean[~hit])


def wider(tensor):
    """Return equal values as a view into a tensor with more channels and planes, channels innermost."""
    N, C, D, H, W = tensor.shape
    storage = torch.full((N, D + 2, H + 1, W + 3, 2 * C), float("nan"), dtype=tensor.dtype, device=tensor.device)
    view = storage.permute(0, 4, 1, 2, 3)[:, C:, 1 : D + 1, :H, 2 : W + 2]
    view.copy_(tensor)
    return view


@pytest.mark.parametrize("strided", ["x", "skip", "grad"])
def test_slices_are_read_in_place(strided, device):
    """Ideas 26 and 83: a slice would be read as if dense, or copied first."""
    case = on(device, SIZES["odd depth"])
    wanted = case.run()
    view = wider(case.tensors[strided])
    assert not view.is_contiguous(memory_format=LAST)
    assert upsample.declines(**{k: v for k, v in (case.tensors | {strided: view}).items() if k != "grad"}) is None
    assert same_values(case.run(**{strided: view}), wanted)


def far(tensor, memory):
    """Return equal values as a view whose last planes lie more than 2^31 elements from the first.

    As many lie before it: a distance that wraps hits them, and gives wrong values rather than a crash. Only what
    is touched takes memory or disk.
    """
    _, C, D, _, W = tensor.shape
    step = 2**31 // (D - 2) + C
    size = 2**31 + D * step
    if tensor.is_cuda:
        storage = torch.empty(size, dtype=tensor.dtype, device=tensor.device)
    else:
        storage = torch.from_file(str(memory), shared=True, size=size, dtype=tensor.dtype)
    view = storage[2**31 :].as_strided(tensor.shape, (D * step, 1, step, W * C, C))
    return view.copy_(tensor)


@pytest.mark.parametrize("strided", ["x", "skip", "grad"])
def test_planes_of_one_sample_may_lie_further_apart_than_32_bits_reach(strided, device, tmp_path):
    """Idea 67: only the sample's number would be taken in 64 bits, and a plane be read outside the tensor."""
    if device == "cuda" and torch.cuda.mem_get_info()[0] < 14e9:
        pytest.skip("needs 14 GB of device memory")
    case = Case(16, (4, 1, 2), dtype=torch.float16, device=device)
    wanted = case.run()
    view = far(case.tensors[strided], tmp_path / "memory")
    assert upsample.declines(**{k: v for k, v in (case.tensors | {strided: view}).items() if k != "grad"}) is None
    assert same_values(case.run(**{strided: view}), wanted)


@pytest.mark.parametrize("layout", ["contiguous", "expanded"])
def test_gradient_of_any_layout_is_taken(layout, device):
    """Idea 26: a gradient in another order would be misread."""
    case = on(device, SIZES["even"])
    if layout == "contiguous":
        grad = case.tensors["grad"].contiguous()
    else:
        grad = case.tensors["grad"][:1, :1, :1, :1, :1].expand_as(case.tensors["grad"])
    found = case.run(grad=grad)
    assert same_values(found, case.run(upsample.eager, torch.float64, grad=grad))
    assert found["x"].is_contiguous(memory_format=LAST)


def test_skip_gradient_is_a_view(device):
    """The largest gradient of the level would be copied."""
    case = on(device, SIZES["even"])
    skip = case.tensors["skip"].requires_grad_()
    grad = case.tensors["grad"]
    out = upsample.upsample_concatenate(*[case.tensors[name] for name in NAMES[1:]])
    (found,) = torch.autograd.grad(out, skip, grad)
    assert found.untyped_storage().data_ptr() == grad.untyped_storage().data_ptr()
    assert torch.equal(found, grad[:, :16])


def test_layouts_of_the_parameters_give_the_same_bits(device):
    """Ideas 27 and 65: a weight in PyTorch's default order, or a strided bias, would be read as if dense."""
    case = on(device, SIZES["one voxel"])
    weight, bias = case.tensors["weight"], case.tensors["bias"]
    assert not torch.equal(weight.contiguous().view(-1), weight.permute(0, 2, 3, 4, 1).reshape(-1))
    wanted = case.run()
    strided = torch.stack([bias, torch.full_like(bias, float("nan"))], dim=1)[:, 0]
    assert same_values(case.run(weight=weight.contiguous(), bias=strided), wanted)
    # The operator itself takes them too.
    assert torch.equal(
        upsample._forward_op(case.tensors["x"], weight.contiguous(), strided, case.tensors["skip"]), wanted["out"]
    )


@pytest.mark.parametrize(
    "needed", [("x",), ("weight",), ("bias",), ("skip",), ("x", "bias"), ("weight", "skip")], ids=str
)
def test_only_what_is_needed_is_differentiated(needed, device):
    """An unneeded gradient would be computed, or a needed one be missing."""
    case = on(device, SIZES["one voxel"])
    wanted = case.run()
    leaves = {name: case.tensors[name].detach().requires_grad_(name in needed) for name in NAMES[1:]}
    upsample.upsample_concatenate(**leaves).backward(case.tensors["grad"])
    for name, leaf in leaves.items():
        assert (leaf.grad is not None) == (name in needed)
        assert leaf.grad is None or torch.equal(leaf.grad, wanted[name])


def test_64_bit_offsets_change_no_bits(device, monkeypatch):
    """Idea 32: the path that only tensors beyond 2^31 elements take would differ."""
    case = on(device, SIZES["more voxels than a tile"])
    wanted = case.run()
    seen = []
    real = upsample_launch.run
    monkeypatch.setattr(upsample_launch, "run", lambda launch, *a: (seen.append(launch), real(launch, *a)))
    monkeypatch.setattr(plan, "WIDE_FROM", 0)
    assert same_values(case.run(), wanted)
    assert all(launch.constants["WIDE"] for launch in seen)


@pytest.mark.parametrize("splits", [1, 2, 8])
def test_split_sums_are_complete(splits, device, monkeypatch):
    """Idea 63: a share would be left out or counted twice, also where shares are many and voxels few."""
    case = on(device, SIZES["odd depth"], torch.float16)
    wanted = case.run(upsample.eager, torch.float64)
    for name in ("input_gradient_tile", "weight_gradient_tile"):
        monkeypatch.setattr(plan, name, lambda *_: plan.Tile(32, 32, 16, 4, 2, splits))
    seen = []
    real = upsample_launch.run
    monkeypatch.setattr(upsample_launch, "run", lambda launch, *a: (seen.append(launch.kernel), real(launch, *a)))
    assert same_values(case.run(), wanted)
    assert seen.count("sum_shares") == (1 if splits == 1 else 3)


@pytest.mark.parametrize("blocks", [(64, 32, 32), (32, 128, 16)], ids=str)
def test_tiles_change_nothing(blocks, device, monkeypatch):
    """Idea 62: a tile from a tuning table would be one that the kernels do not cover."""
    case = on(device, SIZES["odd everywhere"], torch.float16)
    wanted = case.run(upsample.eager, torch.float64)
    monkeypatch.setattr(plan, "forward_tile", lambda *_: plan.Tile(*blocks, 4, 2))
    block_m, block_n, block_k = blocks
    monkeypatch.setattr(plan, "input_gradient_tile", lambda *_: plan.Tile(block_m, min(block_n, 32), block_k, 4, 2))
    monkeypatch.setattr(plan, "weight_gradient_tile", lambda *_: plan.Tile(min(block_m, 32), block_n, block_k, 4, 2))
    assert same_values(case.run(), wanted)


MUTATIONS = {
    "channel order": ("channel = columns % C", "channel = C - 1 - columns % C"),
    "upsampled half in the skip's place": ("tl.store(out + C + out_offsets", "tl.store(out + out_offsets"),
    "gradient of the skip's half": ("tl.load(grad + C + (row", "tl.load(grad + (row"),
    "bias in the far planes": ("acc = tl.where(inside[:, None], acc, 0.0)", "acc = acc"),
    "batch stride": ("n * G_N + 2 * i * G_D + 2 * j * G_H + 2 * k * G_W\n        a =", "2 * i * G_D\n        a ="),
    "last block of voxels": ("BLOCK_K - 1) // BLOCK_K - 1", "BLOCK_K - 1) // BLOCK_K - 2"),
    "first share only": ("row < N_SHARES", "row < 1"),
}


@pytest.mark.parametrize("name", MUTATIONS)
def test_a_wrong_kernel_is_noticed(name, tmp_path, monkeypatch, device):
    """Control: the comparisons above would pass although a kernel computes something else."""
    old, new = MUTATIONS[name]
    wrong = mutant(upsample_kernels, old, new, monkeypatch, tmp_path)
    case = on(device, SIZES["odd everywhere"])
    wanted = case.run(upsample.eager, torch.float64)
    assert same_values(case.run(), wanted)
    for kernel in ("forward", "input_gradient", "weight_gradient", "sum_shares"):
        monkeypatch.setattr(upsample_kernels, f"{kernel}_kernel", getattr(wrong, f"{kernel}_kernel"))
    assert not same_values(case.run(), wanted)
