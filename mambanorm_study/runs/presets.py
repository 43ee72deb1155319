"""The settings of every task at every scale.

For each task, a scale gives the fields whose values differ from RunConfig's defaults. "*" means
every task.

    smoke      seconds, for tests
    quick      minutes on a laptop: shows how fast the arms (norms of a block) learn
    evening    hours on a laptop: enough steps for most arms to stop improving
    lab        hours on one GPU
    paper      the settings of the paper's Appendix C

The settings of quick, evening and lab are ours, scaled down to fit these times. In the settings of
paper, a comment names the source of each line: "App. C.4" means a paragraph of the paper's Appendix
C, "VMamba" a default of VMamba's public code (`classification/config.py`), to which Appendix C.1
refers, and "ours" a setting that the paper does not state.
"""

from typing import Any

# Appendix C.4 of the paper: "The random seed was set to 2222".
PAPER_SEED = 2222


def epochs(n: int, *, rows: int, batch: int) -> dict[str, int]:
    """Return batch_size, steps and eval_every for `n` epochs with an evaluation after each epoch.

    rows: number of training rows. The incomplete last batch of an epoch is dropped.
    """
    per_epoch = rows // batch
    return dict(batch_size=batch, steps=n * per_epoch, eval_every=per_epoch)


# fmt: off

# Fields of every image task: the norms of the original VMamba (§4.5 of the paper) and VMamba's 3×3
# convolution.
VISION = dict(arm="LN>SSM>LN", d_conv=3)

IMAGENET, MNIST1D = ("imagenet100", "imagenet1k"), ("mnist1d", "curves")
# With CIFAR-10, the image sets of source S2 (docs/sources.md).
SMALL_IMAGES = ("mnist_images", "fashion_mnist_images", "svhn_images")
CIFAR_IMAGES = ("cifar10_images", "cifar100_images")
# Our own images after Pathfinder, which need no files.
PATHS = ("paths16", "paths32", "paths64")
# Image tasks, on which the claims about vision are judged.
VISION_TASKS = ("digits_images", "glyphs_images", *SMALL_IMAGES, *CIFAR_IMAGES, *IMAGENET)

# Tasks in which the next character of a text is predicted. The text is the same for all seeds.
TEXTS = ("pydoc",)

# Tasks with a label at each position, such as the next token. Their models are language models with
# causal norms.
LANGUAGE_TASKS = TEXTS

# Regressions whose positions are the columns of a table (tasks/tabular.py).
TABLES = ("energy", "california_housing", "diabetes")

# Tasks whose rows are sequences of token ids with one label per row. In the other tasks with one
# label per row, the inputs are real values.
TOKEN_TASKS = ("listops", "imdb")

KINDS = {
    **dict.fromkeys(VISION_TASKS, "vision"),
    **{task: "table" for task in TABLES},
    **{task: "language" for task in LANGUAGE_TASKS},
}


def kind_of(task: str) -> str:
    """Return the kind of a task: "vision", "language", "table" (a regression) or "sequence"."""
    return KINDS.get(task, "sequence")


def kind_of_input(task: str) -> str:
    """Return `kind_of(task)`, but "tokens" or "values" (real numbers) in place of "sequence"."""
    return KINDS.get(task) or ("tokens" if task in TOKEN_TASKS else "values")


# -------------------------------------------------------------------------------- paper: Appendix C
# The number of steps is computed from the number of training rows that the paper gives. If some of
# these rows are held out for validation (a tenth of CIFAR, MNIST and SVHN, a twentieth of ImageNet,
# a tenth of Breakfast's people), the same number of steps is a few more epochs of the other rows.

KERNEL = dict(d_conv=4, expand=2)  # App. C.3, C.4, C.6; ours for the other tasks

CIFAR = dict(
    n_layers=4, d_model=64,                            # App. C.5
    d_state=64, **KERNEL,                              # ours: as in App. C.3, C.4 and C.6
    lr=1e-3, weight_decay=0.1,                         # App. C.5
    schedule="cosine_warmup", warmup_steps=2_000,      # App. C.5
)

