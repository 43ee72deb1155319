"""How a Pathfinder picture is drawn: two long dashed snakes, short distractors, and two discs at snakes' ends.

Do the discs lie on the same snake? A snake grows dash by dash (a dash is a "paddle"); each turns a little from the one
before, and none touches another. Written anew from the description of the published generator (Linsley et al. 2018,
arXiv:1805.08315, code drewlinsley/pathfinder) with the settings of Long Range Arena (Tay et al. 2021, arXiv:2011.04006).

Map
    Drawing, DRAWINGS   the settings, by the window's edge in pixels
    draw                n pictures and labels: the same for the same seed, each picture independent of the others
    Brush               every dash there can be, drawn once; the kernels below only copy
    _picture            one picture: _pair, _distractors, discs

Glossary: cell = a pixel as (y, x); L = paddle length, m = margin; head, tail = last and first cell of a dash; ink = a
dash's picture; block = the cells that a dash and its margin keep free of others; pivot = the cell a dash swings around,
L + m behind its head; mask = the cells blocked so far. A move by (d, θ) is ceil of (d·sin θ, d·cos θ).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import numba
import numpy as np
from PIL import Image
from tqdm.auto import tqdm

from mambanorm.errors import unknown

FINE = 2  # dashes are drawn so many times larger and scaled down (Lanczos), which smooths their edges
PADDING = 1  # cells at the edge that stay empty
DRAWS = 3  # tries for one dash, and for the second seed, before the pair starts again
ATTEMPTS = 5  # of a distractor
OVERLAP = 1.8  # masks are 0 or 1: what reaches this stands on something
PATIENCE = 100_000  # pairs begun for one picture


@dataclass(frozen=True)
class Drawing:
    """The settings of one picture, in pixels, contrasts as fractions of white."""

    window: int
    margins: tuple[int, ...]  # one of them is drawn for each picture
    seed_distance: int  # between the two snakes' first tails
    marker_radius: float
    paddle_length: int
    paddle_thickness: float
    continuity: float  # the larger, the straighter
    distractors: int
    snake_contrast: float
    paddle_contrast: float = 1.0
    contour_length: int = 14  # dashes of a snake
    distractor_length: int = 4


DRAWINGS = {
    32: Drawing(32, (1,), 7, 1.5, 2, 0.5, 1.0, 5, 2.0, paddle_contrast=0.75),
    64: Drawing(64, (1,), 12, 2.5, 5, 1.0, 1.8, 5, 0.8),
    128: Drawing(128, (2, 3), 20, 3.0, 5, 1.5, 1.8, 8, 0.9),
}


def draw(
    n: int, drawing: Drawing, seed: int = 0, done: Callable[[int], None] | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """n pictures (n, H, W) uint8 and labels (n,), 1 = both discs on one snake; picture i depends on seed and i alone.

    ValueError where a picture cannot hold its snakes. A progress bar appears when it takes longer than two seconds.
    """
    edge = drawing.window
    pictures, labels = np.zeros((n, edge, edge), np.uint8), np.zeros(n, np.int64)
    work = np.zeros((edge, edge), np.float32)
    for i in tqdm(range(n), desc=f"Pathfinder {edge}", unit=" pictures", delay=2, mininterval=1):
        state = np.random.SeedSequence([seed, i]).generate_state(1, np.uint64)
        brush = make_brush(drawing, drawing.margins[int(_uniform(state) * len(drawing.margins))])
        labels[i] = _picture(state, work, brush, *_numbers(drawing))
        if labels[i] < 0:
            raise ValueError(f"no room for two snakes in {PATIENCE:,} tries: shorten or widen {drawing}")
        work -= work.min()
        np.rint(work * (255 / work.max()), out=work)
        pictures[i] = work
    return pictures, labels


def _numbers(drawing: Drawing) -> tuple[int, int, int, int, float]:
    """What the kernel needs besides the brush."""
    lengths = drawing.contour_length, drawing.distractor_length, drawing.distractors
    return (*lengths, drawing.seed_distance, drawing.snake_contrast)


# ---------------------------------------------------------------------------------------------- the brush


class Brush(NamedTuple):
    """Tables over the A directions that a dash can have: 360 degrees, then the way to each candidate cell."""

    ink: np.ndarray  # (A, k, k) the dash that ends in the centre, with its contrast
    block: np.ndarray  # (A, k, k) 1 where it or its margin lies
    tail: np.ndarray  # (A, 2) from the head to the tail
    back: np.ndarray  # (A, 2) from the head to the pivot
    ahead: np.ndarray  # (A, 2) from a pivot to the next one
    away: np.ndarray  # (360, 2) from the first seed's tail to the second's
    ring: np.ndarray  # (K, 2) candidates for a head, from the pivot
    bend: np.ndarray  # (A, K) how likely the direction turns into the candidate's
    near: np.ndarray  # (P, 2) the margin around a cell
    disc: np.ndarray  # (Q, 2) a marker


def _move(distance: float, angle: np.ndarray) -> np.ndarray:
    """(…, 2) cells; rounded first, so that no machine's cos(90°) is taken for a little more than 0."""
    exact = distance * np.stack([np.sin(angle), np.cos(angle)], -1)
    return np.ceil(exact.round(9)).astype(np.int64)


