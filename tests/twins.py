"""What tests of twins share: numbers to compare on, results with their gradients, and by how much
two may differ.
"""

import torch


def sample(*shape, seed=0, dtype=torch.float32):
    """Normal numbers: the same for a seed in every dtype, but for rounding."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64).to(dtype)


def tokens(vocab, *shape, seed=0):
    return torch.randint(vocab, shape, generator=torch.Generator().manual_seed(seed))


def scrambled(module, seed=0, scale=0.3):
    """Every parameter anywhere but where it starts, so that none can be mistaken for another."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for p in module.parameters():
            p.add_(scale * torch.randn(p.shape, generator=generator).to(p.dtype))
    return module


def results(call, *inputs, of=None):
    """What `call` gives for the inputs, and in one direction its gradients for them and for the
    parameters of `of`, or of `call` itself where it is a module; None where there is no
    gradient.
    """
    of = call if of is None and isinstance(call, torch.nn.Module) else of
    inputs = [x.detach().requires_grad_() for x in inputs]
    y = call(*inputs)
    learnt = [] if of is None else [p for p in of.parameters() if p.requires_grad]
    return [
        y.detach(),
        *torch.autograd.grad(
            y, inputs + learnt, sample(*y.shape, seed=9, dtype=y.dtype), allow_unused=True
        ),
    ]


def error(ours, theirs):
    """Largest difference relative to the largest value."""
    ours, theirs = ours.detach().double(), theirs.detach().double()
    return float((ours - theirs).abs().max() / theirs.abs().max())


def assert_twins(ours, theirs, bound, *, at_least=1.0):
    """Each tensor within `bound` of the other, relative to its largest value or `at_least`."""
    for i, (a, b) in enumerate(zip(ours, theirs, strict=True)):
        a, b = a.double(), b.double()
        off, most = float((a - b).abs().max()), bound * max(at_least, float(b.abs().max()))
        assert off <= most, f"result {i}: {off} > {most}"
