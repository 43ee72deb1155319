"""Norms as fused CPU loops: norms of one token, norms along the sequence, mixtures of statistics.

    token_norm(x, …)                       γ·(x − μ)/√(σ² + ε) + β, where μ and σ² belong to one
                                           token: LN, RMSN (μ = 0), GN-token
    moments(x, lengths)                    mean m and centred second moment v, (B, 1, D) each (see
                                           norms/masked_moments.py), and x again
    centre_scale(x, mean, scale, shift)    (x − mean)·scale + shift
    mixed_statistics(norm, moments)        μ and σ² of NormVary or SwitchNorm, from the moments

Plain torch creates a temporary tensor for every operation, forward and backward. Here each function
is one loop, whose data stay in the cache.

Every norm along L calls `moments`, pools m and v into its own statistics, and calls `centre_scale`.
Plain torch does the pooling, except for mixtures: there torch would need about a hundred tiny
operations, each of which takes longer to launch than to run. So a kernel computes the mixtures.

`moments` also returns x. Two gradients reach x: one through m and v, one through the next
operation. If that operation uses the returned x, one loop adds the two gradients, which saves a
pass over memory.

The readable twins compute the same for other dtypes and devices, and tests compare the kernels with
them. The twins are `reference` of each norm in norms/classic.py, the plain lines of
`channel_moments` and `standardize` in norms/masked_moments.py, and `member_statistics` with `mix`
in norms/normvary.py.

Kernels index flat memory, with unsigned indices. If an index could be negative, the compiler would
gather single numbers instead of loading neighbouring numbers together. Kernels take no slices,
because each slice would cost Numba two atomic updates of a reference count.
"""

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
    constant,
    empty,
    entry,
    flat,
    int_table,
    jit,
    run,
    sum_workers,
    table,
    zeros,
)
from mambanorm.kernels.threads import kernel_threads

_f, _u = np.float32, np.uintp

# ------------------------------------------------------------------------------- norms of one token


def token_norm(x, weight, bias, eps, centred=True, groups=1):
    """Normalize each channel group of each token, for float32 tensors on the CPU.

    x and the result are (B, L, D). weight and bias are (D,) or None: the weight is then 1, the bias
    0. Without `centred` the mean is not subtracted. Differentiable once.
    """
    D = x.shape[-1]
    weight = constant(D, 1.0) if weight is None else weight
    bias = constant(D, 0.0) if bias is None else bias
    return _TokenNorm.apply(x, weight, bias, eps, centred, groups)


@jit("reassoc")
def _centred_sums(x, start, width, centre):
    """Return Σ (x − centre) and Σ (x − centre)² over `width` numbers from index `start`.

    The compiler may reorder the additions of a sum only in this function and in `_gradient_sums`.
    """
    total, squares = ZERO, ZERO
    for d in range(width):
        c = x[start + _u(d)] - centre
        total += c
        squares += c * c
    return total, squares


@jit("reassoc")
def _gradient_sums(g, x, start, width, mean, scale):
    """Return Σ g and Σ g·x̂ over one channel group, where x̂ = (x − mean)·scale and g = dL/dx̂."""
    total, weighted = ZERO, ZERO
    for d in range(width):
        total += g[d]
        weighted += g[d] * (x[start + _u(d)] - mean)
    return total, weighted * scale


@jit()
def _token_statistics(x, start, width, eps, centred):
    """Return the mean of one channel group and 1/√(variance + ε).

    Without `centred` the mean is 0 and the variance is the mean square. A second pass over x
    computes the variance from x − mean, so a large mean costs no digits.
    """
    n, mean = _f(width), ZERO
    if centred:
        mean = _centred_sums(x, start, width, ZERO)[0] / n
    residual, squares = _centred_sums(x, start, width, mean)
    var = squares / n
    if centred:
        mean += residual / n
        var -= (residual / n) * (residual / n)
    return mean, ONE / np.sqrt(var + eps)


