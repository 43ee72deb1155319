"""Bad input to the public functions and classes is answered in one clear line, and nothing of it
reaches a kernel.

A case is (label, call, part of the message): one for each `raise`, and in norms, block and scan one
for each caller.
"""

import math
from itertools import cycle
from unittest.mock import patch

import numpy as np
import pytest
import torch
from torch import nn

import mambanorm as mn
import mambanorm_clinic as clinic
import mambanorm_study as study
from mambanorm.kernels.threads import set_threads
from mambanorm.operations import conv_silu, scan_backend, selective_scan
from mambanorm_study.tasks import Split, TaskData

B, L, D = 2, 5, 8


def numbers(*shape, **options):
    return (
        torch.linspace(-1, 1, math.prod(shape))
        .view(shape)
        .to(**options or {"dtype": torch.float32})
    )


# -------------------------------------------------------------------------- norms, their x and gate
GATES = {
    "too short": (numbers(B, L - 1, D), "z must have the shape and device of y"),
    "an array": (numbers(B, L, D).numpy(), "z is a ndarray; a tensor (2, 5, 8) is needed"),
}
INPUTS = {
    "a list": (
        [[[1.0] * D] * L] * B,
        "x is a list; a tensor (B, L, 8) is needed: use torch.as_tensor(x)",
    ),
    "whole numbers": (
        torch.ones(B, L, D, dtype=torch.int64),
        "x has dtype torch.int64; a real floating-point",
    ),
    "sparse": (torch.ones(B, L, D).to_sparse(), "x has layout torch.sparse_coo"),
    "negated": (torch._neg_view(torch.ones(B, L, D)), "x is a negated view"),
    "too many channels": (torch.ones(B, L, D + 1), "expects (B, L, D)"),
    "empty": (torch.ones(B, 0, D), "nothing to normalize"),
    "float64": (torch.ones(B, L, D, dtype=torch.float64), "use x.to(torch.float32)"),
    "on meta": (torch.ones(B, L, D, device="meta"), "x is on meta and"),
    "without memory": (torch._efficientzerotensor((B, L, D)), "x has no storage"),
}
LENGTHS = {
    "a list": ([1, 2], "lengths must be a tensor of 2 whole numbers, got a list"),
    "flags": (
        torch.ones(B, dtype=torch.bool),
        "lengths must be 2 whole numbers, one per row, got torch.bool",
    ),
    "too long": (
        torch.tensor([1, L + 1]),
        "lengths must lie in 1..5 (the sequence length), got 1..6",
    ),
    "on meta": (
        torch.ones(B, dtype=torch.int64, device="meta"),
        "lengths must be on the device of x, cpu, got meta",
    ),
}


def norm_with(name, **replaced):
    norm = mn.create_norm(name, D)
    for parameter, shape in replaced.items():
        setattr(norm, parameter, nn.Parameter(torch.ones(shape)))
    return norm


def norm_cases():
    for kind, (gate, message) in GATES.items():
        yield f"gated, z {kind}", lambda g=gate: mn.gated(numbers(B, L, D), g), message
    for name, (kind, (x, message)) in zip(cycle(("LN", "GN", "NormVary", "DyT")), INPUTS.items()):
        yield f"{name}, x {kind}", lambda n=name, x=x: mn.create_norm(n, D)(x), message
    for name, (kind, (lengths, message)) in zip(cycle(("RMSN", "BN")), LENGTHS.items()):
        yield (
            f"{name}, lengths {kind}",
            lambda n=name, k=lengths: mn.create_norm(n, D)(numbers(B, L, D), k),
            message,
        )
    for name, how, needed in (
        ("LN", dict(weight=3), "(8,) is needed"),
        ("NormVary", dict(mean_logits=3), "NormVary: mean_logits has shape (3,), (5,) is needed"),
    ):
        yield (
            f"{name} with {how}",
            lambda n=name, h=how: norm_with(n, **h)(numbers(B, L, D)),
            needed,
        )


