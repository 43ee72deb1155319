"""What `mambanorm bench` measures: each section is a list of groups, and the cases of a group are
timed in turn.

scan      the selective scan alone, forward and with its backward pass
step      a whole training step: forward, backward, AdamW; 4 layers
norms     each norm at each site of a block, and each norm alone
length    our step from 64 to 8,192 positions, with as many tokens a batch and with one row
state     our step with 16, 32 and 64 states
threads   the step with one thread and with two
mamba2    a Mamba-2 block by the selective scan, beside the plain chunked form
watch     our step, and the same under `mambanorm_clinic.watch`
runs      whole runs of the study's tasks an hour, one process a core
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from mambanorm import NORMS
from mambanorm.arms import MORE_SITES
from mambanorm.errors import unknown
from mambanorm_study import base_config
from mambanorm_study.config import RunConfig
from mambanorm_study.tasks import load_task

STEP_PEERS = ("mambapy", "transformers", "transformers+mambapy")
SCAN_PEERS = ("mambapy",)
NAIVE = "naive mixture"
# measured at every site: one norm within a token, one along the sequence
NORMS_AT_EVERY_SITE = ("RMSN", "IN")


@dataclass(frozen=True)
class Case:
    """One implementation at one size. `kind` and `name` say what `peers.prepare` builds."""

    kind: str  # scan | scan forward | step | block | norm | mamba2 | run
    name: str
    batch: int
    length: int
    width: int
    state: int = 16
    layers: int = 4
    threads: int = 2
    scale: str = ""  # of a run, whose name is its task
    processes: int = 1  # that train runs at the same time

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """(B, L, D, N)."""
        return self.batch, self.length, self.width, self.state

    @property
    def is_peer(self) -> bool:
        """True for other people's code: its failure is a result, a failure of ours is an error."""
        return self.name in (*STEP_PEERS, *SCAN_PEERS)

    @property
    def may_be_slow(self) -> bool:
        """True if its time is estimated first. Our own cases are always timed in full."""
        return self.is_peer or self.name == "reference"

    @property
    def has_memory(self) -> bool:
        """True if its memory is measured. The floor allocates nothing while it runs."""
        return self.name != "floor" and self.kind != "scan forward"


@dataclass(frozen=True)
class Group:
    """Cases that are timed in turn, with one number of threads, so that a busy moment of the
    machine meets all of them.
    """

    section: str
    title: str
    cases: tuple[Case, ...]


@dataclass(frozen=True)
class Sizes:
    """The sizes of a measurement, (B, L, D) unless a comment says otherwise. The targets hold for
    the defaults.
    """

    scan: tuple = ((16, 256, 128), (8, 1024, 128))
    step: tuple = ((64, 64, 32), (32, 256, 64), (16, 512, 128))
    block: tuple = (32, 256, 64)  # norms at their sites
    norm: tuple = (32, 256, 128)  # norms alone
    lengths: tuple = (64, 256, 512, 1024, 2048, 4096, 8192)
    tokens: int = 16384  # B·L in the first group of the section length
    width: int = 64  # D in the section length
    states: tuple = (16, 32, 64)
    middle: tuple = (32, 256, 64)  # of the sections state, threads and watch
    # (B, L, D, N), the last with mamba-ssm's default N
    mamba2: tuple = ((32, 256, 64, 16), (8, 1024, 64, 16), (4, 512, 128, 128))
    layers: int = 4
    runs: tuple = ("digits", "mnist1d", "listops")
    scale: str = "evening"


def group(
    section: str, title: str, kind: str, names: Iterable[str], shape: tuple, **options: int
) -> Group:
    """Return a group of cases that differ in their names alone."""
    return Group(section, title, tuple(Case(kind, name, *shape, **options) for name in names))


def _scan(sizes: Sizes, threads: int) -> list[Group]:
    both, ours = ("ours", *SCAN_PEERS, "reference"), ("ours", *SCAN_PEERS)
    groups = []
    for shape in sizes.scan:
        title = f"forward + backward, {shape_text(shape)}"
        groups.append(group("scan", title, "scan", both, shape, threads=threads))
        title = f"forward, {shape_text(shape)}"
        groups.append(group("scan", title, "scan forward", ours, shape, threads=threads))
    return groups


def _step(sizes: Sizes, threads: int) -> list[Group]:
    names, options = ("floor", "ours", *STEP_PEERS), dict(layers=sizes.layers, threads=threads)
    return [group("step", shape_text(s), "step", names, s, **options) for s in sizes.step]