@entry
def _token_forward(worker, workers, integers, buffers):
    """Normalize one worker's share of the tokens.

    integers: numbers of tokens, of groups and of channels per group; centred. buffers: x, γ, β, ε;
    results: y, and the mean and 1/√(variance + ε) of every group (tokens, groups, 2).
    """
    tokens, groups, width, centred = integers
    x, gamma, beta, eps = flat(buffers, 0), flat(buffers, 1), flat(buffers, 2), flat(buffers, 3)[0]
    y, stats = flat(buffers, 4), flat(buffers, 5)
    for t in range(tokens * worker // workers, tokens * (worker + 1) // workers):
        for k in range(groups):
            first, start = _u(k * width), _u((t * groups + k) * width)
            stat = _u(2 * (t * groups + k))
            mean, scale = _token_statistics(x, start, width, eps, centred)
            stats[stat], stats[stat + _u(1)] = mean, scale
            for d in range(width):
                x_hat = (x[start + _u(d)] - mean) * scale
                y[start + _u(d)] = x_hat * gamma[first + _u(d)] + beta[first + _u(d)]


@entry
def _token_backward(worker, workers, integers, buffers):
    """Compute the gradients of `_token_forward` for one worker's share of the tokens.

    integers: as in `_token_forward`. buffers: x, γ, the statistics (tokens, groups, 2) that
    `_token_forward` wrote, and grad, the gradient of y; results: dx, and sums (workers, 2, D), each
    worker's dγ and dβ.
    """
    tokens, groups, width, centred = integers
    x, gamma, stats, grad = flat(buffers, 0), flat(buffers, 1), flat(buffers, 2), flat(buffers, 3)
    dx, sums = flat(buffers, 4), flat(buffers, 5)
    g, dgamma = np.empty(width, np.float32), _u(worker * 2 * groups * width)
    dbeta = dgamma + _u(groups * width)
    for t in range(tokens * worker // workers, tokens * (worker + 1) // workers):
        for k in range(groups):
            first, start = _u(k * width), _u((t * groups + k) * width)
            stat = _u(2 * (t * groups + k))
            mean, scale = stats[stat], stats[stat + _u(1)]
            for d in range(width):
                g[d] = grad[start + _u(d)]
            for d in range(width):
                sums[dbeta + first + _u(d)] += g[d]
                sums[dgamma + first + _u(d)] += g[d] * ((x[start + _u(d)] - mean) * scale)
                g[d] *= gamma[first + _u(d)]
            total, weighted = _gradient_sums(g, x, start, width, mean, scale)
            total, weighted = (total / _f(width) if centred else ZERO), weighted / _f(width)
            for d in range(width):
                dx[start + _u(d)] = scale * (
                    g[d] - total - (x[start + _u(d)] - mean) * scale * weighted
                )


class _TokenNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight, bias, eps, centred, groups):
        x, weight, bias = (t.contiguous() for t in (x, weight, bias))
        tokens = x.shape[0] * x.shape[1]
        ctx.workers = min(kernel_threads(), tokens)
        ctx.integers = tokens, groups, x.shape[2] // groups, centred
        y, stats = empty(x.shape), empty(tokens, groups, 2)
        run(
            _token_forward, ctx.workers, ctx.integers, [x, weight, bias, constant(1, eps), y, stats]
        )
        ctx.save_for_backward(x, weight, stats)
        return y

    @staticmethod
    @backward_once
    def backward(ctx, grad):
        dx, sums = empty(grad.shape), zeros(ctx.workers, 2, grad.shape[2])
        tensors = [*ctx.saved_tensors, grad.contiguous(), dx, sums]
        run(_token_backward, ctx.workers, ctx.integers, tensors)
        dweight, dbias = sum_workers(sums).unbind()
        return dx, dweight, dbias, None, None, None


# ------------------------------------------------------------------------- norms along the sequence


def moments(x: Tensor, lengths: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    """Return the mean m and the centred second moment v of each row and channel, and x again.

    m and v (B, 1, D) are computed over the valid positions. Use the returned x in later operations
    instead of the original x: then one loop sums the two gradients of x, the one through m and v
    and the one through the later operations.
    """
    return _Moments.apply(x, lengths)


def centre_scale(x: Tensor, mean: Tensor | None, scale: Tensor, shift: Tensor | None) -> Tensor:
    """Return (x − mean)·scale + shift, (B, L, D).

    mean and scale must broadcast to (B, 1, D); shift is (D,). For mean and shift, None means 0.
    """
    return _CentreScale.apply(x, mean, scale, shift)


# Each of the next four kernels computes one worker's rows of the batch. `row` is the index of a
# row's first number in a (B, D) tensor; `token` is the index of a position's first number in a
# (B, L, D) tensor. integers: B, L, D. `lengths` holds the number of valid positions of each row;
# it is empty if all positions are valid.
@entry
def _moments_forward(worker, workers, integers, buffers):
    """Compute the mean m and the centred second moment v of each row and channel.

    buffers: lengths, x; results: m, v.
    """
    batch, length, channels = integers
    lengths, x, m, v = (
        int_table(buffers, 0, 1),
        flat(buffers, 1),
        flat(buffers, 2),
        flat(buffers, 3),
    )
    mean, residual = np.empty(channels, np.float32), np.empty(channels, np.float32)
    square = np.empty(channels, np.float32)
    for b in range(batch * worker // workers, batch * (worker + 1) // workers):
        n, row = lengths[b, 0] if lengths.size else length, _u(b * channels)
        mean[:] = ZERO
        residual[:] = ZERO
        square[:] = ZERO
        for t in range(n):
            token = _u((b * length + t) * channels)
            for d in range(channels):
                mean[d] += x[token + _u(d)]
        for d in range(channels):
            mean[d] /= _f(n)
        # The second pass sums x − mean, so a mean far above the spread costs no digits.
        for t in range(n):
            token = _u((b * length + t) * channels)
            for d in range(channels):
                c = x[token + _u(d)] - mean[d]
                residual[d] += c
                square[d] += c * c
        for d in range(channels):  # correct the first mean's rounding error
            c = residual[d] / _f(n)
            m[row + _u(d)] = mean[d] + c
            v[row + _u(d)] = square[d] / _f(n) - c * c


@entry
def _moments_backward(worker, workers, integers, buffers):
    """Compute dx = grad_x + (dm + 2·dv·(x − m)) / n at valid positions, dx = grad_x at padding.

    n is the number of valid positions in the row. buffers: lengths, x, m, dm, dv, and grad_x, the
    gradient of the x that `moments` returned; result: dx.
    """
    batch, length, channels = integers
    lengths, x, m, dm = (
        int_table(buffers, 0, 1),
        flat(buffers, 1),
        flat(buffers, 2),
        flat(buffers, 3),
    )
    dv, grad_x, dx = flat(buffers, 4), flat(buffers, 5), flat(buffers, 6)
    shift, slope = np.empty(channels, np.float32), np.empty(channels, np.float32)
    for b in range(batch * worker // workers, batch * (worker + 1) // workers):
        n, row = lengths[b, 0] if lengths.size else length, _u(b * channels)
        for d in range(channels):
            slope[d] = TWO * dv[row + _u(d)] / _f(n)
            shift[d] = dm[row + _u(d)] / _f(n)
        for t in range(length):
            token = _u((b * length + t) * channels)
            if t < n:
                for d in range(channels):
                    dx[token + _u(d)] = grad_x[token + _u(d)] + (
                        shift[d] + slope[d] * (x[token + _u(d)] - m[row + _u(d)])
                    )
            else:
                for d in range(channels):
                    dx[token + _u(d)] = grad_x[token + _u(d)]


@entry
def _centre_scale_forward(worker, workers, integers, buffers):
    """Compute y = (x − mean)·scale + shift.

    buffers: x, mean, scale, shift; result: y.
    """
    batch, length, channels = integers
    x, mean, scale = flat(buffers, 0), flat(buffers, 1), flat(buffers, 2)
    shift, y = flat(buffers, 3), flat(buffers, 4)
    for b in range(batch * worker // workers, batch * (worker + 1) // workers):
        row = _u(b * channels)
        for t in range(length):
            token = _u((b * length + t) * channels)
            for d in range(channels):
                centred = x[token + _u(d)] - mean[row + _u(d)]
                y[token + _u(d)] = centred * scale[row + _u(d)] + shift[_u(d)]


@entry
def _centre_scale_backward(worker, workers, integers, buffers):
    """Compute the gradients of `_centre_scale_forward` from g = dL/dy.

    buffers: x, mean, scale, g; results: dx = g·scale, and for each row and channel the sums Σ_l g
    and Σ_l g·(x − mean).
    """
    batch, length, channels = integers
    x, mean, scale, grad = flat(buffers, 0), flat(buffers, 1), flat(buffers, 2), flat(buffers, 3)
    dx, sum_g, sum_gx = flat(buffers, 4), flat(buffers, 5), flat(buffers, 6)
    total, weighted = np.empty(channels, np.float32), np.empty(channels, np.float32)
    for b in range(batch * worker // workers, batch * (worker + 1) // workers):
        row = _u(b * channels)
        total[:] = ZERO
        weighted[:] = ZERO
        for t in range(length):
            token = _u((b * length + t) * channels)
            for d in range(channels):
                g = grad[token + _u(d)]
                dx[token + _u(d)] = g * scale[row + _u(d)]
                total[d] += g
                weighted[d] += g * (x[token + _u(d)] - mean[row + _u(d)])
        for d in range(channels):
            sum_g[row + _u(d)] = total[d]
            sum_gx[row + _u(d)] = weighted[d]


def _run_rows(kernel, shape, tensors: list[Tensor]) -> None:
    """Run a kernel whose workers share the rows of the batch.

    A row is never divided between workers, so results do not depend on the number of threads.
    """
    run(kernel, min(kernel_threads(), shape[0]), shape, tensors)


class _Moments(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, lengths):
        contiguous_x, (B, _, D) = x.contiguous(), x.shape
        ctx.lengths = EMPTY if lengths is None else lengths.long().contiguous()
        m, v = empty(B, 1, D), empty(B, 1, D)
        _run_rows(_moments_forward, x.shape, [ctx.lengths, contiguous_x, m, v])
        ctx.save_for_backward(contiguous_x, m)
        return m, v, x.view_as(x)

    @staticmethod
    @backward_once
    def backward(ctx, dm, dv, grad_x):
        x, m = ctx.saved_tensors
        dx = torch.empty_like(x)
        grads = [grad.contiguous() for grad in (dm, dv, grad_x)]
        _run_rows(_moments_backward, x.shape, [ctx.lengths, x, m, *grads, dx])
        return dx, None


class _CentreScale(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, mean, scale, shift):
        contiguous_x, (B, _, D) = x.contiguous(), x.shape
        mu, beta = (constant(D, 0.0) if t is None else t for t in (mean, shift))
        mu, s = (t.expand(B, 1, D).contiguous() for t in (mu, scale))
        beta = beta.contiguous()
        y = torch.empty_like(contiguous_x)
        _run_rows(_centre_scale_forward, x.shape, [contiguous_x, mu, s, beta, y])
        ctx.save_for_backward(contiguous_x, mu, s)
        ctx.shapes = [None if t is None else t.shape for t in (mean, scale, shift)]
        return y

    @staticmethod
    @backward_once
    def backward(ctx, grad):
        x, mu, s = ctx.saved_tensors
        dx, sum_g, sum_gx = torch.empty_like(x), torch.empty_like(mu), torch.empty_like(mu)
        _run_rows(_centre_scale_backward, x.shape, [x, mu, s, grad.contiguous(), dx, sum_g, sum_gx])
        # mean, scale and shift were broadcast, so their gradients are summed to their shapes.
        mean_shape, scale_shape, shift_shape = ctx.shapes
        dmean = None if mean_shape is None else (-sum_g * s).sum_to_size(mean_shape)
        dshift = None if shift_shape is None else sum_g.sum_to_size(shift_shape)
        return dx, dmean, sum_gx.sum_to_size(scale_shape), dshift


# --------------------------------------------------------------------------- mixtures of statistics
# NormVary's members, in the order of the weights in the kernels. SwitchNorm has only three of
# these members; the weights of the other two are 0.
MEMBERS = "BN", "GN", "IN", "LN", "RMSN"


def mixed_statistics(norm, moments) -> tuple[Tensor, Tensor]:
    """Return the mixed μ and σ² (B, 1, D) of the paper's Eq. 13, for float32 tensors on the CPU.

    `norm` is a NormVary or SwitchNorm, `moments` a `Moments` of norms/masked_moments.py. In
    training, also update the running statistics of `norm`.
    """
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
    return _Mix.apply(moments.m, moments.v, *norm.mixture_weights(), share, norm)


@jit()
def _pool_members(share, training, m, v, use_total, batch_stats, group_stats, layer_stats):
    """Compute the statistics of the members BN, GN, LN and RMSN from the moments m and v (B, D).

    Results: batch_stats (2, D), mean and variance of BN; group_stats (B, 2·G), mean and variance of
    each group of GN; layer_stats (B, 3), mean and variance of LN, and mean square of RMSN. Outside
    training batch_stats is not changed, because it holds the running statistics. With `use_total`,
    the variances of BN and LN include the variance of the means. The statistics of IN are m and v
    themselves. `share` (B,) holds the weight of each row in BN's statistics.
    """
    B, D = m.shape
    groups = group_stats.shape[1] // 2
    width = D // groups
    if training:
        batch_stats[:] = ZERO
        for b in range(B):
            for d in range(D):
                batch_stats[0, d] += share[b] * m[b, d]
        for b in range(B):
            for d in range(D):
                c = m[b, d] - batch_stats[0, d] if use_total else ZERO
                batch_stats[1, d] += share[b] * (v[b, d] + c * c)
    for b in range(B):
        for k in range(groups):
            mean, var = ZERO, ZERO
            for d in range(k * width, (k + 1) * width):
                mean += m[b, d]
            mean /= _f(width)
            for d in range(k * width, (k + 1) * width):
                c = m[b, d] - mean
                var += v[b, d] + c * c
            group_stats[b, 2 * k], group_stats[b, 2 * k + 1] = mean, var / _f(width)
        mean, var, square = ZERO, ZERO, ZERO
        for d in range(D):
            mean += m[b, d]
        mean /= _f(D)
        for d in range(D):
            c = m[b, d] - mean if use_total else ZERO
            var += v[b, d] + c * c
            square += v[b, d] + m[b, d] * m[b, d]
        layer_stats[b, 0], layer_stats[b, 1], layer_stats[b, 2] = mean, var / _f(D), square / _f(D)


# The next two kernels run with one worker. integers: D, the number G of GN's groups, training,
# use_total. buffers: m and v (B, D), the weights of the members' means (5,) and variances (5,),
# share (B,), the three results of `_pool_members`, then the tensors that the kernel's docstring
# names.
@entry
def _mix_forward(worker, workers, integers, buffers):
    """Compute the statistics of the members and mix them (Eq. 13 of the paper).

    Results: mean and var (B, D).
    """
    D, groups, training, use_total = integers
    m, v, mean, var = (
        table(buffers, 0, D),
        table(buffers, 1, D),
        table(buffers, 8, D),
        table(buffers, 9, D),
    )
    w_mean, w_var, share = flat(buffers, 2), flat(buffers, 3), flat(buffers, 4)
    batch_stats, group_stats, layer_stats = (
        table(buffers, 5, D),
        table(buffers, 6, 2 * groups),
        table(buffers, 7, 3),
    )
    _pool_members(share, training, m, v, use_total, batch_stats, group_stats, layer_stats)
    width = D // groups
    for b in range(len(m)):
        ln, ln_var, rms = layer_stats[b, 0], layer_stats[b, 1], layer_stats[b, 2]
        for d in range(D):
            k = d // width
            mu = w_mean[0] * batch_stats[0, d] + w_mean[1] * group_stats[b, 2 * k]
            mean[b, d] = mu + w_mean[2] * m[b, d] + w_mean[3] * ln
            s = (
                w_var[0] * batch_stats[1, d]
                + w_var[1] * group_stats[b, 2 * k + 1]
                + w_var[2] * v[b, d]
            )
            var[b, d] = s + w_var[3] * ln_var + w_var[4] * rms


@entry
def _mix_backward(worker, workers, integers, buffers):
    """Compute the gradients of the mixture from p = dL/dμ and q = dL/dσ².

    Member i has the mean μ_i, the weight w^μ_i of its mean and the weight w^σ_i of its variance.
    Pᵢ is its pooling: it replaces each number by the average of the set that the number belongs to.

        dL/dm = Σ_i w^μ_i Pᵢᵀp + Σ_i 2·w^σ_i (m − μ_i)·Pᵢᵀq,   dL/dv = Σ_i w^σ_i Pᵢᵀq

    RMSN subtracts no mean, so its term of the second sum has m instead of m − μ_i. Without
    `use_total` (the `literal` statistics) the variances of BN and LN omit the variance of the
    means, so BN and LN have no term in the second sum.

    Further buffers: p and q (B, D); results: dm and dv (B, D); dw (2, 5), the gradients of the
    weights of the means and of the variances; sums (2, D), Σ_b p and Σ_b q.
    """
    D, groups, training, use_total = integers
    m, v, p, q = (
        table(buffers, 0, D),
        table(buffers, 1, D),
        table(buffers, 8, D),
        table(buffers, 9, D),
    )
    w_mean, w_var, share = flat(buffers, 2), flat(buffers, 3), flat(buffers, 4)
    batch_stats, group_stats, layer_stats = (
        table(buffers, 5, D),
        table(buffers, 6, 2 * groups),
        table(buffers, 7, 3),
    )
    dm, dv, dw, sums = (
        table(buffers, 10, D),
        table(buffers, 11, D),
        table(buffers, 12, 5),
        table(buffers, 13, D),
    )
    B, width = len(m), D // groups
    for b in range(B):
        for d in range(D):
            sums[0, d] += p[b, d]
            sums[1, d] += q[b, d]
    for b in range(B):
        p_row, q_row = ZERO, ZERO
        for d in range(D):
            p_row += p[b, d]
            q_row += q[b, d]
        dw[0, 3] += p_row * layer_stats[b, 0]
        dw[1, 3] += q_row * layer_stats[b, 1]
        dw[1, 4] += q_row * layer_stats[b, 2]
        p_row, q_row = p_row / _f(D), q_row / _f(D)
        for k in range(groups):
            p_group, q_group = ZERO, ZERO
            for d in range(k * width, (k + 1) * width):
                p_group += p[b, d]
                q_group += q[b, d]
            dw[0, 1] += p_group * group_stats[b, 2 * k]
            dw[1, 1] += q_group * group_stats[b, 2 * k + 1]
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
                spread = w_var[1] * (x - group_stats[b, 2 * k]) * q_group + w_var[4] * x * q_row
                if use_total:
                    spread += (
                        w_var[0] * (x - batch_stats[0, d]) * q_batch
                        + w_var[3] * (x - layer_stats[b, 0]) * q_row
                    )
                dm[b, d] = g + TWO * spread
                s = w_var[0] * q_batch + w_var[1] * q_group + w_var[2] * q[b, d]
                dv[b, d] = s + (w_var[3] + w_var[4]) * q_row
                dw[0, 2] += p[b, d] * x
                dw[1, 2] += q[b, d] * v[b, d]
    for d in range(D):
        dw[0, 0] += sums[0, d] * batch_stats[0, d]
        dw[1, 0] += sums[1, d] * batch_stats[1, d]


class _Mix(torch.autograd.Function):
    """Compute the mixed mean and variance, (B, 1, D) each, from the moments m and v (B, 1, D).

    w_mean and w_var hold the weights of the members of `norm`; share (B,) holds the weight of each
    row in BN's statistics.
    """

    @staticmethod
    def forward(ctx, m, v, w_mean, w_var, share, norm):
        ctx.members = [MEMBERS.index(name) for name in norm.members]
        weights = [_all_weights(weight.detach(), ctx.members) for weight in (w_mean, w_var)]
        inputs = [t.detach().contiguous() for t in (m[:, 0], v[:, 0], *weights, share)]
        batch_stats = torch.stack([norm.running_mean, norm.running_var])
        group_stats, layer_stats = empty(len(m), norm.groups, 2), empty(len(m), 3)
        mean, var = torch.empty_like(inputs[0]), torch.empty_like(inputs[0])
        ctx.integers = m.shape[2], norm.groups, norm.training, norm.statistics == "total"
        run(
            _mix_forward,
            1,
            ctx.integers,
            [*inputs, batch_stats, group_stats, layer_stats, mean, var],
        )
        if norm.training:
            norm.track(*batch_stats)
        ctx.save_for_backward(*inputs, batch_stats, group_stats, layer_stats)
        return mean[:, None], var[:, None]

    @staticmethod
    @backward_once
    def backward(ctx, p, q):
        inputs = *ctx.saved_tensors, p[:, 0].contiguous(), q[:, 0].contiguous()
        rows, size = inputs[0].shape
        dm, dv = empty(rows, size), empty(rows, size)
        dw, sums = zeros(2, len(MEMBERS)), zeros(2, size)
        run(_mix_backward, 1, ctx.integers, [*inputs, dm, dv, dw, sums])
        dw_mean, dw_var = torch.from_numpy(dw.numpy()[:, ctx.members])
        return dm[:, None], dv[:, None], dw_mean, dw_var, None, None


def _all_weights(weight: Tensor, members: list[int]) -> Tensor:
    """Return the weights (5,) of all MEMBERS: `weight` at the indices `members`, 0 elsewhere."""
    weights = zeros(len(MEMBERS))
    weights.numpy()[members] = weight.numpy()
    return weights
