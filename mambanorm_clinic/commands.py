"""The clinic's commands: `mambanorm card` for a norm, `mambanorm diagnose` for a checkpoint.

The command line imports this module through the entry point `mambanorm.commands`.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from mambanorm_study.basics.settings import STUDY_SCALE
from mambanorm_study.cli import arguments as arg
from mambanorm_study.cli.printing import may_train

if TYPE_CHECKING:
    from torch import Tensor

BYTES = 256  # the vocabulary of a model that reads bytes


@arg.command(
    arg.option(
        "which",
        metavar="FILE",
        help="my_norm.py, which registers a norm; or a norm's name, such as LN",
    ),
    arg.option(
        "--against",
        default="RMSN>SSM>None",
        metavar="ARM",
        help="the other arm (default: RMSN>SSM>None)",
    ),
    arg.option(
        "--out",
        metavar="DIR",
        help="the folder to write the page to (default: reports/cards)",
    ),
    *arg.which_runs(
        "so many of the seeds at which --against is recorded (default: 8, of images 6); "
        "or a list: 76-83",
        default_scale=f"MAMBANORM_SCALE, else {STUDY_SCALE}",
    ),
    *arg.TRAINING,
    arg.option("--yes", action="store_true", help="train even if that takes long"),
    examples=(
        "my_norm.py",
        "LN --tasks curves,pydoc",
        "my_norm.py --seeds 3 --out /tmp/card --dry-run",
    ),
)
def card(options: argparse.Namespace) -> int:
    """Say all about a norm on one page: what it does and costs, whether it trains, whether it is
    better.
    """
    from mambanorm_clinic.card import LIMIT_S, card_runs, later_runs, norm_card
    from mambanorm_study.basics.settings import WORK
    from mambanorm_study.runs.needed_runs import known_runs

    request = {
        "tasks": options.tasks,
        "seeds": options.seeds,
        "scale": options.scale,
        "against": options.against,
        "runs_dir": options.runs_dir,
    }
    if options.dry_run:
        untrained = norm_card(options.which, train=False, **request)
        known = known_runs(untrained.scale, options.runs_dir)
        configs = [*card_runs(untrained, known), *later_runs(untrained, known)]
        if configs and not untrained.same:
            may_train(configs, options)
        else:
            print("nothing to train: all runs are there")
        return 0
    out = options.out or WORK / "reports" / "cards"
    limit_s = None if options.yes else LIMIT_S
    engine = {"scheduler": options.scheduler}
    if options.workers != "auto":
        engine["workers"] = options.workers
    result = norm_card(options.which, out=out, limit_s=limit_s, **request, **engine)
    print(result)
    print(f"The card is at {out}/{result.name}.html")
    return int(bool(result.untrained))


@arg.command(
    arg.option(
        "checkpoint",
        metavar="CHECKPOINT",
        help=(
            "a Mamba, Mamba-2 or Falcon-Mamba of mamba-ssm or transformers: .safetensors, .bin or "
            ".pt, or the folder of a download; config.json beside it says which; or a file of "
            "clinic.watch, or the folder of a run"
        ),
    ),
    arg.option(
        "--text",
        required=True,
        metavar="FILE",
        help=(
            "a text in UTF-8, read with tokenizer.json beside the checkpoint, else by characters "
            "or bytes"
        ),
    ),
    arg.option(
        "--length",
        type=arg.whole(1),
        default=256,
        metavar="L",
        help="positions in each row (default: 256)",
    ),
    arg.option(
        "--rows",
        type=arg.whole(1),
        default=4,
        metavar="B",
        help="rows of the batch (default: 4)",
    ),
    arg.option(
        "--html",
        metavar="FILE",
        help="write a page with the picture and all numbers",
    ),
    examples=(
        "model.safetensors --text novel.txt",
        "mamba-130m/ --text novel.txt",
        "clinic/step-000120.safetensors --text novel.txt",
        "pytorch_model.bin --text novel.txt --length 512 --html diagnosis.html",
    ),
)
def diagnose(options: argparse.Namespace) -> int:
    """Look into a checkpoint: activations, gradients and weights on a text, and what to try."""
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
            "--html writes a page over what is there: give a name that ends in .html, got "
            f"{options.html}"
        )
    checkpoint = checkpoint_in(options.checkpoint)
    model = load_model(checkpoint)
    if not isinstance(model, LanguageModel):
        raise ValueError(
            f"{checkpoint} holds a {type(model).__name__}, which cannot be run on a text: in "
            "Python clinic.diagnose(clinic.load_model(path), batch) looks into it"
        )
    text, tokenizer = read_text(Path(options.text)), checkpoint.with_name("tokenizer.json")
    ids = ids_of(text, model.vocab_size, tokenizer)
    if len(ids) < 2:
        raise ValueError(
            f"{options.text} is {len(ids)} tokens long: at least 2 are needed, one to read and one "
            "to predict"
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
    """Return the ids (n,) of a text as the model reads it.

    They are made by the model's tokenizer if its file exists, else by the characters of this kit's
    models or by bytes, if the vocabulary has that size. Raises ValueError if none of them fits.
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
        f"the model knows {vocab_size:,} tokens and nothing says which: put its tokenizer.json "
        f"beside the checkpoint (models of {len(ALPHABET)} tokens read this kit's characters, "
        f"models of {BYTES} bytes)"
    )
