"""How a Pathfinder picture is drawn: two long dashed snakes, short distractors, and two discs at snakes' ends.

Do the discs lie on the same snake? A snake grows dash by dash (a dash is a "paddle"). Each dash turns a little from the
one before, and none touches another. Written anew from the description of the published generator (Linsley et al. 2018,
arXiv:1805.08315, code drewlinsley/pathfinder) with the settings of Long Range Arena (Tay et al. 2021,
arXiv:2011.04006). It differs in two ways. A stuck snake takes back a few dashes (see `_grow`). Distractors stop after a
number of attempts, not below 1 % free area.

Glossary: cell = a pixel as (y, x); L = paddle length, m = margin; head, tail = last and first cell of a dash; ink = a
dash's picture; block = the cells that a dash and its margin keep free of others; pivot = the cell a dash swings around,
L + m behind its head; mask = how often each cell is blocked. A move by (d, θ) is ceil of (d·sin θ, d·cos θ).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import numba
import numpy as np
from tqdm.auto import tqdm

from mambanorm.basics.settings import Later

Image = Later("PIL.Image")

FINE = 2  # dashes are drawn so many times larger and scaled down (Lanczos), which smooths their edges
INK = 0.2  # how dark a cell must be to count as a dash's
PADDING = 1  # cells at the edge that stay empty
DRAWS = 3  # tries for one dash, and for the second seed
ATTEMPTS = 5  # of a distractor
BACK = 6  # dashes that a stuck snake takes back at most
STUCK = 8  # times that snakes take dashes back before they start anew
PATIENCE = 10_000  # starts of the pair of one picture


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


def draw(n: int, drawing: Drawing, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """n pictures (n, H, W) uint8 and labels (n,), 1 = both discs on one snake; picture i depends on seed and i alone.

    ValueError where a picture cannot hold its snakes. A progress bar appears when it takes longer than two seconds.
    """
    edge = drawing.window
    pictures, labels = np.zeros((n, edge, edge), np.uint8), np.zeros(n, np.int64)
    work = np.zeros((edge, edge), np.float32)
    for i in tqdm(range(n), desc=f"Pathfinder {edge}", unit=" pictures", delay=2, mininterval=1):
        state = np.random.SeedSequence([seed, i]).generate_state(1, np.uint64)
        brush = make_brush(drawing, drawing.margins[int(_uniform(state) * len(drawing.margins))])
        labels[i] = _picture(
            state,
            work,
            *brush,
            drawing.contour_length,
            drawing.distractor_length,
            drawing.distractors,
            drawing.seed_distance,
            drawing.snake_contrast,
        )
        if labels[i] < 0:
            raise ValueError(f"no room for two snakes in {PATIENCE:,} tries: shorten or widen {drawing}")
        work -= work.min()
        np.rint(work * (255 / work.max()), out=work)
        pictures[i] = work
    return pictures, labels


# ---------------------------------------------------------------------------------------------- the brush


class Brush(NamedTuple):
    """Tables over the A directions that a dash can have: 360 degrees, then the way to each candidate cell."""

    ink: np.ndarray  # (A, k, k) the dash that ends in the centre, with its contrast
    block: np.ndarray  # (A, M, 2) cells of the dash and its margin, from the head; short lists repeat their first cell
    tail: np.ndarray  # (A, 2) from the head to the tail
    back: np.ndarray  # (A, 2) from the head to the pivot
    ahead: np.ndarray  # (A, 2) from a pivot to the next one
    away: np.ndarray  # (360, 2) from the first seed's tail to the second's
    ring: np.ndarray  # (K, 2) candidates for a head, from the pivot
    turns: np.ndarray  # (A, T) those of them that a direction can turn into, the likeliest first
    bend: np.ndarray  # (A, T) how likely each is, 0 where there are fewer than T
    near: np.ndarray  # (1, P, 2) the margin around a cell
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
    # rounded, so that a right angle is exactly impossible, and equal turns are equal on every machine
    bend = (np.cos(np.minimum(drawing.continuity * turn, math.pi / 2)) ** 2).round(9)
    turns = np.argsort(-bend, axis=1, kind="stable")[:, : (bend > 0).sum(1).max()]
    ink = np.stack([_ink(drawing, margin, angle) for angle in angles])
    return Brush(
        ink=ink * np.float32(drawing.paddle_contrast),
        block=_blocks(ink, _disc(margin)),
        tail=_move(length, angles + math.pi),
        back=_move(length + margin, angles + math.pi),
        ahead=_move(length + 2 * margin, angles),
        away=_move(drawing.seed_distance, degrees),
        ring=ring,
        turns=turns,
        bend=np.take_along_axis(bend, turns, 1),
        near=_disc(margin)[None],
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


def _blocks(ink: np.ndarray, disc: np.ndarray) -> np.ndarray:
    """(A, M, 2) every cell that the disc around a cell with ink reaches."""
    reach, found = ink.shape[1] // 2, []
    for one in ink:
        cells = (np.argwhere(one >= INK) - reach)[:, None] + disc[None]
        found.append(np.unique(cells.reshape(-1, 2), axis=0))
    most = max(map(len, found))
    return np.stack([np.concatenate([cells, cells[:1].repeat(most - len(cells), 0)]) for cells in found])


# ---------------------------------------------------------------------------------------------- kernels
# A snake is an array, a row a dash: head (y, x), direction, pivot (y, x). The mask counts the blocks on each cell, so
# that a dash can be taken back. Arrays are passed one by one: numba takes long to compile for the tuple.


def _jit(function: Callable) -> Callable:
    """`numba.njit`, compiled only once where the cache can be written."""
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
def _fits(mask, cells, a, y, x):
    """Whether the cells a around (y, x) lie inside the window and nothing blocks them."""
    for i in range(cells.shape[1]):
        row, column = y + cells[a, i, 0], x + cells[a, i, 1]
        if row < 0 or column < 0 or row >= mask.shape[0] or column >= mask.shape[1] or mask[row, column] > 0:
            return False
    return True


@_jit
def _block(mask, block, dash, by):
    """Blocks a dash's cells (by = 1) or frees them again (by = −1)."""
    for i in range(block.shape[1]):
        mask[dash[0] + block[dash[2], i, 0], dash[1] + block[dash[2], i, 1]] += by


