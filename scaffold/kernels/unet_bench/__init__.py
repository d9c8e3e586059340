"""Workloads of the kernel benchmark: each operation of the U-Net's training step, at each of its sites.

All sites of the networks of scale 7 and 8 at batch 1 (``sites``), judged by the formulas of ``costs``.

Arms: ours, through the public function, under the name of the rung that serves it; and PyTorch's own operators
("stock"), on channels-last tensors, and for GroupNorm, which loses most in that order, on contiguous ones too.
``torch.compile`` of the stock GroupNorm is timed at the largest site of each scale only, since each takes
seconds to compile. For the library's 3^3 convolutions there is no other arm than the library, except where the
weight gradient is taken in slabs.

On a GPU operands are bfloat16, as autocast makes them, parameters of GroupNorm and Adam float32; on a CPU all is
float32. Results are compared with the formula in float64: the whole of them where that is small, else a part that
can be computed alone (a group, a few channels, a corner of the volume).
"""
