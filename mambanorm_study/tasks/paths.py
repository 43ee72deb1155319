"""Paths: are two dots joined by one dashed path? Pixel by pixel; each seed draws new images.

The task is made after Pathfinder (Linsley et al. 2018), but drawn on a grid of cells, so that it
needs no files, and that the pixels of both classes are alike:

1. A self-avoiding path is drawn over the cells of a grid, with a dot at each end. The pixel in the
   centre of each cell of the path is lit. A dash joins the centres of neighbouring cells: of the
   three pixels between them, the first two or the last two are lit, at random.
2. Distractors are drawn: stray dashes between cells that the path does not use.
3. In half of the images, some dashes in the middle of the path are moved away and become further
   stray dashes. The path is then broken into two separate paths with a dot on each.

The label is 1 if the dots are joined, and 0 if the path is broken. A dash is moved to a place that
some rotation or reflection of the grid maps to its old place, and no rotation or reflection changes
how often a path is drawn. So in both classes each dash of the grid is equally likely, the number of
dashes is the same, and the dots have the same positions: a linear classifier of the pixels stays at
chance. To tell the classes apart, a model must see which dashes join which cells.

Source: Linsley et al. (2018), arXiv:1805.08315.

Glossary: n images, edge = height and width in pixels, side = height and width in cells, K cells of
the path, M dashes that are moved, D distractors, link = two neighbouring cells of the grid, E links
of the grid, L = positions = edge².
"""

from dataclasses import dataclass
from functools import cache, partial

import torch
from torch import Tensor

from mambanorm_study.tasks.base import TaskData, consecutive_splits
from mambanorm_study.tasks.registry import Shape, register_task

CELL, CENTRE = 4, 1  # height and width of a cell in pixels; row and column of its centre pixel
DASH, DOT = 1.0, 2.0  # values of the lit pixels; the other pixels are 0


@dataclass(frozen=True)
class Drawing:
    """Sizes of an image: its edge in pixels, the number of cells of the path, of dashes that are
    moved away if the path is broken, and of distractors.
    """

    edge: int
    length: int
    moved: int
    distractors: int

    @property
    def side(self) -> int:
        """The height and width of the grid in cells."""
        return self.edge // CELL


# Edge -> sizes of the drawing.
DRAWINGS = {16: Drawing(16, 5, 2, 1), 32: Drawing(32, 14, 3, 8), 64: Drawing(64, 36, 5, 40)}


@cache
def links(side: int) -> tuple[Tensor, Tensor]:
    """Return the links of a grid: the numbers of their two cells (E, 2), and their orbits (E,).

    Two links have the same orbit if a rotation or reflection of the grid maps one to the other.
    """
    cells, orbits = [], []
    for line in range(side):
        for start in range(side - 1):
            orbit = min(line, side - 1 - line) * side + min(start, side - 2 - start)
            row, column = line * side + start, start * side + line
            cells += [(row, row + 1), (column, column + side)]
            orbits += [orbit, orbit]
    return torch.tensor(cells), torch.tensor(orbits)


def draw_layouts(n: int, drawing: Drawing, generator: torch.Generator) -> tuple[Tensor, ...]:
    """Return the layouts of n images.

    The result is the cells of the paths, as numbers (n, K); the dashes of each path that can be
    moved away, (n, M), where 0 is the dash between the first two cells; and stray links (n, M + D):
    first the places to which these dashes are moved, then the D distractors.
    """
    drawn: list[tuple[Tensor, ...]] = []
    while sum(len(layouts[0]) for layouts in drawn) < n:
        paths, is_path = _grow_paths(n, drawing, generator)
        first = torch.randint(1, drawing.length - 1 - drawing.moved, (n, 1), generator=generator)
        gap = first + torch.arange(drawing.moved)
        stray, has_room = _choose_strays(paths, gap, drawing, generator)
        keep = is_path & has_room
        drawn.append((paths[keep], gap[keep], stray[keep]))
    return tuple(torch.cat(parts)[:n] for parts in zip(*drawn, strict=True))


