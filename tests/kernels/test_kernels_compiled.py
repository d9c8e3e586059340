"""The compiled rung: when it compiles, how often, and which failures are the compiler's."""

import functools
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
import torch._dynamo.testing
from functorch.compile import make_boxed_func
from torch._dynamo.backends.common import aot_autograd
from torch.utils.checkpoint import checkpoint

from scaffold.kernels import compiled, ladder
from scaffold.kernels.compiled import RECOMPILE_LIMIT
from scaffold.kernels.ladder import KernelError, Ladder, Rung


def formula(x):
    return (2 * x).exp()


@pytest.fixture(autouse=True)
def _fresh_dynamo():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


@pytest.fixture
def compile_with(monkeypatch):
    """Make ``compiled`` use another backend, since Inductor takes half a minute on a CPU."""
    real = torch.compile

    def use(backend):
        counter = torch._dynamo.testing.CompileCounterWithBackend(backend) if isinstance(backend, str) else backend

        @functools.wraps(real)
        def stand_in(function, **settings):
            assert settings.pop("options") == {"deterministic": True}
            return real(function, backend=counter, **settings)

        monkeypatch.setattr(torch, "compile", stand_in)
        return counter

    return use


HAS_ARGUMENT = compiled._COMPILE_TAKES_LIMIT
needs_argument = pytest.mark.skipif(not HAS_ARGUMENT, reason="this PyTorch's compile takes no limit")


@pytest.mark.parametrize("by_argument", [pytest.param(True, marks=needs_argument), False])
def test_more_forms_than_dynamo_allows_by_itself_on_any_thread(compile_with, monkeypatch, by_argument):
    """Ten forms are common, eight allowed; and settings do not reach autograd's threads, where checkpoints compile."""
    monkeypatch.setattr(compiled, "_COMPILE_TAKES_LIMIT", by_argument)
    counter = compile_with("eager")

    def call(function):
        for extent in range(2, 14):
            function(torch.ones(extent))

    with ThreadPoolExecutor(1) as thread:
        thread.submit(call, compiled.compiled("op", formula)).result(60)
        assert counter.frame_count == 12
        torch._dynamo.reset()
        monkeypatch.setattr(compiled, "RECOMPILE_LIMIT", 8)
        with pytest.raises(KernelError, match="FailOnRecompileLimitHit"):
            thread.submit(call, compiled.compiled("op", formula)).result(60)


def test_a_users_higher_limit_stays():
    """It may be meant for other compiled regions, and must not be lowered for this one."""
    assert compiled._limit() == RECOMPILE_LIMIT
    with torch._dynamo.config.patch(recompile_limit=100):
        assert compiled._limit() == 100


def test_steady_steps_compile_nothing(compile_with):
    """A compilation takes seconds, and would fall into the time that is measured."""
    counter, function = compile_with("aot_eager"), compiled.compiled("op", formula)

    def steps(count):
        for extent in [2, 3, 4] * count:
            x = torch.ones(extent, requires_grad=True)
            y = checkpoint(function, x, use_reentrant=False)
            y.sum().backward()
            torch.testing.assert_close(x.grad, 2 * formula(torch.ones(extent)))
            with torch.inference_mode():
                function(x)

    steps(1)
    forms = counter.frame_count
    assert forms > 3, "control: gradients and none are two forms"
    steps(3)
    assert counter.frame_count == forms


def test_the_compilers_failure_is_the_kernels_failure(compile_with):
    """A formula that cannot be compiled on some machine must still train there."""

    def breaks(x):
        torch._dynamo.graph_break()
        return x

    compile_with("eager")
    with pytest.raises(KernelError, match="op could not be compiled") as raised:
        compiled.compiled("op", breaks)(torch.ones(2))
    assert isinstance(raised.value.__cause__, torch._dynamo.exc.TorchDynamoException)


def test_a_backward_pass_that_does_not_compile_fails_the_forward_pass(compile_with, monkeypatch, caplog):
    """Compiled at its first use, it would end each step with an error that names no switch: no rung is left there."""
    compiles = []

    def backward(graph, inputs):
        compiles.append("backward")
        raise RuntimeError("no backward today")

    compile_with(aot_autograd(fw_compiler=lambda graph, inputs: make_boxed_func(graph), bw_compiler=backward))
    monkeypatch.setattr(ladder, "_ladders", {})
    op = Ladder(
        "op",
        [
            Rung("compiled", "SCAFFOLD_TEST_COMPILE", compiled.declines, compiled.compiled("op", formula)),
            Rung("eager", None, None, formula),
        ],
    )
    with torch.no_grad():
        op(torch.zeros(3))
    assert ladder.served() == {"op": {"compiled": 1}}, "control: the forward pass alone compiles"
    for _ in range(2):
        x = torch.zeros(3, requires_grad=True)
        op(x).sum().backward()
        assert torch.equal(x.grad, 2 * torch.ones(3))
    assert ladder.served()["op"] == {"compiled": 1, "eager": 2}
    assert compiles == ["backward"], "latched, it is not compiled at each step"
    (message,) = [record.getMessage() for record in caplog.records if record.name == ladder.__name__]
    for part in ("no backward today", "SCAFFOLD_TEST_COMPILE=0"):
        assert part in message


@pytest.mark.parametrize("when", ["compiling", "running"])
def test_exhausted_memory_is_no_failure_of_the_compiler(compile_with, when):
    """It is transient; a rung latched for it would be slow for the rest of the run."""

    def backend(graph, inputs):
        def run(*arguments):
            raise torch.OutOfMemoryError("CUDA out of memory")

        return run() if when == "compiling" else run

    compile_with(backend)
    with pytest.raises(Exception, match="out of memory") as raised:
        compiled.compiled("op", formula)(torch.ones(2))
    assert not isinstance(raised.value, KernelError)


def test_within_a_compiled_region_the_plain_formula_is_traced(compile_with, monkeypatch):
    """A compilation inside a compilation is a graph break, or an error."""
    monkeypatch.setattr(ladder, "_ladders", {})
    monkeypatch.setenv("SCAFFOLD_TEST_COMPILE", "1")
    counter = compile_with("eager")
    function = Ladder(
        "op",
        [
            Rung("compiled", "SCAFFOLD_TEST_COMPILE", compiled.declines, compiled.compiled("op", formula)),
            Rung("eager", None, None, lambda x: formula(x) + 1),
        ],
    )
    assert torch.equal(function(torch.zeros(2)), torch.ones(2)), "control: outside, the compiled rung serves"
    region = torch.compile(lambda x: function(x), fullgraph=True, options={"deterministic": True})
    assert torch.equal(region(torch.zeros(2)), 2 * torch.ones(2))
    assert counter.frame_count == 2


def test_it_hesitates_on_a_cpu_only():
    """Compilation takes half a minute there and gains nothing."""
    assert compiled.hesitates(torch.ones(1))
    assert compiled.hesitates(torch.ones(1, device="meta"))
    assert compiled.declines(torch.ones(1)) is None


def test_importing_the_kernels_imports_neither_triton_nor_dynamo():
    """A machine without Triton must be able to, and every start-up would pay for either."""
    code = "import scaffold.kernels, sys; print(sorted({'triton', 'torch._dynamo'} & set(sys.modules)))"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"
