"""The clinic's commands: `mambanorm card` for a norm, `mambanorm diagnose` for a checkpoint.

The command line imports this module through the entry point `mambanorm.commands`.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from mambanorm_study.basics.settings import STUDY_SCALE, WORK
from mambanorm_study.cli import arguments as arg
from mambanorm_study.cli.printing import may_train

if TYPE_CHECKING:
    from torch import Tensor

BYTES = 256  # the vocabulary of a model that reads bytes


@arg.command(
    arg.option(
        "norm",
        metavar="FILE",
        help="a file that registers a norm, such as my_norm.py; or the name of a norm, such as LN",
    ),
    arg.option(
        "--against",
        default="RMSN>SSM>None",
        metavar="ARM",
        help="the arm that the norm's arms are compared with (default: RMSN>SSM>None)",
    ),
    arg.option(
        "--out",
        metavar="DIR",
        help="the folder to write the page to (default: reports/cards)",
    ),
    *arg.which_runs(
        "how many recorded seeds of --against to compare on (default: 8, on images 6), or a list "
        "of seeds: 76-83",
        default_scale=f"MAMBANORM_SCALE, else {STUDY_SCALE}",
    ),
    *arg.TRAINING,
    examples=(
        "my_norm.py",
        "LN --tasks curves,pydoc",
        "my_norm.py --scale quick --out /tmp/card --dry-run",
    ),
)
def card(options: argparse.Namespace) -> int:
    """Write a page about a norm: what it does, what it costs, whether it trains and is better."""
    from mambanorm_clinic.card import missing_runs, norm_card

    request = {
        "tasks": options.tasks,
        "seeds": options.seeds,
        "scale": options.scale,
        "against": options.against,
    }
    untrained = norm_card(options.norm, train=False, runs_dir=options.runs_dir, **request)
    configs = missing_runs(untrained, options.runs_dir)
    if not may_train(configs, options):
        return 0
    out = options.out or WORK / "reports" / "cards"
    result = norm_card(options.norm, out=out, **request, **arg.sweep_options(options))
    print(result)
    print(f"The card is at {out}/{result.name}.html")
    return int(bool(result.untrained))


@arg.command(
    arg.option(
        "checkpoint",
        metavar="CHECKPOINT",
        help=(
            "a Mamba, Mamba-2 or Falcon-Mamba of mamba-ssm or transformers: a .safetensors, .bin "
            "or .pt file with its config.json in the same folder, or that folder; or a file "
            "written by clinic.watch; or the folder of a run"
        ),
    ),
    arg.option(
        "--text",
        required=True,
        metavar="FILE",
        help=(
            "a text in UTF-8; it is split by the tokenizer.json in the checkpoint's folder, else "
            "into characters or bytes"
        ),
    ),
    arg.option(
        "--length",
        type=arg.whole_number(1),
        default=256,
        metavar="L",
        help="positions in each row (default: 256)",
    ),
    arg.option(
        "--rows",
        type=arg.whole_number(1),
        default=4,
        metavar="B",
        help="rows of the batch (default: 4)",
    ),
    arg.option(
        "--html",
        metavar="FILE",
        help="write a page with the figure and all numbers",
    ),
    examples=(
        "model.safetensors --text novel.txt",
        "mamba-130m/ --text novel.txt",
        "clinic/step-000120.safetensors --text novel.txt",
        "pytorch_model.bin --text novel.txt --length 512 --html diagnosis.html",
    ),
)
def diagnose(options: argparse.Namespace) -> int:
    """Report a checkpoint's activations, gradients and weights on a text, and what to try."""
    from torch.nn.functional import cross_entropy

    from mambanorm.models.language import LanguageModel
    from mambanorm_clinic.checkpoints import checkpoint_in, load_model
    from mambanorm_clinic.diagnosis import diagnose as diagnose_model
    from mambanorm_study.basics.atomic import write_text
    from mambanorm_study.report.page import page
    from mambanorm_study.tasks.files import read_text
    from mambanorm_study.tasks.pydoc import cut_windows

    if options.html and not options.html.endswith(".html"):
        raise ValueError(
            f"--html must end in .html, so that no other file is overwritten; got {options.html}"
        )
    checkpoint = checkpoint_in(options.checkpoint)
    model = load_model(checkpoint)
    if not isinstance(model, LanguageModel):
        raise ValueError(
            f"{checkpoint} holds a {type(model).__name__}, which cannot read a text: in Python, "
            "call clinic.diagnose(clinic.load_model(path), batch)"
        )
    text, tokenizer = read_text(Path(options.text)), checkpoint.with_name("tokenizer.json")
    ids = ids_of(text, model.vocab_size, tokenizer)
    if len(ids) < 2:
        raise ValueError(
            f"{options.text} is {len(ids)} tokens long: at least 2 are needed, one as input and "
            "one as target"
        )
    rows = cut_windows(ids, min(options.length, len(ids) - 1))[: options.rows]
    batch = rows[:, :-1].contiguous(), rows[:, 1:].contiguous()

    def loss(logits: Tensor, targets: Tensor) -> Tensor:
        return cross_entropy(logits.flatten(0, 1), targets.flatten())

    result = diagnose_model(model, batch, loss=loss)
    print(result)
    if options.html:
        html = page(f"{checkpoint.name}: a diagnosis", result._repr_html_())
        write_text(Path(options.html), html)
        print(f"{options.html} written")
    return 0


def ids_of(text: str, vocab_size: int, tokenizer: Path) -> Tensor:
    """Return the token ids (n,) of a text.

    tokenizer: the model's tokenizer.json. If it does not exist, the tokens are this kit's
    characters or bytes, whichever has `vocab_size`. Raises ValueError if neither has.
    """
    import torch

    from mambanorm_study.tasks.pydoc import ALPHABET, encode

    if tokenizer.is_file():
        from tokenizers import Tokenizer

        ids = Tokenizer.from_file(str(tokenizer)).encode(text).ids
        return torch.tensor(ids, dtype=torch.int64)
    if vocab_size == len(ALPHABET):
        return encode(text)
    if vocab_size == BYTES:
        return torch.tensor(list(text.encode()), dtype=torch.int64)
    raise ValueError(
        f"the model's vocabulary has {vocab_size:,} tokens: put its tokenizer.json into the "
        f"checkpoint's folder (only vocabularies of {len(ALPHABET)} characters of this kit and of "
        f"{BYTES} bytes need none)"
    )
