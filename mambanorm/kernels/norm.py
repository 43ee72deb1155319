"""The norms, fused on the CPU: those of one position, the two passes along the sequence, and the
mixture of statistics.

    token_norm(x, …)                       γ·(x − μ)/√(σ² + ε) + β of one token: LN, RMSN (μ = 0),
    GN-token moments(x, lengths)                    m, v (B, 1, D), as in norms/masked_moments.py,
    and x centre_scale(x, mean, scale, shift)    (x − mean)·scale + shift mixed_statistics(norm,
    moments)        μ and σ² of NormVary and SwitchNorm from the moments

Plain torch makes a temporary tensor for every operation, forward and backward; here each function
is one loop that stays in the cache. Every norm along L is `moments` and `centre_scale`; what lies
between, the pooling of (B, 1, D) numbers into a norm's statistics, is left to torch but for the
mixture: there torch would need about a hundred tiny operations, each of which takes longer to
launch than to run. `moments` also returns x. What takes this x sends its gradient back through the
same loop, which saves a pass to add the two gradients.

The readable twins run for other dtypes and devices, and the tests compare them with these:
`readable` of each norm in norms/classic.py, the plain lines of `channel_moments` and `standardize`
in norms/masked_moments.py, and `member_statistics` with `mix` in norms/normvary.py.

Arrays are flat memory and offsets unsigned: for an index that could be negative the compiler would
gather instead of load, and a slice would cost Numba two atomic updates of a reference count.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from mambanorm.checks import check_shapes
from mambanorm.kernels import backward_once
from mambanorm.kernels.runtime import (
    EMPTY,
    ONE,
    TWO,
    ZERO,
    added_up,
    constant,
    empty,
    entry,
    jit,
    memory,
    run,
    table,
    whole_numbers,
    zeros,
)
from mambanorm.kernels.threads import scan_threads

_f, _u = np.float32, np.uintp

# ---------------------------------------------------------------------------- norms of one position


def token_norm(x, weight, bias, eps, centred=True, groups=1):
    """The norm of each token's channel groups, for float32 on the CPU; x (B, L, D) → (B, L, D),
    weight and bias (D,), None = 1 and 0. Differentiable once."""
    D = x.shape[-1]
    weight, bias = (
        (constant(D, 1.0) if weight is None else weight),
        (constant(D, 0.0) if bias is None else bias),
    )
    return _TokenNorm.apply(x, weight, bias, eps, centred, groups)


@jit("reassoc")
def _sums(x, start, width, centre):
    """Σ (x − centre) and Σ (x − centre)²; only here, and in `_dots`, may the compiler reorder a
    sum."""
    total, squares = ZERO, ZERO
    for d in range(width):
        c = x[start + _u(d)] - centre
        total += c
        squares += c * c
    return total, squares


@jit("reassoc")
def _dots(g, x, start, width, mean, scale):
    """Σ g and Σ g·x̂."""
    total, weighted = ZERO, ZERO
    for d in range(width):
        total += g[d]
        weighted += g[d] * (x[start + _u(d)] - mean)
    return total, weighted * scale


@jit()
def _statistics(x, start, width, eps, centred):
    """Mean (0 where it is not subtracted) and 1/√(variance + ε); centred in a second pass, so no
    digits are lost."""
    n, mean = _f(width), ZERO
    if centred:
        mean = _sums(x, start, width, ZERO)[0] / n
    rest, squares = _sums(x, start, width, mean)
    var = squares / n
    if centred:
        mean += rest / n
        var -= (rest / n) * (rest / n)
    return mean, ONE / np.sqrt(var + eps)


@entry
def _token_forward(worker, workers, numbers, places):
    """numbers: tokens, groups, channels of a group, centred. places: x, γ, β, ε, and the results y
    and the statistics (tokens, groups, 2)."""
    tokens, groups, width, centred = numbers
    x, gamma, beta, eps = (
        memory(places, 0),
        memory(places, 1),
        memory(places, 2),
        memory(places, 3)[0],
    )
    y, stats = memory(places, 4), memory(places, 5)
    for t in range(tokens * worker // workers, tokens * (worker + 1) // workers):
        for k in range(groups):
            low, start, place = (
                _u(k * width),
                _u((t * groups + k) * width),
                _u(2 * (t * groups + k)),
            )
            mean, scale = _statistics(x, start, width, eps, centred)
            stats[place], stats[place + _u(1)] = mean, scale
            for d in range(width):
                y[start + _u(d)] = (x[start + _u(d)] - mean) * scale * gamma[low + _u(d)] + beta[
                    low + _u(d)
                ]


@entry
def _token_backward(worker, workers, numbers, places):
    """numbers: as forward. places: x, γ, the statistics, grad, and the results dx and per worker
    the sums of dγ and dβ."""
    tokens, groups, width, centred = numbers
    x, gamma, stats, grad = (
        memory(places, 0),
        memory(places, 1),
        memory(places, 2),
        memory(places, 3),
    )
    dx, sums = memory(places, 4), memory(places, 5)
    g, dgamma = np.empty(width, np.float32), _u(worker * 2 * groups * width)
    dbeta = dgamma + _u(groups * width)
    for t in range(tokens * worker // workers, tokens * (worker + 1) // workers):
        for k in range(groups):
            low, start, place = (
                _u(k * width),
                _u((t * groups + k) * width),
                _u(2 * (t * groups + k)),
            )
            mean, scale = stats[place], stats[place + _u(1)]
            for d in range(width):
                g[d] = grad[start + _u(d)]
            for d in range(width):
                sums[dbeta + low + _u(d)] += g[d]
                sums[dgamma + low + _u(d)] += g[d] * ((x[start + _u(d)] - mean) * scale)
                g[d] *= gamma[low + _u(d)]
            total, weighted = _dots(g, x, start, width, mean, scale)
            total, weighted = (total / _f(width) if centred else ZERO), weighted / _f(width)
            for d in range(width):
                dx[start + _u(d)] = scale * (
                    g[d] - total - (x[start + _u(d)] - mean) * scale * weighted
                )


class _TokenNorm(torch.autograd.Function):
    """x (B, L, D), weight and bias (D,), float32 on the CPU → y."""

    @staticmethod
    def forward(ctx, x, weight, bias, eps, centred, groups):
        x, weight, bias = (t.contiguous() for t in (x, weight, bias))
        tokens = x.shape[0] * x.shape[1]
        ctx.workers, ctx.numbers = (
            min(scan_threads(), tokens),
            (tokens, groups, x.shape[2] // groups, centred),
        )
        y, stats = empty(x.shape), empty(tokens, groups, 2)
        run(_token_forward, ctx.workers, ctx.numbers, [x, weight, bias, constant(1, eps), y, stats])
        ctx.save_for_backward(x, weight, stats)
        return y

    @staticmethod
    @backward_once
    def backward(ctx, grad):
        dx, sums = empty(grad.shape), zeros(ctx.workers, 2, grad.shape[2])
        run(
            _token_backward,
            ctx.workers,
            ctx.numbers,
            [*ctx.saved_tensors, grad.contiguous(), dx, sums],
        )
        dweight, dbias = added_up(sums).unbind()
        return dx, dweight, dbias, None, None, None


# ------------------------------------------------------------------------- norms along the sequence


def moments(x: Tensor, lengths: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    """Mean and centred second moment over the valid positions of each row and channel, (B, 1, D)
    each; and x."""
    return _Moments.apply(x, lengths)


def centre_scale(x: Tensor, mean: Tensor | None, scale: Tensor, shift: Tensor | None) -> Tensor:
    """(x − mean)·scale + shift, (B, L, D); mean and scale broadcast to (B, 1, D), shift (D,), None
    = 0."""
    return _CentreScale.apply(x, mean, scale, shift)


# A row's (B, D) numbers start at `own`, a step at `at`. numbers: B, L, D. `lengths` are the valid
# positions of each row; of size 0 if all are.
@entry
def _moments_forward(worker, workers, numbers, places):
    """places: lengths, x, and the results m and v."""
    batch, length, channels = numbers
    lengths, x, m, v = (
        whole_numbers(places, 0, 1),
        memory(places, 1),
        memory(places, 2),
        memory(places, 3),
    )
    mean, rest, square = (
        np.empty(channels, np.float32),
        np.empty(channels, np.float32),
        np.empty(channels, np.float32),
    )
    for b in range(batch * worker // workers, batch * (worker + 1) // workers):
        n, own = lengths[b, 0] if lengths.size else length, _u(b * channels)
        mean[:] = ZERO
        rest[:] = ZERO
        square[:] = ZERO
        for t in range(n):
            at = _u((b * length + t) * channels)
            for d in range(channels):
                mean[d] += x[at + _u(d)]
        for d in range(channels):
            mean[d] /= _f(n)
        for t in range(
            n
        ):  # a second pass, centred: no digits are lost at a mean far above the spread,
            at = _u((b * length + t) * channels)
            for d in range(channels):
                c = x[at + _u(d)] - mean[d]
                rest[d] += c
                square[d] += c * c
        for d in range(channels):  # and what the first pass has lost of the mean is put back
            c = rest[d] / _f(n)
            m[own + _u(d)] = mean[d] + c
            v[own + _u(d)] = square[d] / _f(n) - c * c


@entry
def _moments_backward(worker, workers, numbers, places):
    """places: lengths, x, m, dm, dv, passed, and the result dx = passed + (dm + 2·dv·(x − m)) / n;
    at the padding passed."""
    batch, length, channels = numbers
    lengths, x, m, dm = (
        whole_numbers(places, 0, 1),
        memory(places, 1),
        memory(places, 2),
        memory(places, 3),
    )
    dv, passed, dx = memory(places, 4), memory(places, 5), memory(places, 6)
    shift, slope = np.empty(channels, np.float32), np.empty(channels, np.float32)
    for b in range(batch * worker // workers, batch * (worker + 1) // workers):
        n, own = lengths[b, 0] if lengths.size else length, _u(b * channels)
        for d in range(channels):
            slope[d] = TWO * dv[own + _u(d)] / _f(n)
            shift[d] = dm[own + _u(d)] / _f(n)
        for t in range(length):
            at = _u((b * length + t) * channels)
            if t < n:
                for d in range(channels):
                    dx[at + _u(d)] = passed[at + _u(d)] + (
                        shift[d] + slope[d] * (x[at + _u(d)] - m[own + _u(d)])
                    )
            else:
                for d in range(channels):
                    dx[at + _u(d)] = passed[at + _u(d)]


@entry
def _apply_forward(worker, workers, numbers, places):
    """places: x, mean, scale, shift, and the result y."""
    batch, length, channels = numbers
    x, mean, scale = memory(places, 0), memory(places, 1), memory(places, 2)
    shift, y = memory(places, 3), memory(places, 4)
    for b in range(batch * worker // workers, batch * (worker + 1) // workers):
        own = _u(b * channels)
        for t in range(length):
            at = _u((b * length + t) * channels)
            for d in range(channels):
                y[at + _u(d)] = (x[at + _u(d)] - mean[own + _u(d)]) * scale[own + _u(d)] + shift[
                    _u(d)
                ]


@entry
def _apply_backward(worker, workers, numbers, places):
    """places: x, mean, scale, grad g, and the results dx = g·scale and, per row and channel, Σ_l g
    and Σ_l g·(x − mean)."""
    batch, length, channels = numbers
    x, mean, scale, grad = (
        memory(places, 0),
        memory(places, 1),
        memory(places, 2),
        memory(places, 3),
    )
    dx, sum_g, sum_gx = memory(places, 4), memory(places, 5), memory(places, 6)
    total, weighted = np.empty(channels, np.float32), np.empty(channels, np.float32)
    for b in range(batch * worker // workers, batch * (worker + 1) // workers):
        own = _u(b * channels)
        total[:] = ZERO
        weighted[:] = ZERO
        for t in range(length):
            at = _u((b * length + t) * channels)
            for d in range(channels):
                g = grad[at + _u(d)]
                dx[at + _u(d)] = g * scale[own + _u(d)]
                total[d] += g
                weighted[d] += g * (x[at + _u(d)] - mean[own + _u(d)])
        for d in range(channels):
            sum_g[own + _u(d)] = total[d]
            sum_gx[own + _u(d)] = weighted[d]


def _start(kernel, shape, tensors: list[Tensor]) -> None:
    """Runs a kernel over the rows of the batch; a row has one worker, so results do not depend on
    the thread count."""
    run(kernel, min(scan_threads(), shape[0]), shape, tensors)


class _Moments(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, lengths):
        rows, (B, _, D) = x.contiguous(), x.shape
        ctx.lengths = EMPTY if lengths is None else lengths.long().contiguous()
        m, v = empty(B, 1, D), empty(B, 1, D)
        _start(_moments_forward, x.shape, [ctx.lengths, rows, m, v])
        ctx.save_for_backward(rows, m)
        return m, v, x.view_as(x)

    @staticmethod
    @backward_once
    def backward(ctx, dm, dv, passed):
        x, m = ctx.saved_tensors
        dx = torch.empty_like(x)
        _start(
            _moments_backward,
            x.shape,
            [ctx.lengths, x, m, dm.contiguous(), dv.contiguous(), passed.contiguous(), dx],
        )
        return dx, None


class _CentreScale(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, mean, scale, shift):
        rows, (B, _, D) = x.contiguous(), x.shape
        mu, s = (
            t.expand(B, 1, D).contiguous()
            for t in (constant(D, 0.0) if mean is None else mean, scale)
        )
        beta = constant(D, 0.0) if shift is None else shift.contiguous()
        y = torch.empty_like(rows)
        _start(_apply_forward, x.shape, [rows, mu, s, beta, y])
        ctx.save_for_backward(rows, mu, s)
        ctx.shapes = [None if t is None else t.shape for t in (mean, scale, shift)]
        return y

    @staticmethod
    @backward_once
    def backward(ctx, grad):
        x, mu, s = ctx.saved_tensors
        dx, sum_g, sum_gx = torch.empty_like(x), torch.empty_like(mu), torch.empty_like(mu)
        _start(_apply_backward, x.shape, [x, mu, s, grad.contiguous(), dx, sum_g, sum_gx])
        of_mean, of_scale, of_shift = (
            ctx.shapes
        )  # each was broadcast to (B, 1, D): its gradient is the sum over that
        dmean = None if of_mean is None else (-sum_g * s).sum_to_size(of_mean)
        dshift = None if of_shift is None else sum_g.sum_to_size(of_shift)
        return dx, dmean, sum_gx.sum_to_size(of_scale), dshift


# --------------------------------------------------------------------------- mixtures of statistics
# NormVary's, in the order of the weights in the loops. SwitchNorm has three of them: the others
# have the weight 0.
MEMBERS = ("BN", "GN", "IN", "LN", "RMSN")


def mixed_statistics(norm, moments) -> tuple[Tensor, Tensor]:
    """μ and σ² of Eq. 13, (B, 1, D) each, for float32 on the CPU; in training it updates the
    running statistics."""
    count, (rows, _, D) = moments.n, moments.m.shape
    names, n = ("mean_logits", "var_logits", "running_mean", "running_var"), len(norm.members)
    check_shapes(
        type(norm).__name__,
        names,
        [getattr(norm, name) for name in names],
        ((n,), (n,), (D,), (D,)),
    )
    weighted = norm.statistics == "total" and not isinstance(count, int)
    share = (count / count.sum()).view(-1) if weighted else constant(rows, 1 / rows)
    return _Mix.apply(moments.m, moments.v, *norm.mixture(), share, norm)


@jit()
def _pool(share, training, m, v, total, batch, group, whole):
    """The members' statistics: batch (2, D), group (B, 2·G), whole (B, 3) with LN's mean and
    variance and RMSN's."""
    B, D = m.shape
    groups = group.shape[1] // 2
    width = D // groups
    if training:
        batch[:] = ZERO
        for b in range(B):
            for d in range(D):
                batch[0, d] += share[b] * m[b, d]
        for b in range(B):
            for d in range(D):
                c = m[b, d] - batch[0, d] if total else ZERO
                batch[1, d] += share[b] * (v[b, d] + c * c)
    for b in range(B):
        for k in range(groups):
            mean, var = ZERO, ZERO
            for d in range(k * width, (k + 1) * width):
                mean += m[b, d]
            mean /= _f(width)
            for d in range(k * width, (k + 1) * width):
                c = m[b, d] - mean
                var += v[b, d] + c * c
            group[b, 2 * k], group[b, 2 * k + 1] = mean, var / _f(width)
        mean, var, square = ZERO, ZERO, ZERO
        for d in range(D):
            mean += m[b, d]
        mean /= _f(D)
        for d in range(D):
            c = m[b, d] - mean if total else ZERO
            var += v[b, d] + c * c
            square += v[b, d] + m[b, d] * m[b, d]
        whole[b, 0], whole[b, 1], whole[b, 2] = mean, var / _f(D), square / _f(D)