def _norms(sizes: Sizes, threads: int) -> list[Group]:
    names = [name for name in NORMS if name != "None"]
    arms = {
        "norm before the SSM": [f"{name}>SSM>None" for name in names],
        "norm after the SSM": [f"None>SSM>{name}" for name in names],
    }
    for name in NORMS_AT_EVERY_SITE:
        at_sites = [f"None>SSM>None+{site}:{name}" for site in MORE_SITES]
        arms[f"{name} at every site"] = [f"None>SSM>{name}", *at_sites]
    groups = []
    for words, compared in arms.items():
        title = f"one block, {words}, {shape_text(sizes.block)}"
        blocks = ["None>SSM>None", *compared]
        groups.append(group("norms", title, "block", blocks, sizes.block, threads=threads))
    title = f"the norm alone, {shape_text(sizes.norm)}"
    return [*groups, group("norms", title, "norm", [*names, NAIVE], sizes.norm, threads=threads)]


def _length(sizes: Sizes, threads: int) -> list[Group]:
    rows_at = {
        f"{sizes.tokens:,} tokens a batch": [max(1, sizes.tokens // n) for n in sizes.lengths],
        "one row": [1] * len(sizes.lengths),
    }
    groups, options = [], dict(layers=sizes.layers, threads=threads)
    for title, rows in rows_at.items():
        shapes = zip(rows, sizes.lengths, strict=True)
        cases = tuple(Case("step", "ours", b, n, sizes.width, **options) for b, n in shapes)
        groups.append(Group("length", title, cases))
    return groups


def _state(sizes: Sizes, threads: int) -> list[Group]:
    names, options = ("floor", "ours"), dict(layers=sizes.layers, threads=threads)
    text = shape_text(sizes.middle)
    return [
        group("state", f"{text}, N = {n}", "step", names, (*sizes.middle, n), **options)
        for n in sizes.states
    ]


def _threads(sizes: Sizes, most: int) -> list[Group]:
    names, title = ("floor", "ours", "mambapy"), shape_text(sizes.middle)
    return [
        group("threads", title, "step", names, sizes.middle, layers=sizes.layers, threads=n)
        for n in sorted({1, most})
    ]


def _mamba2(sizes: Sizes, threads: int) -> list[Group]:
    """Return a group for each shape: a Mamba-2 block by the selective scan, the same in the chunked
    form, and a Mamba block.

    The selective scan reads Δ and A once a channel, where a head of Mamba-2 has one of each, and
    takes an exponential a channel and state, where a head needs one. The chunked form makes matrix
    products of it and keeps T² numbers a head for each chunk of T positions.
    """
    names = ("ours", "chunked", "Mamba-1")
    return [
        group("mamba2", f"one block, {shape_text(s)}", "mamba2", names, s, threads=threads)
        for s in sizes.mamba2
    ]


def _watch(sizes: Sizes, threads: int) -> list[Group]:
    names, options = ("ours", "watched"), dict(layers=sizes.layers, threads=threads)
    return [group("watch", shape_text(sizes.middle), "step", names, sizes.middle, **options)]


def _runs(sizes: Sizes, cores: int) -> list[Group]:
    groups = []  # one a task: tasks are not compared with one another
    for task in sizes.runs:
        config = config_of(task, sizes.scale)
        positions = load_task(task, sizes.scale, config.seed).positions[0]
        shape = (config.batch_size, positions, config.d_model, config.d_state)
        options = dict(layers=config.n_layers, threads=1, scale=sizes.scale, processes=cores)
        case = Case("run", task, *shape, **options)
        groups.append(Group("runs", f"{task} at scale {sizes.scale}, {cores} at a time", (case,)))
    return groups


def config_of(task: str, scale: str) -> RunConfig:
    """Return the config that stands for a task's runs: one norm before the SSM, one after it."""
    return base_config(task, scale, arm="RMSN>SSM>GN", threads=1)


SECTIONS: dict[str, Callable[[Sizes, int], list[Group]]] = {
    "scan": _scan,
    "step": _step,
    "norms": _norms,
    "length": _length,
    "state": _state,
    "threads": _threads,
    "mamba2": _mamba2,
    "watch": _watch,
    "runs": _runs,
}


def groups(only: Iterable[str] | None, sizes: Sizes, threads: int) -> list[Group]:
    """Return the groups of some sections (None = all). Raise ValueError for an unknown one."""
    sections = list(SECTIONS if only is None else dict.fromkeys(only))
    for name in sections:
        if name not in SECTIONS:
            raise unknown("section", name, SECTIONS)
    return [group for name in sections for group in SECTIONS[name](sizes, threads)]


def shape_text(shape: Iterable[int]) -> str:
    """Return a shape as titles and tables print it: `(32, 256, 64)`."""
    return f"({', '.join(map(str, shape))})"
