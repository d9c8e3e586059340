"""The gated mixing stack: an edge-wise chain of GEMMs and gates from equivariant molecular models.

``docs/gated-stack.md`` tells what it computes, how its backward is fused, and what that gains.
"""

from scaffold.kernels.gated_stack.op import gated_stack, gated_stack_forward, gated_stack_input_grad

__all__ = ["gated_stack", "gated_stack_forward", "gated_stack_input_grad"]