def _disc(radius: float) -> np.ndarray:
    """(P, 2) cells within a radius of the origin."""
    reach = int(radius)
    cells = np.stack(np.mgrid[-reach : reach + 1, -reach : reach + 1], -1).reshape(-1, 2)
    return cells[(cells**2).sum(1) <= radius**2]


@lru_cache(maxsize=16)
def make_brush(drawing: Drawing, margin: int) -> Brush:
    """Every dash of a drawing with one margin."""
    length, degrees = drawing.paddle_length, np.deg2rad(np.arange(-180, 180))
    ring = np.unique(_move(length + margin, degrees), axis=0)
    angles = np.concatenate([degrees, np.arctan2(ring[:, 0], ring[:, 1])])
    turn = np.abs((angles[:, None] - angles[None, 360:] + math.pi) % (2 * math.pi) - math.pi)
    bend = np.maximum(np.cos(np.minimum(drawing.continuity * turn, math.pi / 2)), 0) ** 2
    ink = np.stack([_ink(drawing, margin, angle) for angle in angles])
    return Brush(
        ink=ink * np.float32(drawing.paddle_contrast),
        block=np.stack([_dilated(one >= 0.2, _disc(margin)) for one in ink]),
        tail=_move(length, angles + math.pi),
        back=_move(length + margin, angles + math.pi),
        ahead=_move(length + 2 * margin, angles),
        away=_move(drawing.seed_distance, degrees),
        ring=ring,
        bend=bend,
        near=_disc(margin),
        disc=_disc(drawing.marker_radius),
    )


def _ink(drawing: Drawing, margin: int, angle: float) -> np.ndarray:
    """(k, k) a dash that ends in the centre and comes from where `angle` points away from."""
    reach = drawing.paddle_length + margin + 2
    width = round(FINE * drawing.paddle_thickness)
    # an odd width is centred in a pixel, an even one between two
    middle = FINE * reach + FINE / 2 - 0.5 * (width % 2)
    y, x = np.mgrid[: FINE * (2 * reach + 1), : FINE * (2 * reach + 1)] + 0.5 - middle
    along = np.clip(-(y * np.sin(angle) + x * np.cos(angle)), 0, FINE * drawing.paddle_length)
    distance = np.hypot(y + along * np.sin(angle), x + along * np.cos(angle))
    fine = (distance.round(6) <= width / 2).astype(np.float32)
    k = 2 * reach + 1
    return np.asarray(Image.fromarray(fine).resize((k, k), Image.Resampling.LANCZOS)).clip(0, 1)


def _dilated(cells: np.ndarray, disc: np.ndarray) -> np.ndarray:
    """1 at every cell that the disc around a true cell reaches."""
    out = np.zeros(cells.shape, np.float32)
    for y, x in np.argwhere(cells):
        out[y + disc[:, 0], x + disc[:, 1]] = 1
    return out


# ---------------------------------------------------------------------------------------------- kernels
# Positions are pairs of ints; a snake under way is `heads` (its cells and directions, a row a dash) and its pivot.


def _jit(function: Callable) -> Callable:
    """`numba.njit`, compiled once for all time where the cache can be written."""
    try:
        return numba.njit(cache=True, nogil=True)(function)
    except RuntimeError:  # neither the package's folder nor the user's can be written
        return numba.njit(nogil=True)(function)


