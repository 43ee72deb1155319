"""Backward passes without a second derivative, as every hand-written kernel of this package has."""

import functools

import torch
from torch.autograd.function import once_differentiable


def backward_once(backward):
    """Decorator of a backward pass without a second derivative: asking for one raises an error.

    torch's own once_differentiable refuses only where the incoming gradient has a graph. For a loss that is linear in
    the result it has none, and the second derivative would silently leave out the kernel.
    """
    once = once_differentiable(backward)

    @functools.wraps(backward)
    def checked(ctx, *grads):
        if not torch.is_grad_enabled():  # nobody wants a graph of this pass: the usual case, without a detour
            return backward(ctx, *grads)
        grads = [g if g is None or g.requires_grad else g.detach().requires_grad_() for g in grads]
        return once(ctx, *grads)

    return checked
