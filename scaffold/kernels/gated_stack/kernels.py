"""Triton kernels of the gated stack; import this module only where Triton is installed.

Names of sizes follow ``layout.py``: L degrees, C channels, M0 and M1 columns of the two blocks, G
columns of a stripe, R columns of a row. The grid's axis 1 is the focus. All addresses start from a
64-bit row offset formed in the kernel, since F E R passes 2**31 at production sizes; offsets inside a
tile fit into 32 bits.

The relay and the fused kernels must give the same bits. They share ``_gate``, ``_scalar_gradient`` and
``_logit_gradient``; they contract in the order of ``StackDims.k_order`` in steps of BLOCK_K; and sums of
products are spelled with explicit ``fma``, so that the compiler has no choice of contraction.

Right-hand sides are packed by ``packing.pack`` for the PRECISION:

* ``ieee``: (K, N) row-major; plain fp32 multiply-adds.
* ``tf32x3``: (N, K) row-major, upper parts, then lower parts; three tensor-core products.
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
def _store(base, tile, columns, rows_left, stride: tl.constexpr, BLOCK_M: tl.constexpr):
    rows = tl.arange(0, BLOCK_M)
    tl.store(base + rows[:, None] * stride + columns[None, :], tile, mask=rows[:, None] < rows_left)


@triton.jit
def _multiply(
    acc, a, weight, k0, columns,
    DEPTH: tl.constexpr, WIDTH: tl.constexpr, STEP: tl.constexpr, MASKED: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Add ``a`` (BLOCK_M, STEP) times rows k0..k0+STEP-1 of a packed (DEPTH, WIDTH) matrix to ``acc``.

    MASKED says that some of the ``columns`` lie past WIDTH; they count as zeros.
    """
    k = k0 + tl.arange(0, STEP)
    if PRECISION == "ieee":
        pointers = weight + k[:, None] * WIDTH + columns[None, :]
        if MASKED:
            b = tl.load(pointers, mask=columns[None, :] < WIDTH, other=0.0)
        else:
            b = tl.load(pointers)
        return tl.dot(a, b, acc, input_precision="ieee")
    pointers = weight + columns[:, None] * DEPTH + k[None, :]
    low = tl.num_programs(1) * (DEPTH * WIDTH)
    if MASKED:
        b_high = tl.load(pointers, mask=columns[:, None] < WIDTH, other=0.0)
        b_low = tl.load(pointers + low, mask=columns[:, None] < WIDTH, other=0.0)
    else:
        b_high = tl.load(pointers)
        b_low = tl.load(pointers + low)
    # Round to the 10 stored bits of tf32, half away from zero; the rest is exact, and NaN stays in it.
    a_high = ((a.to(tl.int32, bitcast=True) + 0x1000) & -0x2000).to(tl.float32, bitcast=True)
    a_low = a - a_high
    acc = tl.dot(a_low, tl.trans(b_high), acc, input_precision="tf32")
    acc = tl.dot(a_high, tl.trans(b_low), acc, input_precision="tf32")
    return tl.dot(a_high, tl.trans(b_high), acc, input_precision="tf32")


@triton.jit
def _gate(
    s, gate, columns, L: tl.constexpr, C: tl.constexpr, BLOCK_M: tl.constexpr, N: tl.constexpr, PRECISION: tl.constexpr
):
    """Gates sigma(s Gw) of N gate columns, (BLOCK_M, N)."""
    zero = tl.zeros((BLOCK_M, N), dtype=tl.float32)
    return _sigmoid(_multiply(zero, s, gate, 0, columns, C, L * C, C, False, PRECISION))


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


@triton.jit
def _halves(x, BLOCK_M: tl.constexpr, HALF: tl.constexpr):
    """Split (BLOCK_M, 2 HALF) into its left and right columns."""
    return tl.split(tl.permute(tl.reshape(x, (BLOCK_M, 2, HALF)), (0, 2, 1)))