# numbers: D, G, training, total. places: m, v (B, D), the weights of means and variances (5,),
# share (B,), batch, group and whole of `_pool`, and what the kernel names. One worker does it all.
@entry
def _mix_forward(worker, workers, numbers, places):
    """The results are mean and var (B, D)."""
    D, groups, training, total = numbers
    m, v, mean, var = (
        table(places, 0, D),
        table(places, 1, D),
        table(places, 8, D),
        table(places, 9, D),
    )
    w_mean, w_var, share = memory(places, 2), memory(places, 3), memory(places, 4)
    batch, group, whole = table(places, 5, D), table(places, 6, 2 * groups), table(places, 7, 3)
    _pool(share, training, m, v, total, batch, group, whole)
    width = D // groups
    for b in range(len(m)):
        ln, ln_var, rms = whole[b, 0], whole[b, 1], whole[b, 2]
        for d in range(D):
            k = d // width
            mu = w_mean[0] * batch[0, d] + w_mean[1] * group[b, 2 * k]
            mean[b, d] = mu + w_mean[2] * m[b, d] + w_mean[3] * ln
            s = w_var[0] * batch[1, d] + w_var[1] * group[b, 2 * k + 1] + w_var[2] * v[b, d]
            var[b, d] = s + w_var[3] * ln_var + w_var[4] * rms