# ------------------------------------------------------------------------- norms, options and entry
OPTIONS = [
    ("LN", {"eps": math.inf}, "eps must be finite, got inf"),
    ("LN", {"eps": "x"}, "eps must be a number, got 'x'"),
    ("LN", {"eps": -1e-5}, "eps must be 0 or above, got -1e-05"),
    (["LN"], {}, "unknown norm"),
    ("rmsnn", {}, "did you mean 'RMSN'"),
    ("LN", {"affine": "no"}, "affine must be True or False, got 'no'"),
    ("GN", {"groups": True}, "groups must be a positive whole number, got True"),
    (
        "GN",
        {"groups": 3},
        "8 channels do not divide into 3 groups: groups may be one of [1, 2, 4, 8]",
    ),
    (
        "BN",
        {"momentum": math.nan},
        "momentum is the weight of the new statistic and must lie in 0..1, got nan",
    ),
    ("Lp", {"p": 0}, "p of the Lp norm must be a number above 0, such as 1, 2 or inf, got 0"),
    ("NormSelector", {"mode": "disabled"}, "did you mean 'disable'"),
    ("NormVary", {"statistics": "totl"}, "did you mean 'total'"),
    ("NormVary", {"learn_weigths": False}, "did you mean 'learn_weights'"),
]


def entered(name="Bad", **changes):
    """A registration with some arguments changed, of a class that is never made."""
    given = (
        dict(equation="y = x", source="this test", axes=("L",), causal=True, learnable="nothing")
        | changes
    )
    return mn.register_norm(name, **given)(lambda d: nn.Identity())


def returning_nothing():
    mn.register_norm("Nothing", equation="", source="", axes=(), causal=True, learnable="")(
        lambda d: None
    )
    mn.create_norm("Nothing", D)


def option_cases():
    for name, options, message in OPTIONS:
        yield f"{name} with {options}", lambda n=name, o=options: mn.create_norm(n, D, **o), message
    yield (
        "channels as a flag",
        lambda: mn.create_norm("LN", True),
        "d must be a positive whole number, got True",
    )
    for name in ("A>B", "A" * 65):
        yield (
            f"a norm called {name!r}",
            lambda name=name: entered(name),
            "letters, digits and _ . -, got ",
        )
    yield (
        "a norm that is causal by text",
        lambda: entered(causal="no"),
        "causal of norm 'Bad' must be True or False",
    )
    entry = dict(equation="", source="", axes=(), causal=True, learnable="")
    yield (
        "a norm of no d",
        lambda: mn.register_norm("Bad", **entry)(lambda: None),
        "must be a class or function of d",
    )
    yield (
        "a factory of nothing",
        returning_nothing,
        "the factory of norm 'Nothing' must return an nn.Module, got None",
    )


# ------------------------------------------------------------------------ scan, convolution, images
def scanned(**changes):
    u, m = numbers(B, D, L), torch.ones(D, 3)
    given = dict(
        u=u, delta=u, A=-m, B=torch.ones(B, 3, L), C=torch.ones(B, 3, L), D=torch.ones(D), z=u
    )
    return selective_scan(**given | changes)


def convolved(**changes):
    return conv_silu(
        **dict(u=numbers(B, L, D), weight=torch.ones(D, 1, 4), bias=torch.ones(D)) | changes
    )


def scan_cases():
    yield (
        "conv_silu, too few weights",
        lambda: convolved(weight=torch.ones(3, 1, 4)),
        "conv_silu: weight has shape",
    )
    flat = "u has shape (5, 8); (B, L, E) or (B, H, W, E) is needed"
    yield "conv_silu, flat u", lambda: convolved(u=torch.ones(L, D)), flat
    yield (
        "conv_silu, on meta",
        lambda: convolved(bias=torch.ones(D, device="meta")),
        "bias is on meta and u on cpu",
    )
    yield (
        "scan_backend of a text",
        lambda: scan_backend("cpu"),
        "tensor is 'cpu'; a tensor is needed",
    )
    yield "no threads", lambda: set_threads(0), "threads: 0 given, a whole number of at least 1"


# -------------------------------------------------------------------------------- blocks and models
def block_with(parameter, tensor):
    block = mn.MambaBlock(D)
    setattr(block, parameter, nn.Parameter(tensor))
    return block