PATHFINDER = dict(
    n_layers=6, d_model=128,                           # App. C.6
    d_state=64, **KERNEL,                              # App. C.6
    lr=2e-4, weight_decay=0.05, betas=(0.9, 0.95),     # App. C.6
    schedule="constant_warmup", warmup_steps=5_000,    # App. C.6
    # App. C.6: 50 epochs of batch 32, "across 10 GPUs". We take 32 as the whole batch, so that the
    # learning rate of App. C.6 fits one machine. App. C.6 states no number of rows; ours is 80 % of
    # the 200,000 images of the Long Range Arena. 160,000 rows / 32 = 5,000 steps per epoch, as many
    # as the warm-up has; × 50 epochs = 250,000 steps
    **epochs(50, rows=160_000, batch=32),
)

# Split of Breakfast → number of training videos.
BREAKFAST = {
    "breakfast": 1_460,
    "breakfast_split2": 1_261,
    "breakfast_split3": 1_279,
    "breakfast_split4": 1_136,
}

VMAMBA = VISION | dict(  # App. C.1: the defaults of VMamba's tiny model
    # VMamba: four stages of 2, 2, 9 and 2 blocks; the first stage has 96 channels
    n_layers=15, d_model=96, down_sample=(2, 4, 13),
    d_state=16, expand=2,                              # VMamba's defaults
    # VMamba has these norms; App. C.1 removes only the FFN and the LN inside the block
    stem_norm="LN", down_norm="LN", final_norm="LN",
    lr=1e-3, weight_decay=0.05,                        # VMamba: lr 5e-4 per 512 images in a batch
    schedule="cosine_warmup",                          # VMamba, but our lr ends at 0, not at 5e-6
    mixup=0.8, cutmix=1.0, label_smoothing=0.1,        # VMamba: one of the two in each step
    drop_path=0.2,                                     # VMamba: its tiny model
    clip=5.0,                                          # VMamba
    ema=0.9999,                                        # VMamba: `main.py`, --model_ema_decay
    # VMamba trains in mixed precision with float16; ours is bfloat16, which needs no loss scaling
    precision="bf16",
    # Not here, because no field of a run has them: VMamba's RandAugment (rand-m9-mstd0.5-inc1),
    # colour jitter (0.4) and random erasing (0.25).
)

# Field of language models: a norm before the head, as in mamba-ssm. Head and embedding share their
# weights, which start small, so without this norm the model learns slowly in every arm.
TIED = dict(final_norm="RMSN")