@entry
def _mix_backward(worker, workers, numbers, places):
    """P is the pooling of a member: an average over a set, given to every element of it. With p =
    dL/dμ and q = dL/dσ²:

    dL/dm = Σ_i w^μ_i Pᵢᵀp + Σ_i 2·w^σ_i (m − μ_i)·Pᵢᵀq,   dL/dv = Σ_i w^σ_i Pᵢᵀq

    RMSN subtracts no mean: it has m for m − μ_i. The second term is missing where `literal` (not
    `total`) leaves out the variance of the means. The results are dm, dv (B, D), dw (2, 5), of the
    weights of means and variances, and sums (2, D), Σ_b p and q.
    """
    D, groups, training, total = numbers
    m, v, p, q = table(places, 0, D), table(places, 1, D), table(places, 8, D), table(places, 9, D)
    w_mean, w_var, share = memory(places, 2), memory(places, 3), memory(places, 4)
    batch, group, whole = table(places, 5, D), table(places, 6, 2 * groups), table(places, 7, 3)
    dm, dv, dw, sums = (
        table(places, 10, D),
        table(places, 11, D),
        table(places, 12, 5),
        table(places, 13, D),
    )
    B, width = len(m), D // groups
    dw[:] = ZERO
    sums[:] = ZERO
    for b in range(B):
        for d in range(D):
            sums[0, d] += p[b, d]
            sums[1, d] += q[b, d]
    for b in range(B):
        p_row, q_row = ZERO, ZERO
        for d in range(D):
            p_row += p[b, d]
            q_row += q[b, d]
        dw[0, 3] += p_row * whole[b, 0]
        dw[1, 3] += q_row * whole[b, 1]
        dw[1, 4] += q_row * whole[b, 2]
        p_row, q_row = p_row / _f(D), q_row / _f(D)
        for k in range(groups):
            p_group, q_group = ZERO, ZERO
            for d in range(k * width, (k + 1) * width):
                p_group += p[b, d]
                q_group += q[b, d]
            dw[0, 1] += p_group * group[b, 2 * k]
            dw[1, 1] += q_group * group[b, 2 * k + 1]
            p_group, q_group = p_group / _f(width), q_group / _f(width)
            for d in range(k * width, (k + 1) * width):
                x = m[b, d]
                p_batch = share[b] * sums[0, d] if training else ZERO
                q_batch = share[b] * sums[1, d] if training else ZERO
                g = (
                    w_mean[0] * p_batch
                    + w_mean[1] * p_group
                    + w_mean[2] * p[b, d]
                    + w_mean[3] * p_row
                )
                spread = w_var[1] * (x - group[b, 2 * k]) * q_group + w_var[4] * x * q_row
                if total:
                    spread += (
                        w_var[0] * (x - batch[0, d]) * q_batch
                        + w_var[3] * (x - whole[b, 0]) * q_row
                    )
                dm[b, d] = g + TWO * spread
                s = w_var[0] * q_batch + w_var[1] * q_group + w_var[2] * q[b, d]
                dv[b, d] = s + (w_var[3] + w_var[4]) * q_row
                dw[0, 2] += p[b, d] * x
                dw[1, 2] += q[b, d] * v[b, d]
    for d in range(D):
        dw[0, 0] += sums[0, d] * batch[0, d]
        dw[1, 0] += sums[1, d] * batch[1, d]


