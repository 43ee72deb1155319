"""What is measured: each section is a list of groups, each group a list of cases that are timed in
turn.

scan      the selective scan alone, forward and with its backward pass
step      a whole training step: forward, backward, AdamW; 4 layers
norms     each norm at each site of a block, and each norm alone
length    our step from 64 to 8,192 positions, with as many tokens a batch and with one row
state     our step with 16, 32 and 64 states
threads   the step with one thread and with two
mamba2    a Mamba-2 block carried by the selective scan, beside the plain chunked form
watch     our step, and the same under `mambanorm.watch`
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
AT_SITES = ("RMSN", "IN")
"""The norms that are measured at every site: one within a token, one along the sequence."""


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
        return self.batch, self.length, self.width, self.state

    @property
    def is_peer(self) -> bool:
        """True if it is somebody else's code: its failure is a result, ours is an error."""
        return self.name in (*STEP_PEERS, *SCAN_PEERS)

    @property
    def may_be_slow(self) -> bool:
        """True if it is judged before it is timed; our own cases are always timed as often as asked
        for."""
        return self.is_peer or self.name == "reference"

    @property
    def has_weight(self) -> bool:
        """The floor works in matrices that are there already: its memory says nothing."""
        return self.name != "floor" and self.kind != "scan forward"


@dataclass(frozen=True)
class Group:
    """Cases that are timed in turn, so that a busy moment meets all of them; with one number of
    threads."""

    section: str
    title: str
    cases: tuple[Case, ...]


@dataclass(frozen=True)
class Sizes:
    """The sizes of a run, (B, L, D) unless said otherwise. The defaults are what the targets are
    about."""

    scan: tuple = ((16, 256, 128), (8, 1024, 128))
    step: tuple = ((64, 64, 32), (32, 256, 64), (16, 512, 128))
    block: tuple = (32, 256, 64)  # norms at their sites
    norm: tuple = (32, 256, 128)  # norms alone
    lengths: tuple = (64, 256, 512, 1024, 2048, 4096, 8192)
    tokens: int = 16384  # B·L of the first half of the length section
    width: int = 64  # its D
    states: tuple = (16, 32, 64)
    middle: tuple = (32, 256, 64)  # of the sections state and threads
    mamba2: tuple = (
        (32, 256, 64, 16),
        (8, 1024, 64, 16),
        (4, 512, 128, 128),
    )  # (B, L, D, N), the last upstream's N
    layers: int = 4
    runs: tuple = ("digits", "mnist1d", "listops")
    scale: str = "evening"


def scan(sizes: Sizes, threads: int) -> list[Group]:
    groups = []
    for shape in sizes.scan:
        passes = {"scan": ("ours", *SCAN_PEERS, "reference"), "scan forward": ("ours", *SCAN_PEERS)}
        for kind, names in passes.items():
            title = "forward + backward" if kind == "scan" else "forward"
            cases = tuple(Case(kind, name, *shape, threads=threads) for name in names)
            groups.append(Group("scan", f"{title}, {sign(shape)}", cases))
    return groups


def step(sizes: Sizes, threads: int) -> list[Group]:
    common = dict(layers=sizes.layers, threads=threads)
    return [
        Group(
            "step",
            sign(shape),
            tuple(Case("step", name, *shape, **common) for name in ("floor", "ours", *STEP_PEERS)),
        )
        for shape in sizes.step
    ]


def norms(sizes: Sizes, threads: int) -> list[Group]:
    """The arm is the notation here too: `GN>SSM>None` is GN before the SSM, `None>SSM>GN` behind
    it."""
    some = [name for name in NORMS if name != "None"]
    places = {"before the SSM": "{}>SSM>None", "after the SSM": "None>SSM>{}"}
    groups = []
    for place, arm in places.items():
        arms = ["None>SSM>None", *(arm.format(name) for name in some)]
        cases = tuple(Case("block", name, *sizes.block, threads=threads) for name in arms)
        groups.append(Group("norms", f"one block, norm {place}, {sign(sizes.block)}", cases))
    for name in AT_SITES:
        arms = [
            "None>SSM>None",
            f"None>SSM>{name}",
            *(f"None>SSM>None+{site}:{name}" for site in MORE_SITES),
        ]
        cases = tuple(Case("block", arm, *sizes.block, threads=threads) for arm in arms)
        groups.append(
            Group("norms", f"one block, {name} at every site, {sign(sizes.block)}", cases)
        )
    alone = tuple(Case("norm", name, *sizes.norm, threads=threads) for name in (*some, NAIVE))
    return [*groups, Group("norms", f"the norm alone, {sign(sizes.norm)}", alone)]


