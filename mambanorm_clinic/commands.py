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

BYTES = 256  # vocabulary size of a model that reads bytes


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
        help="the arm with which the norm's arms are compared (default: RMSN>SSM>None)",
    ),
    arg.option(
        "--out",
        metavar="DIR",
        help="the folder in which the page is written (default: reports/cards)",
    ),
    *arg.selection_options(
        "the number of recorded seeds of --against to compare on (default: 8, but 6 on images if "
        "the norm is not built in), or a list of seeds: 88-95",
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
    """Write a page about a norm: what it does and costs, whether it trains and is better."""
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
            "or .pt file with its config.json in the same folder, or the path of that folder; or a "
            "file written by clinic.watch; or the folder of a stored run"
        ),
    ),
    arg.option(
        "--text",
        required=True,
        metavar="FILE",
        help=(
            "a text file in UTF-8; the text is split into tokens by the tokenizer.json in the "
            "checkpoint's folder or, if there is none, into characters or bytes"
        ),
    ),
    arg.option(
        "--length",
        type=arg.whole_number(1),
        default=256,
        metavar="L",
        help="number of tokens in each row of the batch (default: 256)",
    ),
    arg.option(
        "--rows",
        type=arg.whole_number(1),
        default=4,
        metavar="B",
        help="number of rows in the batch (default: 4)",
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
    """Report the activations, gradients, weights and faults of a checkpoint's model on a text."""
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
    ids = token_ids(text, model.vocab_size, tokenizer)
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
        print(f"The page is at {options.html}")
    return 0


def token_ids(text: str, vocab_size: int, tokenizer_path: Path) -> Tensor:
    """Return the token ids (n,) of a text.

    tokenizer_path: the path of the model's tokenizer.json. If the file does not exist, the tokens
    are characters (of this kit's alphabet) or bytes, depending on which of these two vocabularies
    has `vocab_size` tokens. Raises ValueError if neither vocabulary has this size.
    """
    import torch

    from mambanorm_study.tasks.pydoc import ALPHABET, encode

    if tokenizer_path.is_file():
        from tokenizers import Tokenizer

        ids = Tokenizer.from_file(str(tokenizer_path)).encode(text).ids
        return torch.tensor(ids, dtype=torch.int64)
    if vocab_size == len(ALPHABET):
        return encode(text)
    if vocab_size == BYTES:
        return torch.tensor(list(text.encode()), dtype=torch.int64)
    raise ValueError(
        f"the model's vocabulary has {vocab_size:,} tokens: put the model's tokenizer.json into "
        f"the checkpoint's folder (only this kit's {len(ALPHABET)} characters and "
        f"a vocabulary of {BYTES} bytes need no tokenizer.json)"
    )
