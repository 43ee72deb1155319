"""How many Pathfinder pictures a second one core draws, by the window's edge in pixels.

    python -m benchmarks.pathfinder

Counted is the processor's time, so that what else runs on the machine matters little; compiling comes first and is not
counted.
"""

from __future__ import annotations

import time
from statistics import median

from mambanorm.tasks.snakes import DRAWINGS, Drawing, draw

PICTURES = 400
REPEATS = 5


def pictures_a_second(drawing: Drawing) -> float:
    """The median of some repeats, each with other pictures."""
    draw(10, drawing)  # compiles the kernels and makes the brushes
    return median(_rate(drawing, seed) for seed in range(1, 1 + REPEATS))


def _rate(drawing: Drawing, seed: int) -> float:
    start = time.process_time()
    draw(PICTURES, drawing, seed)
    return PICTURES / (time.process_time() - start)


if __name__ == "__main__":
    for window, drawing in DRAWINGS.items():
        print(f"{window}×{window}: {pictures_a_second(drawing):,.0f} pictures a second on one core")
