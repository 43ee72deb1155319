"""Every norm of the registry equals its equation, transcribed here in float64, and torch.nn where
torch has it.
"""

import copy
import inspect

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import mambanorm as mn
from mambanorm.norms.base import TokenNorm
from mambanorm.norms.registry import COMMON_OPTIONS, check_options
from mambanorm_study.tables.norm_catalog import norm_costs, taxonomy_table
from mambanorm_study.tables.paper import TABLE_3

B, L, D, G, EPS = 5, 7, 8, 4, 1e-5


def sample(*shape, seed=0, dtype=torch.float64, mean=0.0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64).mul(2).add(mean).to(dtype)


def standardize(x, mean, var):
    return (x - mean) / torch.sqrt(var + EPS)


def mean_var(x, axes):
    mean = x.mean(axes, keepdim=True)
    return mean, ((x - mean) ** 2).mean(axes, keepdim=True)


def grouped(x):
    return x.view(*x.shape[:2], G, x.shape[2] // G)


def normvary_members(x, statistics="total"):
    """Eq. 8–12 as they are printed (literal), or with the variance of the means added to Eq. 8 and
    11 (total).
    """
    mu_in, var_in = mean_var(x, (1,))
    gn_mean, gn_var = mean_var(grouped(x), (1, 3))
    gn_mean, gn_var = (s.expand(-1, -1, G, D // G).reshape(len(x), 1, D) for s in (gn_mean, gn_var))
    if statistics == "literal":
        bn = mu_in.mean(0, keepdim=True), var_in.mean(0, keepdim=True)
        ln = mu_in.mean(2, keepdim=True), var_in.mean(2, keepdim=True)
    else:
        bn, ln = mean_var(x, (0, 1)), mean_var(x, (1, 2))
    rms = torch.zeros(()), (x**2).mean((1, 2), keepdim=True)
    return [bn, (gn_mean, gn_var), (mu_in, var_in), ln, rms]


def switchnorm_members(x):
    """Luo et al. 2019, Eq. 2: the statistics of IN, LN and BN, each taken from x over its own
    axes.
    """
    return [mean_var(x, (1,)), mean_var(x, (1, 2)), mean_var(x, (0, 1))]


def token_members(x):
    """The three members that a token has."""
    gn = [s.expand(-1, -1, -1, D // G).reshape(x.shape) for s in mean_var(grouped(x), (3,))]
    return [gn, mean_var(x, (2,)), (torch.zeros(()), (x**2).mean(2, keepdim=True))]


def mixed(x, members, norm=None):
    """Eq. 13; Luo et al. 2019, Eq. 3 and 5: by the norm's weights, None = equal ones."""
    equal = torch.zeros(len(members), dtype=x.dtype)
    w_mean, w_var = (equal, equal) if norm is None else (norm.mean_logits, norm.var_logits)
    mean = sum(w * m for w, (m, _) in zip(w_mean.softmax(0), members, strict=True))
    return standardize(
        x, mean, sum(w * v for w, (_, v) in zip(w_var.softmax(0), members, strict=True))
    )


EQUATIONS = {
    "None": lambda x: x,
    "BN": lambda x: standardize(x, *mean_var(x, (0, 1))),
    "IN": lambda x: standardize(x, *mean_var(x, (1,))),
    "LN": lambda x: standardize(x, *mean_var(x, (2,))),
    "RMSN": lambda x: x / torch.sqrt((x**2).mean(2, keepdim=True) + EPS),
    "Lp": lambda x: x / torch.sqrt(x.abs().mean(2, keepdim=True) ** 2 + EPS),
    "GN": lambda x: standardize(grouped(x), *mean_var(grouped(x), (1, 3))).reshape(x.shape),
    "adaLN": lambda x: standardize(x, *mean_var(x, (2,))),  # without a condition
    "LN-DL": lambda x: standardize(x, *mean_var(x, (1, 2))),
    "RMSN-DL": lambda x: x / torch.sqrt((x**2).mean((1, 2), keepdim=True) + EPS),
    "GN-token": lambda x: standardize(grouped(x), *mean_var(grouped(x), (3,))).reshape(x.shape),
    "NormVary": lambda x: mixed(x, normvary_members(x)),
    "NormVary-fixed": lambda x: mixed(x, normvary_members(x)),
    "NormVary-token": lambda x: mixed(x, token_members(x)),
    "SwitchNorm": lambda x: mixed(x, switchnorm_members(x)),
    "Scale": lambda x: x,
    "Constant": lambda x: 0 * x,
}


def selected(x, norm):
    """w₀·DyT(x) + w₁·LN(x), token by token."""
    first, _, last = norm.selector
    w = torch.softmax(F.gelu(x @ first.weight.T + first.bias) @ last.weight.T + last.bias, -1)
    dyt = torch.tanh(norm.dyt.alpha * x) * norm.dyt.weight + norm.dyt.bias
    ln = standardize(x, *mean_var(x, (2,))) * norm.ln.weight + norm.ln.bias
    return w[..., :1] * dyt + w[..., 1:] * ln


EQUATIONS |= {  # those of S2, whose parameters stand inside
    "DyT": lambda x, norm: torch.tanh(norm.alpha * x),
    "Derf": lambda x, norm: torch.erf(norm.alpha * x + norm.shift),
    "NormSelector": selected,
}
INSIDE = ("DyT", "Derf", "NormSelector")


def equation(name, x, norm):
    return EQUATIONS[name](x, norm) if name in INSIDE else EQUATIONS[name](x)


TORCH = {
    "BN": (lambda: nn.BatchNorm1d(D), True),
    "IN": (lambda: nn.InstanceNorm1d(D, affine=True), True),
    "GN": (lambda: nn.GroupNorm(G, D), True),
    "LN": (lambda: nn.LayerNorm(D), False),
    "RMSN": (lambda: nn.RMSNorm(D, eps=EPS), False),
}


def randomise(norm, seed=1):
    """Random γ and β, so that a test sees them."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in norm.named_parameters():
            if "logits" not in name:
                parameter.copy_(
                    torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
                )
    return norm


def affine_of(norm):
    named = dict(norm.named_parameters())
    gamma = named.get("weight", named.get("gamma"))
    beta = named.get("bias", named.get("beta"))
    return (1.0 if gamma is None else gamma), (0.0 if beta is None else beta)


@pytest.mark.parametrize("name", mn.NORMS)
def test_norm_equals_its_equation_forward_and_gradient_once(name):
    norm = randomise(mn.create_norm(name, D).double())
    gamma, beta = affine_of(norm)
    x, weight = sample(B, L, D, mean=3.0).requires_grad_(), sample(B, L, D, seed=2)
    y, expected = norm(x), equation(name, x, norm) * gamma + beta
    torch.testing.assert_close(y, expected, rtol=1e-12, atol=1e-12)
    inputs = [x, *(p for p in norm.parameters() if p is gamma or p is beta or name in INSIDE)]
    ours = torch.autograd.grad((y * weight).sum(), inputs)
    theirs = torch.autograd.grad((expected * weight).sum(), inputs)
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-11)
    if name == "IN":  # of a fused norm a second derivative is an error, not a zero
        x, weight = x.detach().float().requires_grad_(), weight.float()
        with pytest.raises(RuntimeError, match="no second derivative"):
            torch.autograd.grad((norm.float()(x) * weight).sum(), x, create_graph=True)


@pytest.mark.parametrize(
    ("shape", "padded", "affine"),
    [
        ((1, 2, 8), False, True),
        ((3, 1, 8), True, True),
        ((2, 63, 12), True, False),
        ((5, 65, 100), False, True),
    ],
)
@pytest.mark.parametrize("name", EQUATIONS)
def test_fused_float32_equals_the_plain_twin_in_float64_forward_and_backward(
    name, shape, padded, affine
):
    """In float32 on the CPU the moments and the standardising line are fused loops; in float64 they
    are plain torch.
    """
    lengths = torch.arange(shape[0]) * 7 % shape[1] + 1 if padded else None
    valid = 1.0 if lengths is None else (torch.arange(shape[1]) < lengths[:, None])[..., None]
    found = []
    for dtype in (torch.float32, torch.float64):
        norm = randomise(mn.create_norm(name, shape[-1], affine=affine)).to(dtype)
        x = sample(*shape, mean=1.0).to(dtype).requires_grad_()
        y = norm(x, lengths) * valid
        leaves = [x, *(p for p in norm.parameters() if p.requires_grad)]
        grads = torch.autograd.grad((y * sample(*shape, seed=5).to(dtype)).sum(), leaves)
        found.append([y, *grads, *(b for b in norm.buffers() if b.is_floating_point())])
    for fused, plain in zip(*found, strict=True):
        error = (fused.detach().double() - plain.detach()).abs().max()
        assert error <= 3e-5 * max(1.0, plain.detach().abs().max()), (name, error)


@pytest.mark.parametrize("name", TORCH)
def test_norm_equals_torch_and_takes_its_state_dict(name):
    make, channels_first = TORCH[name]
    reference, norm = randomise(make()), mn.create_norm(name, D)
    norm.load_state_dict(reference.state_dict())
    for step, training in enumerate((True, True, False)):
        reference.train(training), norm.train(training)
        x = sample(B, L, D, seed=step, dtype=torch.float32)
        if name == "GN" or channels_first:
            expected = reference(x.transpose(1, 2)).transpose(1, 2)
        else:
            expected = reference(x)
        torch.testing.assert_close(norm(x), expected, rtol=1e-5, atol=1e-5)
    for key, value in reference.state_dict().items():
        torch.testing.assert_close(norm.state_dict()[key], value, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("name", EQUATIONS)
def test_padding_changes_no_valid_output_statistic_or_gradient(name):
    lengths = torch.tensor([7, 3, 1, 5, 6])
    valid = torch.arange(L)[None, :, None] < lengths[:, None, None]
    x = sample(B, L, D)
    junk = torch.where(valid, x, torch.full_like(x, float("nan")))  # not even a NaN may leak
    results = []
    for padded in (x, junk, torch.where(valid, x, 1e6)):
        norm = randomise(mn.create_norm(name, D).double())
        padded = padded.clone().requires_grad_()
        y = torch.where(valid, norm(padded, lengths), 0)
        y.square().sum().backward()
        results.append((y.detach(), torch.where(valid, padded.grad, 0), norm.state_dict()))
    for y, grad, state in results[1:]:
        torch.testing.assert_close(y, results[0][0], rtol=0, atol=1e-12)
        torch.testing.assert_close(grad, results[0][1], rtol=0, atol=1e-12)
        for key, value in state.items():
            torch.testing.assert_close(value, results[0][2][key], rtol=0, atol=1e-12)


@pytest.mark.parametrize("name", EQUATIONS)
def test_batch_mates_and_padding_change_nothing_in_eval(name):
    norm = randomise(mn.create_norm(name, D).double())
    norm(sample(B, L, D, mean=2.0))
    norm.eval()
    x, lengths = sample(B, L, D, seed=4), torch.tensor([7, 3, 1, 5, 6])
    together = norm(x, lengths)
    for row, n in enumerate(lengths):
        alone = norm(x[row : row + 1, :n])
        torch.testing.assert_close(together[row : row + 1, :n], alone, rtol=0, atol=1e-12)


@pytest.mark.parametrize("name", [n for n, e in mn.NORMS.items() if n != "None"])
def test_axes_of_the_registry_are_where_a_change_is_felt(name):
    """Nudging one value changes exactly the outputs that share its statistic: the axes, seen from
    outside.
    """
    norm = mn.create_norm(name, D, affine=False).double()
    x = sample(3, 4, D)
    nudged = x.clone()
    nudged[1, 2, 5] += 1.0
    felt = (norm(x) != norm(nudged)).detach()
    expected = torch.zeros(3, 4, D, dtype=torch.bool)
    mixture = (
        ("B", "L"),
        ("L", "D"),
    )  # a mixture is felt wherever its widest members are, not in the whole box
    for axes in (
        mixture if name in ("NormVary", "NormVary-fixed", "SwitchNorm") else (mn.NORMS[name].axes,)
    ):
        rows = slice(None) if "B" in axes else slice(1, 2)
        places = slice(None) if "L" in axes else slice(2, 3)
        channels = slice(None) if "D" in axes else slice(4, 6) if "D/G" in axes else slice(5, 6)
        expected[rows, places, channels] = name != "Constant"  # which feels nothing at all
    assert torch.equal(felt, expected)


@pytest.mark.parametrize("name", EQUATIONS)
def test_causal_says_whether_an_output_sees_the_future(name):
    norm = mn.create_norm(name, D).double()
    x = sample(2, 6, D)
    changed = x.clone()
    changed[:, 4:] += 1.0
    past_is_untouched = torch.equal(norm(x)[:, :4], norm(changed)[:, :4])
    assert past_is_untouched == mn.NORMS[name].causal


@pytest.mark.parametrize(
    "name", [n for n in EQUATIONS if n not in ("None", "RMSN", "RMSN-DL", "Lp")]
)
def test_a_mean_far_above_the_spread_costs_no_accuracy(name):
    x = (sample(2, 2048, 64) + 3000).float()
    norm = mn.create_norm(name, 64)
    exact = copy.deepcopy(norm).double()(x.double())
    torch.testing.assert_close(norm(x).double(), exact, rtol=0, atol=1e-3)


@pytest.mark.parametrize("p", [0.3, 0.5, 1, 1.5, 3, 40, float("inf")])
def test_lp_equals_its_equation_for_every_p_forward_and_gradient(p):
    norm = randomise(mn.create_norm("Lp", D, p=p).double())
    x, weight = sample(B, L, D, mean=1.0).requires_grad_(), sample(B, L, D, seed=2)
    if p == float("inf"):
        size = x.abs().amax(2, keepdim=True)
    else:
        size = ((x.abs() ** p).mean(2, keepdim=True)) ** (1 / p)
    expected = norm.weight * x / torch.sqrt(size**2 + EPS)
    torch.testing.assert_close(norm(x), expected, rtol=1e-12, atol=1e-12)
    leaves = [x, *norm.parameters()]
    for ours, theirs in zip(
        *(torch.autograd.grad((y * weight).sum(), leaves) for y in (norm(x), expected))
    ):
        torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-10)


def test_lp_with_p_2_is_rmsn_and_a_large_p_comes_near_the_largest_value():
    x = sample(B, L, D)
    lp = {p: mn.create_norm("Lp", D, p=p).double() for p in (1, 2, 500, float("inf"))}
    torch.testing.assert_close(
        lp[2](x), mn.create_norm("RMSN", D).double()(x), rtol=1e-12, atol=1e-12
    )
    torch.testing.assert_close(lp[500](x), lp[float("inf")](x), rtol=1e-2, atol=0)
    assert float(lp[float("inf")](x).detach().abs().amax(-1).min()) == pytest.approx(1, abs=1e-4)
    for norm in lp.values():  # a token of zeros stays zero and has a finite gradient
        zero = torch.zeros(1, 2, D).double().requires_grad_()
        y = norm(zero)
        y.sum().backward()
        assert not y.any()
        torch.testing.assert_close(zero.grad, torch.full_like(zero, EPS**-0.5))
    huge = lp[500].float()(1e30 * x.float())
    torch.testing.assert_close(huge, lp[500](x.float()), rtol=1e-4, atol=1e-4)  # no power overflows


def test_lp_with_p_below_1_is_no_norm_but_is_still_scale_invariant():
    """The p-mean of a sum exceeds the sum of the p-means, and its slope near 0 has no bound."""
    left, right = torch.tensor([[[4.0, 0.0]]]), torch.tensor([[[0.0, 4.0]]])
    size = {p: mn.create_norm("Lp", 2, p=p).power_mean for p in (0.5, 1, 2)}
    excess = {p: float(mean(left + right) - mean(left) - mean(right)) for p, mean in size.items()}
    assert excess[0.5] == pytest.approx(4 - 2 * 4 * 0.5**2)
    assert excess[1] == 0
    assert excess[2] < 0
    norm, x = mn.create_norm("Lp", D, p=0.5), sample(B, L, D, dtype=torch.float32)
    torch.testing.assert_close(norm(100 * x), norm(x), rtol=1e-4, atol=1e-4)
    for p, least, most in ((0.5, 1e4, 1e5), (1, 0.4, 0.6)):
        x = torch.tensor([[[4.0, 1e-8]]], requires_grad=True)
        mn.create_norm("Lp", 2, p=p)(x)[..., 0].sum().backward()
        assert least < x.grad[0, 0, 1].abs() < most
    for p in (0, -1, float("nan"), True, "2"):
        with pytest.raises(ValueError, match="p of the Lp norm must be a number above 0"):
            mn.create_norm("Lp", D, p=p)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", [n for n, e in mn.NORMS.items() if "eps" in e.factory_options])
def test_without_epsilon_a_statistic_of_zero_gives_no_number(name, dtype):
    """0/0, also for a constant token if the norm takes out its mean. With ε the output is finite."""
    x = torch.zeros(B, L, D, dtype=dtype)
    for value in (0.0, 7.0):
        y = mn.create_norm(name, D).to(dtype)(x + value)
        assert y.isfinite().all()
    norm = mn.create_norm(name, D, eps=0).to(dtype)
    if name == "NormSelector":  # DyT's part is a number
        norm = norm.ln
    assert norm(x).isnan().all()
    if name in ("LN", "GN-token", "adaLN"):
        assert norm(x + 7.0).isnan().all()
    else:
        assert norm(sample(B, L, D, mean=3.0).to(dtype)).isfinite().all()


@pytest.mark.parametrize("name", ["LN", "RMSN", "GN"])
def test_without_epsilon_a_norm_is_its_equation_without_epsilon(name):
    """RMSN with ε = 0 is S3's; without ε the size of the input has no effect at all."""
    x = sample(B, L, D, mean=1.0)
    norm = mn.create_norm(name, D, eps=0).double()
    torch.testing.assert_close(norm(1e-9 * x), norm(x), rtol=1e-9, atol=1e-9)
    if name == "RMSN":
        torch.testing.assert_close(norm(x), x / x.square().mean(2, keepdim=True).sqrt())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_rmsn_with_bias_adds_beta_forward_and_backward(dtype):
    norm, plain = (mn.create_norm("RMSN", D, bias=bias).to(dtype) for bias in (True, False))
    assert [name for name, _ in norm.named_parameters()] == ["weight", "bias"]
    randomise(norm)
    plain.load_state_dict({"weight": norm.weight})
    x, weight = sample(B, L, D, dtype=dtype), sample(B, L, D, seed=2, dtype=dtype)
    torch.testing.assert_close(norm(x), plain(x) + norm.bias)
    (norm(x) * weight).sum().backward()
    torch.testing.assert_close(norm.bias.grad, weight.sum((0, 1)))


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize(
    ("dtype", "size"), [(torch.float32, 8), (torch.float64, 3), (torch.float64, 1)]
)
def test_rmsn_in_groups_divides_each_group_by_its_own_root_mean_square(dtype, size, bias):
    norm = randomise(mn.create_norm("RMSN", 24, group_size=size, bias=bias, eps=1e-3)).to(dtype)
    x = sample(B, L, 24, dtype=dtype) * torch.logspace(-2, 2, 24, dtype=dtype)

    def by_hand(x):
        parts = [
            part / (part.square().mean(-1, keepdim=True) + 1e-3).sqrt()
            for part in x.split(size, dim=-1)
        ]
        return norm.apply_affine(torch.cat(parts, dim=-1))

    tolerance = dict(rtol=1e-5, atol=1e-5) if dtype == torch.float32 else dict(rtol=0, atol=1e-12)
    gradients = []
    for forward in (norm, norm.reference, by_hand):
        x = x.detach().requires_grad_()
        y = forward(x)
        torch.testing.assert_close(y, by_hand(x), **tolerance)
        inputs = [x, *norm.parameters()]
        gradients.append(torch.autograd.grad((y * sample(*y.shape, dtype=dtype)).sum(), inputs))
    for other in gradients[:2]:
        for one, expected in zip(other, gradients[2], strict=True):
            torch.testing.assert_close(one, expected, rtol=1e-4, atol=tolerance["atol"] * 100)


def test_a_group_size_that_does_not_divide_the_channels_is_refused():
    with pytest.raises(ValueError, match="group_size must divide the 8 channels, got 3"):
        mn.create_norm("RMSN", 8, group_size=3)
    with pytest.raises(ValueError, match="group_size must be a positive whole number"):
        mn.create_norm("RMSN", 8, group_size=0)


# the mixtures: NormVary, Appendix D, and SwitchNorm, Luo et al. 2019


def with_random_logits(name, d=D, **options):
    """In float64, anywhere but where it starts."""
    norm = randomise(mn.create_norm(name, d, **options).double())
    with torch.no_grad():
        for seed, logits in enumerate((norm.mean_logits, norm.var_logits), start=3):
            logits.copy_(sample(*logits.shape, seed=seed))
    return norm


MIXED = {
    "total": ("NormVary", {}, normvary_members, 0),
    "literal": ("NormVary", {"statistics": "literal"}, lambda x: normvary_members(x, "literal"), 0),
    "SwitchNorm": ("SwitchNorm", {"momentum": 0.2}, switchnorm_members, 2),
    "a token": ("NormVary-token", {}, token_members, None),
}
"""What is mixed → the norm, its options, its members, and which of them is BN."""


@pytest.mark.parametrize("what", MIXED)
def test_a_mixture_equals_its_equations_with_any_weights_forward_and_gradient(what):
    name, options, members, _ = MIXED[what]
    norm, start = with_random_logits(name, **options), mn.create_norm(name, D, **options)
    assert not start.mean_logits.any()
    assert not start.var_logits.any()
    (gamma, beta), x, weight = (
        affine_of(norm),
        sample(B, L, D, mean=1.0).requires_grad_(),
        sample(B, L, D, seed=2),
    )
    y, expected = norm(x), mixed(x, members(x), norm) * gamma + beta
    torch.testing.assert_close(y, expected, rtol=1e-12, atol=1e-12)
    leaves = [x, *norm.parameters()]
    for ours, theirs in zip(
        *(torch.autograd.grad((z * weight).sum(), leaves) for z in (y, expected)), strict=True
    ):
        torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-11)
    assert not mn.create_norm("NormVary-fixed", D).mean_logits.requires_grad


@pytest.mark.parametrize("what", ["total", "literal", "SwitchNorm"])
def test_running_statistics_are_exact_and_serve_the_bn_member_only_in_eval(what):
    name, options, members, bn = MIXED[what]
    norm, share = with_random_logits(name, **options), options.get("momentum", 0.1)
    mean, var = torch.zeros(D).double(), torch.ones(D).double()
    for seed in range(3):  # Eq. 15 and 16
        x = sample(B, L, D, seed=seed, mean=2.0)
        norm(x)
        batch = [s.view(-1) for s in members(x)[bn]]
        mean, var = (1 - share) * mean + share * batch[0], (1 - share) * var + share * batch[1]
    torch.testing.assert_close(norm.running_mean, mean, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(norm.running_var, var, rtol=1e-12, atol=1e-12)
    x, before = sample(3, L, D, seed=7), copy.deepcopy(norm.state_dict())
    own = members(x)
    own[bn] = (mean, var)
    torch.testing.assert_close(
        norm.eval()(x), mixed(x, own, norm) * norm.gamma + norm.beta, rtol=1e-12, atol=1e-12
    )
    assert all(torch.equal(before[key], value) for key, value in norm.state_dict().items())


@pytest.mark.parametrize(
    ("shape", "padded", "training"),
    [
        ((1, 2, 8), False, True),
        ((3, 1, 12), False, False),
        ((5, 65, 100), True, True),
        ((5, 65, 100), True, False),
    ],
)
@pytest.mark.parametrize("name", ["NormVary", "SwitchNorm"])
def test_a_fused_mixture_equals_its_twin_with_any_weights_forward_and_backward(
    name, shape, padded, training
):
    lengths = torch.arange(shape[0]) * 7 % shape[1] + 1 if padded else None
    valid = 1.0 if lengths is None else (torch.arange(shape[1]) < lengths[:, None])[..., None]
    found = []
    for dtype in (torch.float32, torch.float64):
        norm = with_random_logits(name, shape[2]).to(dtype)
        norm(sample(4, 9, shape[2], seed=8, mean=0.5).to(dtype))
        x = sample(*shape, mean=1.0).to(dtype).requires_grad_()
        y = norm.train(training)(x, lengths) * valid
        grads = torch.autograd.grad(
            (y * sample(*shape, seed=5).to(dtype)).sum(), [x, *norm.parameters()]
        )
        found.append([y, *grads, norm.running_mean, norm.running_var])
    for fused, plain in zip(*found, strict=True):
        error = (fused.detach().double() - plain.detach()).abs().max()
        assert error <= 3e-5 * max(1.0, plain.detach().abs().max()), error


# Scale, and every norm without its scale


def test_scale_is_a_gain_a_channel_that_starts_as_no_norm_does():
    norm, x = mn.create_norm("Scale", D), sample(B, L, D, dtype=torch.float32)
    assert torch.equal(norm(x), x)
    assert {name: tuple(p.shape) for name, p in norm.named_parameters()} == {"weight": (D,)}
    assert torch.equal(mn.create_norm("Scale", D, affine=False)(x), x)
    norm.weight.data.copy_(torch.arange(D))
    assert torch.equal(norm(x), x * torch.arange(D))
    twin = mn.create_norm("DyT", D, linear=True)  # as S2 states it
    assert torch.equal(twin(x), x)
    twin.alpha.data.copy_(norm.weight)
    assert torch.equal(norm(x), twin(x))


LEARN_GAMMA = [
    name
    for name, entry in mn.NORMS.items()
    if "γ" in entry.learnable or "those of" in entry.learnable
]


def named_gamma(norm):
    """The γ and β of a norm, and of those that it blends."""
    ends = ("weight", "bias", "gamma", "beta")
    return {
        name
        for name, _ in norm.named_parameters()
        if name.endswith(ends) and "selector" not in name
    }


@pytest.mark.parametrize("name", LEARN_GAMMA)
def test_every_norm_that_learns_gamma_has_a_weightless_variant(name):
    """`affine=False` takes γ and β away and changes nothing else: at the start, where γ = 1 and β =
    0, it is the same norm in its output, its gradient and its running statistics, in training and
    in eval.
    """
    assert "affine" in mn.NORMS[name].factory_options
    norms = []
    for affine in (True, False):
        torch.manual_seed(0)
        norms.append(mn.create_norm(name, D, affine=affine).double())
    norm, plain = norms
    kept = {key for key, _ in norm.named_parameters()} - named_gamma(norm)
    assert named_gamma(norm)
    assert {key for key, _ in plain.named_parameters()} == kept
    lengths = torch.tensor([7, 3, 1, 5, 6])
    valid = (torch.arange(L) < lengths[:, None])[..., None]
    for training in (True, False):
        found = []
        for one in (norm.train(training), plain.train(training)):
            x = sample(B, L, D, mean=1.0).requires_grad_()
            y = one(x, lengths) * valid
            leaves = [
                x,
                *(p for key, p in one.named_parameters() if key in kept and p.requires_grad),
            ]
            found.append(
                [
                    y,
                    *torch.autograd.grad((y * sample(B, L, D, seed=2)).sum(), leaves),
                    *one.buffers(),
                ]
            )
        for with_gamma, without in zip(*found, strict=True):
            torch.testing.assert_close(with_gamma, without, rtol=1e-12, atol=1e-12)


# bad input


def test_a_norm_made_by_its_class_has_the_defaults_of_one_made_by_its_name():
    for name, entry in mn.NORMS.items():
        made, own = (
            inspect.signature(entry.factory).parameters,
            set(entry.factory_options) & set(COMMON_OPTIONS),
        )
        assert {option: made[option].default for option in own} == {
            option: COMMON_OPTIONS[option] for option in own
        }, name


def test_an_option_must_be_known_to_one_of_the_norms_that_share_it():
    check_options(["GN", "NormVary"], {"groups": 2, "statistics": "literal"})
    with pytest.raises(TypeError, match=r"option of GN, LN 'statistics'"):
        check_options(["GN", "LN"], {"groups": 2, "statistics": "literal"})
    with pytest.raises(
        TypeError, match=r"'epsilon'.*eps, affine, groups, momentum.*did you mean 'eps'"
    ):
        mn.create_norm("GN", D, epsilon=1e-3)


@pytest.mark.parametrize("name", ["BN", "NormVary", "SwitchNorm"])
def test_one_value_per_batch_statistic_is_refused_in_training_and_fine_in_eval(name):
    norm = mn.create_norm(name, D)
    with pytest.raises(
        ValueError, match=f"^{name} in training needs more than one value per channel"
    ):
        norm(torch.ones(1, 1, D))
    with pytest.raises(ValueError, match="more than one value per channel"):
        norm(torch.ones(1, 3, D), torch.tensor([1]))
    assert norm.eval()(torch.ones(1, 1, D)).isfinite().all()


def test_a_norm_of_ones_own_is_one_decorated_class():
    @mn.register_norm(
        "Half", equation="y = x/2", source="this test", axes=(), causal=True, learnable="nothing"
    )
    class Half(nn.Module):
        def __init__(self, d):
            super().__init__()

        def forward(self, x, lengths=None):
            return x / 2

    try:
        x = sample(B, L, D)
        assert torch.equal(mn.create_norm("Half", D)(x), x / 2)
        assert str(mn.Arm.parse("Half>SSM>GN")) == "Half>SSM>GN"
        with pytest.raises(ValueError, match="registered already"):
            mn.register_norm("Half", equation="", source="", axes=(), causal=True, learnable="")(
                Half
            )
    finally:
        del mn.NORMS["Half"]


def test_table_3_made_from_the_registry_is_the_papers():
    table = taxonomy_table()
    names = {"BN": "BN", "IN": "IN", "GN": "GN", "LN": "LN-DL", "RMSN": "RMSN-DL"}
    assert {norm: tuple(table.loc[name]) for norm, name in names.items()} == TABLE_3
    assert (
        table.NAP[["LN", "RMSN"]].tolist() == ["m·L × D"] * 2
    )  # per token: not what Table 3 prints
    assert table.loc["None"].tolist() == ["–", "–", "nothing"]
    assert table.NAP["NormVary"] == "a mixture: BN, GN, IN, LN-DL, RMSN-DL"
    assert table.NAP["SwitchNorm"] == "a mixture: IN, LN-DL, BN"
    assert table.NAP["NormSelector"] == "a mixture: DyT, LN"
    assert table.loc["Scale"].tolist() == ["–", "a function of each value", "γ ∈ ℝᴰ"]
    assert table.loc["DyT"].tolist() == ["–", "a function of each value", "γ, β ∈ ℝᴰ, α"]


MIXTURES = ("NormVary", "NormVary-fixed", "NormVary-token", "SwitchNorm")


@pytest.mark.parametrize(
    "name",
    [n for n in EQUATIONS if n not in ("None", "Lp", "Scale", "Constant", *INSIDE, *MIXTURES)],
)
def test_a_norm_is_its_operation_on_each_row_of_its_partition(name):
    row, sizes = taxonomy_table().loc[name], {"m": 3, "L": 5, "g_D": 4, "s_D": 2}
    apart, within = ([s for part in side.split("·") for s in ("g_D", "s_D") if s == part or part == "D"]
                     + [part for part in side.split("·") if part in "mL"] for side in row.NAP.split(" × "))  # fmt: skip
    x = torch.randn(3, 5, 8)
    order = [list(sizes).index(axis) for axis in apart + within]
    cut = x.view(*sizes.values()).permute(order)  # axis by axis, those of S₁ first
    pi = cut.flatten(len(apart)).flatten(0, len(apart) - 1)
    pi = pi - pi.mean(1, keepdim=True) if row.NOP == "standardizing" else pi
    y = pi / torch.sqrt(pi.square().mean(1, keepdim=True) + 1e-5)
    back = y.view(cut.shape).permute([order.index(i) for i in range(4)]).reshape(x.shape)
    torch.testing.assert_close(mn.create_norm(name, 8, groups=4)(x), back, rtol=1e-4, atol=1e-5)


def test_the_cost_table_has_a_row_a_norm_with_measured_times_and_what_each_keeps():
    table = norm_costs(rows=2, length=8, channels=16, repeats=3).set_index("norm")
    assert set(table.index) == set(mn.NORMS)
    assert table.loc["LN", "ratio"] == 1
    assert table.ms.is_monotonic_increasing
    assert (table.ms > 0).all()
    assert ((table.low <= table.ratio) & (table.ratio <= table.high)).all()
    assert (table.parameters["RMSN"], table.parameters["LN"], table.buffers["BN"]) == (64, 128, 128)


# the norms of S2


@pytest.mark.parametrize("options", [{}, {"linear": True}])
def test_a_selector_that_is_switched_off_is_layer_norm_bit_for_bit(options):
    norm, twin = (
        mn.create_norm("NormSelector", D, mode="disable", **options),
        mn.create_norm("LN", D),
    )
    assert {p.shape for p in norm.parameters()} == {p.shape for p in twin.parameters()}
    norm.ln.load_state_dict(randomise(twin).state_dict())
    x = sample(B, L, D, dtype=torch.float32)
    for lengths in (None, torch.tensor([7, 3, 1, 5, 6])):
        assert torch.equal(norm(x, lengths), twin(x, lengths))


def test_the_selectors_weights_sum_to_one_and_depend_on_the_token():
    norm, x, seen = (
        randomise(mn.create_norm("NormSelector", D)),
        sample(B, L, D, dtype=torch.float32),
        [],
    )
    norm.observer = lambda site, w: seen.append((site, w))
    norm(x)
    (site, w), expected = seen[0], norm.selector(x).softmax(-1)
    assert site == "selector"
    assert w.shape == (B, L, 2)
    torch.testing.assert_close(w, expected)
    torch.testing.assert_close(w.sum(-1), torch.ones(B, L))
    assert w[..., 0].std() > 0.01
    assert not torch.equal(w[:, 0], norm.weights(x.flip(1))[:, 0])
    x = x.requires_grad_()
    norm(x).square().sum().backward()
    assert all(p.grad.abs().sum() > 0 for p in norm.parameters())  # also those of the MLP


def test_random_weights_are_drawn_anew_each_training_step_and_come_again_with_the_seed():
    def made(seed):
        torch.manual_seed(seed)
        return mn.create_norm("NormSelector", D, mode="random")

    def drawn(norm, n=400):
        return [float(norm.weights(x)[0, 0, 0]) for _ in range(n)]

    x = sample(1, 1, D, dtype=torch.float32)
    first = drawn(made(3))
    assert first == drawn(made(3))
    assert first != drawn(made(4))
    assert len(set(first)) == len(first)
    assert abs(sum(first) / len(first) - 0.5) < 0.05
    assert min(first) < 0.05 < 0.95 < max(first)
    begun, resumed = made(3), made(9)
    drawn(begun, 7)
    resumed.load_state_dict(begun.state_dict())
    assert drawn(resumed, 5) == first[7:12]
    assert drawn(begun.eval(), 3) == [0.5] * 3
    state = torch.get_rng_state()
    begun.train()(x)
    assert torch.equal(torch.get_rng_state(), state)  # nothing else's random numbers move


def test_a_norm_derived_from_token_norm_computes_its_own_equation_in_float32():
    """Only LN, RMSN and GN-token have a fused loop; another norm must not become one of them."""

    class Peak(TokenNorm):
        def __init__(self, d):
            super().__init__(d, eps=1e-5, affine=True)

        def reference(self, x):
            return self.apply_affine(x / x.abs().amax(-1, keepdim=True))

    x = torch.randn(2, 5, 8)
    assert torch.equal(Peak(8)(x), x / x.abs().amax(-1, keepdim=True))