@_jit
def _begin(mask, dash, y, x, angle, block, tail, back):
    """The first dash of a snake, its tail at (y, x); whether it fits."""
    dash[0], dash[1], dash[2] = y - tail[angle, 0], x - tail[angle, 1], angle
    dash[3], dash[4] = dash[0] + back[angle, 0], dash[1] + back[angle, 1]
    return _fits(mask, block, angle, dash[0], dash[1])


@_jit
def _extend(state, mask, last, new, block, ahead, ring, turns, bend, near, weights):
    """The dash after `last`, whose own cells are free meanwhile; whether there is a place for it."""
    a, total = last[2], 0.0
    y, x = last[3] + ahead[a, 0], last[4] + ahead[a, 1]
    for j in range(turns.shape[1]):
        weights[j] = bend[a, j]
        if weights[j] > 0 and not _fits(mask, near, 0, y + ring[turns[a, j], 0], x + ring[turns[a, j], 1]):
            weights[j] = 0.0
        total += weights[j]
    if total == 0:
        return False
    for _ in range(DRAWS):
        left, chosen = _uniform(state) * total, 0
        for j in range(turns.shape[1]):
            if weights[j] > 0:
                chosen = turns[a, j]
                left -= weights[j]
                if left < 0:
                    break
        if _fits(mask, block, 360 + chosen, y + ring[chosen, 0], x + ring[chosen, 1]):
            new[0], new[1], new[2], new[3], new[4] = y + ring[chosen, 0], x + ring[chosen, 1], 360 + chosen, y, x
            return True
    return False


@_jit
def _grow(state, mask, snakes, patience, block, ahead, ring, turns, bend, near):
    """Grows the snakes (S, length, 5) from their first dashes, in turns, and blocks their cells; or False.

    A snake keeps clear of everything but its own last dash. One that is stuck takes a few dashes back, `patience` times
    in all, before all start anew: a picture of 64 pixels then takes 70 starts. The published generator never takes any
    back, which takes 4,500. The snakes' mean turn and span come out within 4 % of what they would be that way.
    """
    weights, lengths, stuck = np.zeros(turns.shape[1]), np.ones(snakes.shape[0], np.int64), 0
    for s in range(snakes.shape[0]):
        _block(mask, block, snakes[s, 0], 1)
    while lengths.min() < snakes.shape[1]:
        s = lengths.argmin()
        k = lengths[s]
        _block(mask, block, snakes[s, k - 1], -1)
        found = _extend(state, mask, snakes[s, k - 1], snakes[s, k], block, ahead, ring, turns, bend, near, weights)
        _block(mask, block, snakes[s, k - 1], 1)
        if found:
            _block(mask, block, snakes[s, k], 1)
            lengths[s] += 1
            continue
        stuck += 1
        if stuck > patience:
            for s in range(snakes.shape[0]):
                _take_back(mask, block, snakes[s], lengths[s], 0)
            return False
        lengths[s] = max(1, k - 1 - _whole(state, BACK))
        _take_back(mask, block, snakes[s], k, lengths[s])
    return True