def length(sizes: Sizes, threads: int) -> list[Group]:
    """All lengths of a row are one group: they are compared with one another."""
    rows = {
        f"{sizes.tokens:,} tokens a batch": lambda n: max(1, sizes.tokens // n),
        "one row": lambda n: 1,
    }
    common = dict(layers=sizes.layers, threads=threads)
    return [
        Group(
            "length",
            title,
            tuple(
                Case("step", "ours", rows_at(n), n, sizes.width, **common) for n in sizes.lengths
            ),
        )
        for title, rows_at in rows.items()
    ]


def state(sizes: Sizes, threads: int) -> list[Group]:
    common = dict(layers=sizes.layers, threads=threads)
    return [
        Group(
            "state",
            f"{sign(sizes.middle)}, N = {n}",
            tuple(Case("step", name, *sizes.middle, n, **common) for name in ("floor", "ours")),
        )
        for n in sizes.states
    ]


def threads(sizes: Sizes, most: int) -> list[Group]:
    names = ("floor", "ours", "mambapy")
    return [
        Group(
            "threads",
            sign(sizes.middle),
            tuple(
                Case("step", name, *sizes.middle, layers=sizes.layers, threads=n) for name in names
            ),
        )
        for n in sorted({1, most})
    ]


def mamba2(sizes: Sizes, threads: int) -> list[Group]:
    """One block each. What the selective scan loses on a Mamba-2: it reads Δ and A once a channel,
    where a head has one of each, and takes an exponential a channel and state, where a head has
    one; the chunked form makes matrix products of it instead, and keeps T² numbers a head for each
    chunk of T positions. Mamba's own block stands beside them."""
    names = ("ours", "chunked", "Mamba-1")
    return [
        Group(
            "mamba2",
            f"one block, {sign(shape)}",
            tuple(Case("mamba2", n, *shape, threads=threads) for n in names),
        )
        for shape in sizes.mamba2
    ]


def watch(sizes: Sizes, threads: int) -> list[Group]:
    common = dict(layers=sizes.layers, threads=threads)
    cases = tuple(Case("step", name, *sizes.middle, **common) for name in ("ours", "watched"))
    return [Group("watch", sign(sizes.middle), cases)]


def runs(sizes: Sizes, cores: int) -> list[Group]:
    """A group a task: tasks are not compared with one another."""
    return [
        Group(
            "runs",
            f"{task} at scale {sizes.scale}, {cores} at a time",
            (_run(task, sizes.scale, cores),),
        )
        for task in sizes.runs
    ]


def _run(task: str, scale: str, cores: int) -> Case:
    config = config_of(task, scale)
    length = load_task(task, scale, config.seed).positions[0]
    sizes = config.batch_size, length, config.d_model, config.d_state, config.n_layers
    return Case("run", task, *sizes, threads=1, scale=scale, processes=cores)


def config_of(task: str, scale: str) -> RunConfig:
    """The run that stands for a task's runs: a norm of each kind, one before the SSM and one
    after."""
    return base_config(task, scale, arm="RMSN>SSM>GN", threads=1)


SECTIONS: dict[str, Callable[[Sizes, int], list[Group]]] = {
    "scan": scan,
    "step": step,
    "norms": norms,
    "length": length,
    "state": state,
    "threads": threads,
    "mamba2": mamba2,
    "watch": watch,
    "runs": runs,
}


def groups(only: Iterable[str] | None, sizes: Sizes, threads: int) -> list[Group]:
    """The groups of the sections asked for, or of all. ValueError for an unknown one, with the
    nearest."""
    wanted = list(SECTIONS if only is None else dict.fromkeys(only))
    for name in wanted:
        if name not in SECTIONS:
            raise unknown("section", name, SECTIONS)
    return [group for name in wanted for group in SECTIONS[name](sizes, threads)]


def sign(shape: Iterable[int]) -> str:
    """(32, 256, 64) → "(32, 256, 64)", as it stands in titles and tables."""
    return f"({', '.join(map(str, shape))})"
