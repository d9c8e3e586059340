"""What the kernels compute, against float64 and against PyTorch's own pooling."""

import mutants
import pytest
import torch
import torch.nn.functional as F
from norm_cases import channels_last, everything, make_case, random_like, with_gradients
from tensors import LAST, relative_error, same_bits

from scaffold.kernels.group_norm import group_norm_relu, group_norm_relu_pool, launch, op, reference

SHAPES = [
    ((1, 16, 2, 4, 8), 4),  # whole tiles, nothing masked
    ((2, 15, 3, 3, 5), 3),  # odd extents, groups of 5 channels, two samples
    ((1, 16, 1, 1, 13), 16),  # instance norm; a prime number of voxels, fewer than a tile
    ((2, 6, 2, 3, 2), 1),  # layer norm
    ((1, 48, 2, 2, 3), 6),  # several blocks of channels, the last one incomplete
    ((3, 16, 1, 1, 1), 4),  # one voxel
]


PASSES = ["statistics", "normalise", "gradient_sums", "input_gradient"]
MERGED_FIRST = [
    "statistics", "forward_coefficients", "normalise", "gradient_sums", "backward_coefficients", "input_gradient"
]  # fmt: skip


@pytest.mark.parametrize(
    ("shape", "groups", "merged_first"),
    [*((*case, False) for case in SHAPES), *((*case, True) for case in SHAPES[:2])],
    ids=str,
)
def test_values_and_gradients_against_float64(shape, groups, merged_first, tile, device, launches):
    """A tail, a padded group, a second sample or an empty program would be summed wrongly."""
    tile(merged_first=merged_first)
    inputs = make_case(shape, device=device)
    dy = random_like(inputs[0])
    double = [tensor.double() for tensor in inputs]
    exact, exact_gradients = with_gradients(lambda *t: op.eager(*t, groups), double, [dy[0].double()])
    y, gradients = with_gradients(lambda *t: group_norm_relu(*t, groups), inputs, dy)
    assert launches == (MERGED_FIRST if merged_first else PASSES)
    rough = op.eager(*double, groups, 1e-3)
    assert relative_error(rough, exact[0]) > 1e-5, "control: another eps is noticed"
    for found, right in zip(y + gradients, exact + exact_gradients, strict=True):
        assert relative_error(found, right) < 2e-6
        assert found.stride() == right.stride() or shape[2:] == (1, 1, 1)


@pytest.mark.parametrize(
    ("shape", "groups", "merged_first"),
    [((2, 6, 3, 3, 5), 2, False), ((1, 16, 2, 4, 8), 4, False), ((1, 16, 2, 8, 8), 4, True)],
    ids=str,
)
def test_pooling_and_its_gradient_against_float64(shape, groups, merged_first, tile, device, launches):
    """A window's voxel would be addressed wrongly, or a plane that no window covers be left unwritten."""
    tile(merged_first=merged_first)
    inputs = make_case(shape, device=device)
    double = [tensor.double() for tensor in inputs]
    outputs = group_norm_relu_pool(*inputs, groups)
    gradients = random_like(*outputs)
    exact, exact_gradients = with_gradients(
        lambda *t: op.eager_pool(*t, groups), double, [g.double() for g in gradients]
    )
    launches.clear()
    found, found_gradients = with_gradients(lambda *t: group_norm_relu_pool(*t, groups), inputs, gradients)
    assert launches == (MERGED_FIRST if merged_first else PASSES)
    for ours, right in zip(found + found_gradients, exact + exact_gradients, strict=True):
        assert relative_error(ours, right) < 2e-6
    assert same_bits(found[0], group_norm_relu(*inputs, groups))
    assert same_bits(found[1], F.max_pool3d(found[0], 2))


@pytest.mark.parametrize("arrives", ["y", "pooled"])
def test_one_of_two_gradients_may_be_missing(arrives, tile, device):
    """A missing gradient would be read from nowhere, or count as something else than zero."""
    tile()
    inputs = make_case((1, 16, 2, 3, 4), device=device)
    gradients = random_like(*group_norm_relu_pool(*inputs, 4))
    zeros = (
        [gradients[0], torch.zeros_like(gradients[1])]
        if arrives == "y"
        else [torch.zeros_like(gradients[0]), gradients[1]]
    )
    _, both = with_gradients(lambda *t: group_norm_relu_pool(*t, 4), inputs, zeros)
    index = 0 if arrives == "y" else 1
    _, one = with_gradients(lambda *t: group_norm_relu_pool(*t, 4)[index], inputs, [gradients[index]])
    for found, right in zip(one, both, strict=True):
        assert relative_error(found, right) < 2e-6