PAPER: dict[str, dict[str, Any]] = {
    # ours: the paper has no task digits; d_model and d_state are those of App. C
    "digits": dict(
        d_model=128, n_layers=4, d_state=64, lr=1e-3, steps=5_000, eval_every=250, warmup_steps=500,
    ),
    # ours: the paper has no task digits_images; d_model and d_state of VMamba's first stage
    "digits_images": VISION | dict(
        d_model=96, n_layers=4, d_state=16, lr=1e-3, steps=5_000, eval_every=250, warmup_steps=500,
    ),

    "listops": dict(
        n_layers=4, d_model=128, d_state=64, **KERNEL,     # App. C.3
        lr=1e-4, schedule="cosine_warmup",                 # App. C.3
        warmup_steps=2_000,                                # ours: as in App. C.4 and C.5
        # ours: PyTorch's default, because App. C.3 states no weight decay
        weight_decay=0.01,
        # App. C.3: 30 epochs of batch 32; 96,000 rows (Long Range Arena) / 32 = 3,000 steps per
        # epoch, × 30 epochs = 90,000 steps
        **epochs(30, rows=96_000, batch=32),
    ),

    "imdb": dict(
        n_layers=4, d_model=128, d_state=64, **KERNEL,     # App. C.4
        lr=1e-4, weight_decay=0.1,                         # App. C.4
        schedule="constant_warmup", warmup_steps=2_000,    # App. C.4
        # App. C.4; runs with three seeds use the seeds 0, 1 and 2
        seed=PAPER_SEED,
        # App. C.4: 65 epochs of batch 32 over 25,000 reviews; 25,000 / 32 = 781 steps per epoch,
        # × 65 epochs = 50,765 steps
        **epochs(65, rows=25_000, batch=32),
    ),

    # App. C.5: 40 epochs of batch 50 over 50,000 images; 50,000 / 50 = 1,000 steps per epoch, × 40
    # epochs = 40,000 steps
    "cifar10": CIFAR | epochs(40, rows=50_000, batch=50),
    "cifar100": CIFAR | epochs(40, rows=50_000, batch=50),
    # ours: the recipe of App. C.5, so that a model that reads images has the same size as the model
    # that reads their pixels as sequences
    "cifar10_images": CIFAR | VISION | epochs(40, rows=50_000, batch=50),
    "cifar100_images": CIFAR | VISION | epochs(40, rows=50_000, batch=50),

    "pathfinder64": PATHFINDER,
    "pathfinder32": PATHFINDER,   # ours: the recipe of App. C.6; the paper has no Pathfinder-32
    "pathfinder128": PATHFINDER,  # ours: the recipe of App. C.6; the paper has no Pathfinder-128
    # ours: the recipe of App. C.6 for our own images. 16,000 / 32 = 500 steps per epoch, × 50
    # epochs = 25,000 steps; the warm-up is one epoch, as for Pathfinder
    **dict.fromkeys(PATHS, PATHFINDER | epochs(50, rows=16_000, batch=32) | dict(warmup_steps=500)),

    # ours: App. C.2 repeats the text of App. C.1, so the recipe for Breakfast is missing (see
    # docs/paper.md, row I4c).
    # Split 1: 1,460 videos / 32 = 45 steps per epoch, × 50 epochs = 2,250 steps
    **{name: dict(
        n_layers=4, d_model=128, d_state=64, **KERNEL,
        lr=1e-4, weight_decay=0.1, schedule="cosine_warmup", warmup_steps=225,
        **epochs(50, rows=rows, batch=32),
    ) for name, rows in BREAKFAST.items()},

    # §4.1 of the paper: 1,300 images in each of 100 classes. VMamba: 300 epochs; a batch of 8 × 128
    # rows, divided into eight parts of 128 rows, as on VMamba's eight GPUs. 130,000 / 1,024 = 126
    # steps per epoch, × 300 epochs = 37,800 steps; warm-up of 20 epochs (VMamba) = 2,520 steps
    "imagenet100": VMAMBA | epochs(300, rows=130_000, batch=1_024) | dict(
        warmup_steps=20 * 126, micro_batch=128,
    ),
    # App. C.1: "reduced from 300 to 100" epochs. 1,281,167 images / 1,024 = 1,251 steps per epoch,
    # × 100 epochs = 125,100 steps; warm-up of 20 epochs (VMamba) = 25,020 steps
    "imagenet1k": VMAMBA | epochs(100, rows=1_281_167, batch=1_024) | dict(
        warmup_steps=20 * 1_251, micro_batch=128,
    ),

    # ours: the settings of App. C.5, because the paper does not have these tasks. 60,000 / 50 =
    # 1,200 steps per epoch, × 40 epochs = 48,000 steps; SVHN: 73,257 / 50 = 1,465 steps per epoch,
    # × 40 epochs = 58,600 steps
    "mnist": CIFAR | epochs(40, rows=60_000, batch=50),
    "fashion_mnist": CIFAR | epochs(40, rows=60_000, batch=50),
    "svhn": CIFAR | epochs(40, rows=73_257, batch=50),
    # ours: as cifar10_images
    "mnist_images": CIFAR | VISION | epochs(40, rows=60_000, batch=50),
    "fashion_mnist_images": CIFAR | VISION | epochs(40, rows=60_000, batch=50),
    "svhn_images": CIFAR | VISION | epochs(40, rows=73_257, batch=50),
    # 1,200 / 50 = 24 steps per epoch, × 40 epochs = 960 steps; a shorter warm-up than in App. C.5
    "level": CIFAR | epochs(40, rows=1_200, batch=50) | dict(warmup_steps=96),
    # 3,500 / 50 = 70 steps per epoch, × 40 epochs = 2,800 steps; shorter warm-up than in App. C.5
    **dict.fromkeys(MNIST1D, CIFAR | epochs(40, rows=3_500, batch=50) | dict(warmup_steps=280)),
    # 4,000 / 50 = 80 steps per epoch, × 40 epochs = 3,200 steps; shorter warm-up than in App. C.5
    "glyphs": CIFAR | epochs(40, rows=4_000, batch=50) | dict(warmup_steps=320),
    "glyphs_images": CIFAR | VISION | epochs(40, rows=4_000, batch=50) | dict(warmup_steps=320),
    # ours: the paper has no language model
    **{task: TIED | dict(
        d_model=128, n_layers=4, d_state=16, batch_size=32,
        lr=1e-3, steps=20_000, eval_every=500, warmup_steps=500,
    ) for task in LANGUAGE_TASKS},
    # ours: the paper does not have these tasks; source S2 (docs/sources.md) has energy and
    # california_housing, but states no settings
    **{task: dict(
        d_model=128, n_layers=4, d_state=64,
        lr=1e-3, steps=20_000, eval_every=500, warmup_steps=500,
    ) for task in TABLES},
}

