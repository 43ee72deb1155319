"""Checks of the arguments of operations, because fused loops read raw memory unchecked."""

from torch import Tensor

from mambanorm.checks import check_all_real, check_real, check_shapes


def check_gated(y: Tensor, z: Tensor) -> None:
    """Raise ValueError unless y and z are real tensors of the same shape on the same device."""
    check_real("y", y)
    if not isinstance(z, Tensor):  # so that torch.compile need not format symbolic sizes
        check_real("z", z, str(tuple(y.shape)))
    check_real("z", z)
    if z.shape != y.shape or z.device != y.device:
        given, needed = (f"{tuple(t.shape)} on {t.device}" for t in (z, y))
        raise ValueError(f"z must have the shape and device of y, {needed}, got {given}")


def check_conv_silu(u: Tensor, weight: Tensor, bias: Tensor) -> None:
    """Raise ValueError unless u is (B, L, E) or (B, H, W, E) and weight and bias fit u."""
    check_all_real(u=u, weight=weight, bias=bias)
    if u.dim() not in (3, 4) or 0 in u.shape:
        raise ValueError(
            f"u has shape {tuple(u.shape)}; (B, L, E) or (B, H, W, E) is needed, "
            "with all sizes at least 1"
        )
    taps = max(weight.shape[-1], 1) if weight.dim() == u.dim() else 1
    if u.dim() == 4 and taps % 2 == 0:
        raise ValueError(
            "the number of taps of an image's convolution must be odd, to keep the image's size, "
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
    """Raise ValueError if an argument of `selective_scan` has a wrong shape, dtype or device."""
    check_real("u", u, "(B, D, L)")
    if u.dim() != 3 or 0 in u.shape:
        raise ValueError(
            f"u has shape {tuple(u.shape)}; (B, D, L) is needed, with all sizes at least 1"
        )
    batch, channels, length = u.shape
    u_shape, per_channel = (batch, channels, length), (channels,)
    shapes = {"delta": u_shape, "D": per_channel, "z": u_shape, "delta_bias": per_channel}
    given = {"delta": delta, "D": D, "z": z, "delta_bias": delta_bias}
    tensors = {name: tensor for name, tensor in given.items() if tensor is not None}
    check_all_real(u=u, A=A, B=B, C=C, **tensors)
    if A.dim() != 2 or A.shape[0] != channels or A.shape[1] == 0:
        raise ValueError(f"A has shape {tuple(A.shape)}; (D, N) = ({channels}, N) is needed")
    for name, tensor in tensors.items():
        if tensor.shape != shapes[name]:
            raise ValueError(
                f"{name} has shape {tuple(tensor.shape)}; {shapes[name]} is needed, "
                f"as u has shape {u_shape}"
            )
    for name, tensor in (("B", B), ("C", C)):
        _check_shape_of_B_or_C(name, tuple(tensor.shape), u_shape, A.shape[1])


def _check_shape_of_B_or_C(
    name: str, shape: tuple[int, ...], u_shape: tuple[int, int, int], state_size: int
) -> None:
    """Raise ValueError unless `shape` is allowed for B or C, given u (B, D, L) and N = state_size.

    Allowed are (D, N), (B, N, L), and (B, G, N, L) where G divides D.
    """
    batch, channels, length = u_shape
    # Look up the shape by number of axes: from a comparison of both shapes, torch.export would
    # conclude that the batch size must not equal the number of channels.
    allowed = {2: (channels, state_size), 3: (batch, state_size, length)}
    if allowed.get(len(shape)) == shape:
        return
    is_grouped = len(shape) == 4 and (shape[0], *shape[2:]) == (batch, state_size, length)
    if is_grouped and shape[1] > 0 and channels % shape[1] == 0:
        return
    grouped = f"({batch}, G, {state_size}, {length}) where G divides {channels}"
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
    """Raise ValueError if an argument of `low_rank_scan` has a wrong shape, dtype or device."""
    tensors = dict(u=u, dt=dt, B=B, C=C, dt_weight=dt_weight, dt_bias=dt_bias, A_log=A_log, D=D)
    check_all_real(**tensors)
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
