"""A norm, the block and its scan: what can be seen of them without training."""

import ipywidgets as w
import torch

from mambanorm.arms import MORE_SITES, PRESETS, SYMBOLS, Arm
from mambanorm.figures.explorers import fig_arm_view, fig_norm_view, fig_scan_view
from mambanorm.figures.lessons import example_batch
from mambanorm.figures.style import StudyFigure
from mambanorm.lessons.invariance import CHANGES, FELT, felt, prepared_norm
from mambanorm.norms import NORMS
from mambanorm.study.inside import INPUTS, parse_numbers, scan_by_hand
from mambanorm.study.norm_catalog import arm_facts
from mambanorm.widgets.explorer import Explorer, buttons, choice, log_slider, show, slider
from mambanorm.widgets.grid import recorded_arm

GROUPS = (1, 2, 4, 8, 16)


def _offer_groups(controls: dict[str, w.Widget]) -> None:
    """Only where they mean something."""
    show(controls["groups"], "groups" in NORMS[controls["norm"].value].own)


def _draw_norm(norm: str, training: bool, groups: int, offset: float, spread: float) -> StudyFigure:
    x, how = example_batch(offset=offset, spread=spread), dict(groups=groups, training=training)
    prepared = prepared_norm(norm, x, **how)
    with torch.no_grad():
        y = prepared(x)
    moved = {change: felt(prepared, change, x) for change in CHANGES}
    return fig_norm_view(norm, x, y, moved, FELT, **how)


def explore_norms() -> Explorer:
    """Pick a norm and its mode, move the channels' means and spreads: the cube of the cells that share a
    statistic, a row before and after, all values, and what leaves the output unmoved."""
    return Explorer(
        _draw_norm,
        arrange=_offer_groups,
        norm=choice("LN", list(NORMS), "norm"),
        training=buttons(True, {"train": True, "eval": False}, "mode"),
        groups=choice(4, GROUPS, "groups"),
        offset=slider(2, 0, 10, "means"),
        spread=slider(3, 0, 6, "spreads"),
    )


OUTSIDE = "recorded were models\nwithout norms outside the blocks"
ABSENT = "this arm is not recorded:\nmambanorm sweep --arms trains it"
OWN = "your own"
NAMED = {name: preset for name, preset in PRESETS.items() if preset.arm.more or preset.section == "4.5"}
"""The originals, the paper's proposals, and the published models that have norms at further sites."""


def _draw_arm(n1: str, n2: str, stem_norm: str, final_norm: str, weights: bool, **more: str) -> StudyFigure:
    arm, outside = str(Arm(n1, n2, more)), dict(stem_norm=stem_norm, final_norm=final_norm)
    facts = arm_facts(arm, **outside, weightless=not weights)
    results = recorded_arm(arm)
    alone = stem_norm == final_norm == "None"
    note = ABSENT if alone else OUTSIDE
    return fig_arm_view(facts, results if alone and weights else results.iloc[:0], note=note, **outside)


class BlockExplorer(Explorer):
    """A menu for each site, and one with the names of arms: choosing a name sets all the others."""

    def __init__(self):
        self.preset = choice(OWN, [OWN, *NAMED], "preset")
        small = dict(layout=w.Layout(width="180px"), style=dict(description_width="64px"))  # one layout for all
        names = list(NORMS)
        more = {site: w.Dropdown(options=names, description=SYMBOLS.get(site, site), **small) for site in MORE_SITES}
        super().__init__(
            _draw_arm,
            beside=(self.preset,),
            n1=choice("RMSN", names, "N1"),
            n2=choice("GN", names, "N2"),
            stem_norm=choice("None", names, "stem norm"),
            final_norm=choice("None", names, "final norm"),
            **more,
            weights=w.Checkbox(value=True, description="with weights", indent=False, **small),
        )
        for site, control in more.items():
            control.tooltip = MORE_SITES[site]
        self.preset.observe(self._take, "value")

    def _take(self, *_) -> None:
        """Puts the norms of the preset where they stand."""
        if self.preset.value not in (OWN, self._name()):
            self.put(**_controls_of(self.preset.value))

    def redraw(self, *_) -> None:
        super().redraw()
        if not self._putting:
            self.preset.value = self._name()

    def _name(self) -> str:
        """The preset that the controls are now; the first of those with the same norms."""
        values = self.values
        return next((name for name in NAMED if _controls_of(name).items() <= values.items()), OWN)


def _controls_of(name: str) -> dict[str, object]:
    """What the controls are for a preset."""
    preset = NAMED[name]
    return dict.fromkeys(MORE_SITES, "None") | preset.arm.sites | {"weights": not preset.options}


def explore_block() -> BlockExplorer:
    """Pick N1, N2, the norms at further sites, the one after the stem and the one before the head, or a published model
    by its name: the diagram, the parameters of every place, the time of a block, and the recorded accuracy of the
    arm."""
    return BlockExplorer()


BY_HAND = "by hand"


def _ask_for_numbers(controls: dict[str, w.Widget]) -> None:
    show(controls["numbers"], controls["source"].value == BY_HAND)


def _draw_scan(source: str, numbers: str, delta: float, a: float, selective: bool) -> StudyFigure:
    u = parse_numbers(numbers) if source == BY_HAND else INPUTS[source]
    return fig_scan_view(scan_by_hand(u, delta, a, selective=selective), delta=delta, a=a)


def explore_scan() -> Explorer:
    """Move Δ and the decay rate, choose or type an input, let Δ follow the input: what the states keep and forget."""
    wide = w.Layout(width="480px", max_width="100%")
    return Explorer(
        _draw_scan,
        arrange=_ask_for_numbers,
        source=choice("two impulses", [*INPUTS, BY_HAND], "input"),
        numbers=w.Text("0 0 1 0 0 0 0 -2 0 0 0 0", description="numbers", continuous_update=False, layout=wide),
        delta=log_slider(0.2, 0.01, 10, "Δ"),
        a=log_slider(1.0, 0.1, 10, "rate |A|"),
        selective=buttons(False, {"the same everywhere": False, "follows the input": True}, "Δ is"),
    )