# ---------------------------------------------------------------------------------- our scale-downs

# Scaled down from the paper's Appendix C: half of d_model, a quarter of d_state and fewer steps.
HOURS = dict(
    d_model=64, n_layers=4, d_state=16, batch_size=32,
    lr=1e-3, steps=10_000, eval_every=500, warmup_steps=500,
)
LAB: dict[str, dict[str, Any]] = {
    "digits": dict(d_model=64, n_layers=8, lr=2e-3, steps=2_000, eval_every=100, warmup_steps=100),
    "digits_images": VISION | dict(
        d_model=64, n_layers=8, lr=2e-3, steps=2_000, eval_every=100, warmup_steps=100,
    ),
    "listops": HOURS | dict(steps=20_000),
    **dict.fromkeys(("imdb", "cifar10", "cifar100", "mnist", "fashion_mnist", "svhn"), HOURS),
    **dict.fromkeys((*SMALL_IMAGES, *CIFAR_IMAGES), HOURS | VISION),
    "pathfinder32": HOURS | dict(n_layers=6),
    "pathfinder64": HOURS | dict(n_layers=6),
    "pathfinder128": HOURS | dict(n_layers=6, batch_size=16),
    **dict.fromkeys(BREAKFAST, HOURS | dict(
        steps=1_000, eval_every=50, warmup_steps=100, batch_size=16,
    )),
    **dict.fromkeys(IMAGENET, HOURS | VISION | dict(
        batch_size=64, stem_norm="LN", final_norm="LN",
    )),
    **dict.fromkeys(PATHS, HOURS),
    **dict.fromkeys(MNIST1D, HOURS | dict(lr=2e-3, steps=2_000, eval_every=100, warmup_steps=100)),
    "level": dict(d_model=32, n_layers=2, lr=2e-3, steps=480, eval_every=60, warmup_steps=40),
    "glyphs": HOURS | dict(lr=2e-3, steps=4_000, eval_every=200, warmup_steps=100),
    "glyphs_images": HOURS | VISION | dict(lr=2e-3, steps=4_000, eval_every=200, warmup_steps=100),
    **{task: HOURS | TIED | dict(
        lr=2e-3, steps=4_000, eval_every=200, warmup_steps=100,
    ) for task in LANGUAGE_TASKS},
    **{task: dict(
        d_model=64, n_layers=4, lr=2e-3, steps=5_000, eval_every=250, warmup_steps=100,
    ) for task in TABLES},
}