@triton.jit(do_not_specialize=["n_edge"])
def gate_kernel(
    z, gate, gates, n_edge,
    L: tl.constexpr, C: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_K: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Relay, launch 1: gates (F, E, G) from the scalar pre-activations of z (F, E, R)."""
    R: tl.constexpr = (3 * L + 1) * C
    G: tl.constexpr = L * C
    focus, row0 = tl.program_id(1), tl.program_id(0) * BLOCK_M
    rows_left = n_edge - row0
    row = focus.to(tl.int64) * n_edge + row0
    s = _load(z + row * R, tl.arange(0, C), rows_left, R, BLOCK_M)
    for step in range(G // BLOCK_K):
        columns = step * BLOCK_K + tl.arange(0, BLOCK_K)
        p = _gate(s, gate + focus * (C * G), columns, L, C, BLOCK_M, BLOCK_K, PRECISION)
        _store(gates + row * G, p, columns, rows_left, G, BLOCK_M)


@triton.jit(do_not_specialize=["n_edge"])
def pointwise_kernel(
    grad, z, gates, gate_t, grad_z, grad_logits, n_edge,
    L: tl.constexpr, C: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_K: tl.constexpr, PRECISION: tl.constexpr,
    KEEP_LOGITS: tl.constexpr,
):  # fmt: skip
    """Relay, launch 2: gradient of z (F, E, R), and of the logits (F, E, G) if they are kept."""
    R: tl.constexpr = (3 * L + 1) * C
    G: tl.constexpr = L * C
    focus, row0 = tl.program_id(1), tl.program_id(0) * BLOCK_M
    rows_left = n_edge - row0
    row = focus.to(tl.int64) * n_edge + row0
    grad += row * R
    z += row * R
    grad_z += row * R
    channels = tl.arange(0, C)
    head = _scalar_gradient(_load(grad, channels, rows_left, R, BLOCK_M), _load(z, channels, rows_left, R, BLOCK_M))
    for step in range(G // BLOCK_K):
        columns = step * BLOCK_K + tl.arange(0, BLOCK_K)
        c0 = C + columns
        p = _load(gates + row * G, columns, rows_left, G, BLOCK_M)
        g0 = _load(grad, c0, rows_left, R, BLOCK_M)
        q = _logit_gradient(grad, z, c0, g0, p, rows_left, R, G, BLOCK_M)
        if KEEP_LOGITS:
            _store(grad_logits + row * G, q, columns, rows_left, G, BLOCK_M)
        _store(grad_z, g0 * p, c0, rows_left, R, BLOCK_M)
        _store(grad_z, _load(grad, c0 + G, rows_left, R, BLOCK_M) * p, c0 + G, rows_left, R, BLOCK_M)
        _store(grad_z, _load(grad, c0 + 2 * G, rows_left, R, BLOCK_M) * p, c0 + 2 * G, rows_left, R, BLOCK_M)
        head = _multiply(head, q, gate_t + focus * (G * C), step * BLOCK_K, channels, G, C, BLOCK_K, False, PRECISION)
    _store(grad_z, head, channels, rows_left, R, BLOCK_M)


@triton.jit
def _gemm_tile(
    a, residual, scale, weight, out, column0, rows_left, focus,
    A_STRIDE: tl.constexpr, OUT_STRIDE: tl.constexpr, SCALE_STRIDE: tl.constexpr, BLOCK: tl.constexpr,
    L: tl.constexpr, C: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
    PRECISION: tl.constexpr, HAS_SCALE: tl.constexpr,
):  # fmt: skip
    """One output tile of ``residual + a W`` in BLOCK 0 (m = 0) or 1 (|m| = 1)."""
    M0: tl.constexpr = (L + 1) * C
    FIRST: tl.constexpr = 0 if BLOCK == 0 else M0
    WIDTH: tl.constexpr = M0 if BLOCK == 0 else 2 * L * C
    STEPS: tl.constexpr = WIDTH // BLOCK_K
    rows = tl.arange(0, BLOCK_M)
    columns = column0 + tl.arange(0, BLOCK_N)
    weight += focus * (WIDTH * WIDTH)
    acc = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    if HAS_SCALE:
        alpha = tl.load(scale + rows * SCALE_STRIDE, mask=rows < rows_left, other=0.0)[:, None]
    for step in range(STEPS):
        if BLOCK == 0:
            k0 = (C + step * BLOCK_K) % M0
        else:
            k0 = (step % 2) * (L * C) + (step // 2) * BLOCK_K
        tile = _load(a, FIRST + k0 + tl.arange(0, BLOCK_K), rows_left, A_STRIDE, BLOCK_M)
        if HAS_SCALE:
            tile *= alpha
        acc = _multiply(acc, tile, weight, k0, columns, WIDTH, WIDTH, BLOCK_K, WIDTH % BLOCK_N != 0, PRECISION)
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
    """out = residual + a W for both blocks, (F, E, R), or (E, F, R) where edge-major.

    Three uses: launch 3 of the relay (no scale, focus-major); the backward's head (``a`` and ``residual``
    are the output's gradient, edge-major, times ``scale`` (E, F)); the last layer of the forward (``a`` and
    ``residual`` are u times ``scale``, the output is edge-major).
    """
    R: tl.constexpr = (3 * L + 1) * C
    TILES0: tl.constexpr = ((L + 1) * C + BLOCK_N - 1) // BLOCK_N
    TILES: tl.constexpr = TILES0 + (2 * L * C + BLOCK_N - 1) // BLOCK_N
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
            a, residual, scale, w0, out, tile * BLOCK_N, rows_left, focus, A_STRIDE, OUT_STRIDE, n_focus, 0,
            L, C, BLOCK_M, BLOCK_N, BLOCK_K, PRECISION, HAS_SCALE,
        )  # fmt: skip
    else:
        _gemm_tile(
            a, residual, scale, w1, out, (tile - TILES0) * BLOCK_N, rows_left, focus, A_STRIDE, OUT_STRIDE, n_focus, 1,
            L, C, BLOCK_M, BLOCK_N, BLOCK_K, PRECISION, HAS_SCALE,
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
    TILES: tl.constexpr = (WIDTH + BLOCK_N - 1) // BLOCK_N
    focus, row0 = tl.program_id(1), (tl.program_id(0) // TILES) * BLOCK_M
    rows_left = n_edge - row0
    row = focus.to(tl.int64) * n_edge + row0
    grad += row * R
    z += row * R
    weight += focus * (WIDTH * WIDTH)
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
        c0 = C + k0 + tl.arange(0, BLOCK_K)
        p = _gate(s, gate, c0 - C, L, C, BLOCK_M, BLOCK_K, PRECISION)
        if PART == 0:
            g0 = _load(grad, c0, rows_left, R, BLOCK_M)
            q = _logit_gradient(grad, z, c0, g0, p, rows_left, R, G, BLOCK_M)
            head = _multiply(head, q, gate_t, k0, channels, G, C, BLOCK_K, False, PRECISION)
            acc = _multiply(acc, g0 * p, weight, C + k0, columns, WIDTH, WIDTH, BLOCK_K, WIDTH % BLOCK_N != 0, PRECISION)
        else:
            gm = _load(grad, c0 + G, rows_left, R, BLOCK_M)
            acc = _multiply(acc, gm * p, weight, k0, columns, WIDTH, WIDTH, BLOCK_K, WIDTH % BLOCK_N != 0, PRECISION)
            gp = _load(grad, c0 + 2 * G, rows_left, R, BLOCK_M)
            acc = _multiply(acc, gp * p, weight, G + k0, columns, WIDTH, WIDTH, BLOCK_K, WIDTH % BLOCK_N != 0, PRECISION)
    if PART == 0:
        if C == BLOCK_K:
            acc = _multiply(acc, head, weight, 0, columns, WIDTH, WIDTH, BLOCK_K, WIDTH % BLOCK_N != 0, PRECISION)
        else:
            left, right = _halves(head, BLOCK_M, BLOCK_K)
            acc = _multiply(acc, left, weight, 0, columns, WIDTH, WIDTH, BLOCK_K, WIDTH % BLOCK_N != 0, PRECISION)
            acc = _multiply(acc, right, weight, BLOCK_K, columns, WIDTH, WIDTH, BLOCK_K, WIDTH % BLOCK_N != 0, PRECISION)
    _finish(acc, grad, out + row * R, columns, rows_left, FIRST, WIDTH, R, BLOCK_M)


@triton.jit(do_not_specialize=["n_edge"])
def panel_kernel(
    grad, z, w0, w1, gate, gate_t, out, n_edge,
    L: tl.constexpr, C: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_K: tl.constexpr, PRECISION: tl.constexpr,
    PART: tl.constexpr, WIDE0: tl.constexpr, NARROW0: tl.constexpr, WIDE1: tl.constexpr, NARROW1: tl.constexpr,
):  # fmt: skip
    """Fused layer, panel: a program owns all columns of its rows, in block PART (0 or 1) or both (2).

    Every A tile is formed once. The columns of a block are two accumulators, WIDE and NARROW, powers of
    two both. ``out`` may be ``grad``: a program reads its own rows only, and block |m| = 1 reads no column
    of block m = 0. So block 0 comes first, within a program and in the order of two launches.
    """
    R: tl.constexpr = (3 * L + 1) * C
    G: tl.constexpr = L * C
    M0: tl.constexpr = (L + 1) * C
    M1: tl.constexpr = 2 * G
    focus, row0 = tl.program_id(1), tl.program_id(0) * BLOCK_M
    rows_left = n_edge - row0
    row = focus.to(tl.int64) * n_edge + row0
    grad += row * R
    z += row * R
    out += row * R
    w0 += focus * (M0 * M0)
    w1 += focus * (M1 * M1)
    gate += focus * (C * G)
    gate_t += focus * (G * C)
    channels = tl.arange(0, C)
    s = _load(z, channels, rows_left, R, BLOCK_M)
    if PART != 1:
        wide = tl.arange(0, WIDE0)
        narrow = WIDE0 + tl.arange(0, NARROW0)
        acc_wide = tl.zeros((BLOCK_M, WIDE0), dtype=tl.float32)
        acc_narrow = tl.zeros((BLOCK_M, NARROW0), dtype=tl.float32)
        head = _scalar_gradient(_load(grad, channels, rows_left, R, BLOCK_M), s)
        for step in range(G // BLOCK_K):
            k0 = step * BLOCK_K
            c0 = C + k0 + tl.arange(0, BLOCK_K)
            p = _gate(s, gate, c0 - C, L, C, BLOCK_M, BLOCK_K, PRECISION)
            g0 = _load(grad, c0, rows_left, R, BLOCK_M)
            q = _logit_gradient(grad, z, c0, g0, p, rows_left, R, G, BLOCK_M)
            head = _multiply(head, q, gate_t, k0, channels, G, C, BLOCK_K, False, PRECISION)
            acc_wide = _multiply(acc_wide, g0 * p, w0, C + k0, wide, M0, M0, BLOCK_K, False, PRECISION)
            if NARROW0 > 1:
                acc_narrow = _multiply(acc_narrow, g0 * p, w0, C + k0, narrow, M0, M0, BLOCK_K, WIDE0 + NARROW0 > M0, PRECISION)
        if C == BLOCK_K:
            acc_wide = _multiply(acc_wide, head, w0, 0, wide, M0, M0, BLOCK_K, False, PRECISION)
            if NARROW0 > 1:
                acc_narrow = _multiply(acc_narrow, head, w0, 0, narrow, M0, M0, BLOCK_K, WIDE0 + NARROW0 > M0, PRECISION)
        else:
            left, right = _halves(head, BLOCK_M, BLOCK_K)
            acc_wide = _multiply(acc_wide, left, w0, 0, wide, M0, M0, BLOCK_K, False, PRECISION)
            acc_wide = _multiply(acc_wide, right, w0, BLOCK_K, wide, M0, M0, BLOCK_K, False, PRECISION)
            if NARROW0 > 1:
                acc_narrow = _multiply(acc_narrow, left, w0, 0, narrow, M0, M0, BLOCK_K, WIDE0 + NARROW0 > M0, PRECISION)
                acc_narrow = _multiply(acc_narrow, right, w0, BLOCK_K, narrow, M0, M0, BLOCK_K, WIDE0 + NARROW0 > M0, PRECISION)
        _finish(acc_wide, grad, out, wide, rows_left, 0, M0, R, BLOCK_M)
        if NARROW0 > 1:
            _finish(acc_narrow, grad, out, narrow, rows_left, 0, M0, R, BLOCK_M)
    if PART != 0:
        wide = tl.arange(0, WIDE1)
        narrow = WIDE1 + tl.arange(0, NARROW1)
        acc_wide = tl.zeros((BLOCK_M, WIDE1), dtype=tl.float32)
        acc_narrow = tl.zeros((BLOCK_M, NARROW1), dtype=tl.float32)
        for step in range(G // BLOCK_K):
            k0 = step * BLOCK_K
            c0 = C + k0 + tl.arange(0, BLOCK_K)
            p = _gate(s, gate, c0 - C, L, C, BLOCK_M, BLOCK_K, PRECISION)
            a = _load(grad, c0 + G, rows_left, R, BLOCK_M) * p
            acc_wide = _multiply(acc_wide, a, w1, k0, wide, M1, M1, BLOCK_K, False, PRECISION)
            if NARROW1 > 1:
                acc_narrow = _multiply(acc_narrow, a, w1, k0, narrow, M1, M1, BLOCK_K, WIDE1 + NARROW1 > M1, PRECISION)
            a = _load(grad, c0 + 2 * G, rows_left, R, BLOCK_M) * p
            acc_wide = _multiply(acc_wide, a, w1, G + k0, wide, M1, M1, BLOCK_K, False, PRECISION)
            if NARROW1 > 1:
                acc_narrow = _multiply(acc_narrow, a, w1, G + k0, narrow, M1, M1, BLOCK_K, WIDE1 + NARROW1 > M1, PRECISION)
        _finish(acc_wide, grad, out, wide, rows_left, M0, M1, R, BLOCK_M)
        if NARROW1 > 1:
            _finish(acc_narrow, grad, out, narrow, rows_left, M0, M1, R, BLOCK_M)


@triton.jit
def _activate(z, p, u, pre, out, columns, rows_left, R: tl.constexpr, BLOCK_M: tl.constexpr):
    """Store raw pre-activations and u + z p."""
    _store(pre, z, columns, rows_left, R, BLOCK_M)
    kept = _load(u, columns, rows_left, R, BLOCK_M)
    _store(out, tl.fma(z, p, kept), columns, rows_left, R, BLOCK_M)


@triton.jit(do_not_specialize=["n_edge"])
def forward_kernel(
    u, w0, w1, gate, z, out, n_edge,
    L: tl.constexpr, C: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_K: tl.constexpr, PRECISION: tl.constexpr,
    WIDE: tl.constexpr, NARROW: tl.constexpr,
):  # fmt: skip
    """One gated layer: raw pre-activations z and the layer's output, both (F, E, R).

    A program owns its rows. The gates of a stripe, as accumulators WIDE and NARROW columns wide, serve
    all three stripes.
    """
    R: tl.constexpr = (3 * L + 1) * C
    G: tl.constexpr = L * C
    M0: tl.constexpr = (L + 1) * C
    M1: tl.constexpr = 2 * G
    focus, row0 = tl.program_id(1), tl.program_id(0) * BLOCK_M
    rows_left = n_edge - row0
    row = focus.to(tl.int64) * n_edge + row0
    u += row * R
    z += row * R
    out += row * R
    w0 += focus * (M0 * M0)
    w1 += focus * (M1 * M1)
    gate += focus * (C * G)
    channels = tl.arange(0, C)
    wide = tl.arange(0, WIDE)
    narrow = WIDE + tl.arange(0, NARROW)
    s = tl.zeros((BLOCK_M, C), dtype=tl.float32)
    acc_wide = tl.zeros((BLOCK_M, WIDE), dtype=tl.float32)
    acc_narrow = tl.zeros((BLOCK_M, NARROW), dtype=tl.float32)
    for step in range(M0 // BLOCK_K):
        k0 = step * BLOCK_K
        a = _load(u, k0 + tl.arange(0, BLOCK_K), rows_left, R, BLOCK_M)
        s = _multiply(s, a, w0, k0, channels, M0, M0, BLOCK_K, False, PRECISION)
        acc_wide = _multiply(acc_wide, a, w0, k0, C + wide, M0, M0, BLOCK_K, False, PRECISION)
        if NARROW > 1:
            acc_narrow = _multiply(acc_narrow, a, w0, k0, C + narrow, M0, M0, BLOCK_K, False, PRECISION)
    _activate(s, _sigmoid(s), u, z, out, channels, rows_left, R, BLOCK_M)
    p_wide = _gate(s, gate, wide, L, C, BLOCK_M, WIDE, PRECISION)
    _activate(acc_wide, p_wide, u, z, out, C + wide, rows_left, R, BLOCK_M)
    if NARROW > 1:
        p_narrow = _gate(s, gate, narrow, L, C, BLOCK_M, NARROW, PRECISION)
        _activate(acc_narrow, p_narrow, u, z, out, C + narrow, rows_left, R, BLOCK_M)
    for stripe in tl.static_range(2):
        acc_wide = tl.zeros((BLOCK_M, WIDE), dtype=tl.float32)
        acc_narrow = tl.zeros((BLOCK_M, NARROW), dtype=tl.float32)
        for step in range(M1 // BLOCK_K):
            k0 = step * BLOCK_K
            a = _load(u, M0 + k0 + tl.arange(0, BLOCK_K), rows_left, R, BLOCK_M)
            acc_wide = _multiply(acc_wide, a, w1, k0, stripe * G + wide, M1, M1, BLOCK_K, False, PRECISION)
            if NARROW > 1:
                acc_narrow = _multiply(acc_narrow, a, w1, k0, stripe * G + narrow, M1, M1, BLOCK_K, False, PRECISION)
        _activate(acc_wide, p_wide, u, z, out, M0 + stripe * G + wide, rows_left, R, BLOCK_M)
        if NARROW > 1:
            _activate(acc_narrow, p_narrow, u, z, out, M0 + stripe * G + narrow, rows_left, R, BLOCK_M)


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
