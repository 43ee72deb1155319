"""Checks of the arguments of operations: the loops behind them read plain memory."""

from torch import Tensor

from mambanorm.checks import check_real, check_shapes, check_together


def check_gated(y: Tensor, z: Tensor) -> None:
    """Raise ValueError unless y and z are real tensors of one shape on one device."""
    check_real("y", y)
    if not isinstance(z, Tensor):  # torch.compile cannot format symbolic sizes
        check_real("z", z, str(tuple(y.shape)))
    check_real("z", z)
    if z.shape != y.shape or z.device != y.device:
        given, needed = (f"{tuple(t.shape)} on {t.device}" for t in (z, y))
        raise ValueError(f"z must be as y, {needed}, got {given}")


def check_conv_silu(u: Tensor, weight: Tensor, bias: Tensor) -> None:
    """Raise ValueError unless u is a sequence or images, and weight and bias fit its channels."""
    check_together(u=u, weight=weight, bias=bias)
    if u.dim() not in (3, 4) or 0 in u.shape:
        raise ValueError(
            f"u has shape {tuple(u.shape)}; (B, L, E) or (B, H, W, E) is needed, each at least 1"
        )
    taps = max(weight.shape[-1], 1) if weight.dim() == u.dim() else 1
    if u.dim() == 4 and taps % 2 == 0:
        raise ValueError(
            "the taps of an image's convolution must be odd in number, to keep its size, "
            f"got {taps}"
        )
    shapes = (u.shape[-1], 1, *[taps] * (u.dim() - 2)), (u.shape[-1],)
    check_shapes("conv_silu", ("weight", "bias"), (weight, bias), shapes)


def check_selective_scan(
    u: Tensor,
    delta: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    D: Tensor | None,
    z: Tensor | None,
    delta_bias: Tensor | None,
) -> None:
    """Raise ValueError for a wrong shape, dtype or device, with what was given and is needed."""
    check_real("u", u, "(B, D, L)")
    if u.dim() != 3 or 0 in u.shape:
        raise ValueError(f"u has shape {tuple(u.shape)}; (B, D, L) is needed, each at least 1")
    batch, channels, length = u.shape
    full, vector = (batch, channels, length), (channels,)
    shapes = {"delta": full, "D": vector, "z": full, "delta_bias": vector}
    given = {"delta": delta, "D": D, "z": z, "delta_bias": delta_bias}
    tensors = {name: tensor for name, tensor in given.items() if tensor is not None}
    check_together(u=u, A=A, B=B, C=C, **tensors)
    if A.dim() != 2 or A.shape[0] != channels or A.shape[1] == 0:
        raise ValueError(f"A has shape {tuple(A.shape)}; (D, N) = ({channels}, N) is needed")
    for name, tensor in tensors.items():
        if tensor.shape != shapes[name]:
            raise ValueError(
                f"{name} has shape {tuple(tensor.shape)}; {shapes[name]} is needed for u {full}"
            )
    for name, tensor in (("B", B), ("C", C)):
        _check_input_output(name, tuple(tensor.shape), full, A.shape[1])


def _check_input_output(
    name: str, shape: tuple[int, ...], full: tuple[int, int, int], state: int
) -> None:
    """Raise ValueError unless B or C is (D, N), (B, N, L), or (B, G, N, L) with G dividing D."""
    batch, channels, length = full
    # by number of axes: torch.export would note that B differs from the channels
    allowed = {2: (channels, state), 3: (batch, state, length)}
    if allowed.get(len(shape)) == shape:
        return
    if len(shape) == 4 and (shape[0], *shape[2:]) == (batch, state, length):
        groups = shape[1]
        if groups > 0 and channels % groups == 0:
            return
    grouped = f"({batch}, G, {state}, {length}) where G divides {channels}"
    raise ValueError(
        f"{name} has shape {shape}; allowed are {allowed[2]}, {allowed[3]} and {grouped}"
    )


def check_low_rank_scan(
    u: Tensor,
    dt: Tensor,
    B: Tensor,
    C: Tensor,
    dt_weight: Tensor,
    dt_bias: Tensor,
    A_log: Tensor,
    D: Tensor,
) -> None:
    """Raise ValueError for a wrong shape, dtype or device, with what was given and is needed."""
    tensors = dict(u=u, dt=dt, B=B, C=C, dt_weight=dt_weight, dt_bias=dt_bias, A_log=A_log, D=D)
    check_together(**tensors)
    two_axes = A_log.dim() == dt_weight.dim() == 2
    if u.dim() != 3 or 0 in u.shape or not two_axes or dt.dim() not in (3, 4):
        given = ", ".join(f"{name} {tuple(tensor.shape)}" for name, tensor in tensors.items())
        raise ValueError(
            "low_rank_scan needs u (B, L, E), dt (B, L, R), dt_weight (E, R), A_log (E, N), "
            f"got {given}"
        )
    (batch, length, channels), groups = u.shape, dt.shape[2:-1]
    rank, size = dt_weight.shape[1], A_log.shape[1]
    if groups and (not groups[0] or channels % groups[0]):
        raise ValueError(
            f"{groups[0]} groups of dt, B and C do not divide the {channels} channels of u"
        )
    per_position = (batch, length, *groups)
    shapes = dict(
        u=u.shape,
        dt=(*per_position, rank),
        B=(*per_position, size),
        C=(*per_position, size),
        dt_weight=(channels, rank),
        dt_bias=(channels,),
        A_log=(channels, size),
        D=(channels,),
    )
    check_shapes("low_rank_scan", [*tensors], [*tensors.values()], [*shapes.values()])