class _Mix(torch.autograd.Function):
    """m and v (B, 1, D), the members' weights and each row's share of the batch (B,) → mean and
    variance (B, 1, D)."""

    @staticmethod
    def forward(ctx, m, v, w_mean, w_var, share, norm):
        ctx.places = [MEMBERS.index(name) for name in norm.members]
        weights = [_of_all(weight.detach(), ctx.places) for weight in (w_mean, w_var)]
        given = [t.detach().contiguous() for t in (m[:, 0], v[:, 0], *weights, share)]
        batch = torch.stack([norm.running_mean, norm.running_var])
        group, whole = empty(len(m), norm.groups, 2), empty(len(m), 3)
        mean, var = torch.empty_like(given[0]), torch.empty_like(given[0])
        ctx.numbers = m.shape[2], norm.groups, norm.training, norm.statistics == "total"
        run(_mix_forward, 1, ctx.numbers, [*given, batch, group, whole, mean, var])
        if norm.training:
            norm.track(*batch)
        ctx.save_for_backward(*given, batch, group, whole)
        return mean[:, None], var[:, None]

    @staticmethod
    @backward_once
    def backward(ctx, p, q):
        given = *ctx.saved_tensors, p[:, 0].contiguous(), q[:, 0].contiguous()
        rows, size = given[0].shape
        made = dm, dv, dw, _ = [
            empty(shape) for shape in ((rows, size), (rows, size), (2, len(MEMBERS)), (2, size))
        ]
        run(_mix_backward, 1, ctx.numbers, [*given, *made])
        of_means, of_vars = torch.from_numpy(dw.numpy()[:, ctx.places])
        return dm[:, None], dv[:, None], of_means, of_vars, None, None


def _of_all(weight: Tensor, places: list[int]) -> Tensor:
    """The weights of some members at their places among all, (5,), 0 at the others."""
    found = zeros(len(MEMBERS))
    found.numpy()[places] = weight.numpy()
    return found
