"""The selective scan under torch.func.vmap: S scans become one scan, whose channels fall into S times the groups.

    u, delta, z   (S, B, D, L)        →  (B, S·D, L)
    A             (S, D, N)           →  (S·D, N)
    B, C          (S, B, [G,] N, L)   →  (B, S·[G], N, L)
    D, delta_bias (S, D)              →  (S·D,)

Channels never meet in a scan, and those of a group share B and C. So every back end computes the S scans as they are,
side by side, and its own backward pass gives their gradients.
"""

import torch


class StackedScan(torch.autograd.Function):
    """`apply(scan, backend, softplus, want_last, u, delta, A, B, C, D, z, delta_bias)` → (out, last_state or None).

    `scan` is `selective_scan`, which checks the arguments. Inside vmap alone: what is computed there, gradients
    included, is computed by `scan` outside of it.
    """

    @staticmethod
    def forward(scan, backend, softplus, want_last, u, delta, A, B, C, D, z, delta_bias):
        """Called where none of the tensors is stacked."""
        return _both(scan(u, delta, A, B, C, D, z, delta_bias, softplus, want_last, backend=backend), want_last)

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.set_materialize_grads(False)

    @staticmethod
    def backward(ctx, *grads):
        raise NotImplementedError(
            "the selective scan inside torch.func has gradients where its arguments are stacked by vmap: call backward "
            "on what vmap returns, not torch.func.grad"
        )

    @staticmethod
    def vmap(info, in_dims, scan, backend, softplus, want_last, *tensors):
        u, delta, A, B, C, D, z, bias = (
            _stacked(tensor, dim, info.batch_size) for tensor, dim in zip(tensors, in_dims[4:], strict=True)
        )
        found = scan(
            *(_channels_last(t) for t in (u, delta)),
            A.flatten(0, 1),
            *(_grouped(m) for m in (B, C)),
            None if D is None else D.flatten(),
            None if z is None else _channels_last(z),
            None if bias is None else bias.flatten(),
            softplus,
            want_last,
            backend=backend,
        )
        apart = (info.batch_size, A.shape[1])
        out, last = (None if t is None else t.unflatten(1, apart) for t in _both(found, want_last))
        return (out, last), (1, 1 if want_last else None)


def _both(found, want_last):
    return found if want_last else (found, None)


def _stacked(tensor, dim, size):
    """The tensor with the stack's axis first; one that all share is repeated, without a copy."""
    if tensor is None:
        return None
    return tensor.expand(size, *tensor.shape) if dim is None else tensor.movedim(dim, 0)


def _channels_last(x):
    """(S, B, D, L) → (B, S·D, L), a transposed view of (B, L, S·D): the layout that the kernels read and write."""
    return x.permute(1, 3, 0, 2).flatten(2).transpose(1, 2)


def _grouped(m):
    """B or C with S times the groups: (S, D, N) → (S·D, N), (S, B, N, L) → (B, S, N, L), with groups (B, S·G, N, L)."""
    if m.dim() == 3:
        return m.flatten(0, 1)
    return m.transpose(0, 1) if m.dim() == 4 else m.transpose(0, 1).flatten(1, 2)