def classifier(**changes):
    return mn.SequenceClassifier(3, **dict(in_features=2, d_model=D, n_layers=1) | changes)


def words(**changes):
    return mn.SequenceClassifier(3, **dict(vocab_size=9, d_model=D, n_layers=1) | changes)


def images(**changes):
    return study.ImageClassifier(3, **dict(in_channels=1, d_model=D, n_layers=1) | changes)


def language(**changes):
    return mn.LanguageModel(9, **dict(d_model=D, n_layers=1) | changes)


IDS = torch.ones(B, L, dtype=torch.int64)


def block_cases():
    x = numbers(B, L, D)
    short = "low_rank_scan: D has shape (3,), (16,) is needed"
    yield "MambaBlock, D of 3", lambda: block_with("D", torch.ones(3))(x), short
    yield (
        "MambaBlock, no dt_rank",
        lambda: mn.MambaBlock(D, dt_rank=0),
        "dt_rank must be a positive whole number, got",
    )
    yield (
        "MambaBlock, a back end",
        lambda: mn.MambaBlock(D, scan_backend="cpuu"),
        "did you mean 'cpu'",
    )
    yield (
        "MambaBlock, options as text",
        lambda: mn.MambaBlock(D, norm_options="eps"),
        "norm_options must be a dict",
    )
    yield (
        "step with no cache",
        lambda: mn.MambaBlock(D).step(x[:, 0], None),
        "a step needs the BlockCache",
    )
    yield (
        "step with another block's cache",
        lambda: mn.MambaBlock(D).step(x[:, 0], mn.MambaBlock(D, d_state=3).new_cache(B)),
        "this cache is of another block: state has shape (2, 16, 3), (2, 16, 16) is needed",
    )
    yield (
        "VSSBlock, a sequence",
        lambda: study.VSSBlock(D)(x),
        "VSSBlock expects (B, H, W, D) with D = 8",
    )
    yield "VSSBlock, two taps", lambda: study.VSSBlock(D, d_conv=4), "d_conv must be odd"


def model_cases():
    x, image, cache = numbers(B, L, 2), numbers(B, 4, 4, 1), language().new_cache(B)
    yield (
        "two kinds of input",
        lambda: classifier(vocab_size=9),
        "give exactly one of vocab_size, in_features, got",
    )
    yield (
        "a classifier, no row",
        lambda: classifier()(x[:0]),
        "expected real values (B, L, 2), at least one",
    )
    yield (
        "words, a list",
        lambda: words()([[1, 2]]),
        "expected a tensor of token ids (B, L), got a list",
    )
    yield "words, bytes", lambda: words()(IDS.to(torch.uint8)), "as int64 or int32, got torch.uint8"
    yield "words, unknown", lambda: words()(IDS * 9), "token ids must lie in 0..8, got 9..9"
    yield (
        "an unknown model",
        lambda: classifier(model="mamba3"),
        "unknown model 'mamba3': valid are mamba, mamba2",
    )
    yield (
        "heads of a Mamba-1",
        lambda: classifier(head_dim=8),
        "unexpected keyword argument 'head_dim'",
    )
    yield (
        "images with lengths",
        lambda: images()(image, torch.ones(B).long()),
        "images have no padding",
    )
    yield (
        "images cut in three",
        lambda: images(patch=3)(image),
        "4×4 pixels cannot be cut into patches of 3×3",
    )
    yield (
        "images, halved at the end",
        lambda: images(n_layers=2, down_sample=(2,)),
        "blocks from 1 to 1, got",
    )
    yield (
        "language, step without a cache",
        lambda: language().step(IDS[:, 0], None),
        "a step needs the cache",
    )
    yield (
        "language, half a cache",
        lambda: language(n_layers=2).step(IDS[:, 0], cache),
        "the cache has 1 blocks, this model has 2",
    )
    yield (
        "language, other rows",
        lambda: language().step(IDS[:1, 0], cache),
        "takes (B, D) = (2, 8), got (1, 8)",
    )
    yield (
        "no text to write",
        lambda: language().generate(IDS, 0),
        "n must be a positive whole number",
    )
    yield (
        "a temperature below 0",
        lambda: language().generate(IDS, 2, temperature=-1),
        "temperature must be 0",
    )
    yield (
        "a seed of text",
        lambda: language().generate(IDS, 2, temperature=1, seed="1"),
        "seed must be a whole number",
    )
    yield "unknown positions", lambda: words(positional="learnt"), "did you mean 'learned'"
    yield (
        "learned positions, how many?",
        lambda: words(positional="learned"),
        "needs positions=(L,), the longest",
    )
    yield (
        "positions without need",
        lambda: words(positions=(9,)),
        "are for positional='learned' only",
    )
    yield (
        "too many positions",
        lambda: words(positional="learned", positions=(4,))(IDS),
        "5 positions, but the model's table has 4",
    )