@_jit
def _uniform(state):
    """The next number in [0, 1) of a splitmix64 generator: the same on every machine."""
    state[0] += np.uint64(0x9E3779B97F4A7C15)
    z = state[0]
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    z = z ^ (z >> np.uint64(31))
    return np.float64(z >> np.uint64(11)) / 9007199254740992.0


@_jit
def _whole(state, n):
    """A whole number in 0…n−1."""
    return np.int64(_uniform(state) * n)


@_jit
def _stamp(target, patch, y, x):
    """The larger of target and patch, the patch centred on (y, x)."""
    reach = patch.shape[0] // 2
    for i in range(max(0, reach - y), min(patch.shape[0], target.shape[0] + reach - y)):
        for j in range(max(0, reach - x), min(patch.shape[1], target.shape[1] + reach - x)):
            here = patch[i, j]
            if here > target[y - reach + i, x - reach + j]:
                target[y - reach + i, x - reach + j] = here


@_jit
def _fits(mask, block, y, x):
    """Whether the block centred on (y, x) lies inside the window and stands on nothing."""
    reach = block.shape[0] // 2
    for i in range(block.shape[0]):
        for j in range(block.shape[1]):
            if block[i, j] > 0:
                row, column = y - reach + i, x - reach + j
                if row < 0 or column < 0 or row >= mask.shape[0] or column >= mask.shape[1]:
                    return False
                if mask[row, column] + block[i, j] >= OVERLAP:
                    return False
    return True


@_jit
def _free(mask, near, y, x):
    """Whether the cell and its margin are inside the window and not blocked."""
    for k in range(near.shape[0]):
        row, column = y + near[k, 0], x + near[k, 1]
        if row < 0 or column < 0 or row >= mask.shape[0] or column >= mask.shape[1] or mask[row, column] > 0:
            return False
    return True


@_jit
def _begin(mask, heads, pivot, brush, y, x, angle):
    """The first dash of a snake: its tail at (y, x)."""
    heads[0, 0], heads[0, 1], heads[0, 2] = y - brush.tail[angle, 0], x - brush.tail[angle, 1], angle
    pivot[0], pivot[1] = heads[0, 0] + brush.back[angle, 0], heads[0, 1] + brush.back[angle, 1]
    return _fits(mask, brush.block[angle], heads[0, 0], heads[0, 1])


@_jit
def _extend(state, mask, heads, pivot, k, brush, weights):
    """Dash k of a snake, or False where it finds no place; `mask` leaves out the dash before."""
    angle = heads[k - 1, 2]
    y, x = pivot[0] + brush.ahead[angle, 0], pivot[1] + brush.ahead[angle, 1]
    total = 0.0
    for j in range(brush.ring.shape[0]):
        weights[j] = 0.0
        if brush.bend[angle, j] > 0 and _free(mask, brush.near, y + brush.ring[j, 0], x + brush.ring[j, 1]):
            weights[j] = brush.bend[angle, j]
        total += weights[j]
    if total <= 1e-9:
        return False
    for _ in range(DRAWS):
        left, chosen = _uniform(state) * total, 0
        for j in range(brush.ring.shape[0]):
            if weights[j] > 0:
                chosen = j
                left -= weights[j]
                if left < 0:
                    break
        head_y, head_x = y + brush.ring[chosen, 0], x + brush.ring[chosen, 1]
        if _fits(mask, brush.block[360 + chosen], head_y, head_x):
            heads[k, 0], heads[k, 1], heads[k, 2] = head_y, head_x, 360 + chosen
            pivot[0], pivot[1] = y, x
            return True
    return False


@_jit
def _seeds(state, mask, one, two, pivots, brush, seed_distance):
    """The first dashes of both snakes, or False."""
    edge, border = mask.shape[0], 2 * seed_distance
    y, x, angle = border + _whole(state, edge - 2 * border), border + _whole(state, edge - 2 * border), 0
    inside = False
    for _ in range(100):  # the dash, not its margin, lies in the middle of the window
        angle = _whole(state, 360)
        head_y, head_x = y - brush.tail[angle, 0], x - brush.tail[angle, 1]
        inside = border <= head_y < edge - border and border <= head_x < edge - border
        if inside:
            break
        y, x = border + _whole(state, edge - 2 * border), border + _whole(state, edge - 2 * border)
    if not inside or not _begin(mask, one, pivots[0], brush, y, x, angle):
        return False
    for _ in range(DRAWS):
        way = _whole(state, 360)
        y_two, x_two = y + brush.away[way, 0], x + brush.away[way, 1]
        if _begin(mask, two, pivots[1], brush, y_two, x_two, _whole(state, 360)):
            return True
    return False


