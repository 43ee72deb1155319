"""All notebooks that compare arms: are the reader's fresh runs as the recorded runs predict?"""

import pandas as pd

from mambanorm_study.answers.phrases import join_words
from mambanorm_study.basics.text import plural
from mambanorm_study.tables.run_tables import label

# Where a run may lie apart from its interval (`replication.replication`) → how the answer names it.
APART = {
    "diverged": "Diverged, and counted apart",
    "failed": "Could not be trained",
    "untold": "Too few recorded runs to tell",
}


def replicated(table: pd.DataFrame) -> str:
    """Return how many fresh runs lie inside the prediction intervals, and which do not.

    table: `replication.replication`.
    """
    if table.empty:
        return "No run was replicated here."
    seeds = join_words(f"{seed:,}" for seed in sorted(set(table.seed)))
    lines = [
        f"**Your machine's own runs**: {plural(len(table), 'run')} on a seed that no one has "
        f"recorded ({seeds}).",
        "",
    ]
    judged = table[~table.lies.isin(APART)]
    outside = judged[judged.lies != "inside"]
    if len(judged):
        lines.append(
            f"{len(judged) - len(outside)} of {len(judged)} lie inside the 95 % prediction "
            "interval of the recorded runs. One in twenty is expected outside. Runs of one seed "
            "share their data, so several may miss together."
        )
    for row in outside.itertuples():
        digits, unit = (3, " bits a character") if row.unit == "bits" else (1, " %")
        lines.append(
            f"- Outside: {_run_name(row)}, seed {row.seed:,}, has {row.value:.{digits}f}{unit}; "
            f"expected was {row.low:.{digits}f} to {row.high:.{digits}f}."
        )
    for lies, text in APART.items():
        names = [_run_name(row) for row in table[table.lies == lies].itertuples()]
        if names:
            lines.append(f"- {text}: {join_words(names)}.")
    return "\n".join(lines)


def _run_name(row) -> str:
    return f"{label(row.arm)} on {row.task}"