def _grow_paths(n: int, drawing: Drawing, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Return paths (n, K) as numbers of cells, and a mask (n,) of the paths that can be used.

    A path starts in a random cell and goes on to random free neighbours. It cannot be used if it
    gets stuck, or if its ends touch, because their dots would touch, too.
    """
    width = drawing.side + 2  # the grid has a border of cells that are never free
    free = torch.zeros(n, width, width, dtype=torch.bool)
    free[:, 1:-1, 1:-1] = True
    free = free.flatten(1)
    candidates = torch.arange(width**2).expand(n, -1)
    image, usable, cells = torch.arange(n), torch.ones(n, dtype=torch.bool), []
    for _ in range(drawing.length):
        is_free = free.gather(1, candidates)
        scores = torch.rand(candidates.shape, generator=generator).masked_fill(~is_free, -1)
        best = scores.argmax(1)
        usable &= is_free[image, best]
        cells.append(candidates[image, best])
        free[image, cells[-1]] = False
        moves = torch.tensor([-width, -1, 1, width])
        # a path that is stuck may be on the border: its candidates must stay inside the array
        candidates = (cells[-1][:, None] + moves).clamp(0, width**2 - 1)
    bordered = torch.stack(cells, 1)
    rows, columns = bordered // width - 1, bordered % width - 1
    ends_touch = torch.ones(n, dtype=torch.bool)
    for place in (rows, columns):
        ends_touch &= (place[:, 0] - place[:, -1]).abs() <= 1
    return rows * drawing.side + columns, usable & ~ends_touch


def _choose_strays(
    paths: Tensor, gap: Tensor, drawing: Drawing, generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    """Return stray links (n, M + D) that touch no cell of the paths (n, K), and a mask (n,).

    The first M stray links have the orbits of the path's links number `gap`, (n, M). The mask is
    True if there are enough stray links.
    """
    ends, orbits = links(drawing.side)
    image = torch.arange(len(paths))
    used = torch.zeros(len(paths), drawing.side**2, dtype=torch.bool)
    used.scatter_(1, paths.clamp(0, drawing.side**2 - 1), True)
    touches = used[:, ends].any(-1)  # (n, E)
    scores = torch.rand(touches.shape, generator=generator).masked_fill(touches, -1)
    strays, has_room = [], torch.ones(len(paths), dtype=torch.bool)
    for number in gap.T:
        cells = torch.stack([paths[image, number], paths[image, number + 1]], 1).sort(1).values
        orbit = orbits[(ends == cells[:, None]).all(-1).int().argmax(1)]
        best = scores.masked_fill(orbits != orbit[:, None], -1).max(1)
        has_room &= best.values >= 0
        scores[image, best.indices] = -1
        strays.append(best.indices[:, None])
    others = scores.topk(drawing.distractors)
    has_room &= (others.values >= 0).all(1)
    return torch.cat([*strays, others.indices], 1), has_room


def draw_images(n: int, drawing: Drawing, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Return images (n, edge, edge) float32 and labels (n,).

    Half of the labels are 1, or one fewer than half if n is odd.
    """
    paths, gap, stray = draw_layouts(n, drawing, generator)
    labels = torch.randperm(n, generator=generator) % 2
    joins = torch.stack([paths[:, :-1], paths[:, 1:]], -1)
    dashes = torch.cat([joins, links(drawing.side)[0][stray]], 1)  # (n, K - 1 + M + D, 2)
    is_whole = (labels == 1)[:, None]
    is_drawn = torch.ones(dashes.shape[:2], dtype=torch.bool)
    is_drawn.scatter_(1, gap, is_whole.expand(gap.shape))
    is_drawn[:, drawing.length - 1 : drawing.length - 1 + drawing.moved] = ~is_whole

    def centre(cells: Tensor) -> Tensor:
        return CELL * torch.stack([cells // drawing.side, cells % drawing.side], -1) + CENTRE

    images = torch.zeros(n, drawing.edge, drawing.edge)
    _light(images, centre(paths), DASH)
    start, stop = centre(dashes[..., 0]), centre(dashes[..., 1])
    dark = 1 + 2 * torch.randint(2, is_drawn.shape, generator=generator)
    for offset in range(1, CELL):
        pixels = start + offset * (stop - start) // CELL
        _light(images, pixels, DASH, is_drawn & (dark != offset))
    for row in (-1, 0, 1):
        for column in (-1, 0, 1):
            _light(images, centre(paths[:, [0, -1]]) + torch.tensor([row, column]), DOT)
    return images, labels


def _light(images: Tensor, pixels: Tensor, value: float, mask: Tensor | None = None) -> None:
    """Set pixels (n, P, 2) of images (n, edge, edge) to a value, where a mask (n, P) is True."""
    image = torch.arange(len(images))[:, None].expand(pixels.shape[:2])
    keep = torch.ones_like(image, dtype=torch.bool) if mask is None else mask
    images[image[keep], pixels[..., 0][keep], pixels[..., 1][keep]] = value


# Scale -> number of rows of train, validation and test.
ROWS = {
    "smoke": (64, 32, 32),
    # a run on paths16 at evening reads 4,800 rows, each once
    **dict.fromkeys(("quick", "evening"), (8_000, 500, 2_000)),
    **dict.fromkeys(("lab", "paper"), (16_000, 2_000, 4_000)),
}


def _shape(edge: int, scale: str) -> Shape:
    return Shape(2, edge**2, in_features=1, sizes=ROWS[scale], reshuffled=True, new_rows=True)


def load_paths(edge: int, scale: str, seed: int) -> TaskData:
    """Return pixels (n, edge², 1) float32 from 0 to 1, row after row, and labels 0 and 1."""
    generator = torch.Generator().manual_seed(seed)
    images, labels = draw_images(sum(ROWS[scale]), DRAWINGS[edge], generator)
    splits = consecutive_splits(images.flatten(1)[..., None], labels, ROWS[scale])
    return TaskData(*splits, n_classes=2, in_features=1)


for _edge in DRAWINGS:
    register_task(
        f"paths{_edge}",
        title=f"Paths {_edge}×{_edge}: are two dots joined by one dashed path? Pixel by pixel",
        source="made for this kit, after Linsley et al. (2018), arXiv:1805.08315",
        shape=partial(_shape, _edge),
    )(partial(load_paths, _edge))