def test_pooling_takes_the_first_of_equals_and_the_last_nan(tile, device):
    """Gradients would go to another voxel than with PyTorch's pooling: ties are common after a ReLU in bfloat16."""
    tile()
    x, weight, bias = make_case((1, 16, 2, 4, 4), device=device)
    x = channels_last(x.round())
    x[0, 12, 0, 1, 2] = torch.nan
    y, pooled, argmax, _ = op._pool_op(x, weight, bias, 4, 1e-5)
    assert y[:, 12:].isnan().all()
    assert y[:, :12].isfinite().all()
    right, place = F.max_pool3d(y.cpu().contiguous(), 2, return_indices=True)
    d, h, w = place // 16, place // 4 % 4, place % 4
    assert torch.equal(argmax.cpu(), (d % 2 * 4 + h % 2 * 2 + w % 2).to(torch.uint8))
    assert same_bits(pooled.cpu(), right)
    windows = y.cpu().unfold(2, 2, 2).unfold(3, 2, 2).unfold(4, 2, 2).flatten(5)
    assert (windows == windows.amax(-1, keepdim=True)).sum(-1).max() > 1, "control: there are ties"


@pytest.mark.parametrize(
    ("shape", "groups"),
    [pytest.param((2, 15, 3, 5, 7), 3, id="masked tiles"), pytest.param((2, 16, 4, 4, 12), 4, id="whole tiles")],
)
def test_reciprocal_deviation_where_the_mean_is_a_million_deviations(shape, groups, tile, device):
    """Rounding of the mean would be taken for deviation; the output cannot show it, since there the mean is rounded."""
    # One program, since the means of several are rounded when they are stored; and a number of elements
    # that is no power of two, so that dividing by it rounds.
    tile(programs=1)
    x, weight, bias = make_case(shape, device=device, mean=1e6)
    _, statistics = op._forward_op(x, weight, bias, groups, 1e-5)
    double = x.double().reshape(2, groups, -1)
    exact = (double.var(2, correction=0) + 1e-5).rsqrt()
    assert relative_error(statistics[..., 2], exact) < 1e-6
    single = x.reshape(2, groups, -1)
    around_rounded = ((single - single.mean(2, keepdim=True)) ** 2).mean(2)
    assert relative_error((around_rounded + 1e-5).rsqrt(), exact) > 1e-6, "control: the plain two-pass formula fails"


def test_statistics_where_a_program_begins_at_an_outlier(tile, device, monkeypatch, tmp_path):
    """All deviations would be from the outlier, and most of their digits be lost."""
    tile(programs=1)
    x, _, _ = make_case((1, 16, 2, 64, 8), device=device)
    # The last tile is the first that is read: two voxels of each of eight rows of threads.
    x[:, ::4, -1, -2, 0] = 3e4
    exact = x.double().reshape(1, 4, -1).var(2, correction=0) * (4 * 1024)

    def error():
        return relative_error(launch.moments(x, 4)[0, ..., 2], exact)

    # 64 tiles may magnify rounding 64 times, and there are some roundings.
    budget = 64 * 2**-22
    assert error() < budget
    from scaffold.kernels.group_norm import kernels

    near_the_outlier = mutants.mutant(
        kernels, "tl.sum(value - origin, _UNROLL_AXIS) * (1.0 / UNROLL)", "tl.sum(value * 0, _UNROLL_AXIS)",
        monkeypatch, tmp_path,
    )  # fmt: skip
    monkeypatch.setattr(kernels, "statistics_kernel", near_the_outlier.statistics_kernel)
    assert error() > 10 * budget, "control: with the first element in the place of the first tile's mean"


@pytest.mark.parametrize("mean", [0.0, 1e3])
def test_statistics_of_many_programs(mean, tile, device):
    """Counts or means of parts would be merged wrongly; unequal parts show it where the mean is large."""
    tile(unroll=2, programs=5)
    x, weight, bias = make_case((2, 15, 3, 5, 7), device=device, mean=mean)
    x[:, :, 2] *= 1.5
    _, statistics = op._forward_op(x, weight, bias, 3, 1e-5)
    groups = x.double().reshape(2, 3, -1)
    assert torch.equal(statistics[..., 0], torch.full_like(statistics[..., 0], 5 * 105))
    assert (statistics[..., 1] - groups.mean(2)).abs().max() < 3e-7 * max(1, mean)
    assert relative_error(statistics[..., 2], (groups.var(2, correction=0) + 1e-5).rsqrt()) < 1e-6