@_jit
def _pair(state, empty, snakes, brush, seed_distance):
    """Two snakes (2, length, 3) that grow in turns, or False where one of them is stuck.

    `seen[s]` is what snake s must keep clear of: everything but its own last dash, which the next one comes close to.
    """
    pivots, weights = np.zeros((2, 2), np.int64), np.zeros(brush.ring.shape[0])
    if not _seeds(state, empty, snakes[0], snakes[1], pivots, brush, seed_distance):
        return False
    seen = np.empty((2, *empty.shape), np.float32)
    for s in range(2):
        seen[s] = empty
    for s in range(2):
        _stamp(seen[1 - s], brush.block[snakes[s, 0, 2]], snakes[s, 0, 0], snakes[s, 0, 1])
    for k in range(1, snakes.shape[1]):
        for s in range(2):
            if not _extend(state, seen[s], snakes[s], pivots[s], k, brush, weights):
                return False
            last, new = snakes[s, k - 1], snakes[s, k]
            _stamp(seen[s], brush.block[last[2]], last[0], last[1])
            _stamp(seen[1 - s], brush.block[new[2]], new[0], new[1])
    return True


@_jit
def _distractor(state, mask, heads, brush):
    """A short snake anywhere, or False."""
    pivot, weights, edge = np.zeros(2, np.int64), np.zeros(brush.ring.shape[0]), mask.shape[0]
    placed = False
    for _ in range(100):
        placed = _begin(mask, heads, pivot, brush, _whole(state, edge), _whole(state, edge), _whole(state, 360))
        if placed:
            break
    if not placed:
        return False
    seen = mask.copy()
    for k in range(1, heads.shape[0]):
        if not _extend(state, seen, heads, pivot, k, brush, weights):
            return False
        _stamp(seen, brush.block[heads[k - 1, 2]], heads[k - 1, 0], heads[k - 1, 1])
    return True


@_jit
def _ink_in(picture, mask, heads, brush):
    """A finished snake, drawn and blocked."""
    for k in range(heads.shape[0]):
        _stamp(picture, brush.ink[heads[k, 2]], heads[k, 0], heads[k, 1])
        _stamp(mask, brush.block[heads[k, 2]], heads[k, 0], heads[k, 1])


@_jit
def _mark(picture, disc, y, x):
    """A disc of value 1."""
    for k in range(disc.shape[0]):
        row, column = y + disc[k, 0], x + disc[k, 1]
        if 0 <= row < picture.shape[0] and 0 <= column < picture.shape[1]:
            picture[row, column] = max(picture[row, column], 1)


@_jit
def _picture(state, picture, brush, contour_length, distractor_length, distractors, seed_distance, snake_contrast):
    """One picture into `picture`; returns its label, or −1 where two snakes found no room."""
    label = _whole(state, 2)  # first, so that no picture's difficulty decides its label
    mask = np.zeros(picture.shape, np.float32)
    mask[:PADDING], mask[-PADDING:], mask[:, :PADDING], mask[:, -PADDING:] = 1, 1, 1, 1
    snakes = np.zeros((2, contour_length, 3), np.int64)
    tries = 0
    while not _pair(state, mask, snakes, brush, seed_distance):
        tries += 1
        if tries >= PATIENCE:
            return -1
    picture[:] = 0
    for s in range(2):
        _ink_in(picture, mask, snakes[s], brush)
    short = np.zeros((distractor_length, 3), np.int64)
    for _ in range(distractors):
        if mask.mean() > 0.99:
            break
        for _ in range(ATTEMPTS):
            if _distractor(state, mask, short, brush):
                _ink_in(picture, mask, short, brush)
                break
    picture *= np.float32(snake_contrast)
    s = _whole(state, 2)
    first, last = snakes[s, 0], snakes[s if label == 1 else 1 - s, contour_length - 1]
    _mark(picture, brush.disc, first[0] + brush.tail[first[2], 0], first[1] + brush.tail[first[2], 1])
    _mark(picture, brush.disc, last[0], last[1])
    return label