MINUTES = dict(n_layers=2, batch_size=16, steps=200, eval_every=50)  # minutes per run, not tuned
# images have fewer positions than sequences
IMAGES = VISION | dict(batch_size=32, steps=200, eval_every=50)
# train_rows: half of the training rows of pydoc
TEXT = TIED | dict(lr=6e-3, d_model=64, batch_size=16, train_rows=1_200)
CURVES = dict(lr=6e-3, steps=25, batch_size=32, eval_every=5, warmup_steps=5, train_rows=500)
QUICK: dict[str, dict[str, Any]] = {
    # half of mamba-ssm's default, to save time: the scan takes half of the time of a step
    "*": dict(d_state=8),
    "digits": dict(lr=1.5e-2, steps=80, batch_size=32, eval_every=20),
    "digits_images": VISION | dict(lr=1e-2, steps=40, batch_size=32, eval_every=10),
    "listops": dict(lr=4e-3, steps=600, n_layers=2, batch_size=32, eval_every=100),
    **dict.fromkeys(("imdb", "cifar10", "cifar100", "pathfinder32"), MINUTES),
    **dict.fromkeys(("mnist", "fashion_mnist", "svhn"), MINUTES),
    **dict.fromkeys((*SMALL_IMAGES, *CIFAR_IMAGES), IMAGES),
    # small enough to try the code, too small to learn the task
    "pathfinder64": MINUTES | dict(batch_size=8, steps=60, eval_every=30),
    "pathfinder128": MINUTES | dict(batch_size=4, steps=20, eval_every=10, warmup_steps=5),
    **dict.fromkeys(BREAKFAST, MINUTES | dict(batch_size=8, steps=60, eval_every=30)),
    **dict.fromkeys(IMAGENET, IMAGES | dict(
        batch_size=8, steps=60, eval_every=30, stem_norm="LN", final_norm="LN",
    )),
    **dict.fromkeys(MNIST1D, CURVES),
    "glyphs": MINUTES | dict(lr=6e-3, batch_size=32, steps=100, eval_every=25),
    "glyphs_images": IMAGES | dict(lr=6e-3),
    "level": dict(d_model=16, n_layers=2, batch_size=32, steps=120, eval_every=30),
    # small enough to try the code, too small to learn the tasks
    "paths16": MINUTES,
    "paths32": MINUTES,
    "paths64": MINUTES | dict(batch_size=8, steps=60, eval_every=30),
    "pydoc": TEXT | dict(steps=50, eval_every=10, warmup_steps=5),
    "energy": dict(n_layers=2, lr=8e-3, steps=400, eval_every=50, batch_size=32),
    "california_housing": dict(n_layers=2, lr=8e-3, steps=300, eval_every=50),
    "diabetes": dict(n_layers=2, lr=4e-3, steps=60, eval_every=15, batch_size=32),
}

# For tasks whose settings are not tuned: steps at evening = EVENING_FACTOR × steps at quick.
EVENING_FACTOR = 8