def test_many_parts_with_close_means_are_merged_exactly(device):
    """The rounded mean of the parts would be taken for their mean, and its error for deviation."""
    x, weight, bias = make_case((1, 16, 1, 1, 2), device=device)
    count = torch.full((37, 1, 4), 100.0, dtype=torch.float64)
    mean = (1000 + 0.01 * torch.randn((37, 1, 4), generator=torch.Generator().manual_seed(0))).double()
    moments = torch.stack((count, mean, 0 * mean), dim=-1)
    result = launch.normalise(x, weight, bias, moments.float().to(device), 4, 1e-9)
    exact = reference.merge(moments).to(device)
    assert (result.statistics[..., 1] - exact[..., 1]).abs().max() <= 0.51 * 2**-14, (
        "more than half a unit in the last place"
    )
    assert relative_error(result.statistics[..., 2], (exact[..., 2] / exact[..., 0] + 1e-9).rsqrt()) < 1e-6


def test_equal_elements_give_the_bias(tile, device):
    """Cancellation would leave a deviation where there is none."""
    tile()
    x, weight, bias = make_case((1, 16, 2, 3, 5), device=device)
    x.fill_(1234.567)
    y, statistics = op._forward_op(x, weight, bias, 4, 1e-5)
    assert torch.equal(y, bias.relu().view(1, -1, 1, 1, 1).expand_as(y))
    exact = torch.full((1, 4), 1e-5, dtype=torch.float64).rsqrt()
    assert relative_error(statistics[..., 2], exact) < 1e-7


def test_number_of_programs_changes_no_bit_of_the_passes_that_write(tile, device):
    """A program's second tile would differ from another program's first."""
    inputs = make_case((1, 16, 4, 4, 6), device=device)
    dy = random_like(inputs[0])[0]
    tile(programs=3)
    moments = launch.moments(inputs[0], 4)
    found = []
    for programs in (1, 1000):
        tile(programs=programs)
        result = launch.normalise(*inputs, moments, 4, 1e-5, pool=True)
        incoming = launch.Incoming(dy, *random_like(result.pooled), result.argmax)
        if not found:
            sums = launch.gradient_sums(incoming, *inputs, result.statistics, 4)
        found.append([*result, *launch.input_gradient(incoming, *inputs, result.statistics, sums, 4)])
    assert all(same_bits(a, b) for a, b in zip(*found, strict=True))


def test_relu_passes_nan_and_stops_at_zero(tile, device):
    """Hazard 16: a ReLU that swallowed NaN would defeat the stop at a non-finite loss."""
    tile()
    x, weight, bias = make_case((1, 16, 2, 3, 4), device=device)
    # A weight of zero makes the pre-activation the bias, exactly.
    weight.zero_()
    bias[:5] = torch.tensor([torch.nan, torch.inf, -torch.inf, -0.0, 0.0])
    (y,), (dx, dweight, dbias) = with_gradients(
        lambda *t: group_norm_relu(*t, 4), (x, weight, bias), [torch.ones_like(x)]
    )
    assert same_bits(y, F.relu(bias).add(0.0).view(1, -1, 1, 1, 1).expand_as(y))
    passed = torch.where(bias <= 0, 0.0, 24.0)
    assert torch.equal(dbias, passed)
    assert dbias[0] == 24
    assert not dx.any()
    assert not dweight[2:5].any()


@pytest.mark.parametrize("poison", [torch.nan, torch.inf])
def test_nan_of_an_element_reaches_its_group_and_no_other(poison, tile, device):
    """Hazard 16: a maximum, or a clamped sum of squares, would turn it into a number."""
    tile()
    x, weight, bias = make_case((1, 16, 2, 4, 8), device=device)
    x[0, 5, 1, 2, 3] = poison
    y = group_norm_relu(x, weight, bias, 4)
    assert y[:, 4:8].isnan().all()
    assert y[:, :4].isfinite().all()
    assert y[:, 8:].isfinite().all()


def test_output_that_underflows_still_passes_its_gradient(tile, device):
    """The gate would look at the rounded output instead of the pre-activation."""
    tile()
    x, weight, bias = make_case((1, 16, 2, 3, 4), torch.float16, device=device)
    weight, bias = weight * 1e-9, bias * 0
    (y,), (_, _, dbias) = with_gradients(lambda *t: group_norm_relu(*t, 4), (x, weight, bias), [torch.ones_like(x)])
    assert not y.any()
    assert (dbias > 0).all()
    assert (dbias < 24).all()