@_jit
def _take_back(mask, block, snake, length, left):
    """Frees the cells of all but the first `left` of a snake's dashes."""
    for k in range(left, length):
        _block(mask, block, snake[k], -1)


@_jit
def _seeds(state, mask, one, two, block, tail, back, away, seed_distance):
    """The first dashes of both snakes, the first one's in the middle of the window; or False."""
    edge, border = mask.shape[0], 2 * seed_distance
    for _ in range(100):
        angle = _whole(state, 360)
        y, x = border + _whole(state, edge - 2 * border), border + _whole(state, edge - 2 * border)
        if not _begin(mask, one, y, x, angle, block, tail, back):
            continue
        if min(one[0], one[1]) < border or max(one[0], one[1]) >= edge - border:
            continue
        for _ in range(DRAWS):
            way = _whole(state, 360)
            if _begin(mask, two, y + away[way, 0], x + away[way, 1], _whole(state, 360), block, tail, back):
                return True
    return False


@_jit
def _paint(picture, ink, snake):
    """The larger of picture and ink, dash by dash."""
    reach = ink.shape[1] // 2
    for k in range(snake.shape[0]):
        for i in range(ink.shape[1]):
            for j in range(ink.shape[2]):
                y, x = snake[k, 0] - reach + i, snake[k, 1] - reach + j
                if 0 <= y < picture.shape[0] and 0 <= x < picture.shape[1]:
                    picture[y, x] = max(picture[y, x], ink[snake[k, 2], i, j])


@_jit
def _mark(picture, disc, y, x):
    """A disc of value 1."""
    for k in range(disc.shape[0]):
        row, column = y + disc[k, 0], x + disc[k, 1]
        if 0 <= row < picture.shape[0] and 0 <= column < picture.shape[1]:
            picture[row, column] = max(picture[row, column], np.float32(1))


@_jit
def _picture(
    state, picture, ink, block, tail, back, ahead, away, ring, turns, bend, near, disc,
    contour_length, distractor_length, distractors, seed_distance, snake_contrast,
):  # fmt: skip
    """One picture into `picture`; returns its label, or −1 where two snakes found no room."""
    label = _whole(state, 2)  # first, so that no picture's difficulty decides its label
    mask, edge = np.zeros(picture.shape, np.int32), picture.shape[0]
    for i in range(edge):
        for j in range(PADDING):
            mask[i, j], mask[i, edge - 1 - j], mask[j, i], mask[edge - 1 - j, i] = 1, 1, 1, 1
    snakes = np.zeros((2, contour_length, 5), np.int64)
    tries = 0
    while True:
        if _seeds(state, mask, snakes[0, 0], snakes[1, 0], block, tail, back, away, seed_distance) and _grow(
            state, mask, snakes, STUCK, block, ahead, ring, turns, bend, near
        ):
            break
        tries += 1
        if tries >= PATIENCE:
            return -1
    picture[:] = 0
    for s in range(2):
        _paint(picture, ink, snakes[s])
    short = np.zeros((1, distractor_length, 5), np.int64)
    for _ in range(distractors):
        for _ in range(ATTEMPTS):
            found = False
            for _ in range(100):
                y, x, angle = _whole(state, edge), _whole(state, edge), _whole(state, 360)
                found = _begin(mask, short[0, 0], y, x, angle, block, tail, back)
                if found:
                    break
            # it takes no dash back: it has its attempts
            if found and _grow(state, mask, short, 0, block, ahead, ring, turns, bend, near):
                _paint(picture, ink, short[0])
                break
    picture *= np.float32(snake_contrast)
    s = _whole(state, 2)
    first, last = snakes[s, 0], snakes[s if label == 1 else 1 - s, contour_length - 1]
    _mark(picture, disc, first[0] + tail[first[2], 0], first[1] + tail[first[2], 1])
    _mark(picture, disc, last[0], last[1])
    return label