EVENING: dict[str, dict[str, Any]] = {
    name: QUICK["*"] | task | dict(
        steps=EVENING_FACTOR * task["steps"], eval_every=EVENING_FACTOR * task["eval_every"],
    )
    for name, task in QUICK.items() if name != "*"
} | {
    # 400 steps of 32 rows are 26 epochs of 500 curves. Trained on all curves, the arms reach 95 to
    # 98 %, which leaves no room for differences (Greydanus & Kobak's CNN reaches 94 %)
    "mnist1d": QUICK["*"] | CURVES | dict(steps=400, eval_every=25, warmup_steps=20),
    # The task curves has 500 training rows, glyphs has 1,000. After these steps, most arms have
    # stopped improving. With more rows, the arms hardly differ or training takes longer
    # (claims/PROTOCOL.md)
    "curves": QUICK["*"] | CURVES | dict(steps=600, eval_every=40, warmup_steps=20),
    "glyphs": QUICK["*"] | dict(
        lr=6e-3, batch_size=32, steps=1_000, eval_every=50, train_rows=1_000,
    ),
    "glyphs_images": QUICK["*"] | VISION | dict(
        lr=6e-3, batch_size=32, steps=800, eval_every=40, train_rows=1_000,
    ),
    # 5 epochs of half of the training text: the arms that learn fastest have just stopped improving
    # (with all of the training text, this would take twice as many steps)
    "pydoc": QUICK["*"] | TEXT | dict(steps=400, eval_every=25),
    "digits": QUICK["*"] | QUICK["digits"] | dict(steps=1_280, eval_every=64),
    "digits_images": QUICK["*"] | QUICK["digits_images"] | dict(
        steps=160, eval_every=10, train_rows=150,
    ),
    "listops": QUICK["*"] | QUICK["listops"] | dict(n_layers=4, steps=1_280, eval_every=80),
    # 256 positions are six times as many as on curves. Half of the other tasks' d_model and small
    # batches keep a run below half a minute of one core. In a trial, NormVary→GN had left chance
    # after 150 of these steps and stopped improving after 250
    "paths16": QUICK["*"] | dict(
        lr=6e-3, d_model=16, n_layers=4, batch_size=16, steps=300, eval_every=50,
    ),
}

# fmt: on

DIFFERENCES: dict[str, dict[str, dict[str, Any]]] = {
    "smoke": {
        "*": dict(
            d_model=8, n_layers=2, d_state=4, batch_size=8, steps=4, eval_every=2, warmup_steps=1
        ),
        **{name: VISION for name in VISION_TASKS},
        **{name: TIED for name in LANGUAGE_TASKS},
    },
    "quick": QUICK,
    "evening": EVENING,
    "lab": LAB,
    "paper": PAPER,
}
# Fields in which a Transformer differs from the Mamba of the same task and scale.
#
# Source S2 (docs/sources.md) states no size, learning rate or number of steps. Size and number of
# steps are those of the Mamba. The learning rates are those of TRANSFORMER_LR, at which post-norm
# Transformers train.
TRANSFORMER = dict(
    arm="AutoNorm", positional="learned", squeeze_excite=True,  # source S2, §IV.B
    d_conv=4,  # has no effect on a Transformer; the same value for images and sequences
    down_norm="None",
)  # fmt: skip

TRANSFORMER_LR = {"smoke": 2e-3, "quick": 3e-3, "evening": 3e-3, "lab": 1e-3, "paper": 5e-4}

# Task → further fields of the task's Transformer at scale quick; ours. With these steps about nine
# of ten digits are classified correctly. With five seeds each, all models that source S2 names take
# half a minute on one core.
TRANSFORMER_TASKS: dict[str, dict[str, Any]] = {
    "digits_images": dict(n_layers=3, lr=6e-3, steps=200, eval_every=50),
    "diabetes": dict(n_layers=2, steps=60, eval_every=15, batch_size=32),
    "energy": dict(n_layers=2, lr=5e-3, steps=600, eval_every=100, batch_size=32),
    "california_housing": dict(n_layers=2, steps=400, eval_every=50, batch_size=64),
}


def transformer_differences(scale: str, task: str, differences: dict[str, Any]) -> dict[str, Any]:
    """Return the fields in which a task's Transformer differs from RunConfig's defaults.

    differences: the fields in which the task's Mamba differs from these defaults.
    """
    unused = ("arm", "d_state", "down_sample")
    result = {name: value for name, value in differences.items() if name not in unused}
    result.update(TRANSFORMER, lr=TRANSFORMER_LR[scale])
    if task in TABLES:
        result["positional"] = "none"
    if scale == "quick":
        result.update(TRANSFORMER_TASKS.get(task, {}))
    return result