def test_every_element_of_every_buffer_is_written(tile, device, monkeypatch):
    """Whatever the memory held before would leak into a result, now and then."""
    tile(programs=5)
    inputs = make_case((2, 6, 3, 2, 3), device=device)
    gradients = random_like(*group_norm_relu_pool(*inputs, 2))

    def run():
        return everything(lambda *t: group_norm_relu_pool(*t, 2), inputs, gradients)

    clean = run()
    poisoned = []
    for owner, name in ((torch, "empty"), (torch, "empty_like"), (torch.Tensor, "new_empty")):
        real = getattr(owner, name)

        def poison(*arguments, real=real, **options):
            tensor = real(*arguments, **options)
            poisoned.append(tensor)
            return tensor.fill_(torch.nan if tensor.is_floating_point() else 255)

        monkeypatch.setattr(owner, name, poison)
    found = run()
    assert len(poisoned) >= 10, "control: the buffers were poisoned"
    assert all(same_bits(a, b) for a, b in zip(found, clean, strict=True))


LAYOUTS = {
    "slice of channels": lambda dy: torch.cat((dy * 0, dy), 1)[:, dy.shape[1] :],
    "contiguous": lambda dy: dy.contiguous(),
    "transposed": lambda dy: dy.transpose(3, 4).contiguous(memory_format=LAST).transpose(3, 4),
    "offset": lambda dy: torch.cat((dy * 0, dy, dy * 0), 2)[:, :, dy.shape[2] : 2 * dy.shape[2]],
    "every other voxel": lambda dy: torch.stack((dy, dy * 0), -1).flatten(4)[..., ::2],
}


@pytest.mark.parametrize(("layout", "pool"), [*((layout, False) for layout in LAYOUTS), ("slice of channels", True)])
def test_gradients_arrive_in_any_layout(layout, pool, tile, device):
    """Autograd hands over views; one would be read as if it were dense."""
    tile()
    inputs = make_case((2, 16, 2, 3, 4), device=device)
    call = group_norm_relu_pool if pool else group_norm_relu
    outputs = call(*inputs, 4)
    gradients = random_like(*(outputs if pool else [outputs]))
    _, dense = with_gradients(lambda *t: call(*t, 4), inputs, gradients)
    views = [LAYOUTS[layout](gradient) for gradient in gradients]
    assert all(torch.equal(a, b) for a, b in zip(views, gradients, strict=True))
    _, viewed = with_gradients(lambda *t: call(*t, 4), inputs, views)
    assert all(same_bits(a, b) for a, b in zip(viewed, dense, strict=True))


def test_slice_of_a_concatenation_is_read_in_place(device):
    """The gradient of a skip would be copied: a read and a write of the largest tensors."""
    for channels in (slice(0, 16), slice(16, 32)):
        view = channels_last(torch.zeros((2, 32, 2, 3, 4), device=device))[:, channels]
        assert launch.readable(view) is view
    expanded = torch.zeros((), device=device).expand(2, 16, 2, 3, 4)
    assert launch.readable(expanded).is_contiguous(memory_format=LAST), "control: not everything is"


def test_expanded_gradient(tile, device):
    """The gradient of a sum has strides of zero: every voxel would be one address."""
    tile()
    inputs = make_case((1, 16, 2, 3, 4), device=device)
    one = torch.ones((), device=device).expand(inputs[0].shape)
    _, expanded = with_gradients(lambda *t: group_norm_relu(*t, 4), inputs, [one])
    _, dense = with_gradients(lambda *t: group_norm_relu(*t, 4), inputs, [one.contiguous()])
    assert all(same_bits(a, b) for a, b in zip(expanded, dense, strict=True))


def test_blocks_along_the_depth_give_the_same_bits(device):
    """Hazard 8's sibling: the network would depend on how many devices share a sample."""
    inputs = make_case((2, 16, 3, 3, 4), device=device, mean=3.0)
    dy = random_like(inputs[0])[0]
    whole = _in_blocks(inputs, dy, 1)
    _, right = with_gradients(lambda *t: group_norm_relu(*t, 4), inputs, [dy])
    for a, b in zip(whole[1:], right, strict=True):
        assert relative_error(a, b) < 2e-6
    found = _in_blocks(inputs, dy, 3)
    assert same_bits(found[0], whole[0])
    assert same_bits(found[1], whole[1])
    for a, b in zip(found[2:], whole[2:], strict=True):
        assert relative_error(a, b) < 1e-6