# ------------------------------------------------------------------------------------------- tasks
def split(inputs=None, labels=None, lengths=None):
    inputs = numbers(4, L, 1) if inputs is None else inputs
    return Split(inputs, torch.tensor([0, 1, 0, 1]) if labels is None else labels, lengths)


def data(train=None, **changes):
    good = split()
    return TaskData(
        **dict(
            train=good if train is None else train, val=good, test=good, n_classes=2, in_features=1
        )
        | changes
    )


def loaded(make, name="bad"):
    """What load_task says of a task whose function is `make`."""
    study.TASKS.pop(name, None)
    study.register_task(name, title="Bad", source="this test")(lambda scale, seed: make())
    return study.load_task(name, "smoke", 0)


def registered(name="bad", function=lambda scale, seed: None, **changes):
    return study.register_task(name, **dict(title="Bad", source="this test") | changes)(function)


def holding(value, row=2):
    inputs = numbers(4, L, 1).clone()
    inputs[row, 1] = value
    return inputs


def task_cases():
    words = torch.ones(4, L, dtype=torch.uint8)
    where = "task 'bad' at scale 'smoke': "
    nan = where + "inputs of the train split hold NaN or infinite values, first in row 2"

    labels = where + "labels of the val split range from -1 to 1: allowed are 0 to 1"
    yield "NaN in a task", lambda: loaded(lambda: data(split(holding(math.nan)))), nan
    yield (
        "a label below 0",
        lambda: loaded(lambda: data(val=split(labels=torch.tensor([0, 1, -1, 1])))),
        labels,
    )
    yield (
        "inputs as an array",
        lambda: split(np.ones((4, L, 1))),
        "inputs are a ndarray: a tensor is needed",
    )
    yield (
        "real lengths",
        lambda: split(lengths=torch.ones(4)),
        "lengths are torch.float32 of shape (4,): 4 rows of inputs need whole numbers (4,)",
    )
    known = "token ids of the train split range from 7 to 7: allowed are 0 to 6"
    yield (
        "unknown words",
        lambda: TaskData(*[split(words * 7)] * 3, n_classes=2, vocab_size=7),
        known,
    )
    real = "inputs of the train split are torch.float32 of shape (4, 5), which does not fit vocab_size=7"
    yield (
        "real words",
        lambda: TaskData(*[split(words.float())] * 3, n_classes=2, vocab_size=7),
        real,
    )
    yield (
        "features as float64",
        lambda: data(split(numbers(4, L, 1).double())),
        "inputs of the train split are torch.float64 of shape (4, 5, 1), which does not fit "
        "in_features=1: 3 axes of torch.float32 are needed",
    )
    yield "no class", lambda: data(n_classes=0), "n_classes must be a positive whole number, got 0"
    yield (
        "a task of nothing",
        lambda: loaded(lambda: None),
        where + "the registered function must return a TaskData, got None",
    )
    yield "a task that is a path", lambda: registered("../../x"), "a task's name must be a word"
    yield "a task of a kind", lambda: registered(kind="images"), "did you mean 'image'"


def cases():
    for part in (norm_cases, option_cases, scan_cases, block_cases, model_cases, task_cases):
        yield from part()


@pytest.fixture(autouse=True)
def registries():
    """What a case registers is gone behind it."""
    with patch.dict(mn.NORMS), patch.dict(study.TASKS):
        yield


