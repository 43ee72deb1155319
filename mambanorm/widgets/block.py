"""explore_block: put a norm at every site of the model; see the diagram, what it costs, and what it was worth."""

from __future__ import annotations

from mambanorm.figures.arm_view import fig_arm_view
from mambanorm.figures.style import StudyFigure
from mambanorm.norms import NORMS
from mambanorm.study.arm_facts import arm_facts
from mambanorm.widgets.explorer import Explorer, choice
from mambanorm.widgets.recorded import recorded_arm

OUTSIDE = "recorded were models\nwithout norms outside the blocks"
ABSENT = "this arm is not recorded:\nmambanorm sweep --arms trains it"


def _draw(n1: str, n2: str, stem_norm: str, final_norm: str) -> StudyFigure:
    arm, outside = f"{n1}>SSM>{n2}", dict(stem_norm=stem_norm, final_norm=final_norm)
    results = recorded_arm(arm)
    alone = stem_norm == final_norm == "None"
    note = ABSENT if alone else OUTSIDE
    return fig_arm_view(arm_facts(arm, **outside), results if alone else results.iloc[:0], note=note, **outside)


def explore_block() -> Explorer:
    """Pick N1, N2, the norm after the stem and the one before the head: the diagram, the parameters of every place, the
    time of a block, and the recorded accuracy of the arm."""
    names = list(NORMS)
    return Explorer(
        _draw,
        n1=choice("RMSN", names, "N1"),
        n2=choice("GN", names, "N2"),
        stem_norm=choice("None", names, "stem norm"),
        final_norm=choice("None", names, "final norm"),
    )