def _in_blocks(inputs, dy, shards):
    """Run blocks one after the other, handing each the rows of all, as found by a first run."""
    x, weight, bias = inputs
    rows = {}

    def run(index, gathered):
        passes = iter(("forward", "backward"))

        def gather(mine):
            step = next(passes)
            rows[step, index] = mine
            return gathered.get(step, mine)

        block = channels_last(x.chunk(shards, 2)[index])
        (y,), gradients = with_gradients(
            lambda *t: group_norm_relu(*t, 4, partials=gather), (block, weight, bias), [dy.chunk(shards, 2)[index]]
        )  # fmt: skip
        return [y, *gradients]

    gathered = {}
    for step in ("forward", "backward"):
        for index in range(shards):
            run(index, gathered)
        gathered[step] = torch.cat([rows[step, index] for index in range(shards)])
    y, dx, dweight, dbias = zip(*(run(index, gathered) for index in range(shards)), strict=True)
    return [torch.cat(y, 2), torch.cat(dx, 2), sum(dweight), sum(dbias)]


def test_operators_keep_what_they_promise_the_compiler(tile, device):
    """The fake kernels would promise other shapes, strides or dtypes than the real ones return."""
    tile()
    x, weight, bias = make_case((1, 16, 2, 3, 4), device=device)
    checks = ["test_schema", "test_faketensor", "test_autograd_registration"]
    inputs = [tensor.requires_grad_() for tensor in (x, weight, bias)]
    for operator in (op._forward_op, op._pool_op):
        torch.library.opcheck(operator, (*inputs, 4, 1e-5), test_utils=checks)
    y, pooled, argmax, statistics = (tensor.detach() for tensor in op._pool_op(x, weight, bias, 4, 1e-5))
    x, weight, bias = (tensor.detach() for tensor in inputs)
    for dy in (y, y.contiguous()):
        arguments = (dy, pooled, argmax, x, weight, bias, statistics, 4)
        torch.library.opcheck(op._backward_op, arguments, test_utils=["test_schema", "test_faketensor"])


def test_compiled_call_runs_the_kernels(device, launches):
    """Under ``torch.compile`` a question that Dynamo cannot answer would send every call to plain PyTorch."""
    inputs = make_case((1, 16, 2, 2, 4), device=device)

    def step(x, weight, bias):
        y, pooled = group_norm_relu_pool(x, weight, bias, 4)
        return group_norm_relu(y, weight, bias, 4), pooled

    gradients = random_like(*step(*inputs))
    right = everything(step, inputs, gradients)
    launches.clear()
    found = everything(torch.compile(step, fullgraph=True, backend="aot_eager"), inputs, gradients)
    assert launches == ["statistics", "normalise"] * 2 + ["gradient_sums", "input_gradient"] * 2
    assert all(same_bits(a, b) for a, b in zip(found, right, strict=True))


def test_derivatives_that_do_not_exist_are_refused(tile, device):
    """A second derivative, or one of the saved statistics, would silently be zero."""
    tile()
    inputs = [tensor.requires_grad_() for tensor in make_case((1, 16, 2, 3, 4), device=device)]
    y, statistics = op._forward_op(*inputs, 4, 1e-5)
    assert not statistics.requires_grad
    *differentiable, argmax, statistics = op._pool_op(*inputs, 4, 1e-5)
    assert all(result.requires_grad for result in differentiable), "control"
    assert not argmax.requires_grad
    assert not statistics.requires_grad
    (dx,) = torch.autograd.grad(y.square().sum(), inputs[0], create_graph=True)
    with pytest.raises(RuntimeError, match="no autograd formula"):
        dx.sum().backward()


@pytest.mark.parametrize("parameters", [torch.float32, torch.bfloat16])
def test_dtypes_in_bfloat16(parameters, tile, device):
    """Statistics in bfloat16 are off by percents where the mean exceeds the deviation."""
    tile()
    inputs = make_case((1, 16, 2, 4, 4), torch.bfloat16, device=device, mean=30.0, parameters=parameters)
    double = [tensor.double() for tensor in inputs]
    (y, pooled), gradients = with_gradients(lambda *t: group_norm_relu_pool(*t, 4), inputs)
    exact = op.eager(*double, 4)
    # The interpreter truncates where a GPU rounds.
    torch.testing.assert_close(y.double(), exact, rtol=2**-8 if device == "cuda" else 2**-7, atol=1e-5)
    assert [g.dtype for g in gradients] == [torch.bfloat16, parameters, parameters]
    assert y.dtype == pooled.dtype == torch.bfloat16
    assert same_bits(pooled, F.max_pool3d(y.float(), 2).bfloat16())


def test_strided_parameters(tile, device):
    """A view of a larger parameter would be read as if it were dense."""
    tile()
    x, weight, bias = make_case((1, 16, 2, 3, 4), device=device)
    wide = torch.stack((weight, bias), 1)
    assert same_bits(group_norm_relu(x, wide[:, 0], wide[:, 1], 4), group_norm_relu(x, weight, bias, 4))
