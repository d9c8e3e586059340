"""GroupNorm + ReLU in plain PyTorch: the contract that every implementation keeps."""

import threading

import pytest
import torch
import torch.nn.functional as F
from tensors import LAST

from scaffold.kernels import group_norm_relu, group_norm_relu_pool


def tensors(dtype=torch.float64, mean=0.0, channels=8):
    torch.manual_seed(3)
    x = (torch.randn(2, channels, 7, 4, 6) + mean).to(dtype).contiguous(memory_format=LAST)
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    return x, torch.rand(channels, dtype=wide) + 0.5, torch.randn(channels, dtype=wide)


def stock(x, weight, bias, groups=4):
    return F.relu(F.group_norm(x, groups, weight, bias, 1e-5))


def with_gradients(function, *inputs):
    inputs = [tensor.detach().clone().requires_grad_() for tensor in inputs]
    y = function(*inputs)
    torch.manual_seed(4)
    y.backward(torch.randn(y.shape, dtype=y.dtype))
    return [y.detach(), *(tensor.grad for tensor in inputs)]


class Blocks:
    """Runs a function on all blocks of a sample at once, one thread each, with a gathering hook."""

    def __init__(self, parts):
        self.parts, self.rows = parts, [None] * len(parts)
        self.barrier = threading.Barrier(len(parts))

    def run(self, function):
        results = [None] * len(self.parts)

        def gather(index, rows):
            self.rows[index] = rows
            self.barrier.wait(10)
            merged = torch.cat(self.rows)
            self.barrier.wait(10)
            return merged

        def work(index):
            results[index] = function(self.parts[index], lambda rows: gather(index, rows))

        threads = [threading.Thread(target=work, args=(index,)) for index in range(len(self.parts))]
        [thread.start() for thread in threads]
        [thread.join(20) for thread in threads]
        return results


def test_values_and_gradients_are_those_of_stock_group_norm():
    """Wrong normalisation trains, only worse: nothing else would notice."""
    ours = with_gradients(lambda x, w, b: group_norm_relu(x, w, b, 4), *tensors())
    for a, b in zip(ours, with_gradients(stock, *tensors()), strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-12)


@pytest.mark.parametrize("order", [LAST, torch.contiguous_format])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("split", [False, True])
def test_output_and_input_gradient_keep_dtype_and_memory_format(order, dtype, split):
    """A widened or transposed activation doubles the traffic of all that follows, silently."""
    x, weight, bias = tensors(dtype)
    x = x.contiguous(memory_format=order).requires_grad_()
    with torch.autocast("cpu", torch.bfloat16):
        y = group_norm_relu(x, weight, bias, 4, partials=(lambda rows: rows) if split else None)
    y.backward(torch.ones_like(y))
    for tensor in (y, x.grad):
        assert tensor.dtype == dtype
        assert tensor.is_contiguous(memory_format=order)


@pytest.mark.parametrize("split", [False, True])
def test_bfloat16_input_has_float32_statistics(split):
    """Statistics in bfloat16 are off by percents where the mean exceeds the deviation."""
    x, weight, bias = tensors(torch.bfloat16, mean=30.0)
    exact = stock(x.double(), weight.double(), bias.double())
    ours = group_norm_relu(x, weight, bias, 4, partials=(lambda rows: rows) if split else None)
    narrow = F.relu(_in_bfloat16(x, weight, bias))
    torch.testing.assert_close(ours.double(), exact, rtol=2**-8, atol=1e-5)
    assert (narrow.double() - exact).abs().max() > 0.05, "control: bfloat16 statistics fail"


def _in_bfloat16(x, weight, bias):
    v = x.reshape(2, 4, -1)
    mean = v.mean(2, keepdim=True)
    rstd = ((v - mean) ** 2).mean(2, keepdim=True).rsqrt()
    y = ((v - mean) * rstd).view(x.shape)
    return y * weight.bfloat16().view(-1, 1, 1, 1) + bias.bfloat16().view(-1, 1, 1, 1)


@pytest.mark.parametrize(("dim", "cuts"), [(2, [3, 1, 3]), (3, [1, 3]), (4, [2, 4])])
def test_blocks_of_a_sample_equal_the_whole(dim, cuts):
    """Hazard 8's sibling: statistics per block, or weighted by the wrong counts, change the network."""
    x, weight, bias = tensors(mean=2.0)
    torch.manual_seed(4)
    dy = torch.randn(x.shape, dtype=x.dtype)
    whole = with_gradients(lambda x, w, b: group_norm_relu(x, w, b, 4), x, weight, bias)

    def one(part, gather):
        block, gradient = part
        inputs = [tensor.clone().requires_grad_() for tensor in (block, weight, bias)]
        y = group_norm_relu(*inputs, 4, partials=gather)
        y.backward(gradient)
        return [y.detach(), *(tensor.grad for tensor in inputs)]

    parts = list(zip(x.split(cuts, dim), dy.split(cuts, dim), strict=True))
    y, dx, dw, db = zip(*Blocks(parts).run(one), strict=True)
    merged = [torch.cat(y, dim), torch.cat(dx, dim), sum(dw), sum(db)]
    for a, b in zip(merged, whole, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-11)
    alone = group_norm_relu(parts[0][0], weight, bias, 4, partials=lambda rows: rows)
    assert (alone - y[0]).abs().max() > 1e-2, "control: local statistics differ"


@pytest.mark.parametrize("split", [False, True])
def test_nan_is_never_hidden(split):
    """Hazard 16: a ReLU that swallowed NaN would defeat the stop at a non-finite loss."""
    x, weight, bias = tensors()
    x[0, 0, 0, 0, 0] = torch.nan
    y = group_norm_relu(x, weight, bias, 4, partials=(lambda rows: rows) if split else None)
    assert y[0, :2].isnan().all()
    assert y[1].isfinite().all()


@pytest.mark.parametrize("split", [False, True])
@pytest.mark.parametrize("groups", [-4, 0, 3])
def test_groups_that_do_not_divide_the_channels_raise(groups, split):
    """A user's error must stay an error in every implementation."""
    with pytest.raises(RuntimeError, match=f"8 channels of x are not divisible into {groups} groups"):
        group_norm_relu(*tensors(), groups, partials=(lambda rows: rows) if split else None)


@pytest.mark.parametrize("pool", [False, True])
def test_vmap_and_gradients_of_each_sample(pool):
    """Memory formats cannot be asked for there: per-sample gradients and ensembles would end with an error."""
    x, weight, bias = tensors()

    def total(sample, weight):
        function = group_norm_relu_pool if pool else group_norm_relu
        y = function(sample[None], weight, bias, 4)
        return (y[0].square().sum() + y[1].sum()) if pool else y.square().sum()

    values = torch.func.vmap(total, in_dims=(0, None))(x, weight)
    gradients = torch.func.vmap(torch.func.grad(total, argnums=1), in_dims=(0, None))(x, weight)
    for sample, value, gradient in zip(x, values, gradients, strict=True):
        leaf = weight.clone().requires_grad_()
        wanted = total(sample, leaf)
        torch.testing.assert_close(value, wanted.detach(), rtol=1e-12, atol=0)
        torch.testing.assert_close(gradient, torch.autograd.grad(wanted, leaf)[0], rtol=1e-10, atol=1e-12)