@pytest.mark.parametrize(
    ("call", "part"), [pytest.param(call, part, id=label) for label, call, part in cases()]
)
def test_bad_input_is_answered_in_one_clear_line(call, part):
    with pytest.raises((ValueError, TypeError)) as error:
        call()
    message = str(error.value)
    assert part in message
    assert "\n" not in message
    assert len(message) < 400


def test_a_folder_as_a_checkpoint_is_answered_with_the_files_in_it(tmp_path):
    with pytest.raises(ValueError, match="is a folder: give the path of a"):
        clinic.read_checkpoint(tmp_path)
    for half in ("model-1.safetensors", "model-2.safetensors"):
        (tmp_path / half).touch()
    with pytest.raises(ValueError, match="a file in it, model-1.safetensors or model-2"):
        clinic.read_checkpoint(tmp_path)


# ----------------------------------------------------------------------------------- what must work
def strided(x):
    """The same numbers in three other layouts: every second of a larger tensor, axes swapped, a
    part of a wider row.
    """
    double = torch.stack([x, x + 1], -1).flatten(-2)[..., ::2]
    swapped = x.transpose(0, -1).contiguous().transpose(0, -1)
    wide = torch.cat([x, x], -1)[..., : x.shape[-1]]
    return double, swapped, wide


def assert_same_in_any_layout(call, *tensors):
    expected = call(*tensors)
    for layout in zip(*map(strided, tensors)):
        assert not all(t.is_contiguous() for t in layout)
        leaves = [t.detach().requires_grad_() for t in layout]
        found = call(*leaves)
        torch.testing.assert_close(found, expected)
        found.sum().backward()
        assert all(leaf.grad.isfinite().all() for leaf in leaves)


@pytest.mark.parametrize("name", mn.NORMS)
def test_a_norm_gives_the_same_values_whatever_the_strides_of_x(name):
    norm = mn.create_norm(name, D).eval()
    assert_same_in_any_layout(norm, numbers(B, L, D))
    wide = numbers(B, 1, D).expand(B, L, D)
    torch.testing.assert_close(norm(wide), norm(wide.contiguous()))


def test_scan_gate_convolution_and_blocks_give_the_same_values_whatever_the_strides():
    weight, bias = numbers(D, 1, 4), numbers(D)
    assert_same_in_any_layout(conv_silu, numbers(B, L, D), weight, bias)
    assert_same_in_any_layout(mn.gated, numbers(B, L, D), numbers(B, L, D) ** 2)
    assert_same_in_any_layout(
        lambda u, a, d: scanned(u=u, A=a, D=d), numbers(B, D, L), -torch.ones(D, 3), numbers(D)
    )
    for block, x in (
        (mn.MambaBlock(D), numbers(B, L, D)),
        (study.VSSBlock(D), numbers(B, 3, 4, D)),
    ):
        assert_same_in_any_layout(block, x)


@pytest.mark.parametrize(
    ("kind", "bias"), [(mn.MambaBlock, "conv1d.bias"), (study.VSSBlock, "conv2d.bias")]
)
def test_a_parameter_may_have_any_strides(kind, bias):
    torch.manual_seed(0)
    block, x = kind(D), numbers(*((B, L, D) if kind is mn.MambaBlock else (B, 3, 4, D)))
    expected, other = block(x), kind(D)
    other.load_state_dict(block.state_dict())
    module, name = bias.split(".")
    setattr(
        getattr(other, module), name, nn.Parameter(strided(block.get_parameter(bias).detach())[0])
    )
    assert not other.get_parameter(bias).is_contiguous()
    assert torch.equal(other(x), expected)


@pytest.mark.parametrize("dtype", [torch.int32, torch.int16, torch.uint8])
def test_labels_and_lengths_of_smaller_whole_numbers_become_int64(dtype):
    made = split(
        labels=torch.tensor([0, 1, 0, 1], dtype=dtype),
        lengths=torch.tensor([1, 2, 3, 4], dtype=dtype),
    )
    assert made.labels.dtype == made.lengths.dtype == torch.int64
    assert made.labels.tolist() == [0, 1, 0, 1]
