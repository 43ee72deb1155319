"""explore_norms: pick a norm and its scope, move the channels' means and spreads, see what is left of them."""

from __future__ import annotations

import ipywidgets as w
import torch

from mambanorm.figures.explorers import fig_norm_view
from mambanorm.figures.lessons import example_batch
from mambanorm.figures.style import StudyFigure
from mambanorm.lessons.invariance import CHANGES, FELT, felt, prepared_norm
from mambanorm.norms import NORMS
from mambanorm.widgets.explorer import Explorer, buttons, choice, show, slider

TOKEN, SEQUENCE = "per token", "whole sequence"
GROUPS = (1, 2, 4, 8, 16)


def scopes(name: str) -> dict[str, str]:
    """Scope → the registered norm that takes its statistics so; one entry where the registry has a norm in one scope
    only. `LN` is per token and `LN-DL` over the sequence; of `GN` and `NormVary` it is the other way round."""
    if f"{name}-DL" in NORMS:
        return {TOKEN: name, SEQUENCE: f"{name}-DL"}
    if f"{name}-token" in NORMS:
        return {SEQUENCE: name, TOKEN: f"{name}-token"}
    return {TOKEN if NORMS[name].causal else SEQUENCE: name}


def base_names() -> list[str]:
    """The registered norms without those that are another's second scope."""
    return [name for name in NORMS if not name.endswith(("-DL", "-token"))]


def _arrange(controls: dict[str, w.Widget]) -> None:
    """The scopes of this norm; groups and scope only where they mean something."""
    found = scopes(controls["norm"].value)
    if tuple(controls["scope"].options) != tuple(found):
        chosen = controls["scope"].value
        with controls["scope"].hold_trait_notifications():
            controls["scope"].options = tuple(found)
            controls["scope"].value = chosen if chosen in found else next(iter(found))
    show(controls["scope"], len(found) > 1)
    show(controls["groups"], "groups" in NORMS[found[controls["scope"].value]].own)


def _draw(norm: str, scope: str, training: bool, groups: int, offset: float, spread: float) -> StudyFigure:
    name = scopes(norm)[scope]
    x, how = example_batch(offset=offset, spread=spread), dict(groups=groups, training=training)
    norm = prepared_norm(name, x, **how)
    with torch.no_grad():
        y = norm(x)
    moved = {change: felt(norm, change, x) for change in CHANGES}
    return fig_norm_view(name, x, y, moved, FELT, **how)


def explore_norms() -> Explorer:
    """Pick a norm, its scope and its mode, move the channels' means and spreads: the cube of the cells that share a
    statistic, a row before and after, all values, and what leaves the output unmoved."""
    return Explorer(
        _draw,
        arrange=_arrange,
        norm=choice("LN", base_names(), "norm"),
        scope=buttons(TOKEN, (TOKEN, SEQUENCE), "scope"),
        training=buttons(True, {"train": True, "eval": False}, "mode"),
        groups=choice(4, GROUPS, "groups"),
        offset=slider(2, 0, 10, "means"),
        spread=slider(3, 0, 6, "spreads"),
    )
