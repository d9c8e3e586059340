"""Triton kernels of the gated stack; import this module only where Triton is installed.

Names of sizes follow ``layout.py``: L degrees, C channels, M0 and M1 columns of the two blocks, G
columns of a stripe, R columns of a row. The grid's axis 1 is the focus. All addresses start from a
64-bit row offset formed in the kernel, since F E R passes 2**31 at production sizes; offsets inside a
tile fit into 32 bits.

The relay and the fused kernels must give the same bits. So they share ``_gate``, ``_scalar_gradient``
and ``_logit_gradient``; they contract in the order of ``StackDims.k_order`` in steps of BLOCK_K; sums of
products are spelled with explicit ``fma``, and ``driver.py`` launches with ``enable_fp_fusion=False``, so that
the compiler has no choice of contraction.

Right-hand sides are packed by ``packing.pack`` for the PRECISION:

* ``ieee``: (K, N) row-major; plain fp32 multiply-adds.
* ``tf32x3``: (K / step, N, step), upper parts, then lower parts; three tensor-core products.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def _sigmoid(x):
    return 1.0 / (1.0 + tl.exp(-x))


@triton.jit
def _load(base, columns, rows_left, stride: tl.constexpr, BLOCK_M: tl.constexpr):
    """Load (BLOCK_M, len(columns)) from ``base``, zeros below the last row."""
    rows = tl.arange(0, BLOCK_M)
    return tl.load(base + rows[:, None] * stride + columns[None, :], mask=rows[:, None] < rows_left, other=0.0)


@triton.jit
def _store(base, tile, columns, limit, rows_left, stride: tl.constexpr, BLOCK_M: tl.constexpr):
    """Store (BLOCK_M, len(columns)) in the columns below ``limit`` of the rows that exist."""
    rows = tl.arange(0, BLOCK_M)
    mask = (rows[:, None] < rows_left) & (columns[None, :] < limit)
    tl.store(base + rows[:, None] * stride + columns[None, :], tile, mask=mask)


@triton.jit
def _multiply(
    acc, a, weight, k0, columns, SIZE: tl.constexpr, WIDTH: tl.constexpr, MASKED: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """Add ``a`` (BLOCK_M, step) times rows k0..k0+step-1 of a packed matrix to ``acc``.

    The matrix has WIDTH columns and SIZE elements. MASKED says that some of the ``columns`` lie past
    WIDTH; they count as zeros.
    """
    step: tl.constexpr = a.shape[1]
    k = tl.arange(0, step)
    if PRECISION == "ieee":
        pointers = weight + (k0 + k[:, None]) * WIDTH + columns[None, :]
        b = tl.load(pointers, mask=columns[None, :] < WIDTH, other=0.0) if MASKED else tl.load(pointers)
        return tl.dot(a, b, acc, input_precision="ieee")
    pointers = weight + k0 * WIDTH + columns[:, None] * step + k[None, :]
    low = tl.num_programs(1) * SIZE
    if MASKED:
        b_high = tl.load(pointers, mask=columns[:, None] < WIDTH, other=0.0)
        b_low = tl.load(pointers + low, mask=columns[:, None] < WIDTH, other=0.0)
    else:
        b_high = tl.load(pointers)
        b_low = tl.load(pointers + low)
    # Round to the 10 stored bits of tf32, half away from zero; the rest is exact, and NaN stays in it.
    a_high = ((a.to(tl.int32, bitcast=True) + 0x1000) & -0x2000).to(tl.float32, bitcast=True)
    a_low = a - a_high
    # Tensor cores truncate when they accumulate, so only the step is summed there, small terms first. The
    # addition also makes the compiler wait for the last product: one left in flight to the next iteration
    # would read its operand's registers while they are being overwritten.
    part = tl.dot(a_low, tl.trans(b_high), input_precision="tf32")
    part = tl.dot(a_high, tl.trans(b_low), part, input_precision="tf32")
    return acc + tl.dot(a_high, tl.trans(b_high), part, input_precision="tf32")


@triton.jit
def _halves(x):
    """Split (rows, 2 n) into its left and its right n columns."""
    half: tl.constexpr = x.shape[1] // 2
    return tl.split(tl.permute(tl.reshape(x, (x.shape[0], 2, half)), (0, 2, 1)))


@triton.jit
def _gate(s, gate, columns, G: tl.constexpr, C: tl.constexpr, MASKED: tl.constexpr, PRECISION: tl.constexpr):
    """Gates sigma(s Gw) of some gate columns, (BLOCK_M, len(columns))."""
    zero = tl.zeros((s.shape[0], columns.shape[0]), dtype=tl.float32)
    return _sigmoid(_multiply(zero, s, gate, 0, columns, C * G, G, MASKED, PRECISION))


@triton.jit
def _scalar_gradient(g, s):
    """Gradient through SiLU: g t (1 + s (1 - t)), t = sigma(s)."""
    t = _sigmoid(s)
    return g * t * tl.fma(s, 1.0 - t, 1.0)


@triton.jit
def _logit_gradient(grad, z, c0, g0, p, rows_left, R: tl.constexpr, G: tl.constexpr, BLOCK_M: tl.constexpr):
    """Gradient of the gate logits of columns c0 (m = 0) from the three stripes; ``g0`` is ``grad`` there."""
    h = g0 * _load(z, c0, rows_left, R, BLOCK_M)
    h = tl.fma(_load(grad, c0 + G, rows_left, R, BLOCK_M), _load(z, c0 + G, rows_left, R, BLOCK_M), h)
    h = tl.fma(_load(grad, c0 + 2 * G, rows_left, R, BLOCK_M), _load(z, c0 + 2 * G, rows_left, R, BLOCK_M), h)
    return h * p * (1.0 - p)


@triton.jit(do_not_specialize=["n_edge"])
def gate_kernel(
    z, gate, gates, n_edge,
    L: tl.constexpr, C: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_G: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Relay, launch 1: gates (F, E, G) from the scalar pre-activations of z (F, E, R)."""
    R: tl.constexpr = (3 * L + 1) * C
    G: tl.constexpr = L * C
    focus, row0 = tl.program_id(1), tl.program_id(0) * BLOCK_M
    rows_left = n_edge - row0
    row = focus.to(tl.int64) * n_edge + row0
    s = _load(z + row * R, tl.arange(0, C), rows_left, R, BLOCK_M)
    for step in range(G // BLOCK_G):
        columns = step * BLOCK_G + tl.arange(0, BLOCK_G)
        p = _gate(s, gate + focus * (C * G), columns, G, C, False, PRECISION)
        _store(gates + row * G, p, columns, G, rows_left, G, BLOCK_M)


@triton.jit(do_not_specialize=["n_edge"])
def pointwise_kernel(
    grad, z, gates, gate_t, grad_z, grad_logits, n_edge,
    L: tl.constexpr, C: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_G: tl.constexpr, BLOCK_K: tl.constexpr,
    PRECISION: tl.constexpr, KEEP_LOGITS: tl.constexpr,
):  # fmt: skip
    """Relay, launch 2: gradient of z (F, E, R), and of the logits (F, E, G) if they are kept.

    It moves BLOCK_G columns at a time, one or two K tiles: full cache lines are worth the shuffle.
    """
    R: tl.constexpr = (3 * L + 1) * C
    G: tl.constexpr = L * C
    focus, row0 = tl.program_id(1), tl.program_id(0) * BLOCK_M
    rows_left = n_edge - row0
    row = focus.to(tl.int64) * n_edge + row0
    grad += row * R
    z += row * R
    grad_z += row * R
    gate_t += focus * (G * C)
    channels = tl.arange(0, C)
    head = _scalar_gradient(_load(grad, channels, rows_left, R, BLOCK_M), _load(z, channels, rows_left, R, BLOCK_M))
    for step in range(G // BLOCK_G):
        k0 = step * BLOCK_G
        columns = k0 + tl.arange(0, BLOCK_G)
        c0 = C + columns
        p = _load(gates + row * G, columns, rows_left, G, BLOCK_M)
        g0 = _load(grad, c0, rows_left, R, BLOCK_M)
        q = _logit_gradient(grad, z, c0, g0, p, rows_left, R, G, BLOCK_M)
        if KEEP_LOGITS:
            _store(grad_logits + row * G, q, columns, G, rows_left, G, BLOCK_M)
        _store(grad_z, g0 * p, c0, R, rows_left, R, BLOCK_M)
        _store(grad_z, _load(grad, c0 + G, rows_left, R, BLOCK_M) * p, c0 + G, R, rows_left, R, BLOCK_M)
        _store(grad_z, _load(grad, c0 + 2 * G, rows_left, R, BLOCK_M) * p, c0 + 2 * G, R, rows_left, R, BLOCK_M)
        if BLOCK_G == BLOCK_K:
            head = _multiply(head, q, gate_t, k0, channels, G * C, C, False, PRECISION)
        else:
            left, right = _halves(q)
            head = _multiply(head, left, gate_t, k0, channels, G * C, C, False, PRECISION)
            head = _multiply(head, right, gate_t, k0 + BLOCK_K, channels, G * C, C, False, PRECISION)
    _store(grad_z, head, channels, R, rows_left, R, BLOCK_M)


@triton.jit
def _gemm_tile(
    a, residual, scale, weight, out, column0, rows_left, focus,
    A_STRIDE: tl.constexpr, OUT_STRIDE: tl.constexpr, SCALE_STRIDE: tl.constexpr, START: tl.constexpr,
    FIRST: tl.constexpr, WIDTH: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
    PRECISION: tl.constexpr, HAS_SCALE: tl.constexpr,
):  # fmt: skip
    """One tile of ``residual + a W`` of the block of WIDTH columns from FIRST; K starts at START and wraps."""
    rows = tl.arange(0, BLOCK_M)
    columns = column0 + tl.arange(0, BLOCK_N)
    weight += focus * (WIDTH * WIDTH)
    acc = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    if HAS_SCALE:
        alpha = tl.load(scale + rows * SCALE_STRIDE, mask=rows < rows_left, other=0.0)[:, None]
    for step in range(WIDTH // BLOCK_K):
        k0 = tl.multiple_of((START + step * BLOCK_K) % WIDTH, BLOCK_K)
        tile = _load(a, FIRST + k0 + tl.arange(0, BLOCK_K), rows_left, A_STRIDE, BLOCK_M)
        if HAS_SCALE:
            tile *= alpha
        acc = _multiply(acc, tile, weight, k0, columns, WIDTH * WIDTH, WIDTH, WIDTH % BLOCK_N != 0, PRECISION)
    mask = (rows[:, None] < rows_left) & (columns[None, :] < WIDTH)
    kept = tl.load(residual + rows[:, None] * A_STRIDE + FIRST + columns[None, :], mask=mask, other=0.0)
    if HAS_SCALE:
        acc = tl.fma(kept, alpha, acc)
    else:
        acc += kept
    tl.store(out + rows[:, None] * OUT_STRIDE + FIRST + columns[None, :], acc, mask=mask)


@triton.jit(do_not_specialize=["n_edge"])
def gemm_kernel(
    a, residual, scale, w0, w1, out, n_edge, n_focus: tl.constexpr,
    L: tl.constexpr, C: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
    PRECISION: tl.constexpr, A_EDGE_MAJOR: tl.constexpr, OUT_EDGE_MAJOR: tl.constexpr, HAS_SCALE: tl.constexpr,
):  # fmt: skip
    """Out = residual + a W for both blocks, (F, E, R), or (E, F, R) where edge-major.

    Three uses: launch 3 of the relay (no scale, focus-major); the backward's head (``a`` and ``residual``
    are the output's gradient, edge-major, times ``scale`` (E, F)); the last layer of the forward (``a`` and
    ``residual`` are u times ``scale``, the output is edge-major).
    """
    R: tl.constexpr = (3 * L + 1) * C
    M0: tl.constexpr = (L + 1) * C
    M1: tl.constexpr = 2 * L * C
    TILES0: tl.constexpr = (M0 + BLOCK_N - 1) // BLOCK_N
    TILES: tl.constexpr = TILES0 + (M1 + BLOCK_N - 1) // BLOCK_N
    A_STRIDE: tl.constexpr = n_focus * R if A_EDGE_MAJOR else R
    OUT_STRIDE: tl.constexpr = n_focus * R if OUT_EDGE_MAJOR else R
    # Neighbouring programs share their rows of `a`, so that all but the first find them in L2.
    focus, row0 = tl.program_id(1), (tl.program_id(0) // TILES) * BLOCK_M
    tile = tl.program_id(0) % TILES
    rows_left = n_edge - row0
    focus_major = focus.to(tl.int64) * n_edge + row0
    edge_major = row0.to(tl.int64) * n_focus + focus
    a_row = edge_major if A_EDGE_MAJOR else focus_major
    out_row = edge_major if OUT_EDGE_MAJOR else focus_major
    a += a_row * R
    residual += a_row * R
    out += out_row * R
    if HAS_SCALE:
        scale += edge_major
    if tile < TILES0:
        _gemm_tile(
            a, residual, scale, w0, out, tile * BLOCK_N, rows_left, focus, A_STRIDE, OUT_STRIDE, n_focus,
            C, 0, M0, BLOCK_M, BLOCK_N, BLOCK_K, PRECISION, HAS_SCALE,
        )  # fmt: skip
    else:
        _gemm_tile(
            a, residual, scale, w1, out, (tile - TILES0) * BLOCK_N, rows_left, focus, A_STRIDE, OUT_STRIDE, n_focus,
            0, M0, M1, BLOCK_M, BLOCK_N, BLOCK_K, PRECISION, HAS_SCALE,
        )  # fmt: skip


@triton.jit
def _finish(
    acc, grad, out, columns, rows_left, FIRST: tl.constexpr, WIDTH: tl.constexpr, R: tl.constexpr,
    BLOCK_M: tl.constexpr,
):  # fmt: skip
    """Add the residual gradient and store."""
    rows = tl.arange(0, BLOCK_M)
    mask = (rows[:, None] < rows_left) & (columns[None, :] < WIDTH)
    offsets = rows[:, None] * R + FIRST + columns[None, :]
    tl.store(out + offsets, acc + tl.load(grad + offsets, mask=mask, other=0.0), mask=mask)


@triton.jit(do_not_specialize=["n_edge"])
def tiled_kernel(
    grad, z, weight, gate, gate_t, out, n_edge,
    L: tl.constexpr, C: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
    PRECISION: tl.constexpr, PART: tl.constexpr,
):  # fmt: skip
    """Fused layer, tiled: a program owns BLOCK_N columns of block PART and forms its A tiles in registers.

    ``out`` must not be ``grad``: the tiles of a row are written by different programs, all of which read
    the whole row.
    """
    R: tl.constexpr = (3 * L + 1) * C
    G: tl.constexpr = L * C
    M0: tl.constexpr = (L + 1) * C
    FIRST: tl.constexpr = 0 if PART == 0 else M0
    WIDTH: tl.constexpr = M0 if PART == 0 else 2 * G
    SIZE: tl.constexpr = WIDTH * WIDTH
    TILES: tl.constexpr = (WIDTH + BLOCK_N - 1) // BLOCK_N
    MASKED: tl.constexpr = WIDTH % BLOCK_N != 0
    focus, row0 = tl.program_id(1), (tl.program_id(0) // TILES) * BLOCK_M
    rows_left = n_edge - row0
    row = focus.to(tl.int64) * n_edge + row0
    grad += row * R
    z += row * R
    weight += focus * SIZE
    gate += focus * (C * G)
    gate_t += focus * (G * C)
    channels = tl.arange(0, C)
    columns = (tl.program_id(0) % TILES) * BLOCK_N + tl.arange(0, BLOCK_N)
    acc = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    s = _load(z, channels, rows_left, R, BLOCK_M)
    if PART == 0:
        head = _scalar_gradient(_load(grad, channels, rows_left, R, BLOCK_M), s)
        for step in range(G // BLOCK_K):
            k0 = step * BLOCK_K
            k = k0 + tl.arange(0, BLOCK_K)
            p = _gate(s, gate, k, G, C, False, PRECISION)
            g0 = _load(grad, C + k, rows_left, R, BLOCK_M)
            q = _logit_gradient(grad, z, C + k, g0, p, rows_left, R, G, BLOCK_M)
            head = _multiply(head, q, gate_t, k0, channels, G * C, C, False, PRECISION)
            acc = _multiply(acc, g0 * p, weight, C + k0, columns, SIZE, WIDTH, MASKED, PRECISION)
        if C == BLOCK_K:
            acc = _multiply(acc, head, weight, 0, columns, SIZE, WIDTH, MASKED, PRECISION)
        else:
            left, right = _halves(head)
            acc = _multiply(acc, left, weight, 0, columns, SIZE, WIDTH, MASKED, PRECISION)
            acc = _multiply(acc, right, weight, BLOCK_K, columns, SIZE, WIDTH, MASKED, PRECISION)
    else:
        for step in range(WIDTH // BLOCK_K):
            k0 = step * BLOCK_K
            k = tl.arange(0, BLOCK_K)
            p = _gate(s, gate, tl.multiple_of(k0 % G, BLOCK_K) + k, G, C, False, PRECISION)
            a = _load(grad, M0 + k0 + k, rows_left, R, BLOCK_M) * p
            acc = _multiply(acc, a, weight, k0, columns, SIZE, WIDTH, MASKED, PRECISION)
    _finish(acc, grad, out + row * R, columns, rows_left, FIRST, WIDTH, R, BLOCK_M)


@triton.jit
def _zeros(COUNT: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr):
    """A panel of COUNT accumulators."""
    panel = ()
    for _ in tl.static_range(COUNT):
        panel = panel + (tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32),)  # noqa: RUF005 - Triton knows no unpacking
    return panel


@triton.jit
def _multiply_panel(
    panel, a, weight, k0, FIRST: tl.constexpr, COUNT: tl.constexpr, WIDTH: tl.constexpr, BLOCK_N: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """``_multiply`` for all columns from FIRST on of a (WIDTH, WIDTH) block."""
    new = ()
    for i in tl.static_range(COUNT):
        columns = FIRST + i * BLOCK_N + tl.arange(0, BLOCK_N)
        MASKED = FIRST + (i + 1) * BLOCK_N > WIDTH
        tile = _multiply(panel[i], a, weight, k0, columns, WIDTH * WIDTH, WIDTH, MASKED, PRECISION)
        new = new + (tile,)  # noqa: RUF005 - Triton knows no unpacking
    return new


@triton.jit
def _finish_panel(
    panel, grad, out, rows_left, COUNT: tl.constexpr, FIRST: tl.constexpr, WIDTH: tl.constexpr, R: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    for i in tl.static_range(COUNT):
        _finish(panel[i], grad, out, i * BLOCK_N + tl.arange(0, BLOCK_N), rows_left, FIRST, WIDTH, R, BLOCK_M)


@triton.jit(do_not_specialize=["n_edge"])
def panel_scalar_kernel(
    grad, z, w0, gate, gate_t, out, n_edge,
    L: tl.constexpr, C: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """Fused layer, panel, launch 1: a program owns all columns of block m = 0 of its rows.

    Every A tile is formed once. The gates are left for launch 2 in stripe m = +1 of ``out``, which launch
    2 overwrites: no further surface is needed. ``out`` must not be ``grad``.
    """
    R: tl.constexpr = (3 * L + 1) * C
    G: tl.constexpr = L * C
    M0: tl.constexpr = (L + 1) * C
    COUNT: tl.constexpr = (M0 + BLOCK_N - 1) // BLOCK_N
    focus, row0 = tl.program_id(1), tl.program_id(0) * BLOCK_M
    rows_left = n_edge - row0
    row = focus.to(tl.int64) * n_edge + row0
    grad += row * R
    z += row * R
    out += row * R
    w0 += focus * (M0 * M0)
    gate += focus * (C * G)
    gate_t += focus * (G * C)
    channels = tl.arange(0, C)
    panel = _zeros(COUNT, BLOCK_M, BLOCK_N)
    s = _load(z, channels, rows_left, R, BLOCK_M)
    head = _scalar_gradient(_load(grad, channels, rows_left, R, BLOCK_M), s)
    for step in range(G // BLOCK_K):
        k0 = step * BLOCK_K
        k = k0 + tl.arange(0, BLOCK_K)
        p = _gate(s, gate, k, G, C, False, PRECISION)
        _store(out, p, M0 + G + k, R, rows_left, R, BLOCK_M)
        g0 = _load(grad, C + k, rows_left, R, BLOCK_M)
        q = _logit_gradient(grad, z, C + k, g0, p, rows_left, R, G, BLOCK_M)
        head = _multiply(head, q, gate_t, k0, channels, G * C, C, False, PRECISION)
        panel = _multiply_panel(panel, g0 * p, w0, C + k0, 0, COUNT, M0, BLOCK_N, PRECISION)
    if C == BLOCK_K:
        panel = _multiply_panel(panel, head, w0, 0, 0, COUNT, M0, BLOCK_N, PRECISION)
    else:
        left, right = _halves(head)
        panel = _multiply_panel(panel, left, w0, 0, 0, COUNT, M0, BLOCK_N, PRECISION)
        panel = _multiply_panel(panel, right, w0, BLOCK_K, 0, COUNT, M0, BLOCK_N, PRECISION)
    _finish_panel(panel, grad, out, rows_left, COUNT, 0, M0, R, BLOCK_M, BLOCK_N)


@triton.jit(do_not_specialize=["n_edge"])
def panel_vector_kernel(
    grad, w1, out, n_edge,
    L: tl.constexpr, C: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """Fused layer, panel, launch 2: a program owns all columns of block |m| = 1 of its rows.

    It finds the gates in stripe m = +1 of ``out`` and writes there last, when all are read.
    """
    R: tl.constexpr = (3 * L + 1) * C
    G: tl.constexpr = L * C
    M0: tl.constexpr = (L + 1) * C
    M1: tl.constexpr = 2 * G
    COUNT: tl.constexpr = (M1 + BLOCK_N - 1) // BLOCK_N
    focus, row0 = tl.program_id(1), tl.program_id(0) * BLOCK_M
    rows_left = n_edge - row0
    row = focus.to(tl.int64) * n_edge + row0
    grad += row * R
    out += row * R
    w1 += focus * (M1 * M1)
    panel = _zeros(COUNT, BLOCK_M, BLOCK_N)
    for step in range(M1 // BLOCK_K):
        k0 = step * BLOCK_K
        k = tl.arange(0, BLOCK_K)
        p = _load(out, M0 + G + tl.multiple_of(k0 % G, BLOCK_K) + k, rows_left, R, BLOCK_M)
        a = _load(grad, M0 + k0 + k, rows_left, R, BLOCK_M) * p
        panel = _multiply_panel(panel, a, w1, k0, 0, COUNT, M1, BLOCK_N, PRECISION)
    _finish_panel(panel, grad, out, rows_left, COUNT, M0, M1, R, BLOCK_M, BLOCK_N)


@triton.jit
def _activate(
    z, p, u, pre, out, columns, rows_left, LIMIT: tl.constexpr, R: tl.constexpr, BLOCK_M: tl.constexpr
):  # fmt: skip
    """Store raw pre-activations, and u + z p, in the columns below LIMIT."""
    rows = tl.arange(0, BLOCK_M)
    mask = (rows[:, None] < rows_left) & (columns[None, :] < LIMIT)
    offsets = rows[:, None] * R + columns[None, :]
    tl.store(pre + offsets, z, mask=mask)
    tl.store(out + offsets, tl.fma(z, p, tl.load(u + offsets, mask=mask, other=0.0)), mask=mask)


@triton.jit(do_not_specialize=["n_edge"])
def forward_scalar_kernel(
    u, w0, gate, z, out, n_edge,
    L: tl.constexpr, C: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """One gated layer, block m = 0: raw pre-activations z and the layer's output, both (F, E, R).

    A program owns all columns of the block in its rows. The scalars have an accumulator of their own,
    since the gates need them complete. The gates are left for ``forward_vector_kernel`` in stripe m = +1
    of ``out``.
    """
    R: tl.constexpr = (3 * L + 1) * C
    G: tl.constexpr = L * C
    M0: tl.constexpr = (L + 1) * C
    COUNT: tl.constexpr = (G + BLOCK_N - 1) // BLOCK_N
    focus, row0 = tl.program_id(1), tl.program_id(0) * BLOCK_M
    rows_left = n_edge - row0
    row = focus.to(tl.int64) * n_edge + row0
    u += row * R
    z += row * R
    out += row * R
    w0 += focus * (M0 * M0)
    gate += focus * (C * G)
    channels = tl.arange(0, C)
    s = tl.zeros((BLOCK_M, C), dtype=tl.float32)
    panel = _zeros(COUNT, BLOCK_M, BLOCK_N)
    for step in range(M0 // BLOCK_K):
        k0 = step * BLOCK_K
        a = _load(u, k0 + tl.arange(0, BLOCK_K), rows_left, R, BLOCK_M)
        s = _multiply(s, a, w0, k0, channels, M0 * M0, M0, False, PRECISION)
        panel = _multiply_panel(panel, a, w0, k0, C, COUNT, M0, BLOCK_N, PRECISION)
    _activate(s, _sigmoid(s), u, z, out, channels, rows_left, C, R, BLOCK_M)
    for i in tl.static_range(COUNT):
        columns = i * BLOCK_N + tl.arange(0, BLOCK_N)
        p = _gate(s, gate, columns, G, C, (i + 1) * BLOCK_N > G, PRECISION)
        _activate(panel[i], p, u, z, out, C + columns, rows_left, M0, R, BLOCK_M)
        _store(out, p, M0 + G + columns, R, rows_left, R, BLOCK_M)


@triton.jit(do_not_specialize=["n_edge"])
def forward_vector_kernel(
    u, w1, z, out, n_edge,
    L: tl.constexpr, C: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """One gated layer, block |m| = 1; it finds the gates in stripe m = +1 of ``out``."""
    R: tl.constexpr = (3 * L + 1) * C
    G: tl.constexpr = L * C
    M0: tl.constexpr = (L + 1) * C
    M1: tl.constexpr = 2 * G
    COUNT: tl.constexpr = (M1 + BLOCK_N - 1) // BLOCK_N
    focus, row0 = tl.program_id(1), tl.program_id(0) * BLOCK_M
    rows_left = n_edge - row0
    row = focus.to(tl.int64) * n_edge + row0
    u += row * R
    z += row * R
    out += row * R
    w1 += focus * (M1 * M1)
    panel = _zeros(COUNT, BLOCK_M, BLOCK_N)
    for step in range(M1 // BLOCK_K):
        k0 = step * BLOCK_K
        a = _load(u, M0 + k0 + tl.arange(0, BLOCK_K), rows_left, R, BLOCK_M)
        panel = _multiply_panel(panel, a, w1, k0, 0, COUNT, M1, BLOCK_N, PRECISION)
    for i in tl.static_range(COUNT):
        columns = i * BLOCK_N + tl.arange(0, BLOCK_N)
        p = _load(out, M0 + G + columns % G, rows_left, R, BLOCK_M)
        # A later tile overwrites gates that this one reads.
        tl.debug_barrier()
        _activate(panel[i], p, u, z, out, M0 + columns, rows_left, R, R, BLOCK_M)


@triton.jit(do_not_specialize=["n_rows"])
def scale_gradient_kernel(
    grad_y, y, scale, grad_scale, n_rows, R: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_R: tl.constexpr
):
    """Gradient of the output scale, sum_c grad_y y / scale, one value a row of (E F, R)."""
    row0 = tl.program_id(0).to(tl.int64) * BLOCK_M
    rows = tl.arange(0, BLOCK_M)
    inside = rows < n_rows - row0
    columns = tl.arange(0, BLOCK_R)
    mask = inside[:, None] & (columns[None, :] < R)
    offsets = rows[:, None] * R + columns[None, :]
    product = tl.load(grad_y + row0 * R + offsets, mask=mask, other=0.0)
    product *= tl.load(y + row0 * R + offsets, mask=mask, other=0.0)
    alpha = tl.load(scale + row0 + rows, mask=inside, other=1.0)
    tl.store(grad_scale + row0 + rows, tl.sum(product, axis=1) / alpha, mask=inside)
