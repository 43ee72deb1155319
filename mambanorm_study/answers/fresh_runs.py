"""For all notebooks that compare arms: do runs on new seeds agree with the recorded runs?"""

import pandas as pd

from mambanorm_study.answers.phrases import join_words
from mambanorm_study.basics.text import plural
from mambanorm_study.tables.run_tables import label

# Value of the column `lies` for runs that are not compared with a prediction interval → heading
# under which the answer lists these runs.
NOT_COMPARED = {
    "diverged": "Diverged, and counted apart",
    "failed": "Could not be trained",
    "untold": "Too few recorded runs to tell",
}


def replication_text(table: pd.DataFrame) -> str:
    """Return, as Markdown, how many new runs lie inside the prediction intervals of the recorded
    runs, which new runs lie outside, and which new runs were not compared.

    table: the frame of `replication.replication`.
    """
    if table.empty:
        return "No runs of yours are here yet. `make study` adds them, and so does JupyterLab."
    table = table.assign(name=table.arm.map(label) + " on " + table.task)
    seeds = join_words(f"{seed:,}" for seed in sorted(set(table.seed)))
    lines = [
        f"**Runs of your machine**: {plural(len(table), 'run')} on a seed that is not among the "
        f"recorded ones ({seeds}).",
        "",
    ]
    compared = table[~table.lies.isin(NOT_COMPARED)]
    outside = compared[compared.lies != "inside"]
    if len(compared):
        lines.append(
            f"{len(compared) - len(outside)} of {len(compared)} lie inside the 95 % prediction "
            "interval of the recorded runs. One in twenty is expected outside. Runs with the same "
            "seed share their data, so several may lie outside together."
        )
    for row in outside.itertuples():
        digits, unit = (3, " bits per character") if row.unit == "bits" else (1, " %")
        lines.append(
            f"- Outside: {row.name}, seed {row.seed:,}, has {row.value:.{digits}f}{unit}; the "
            f"interval is {row.low:.{digits}f} to {row.high:.{digits}f}."
        )
    for lies, heading in NOT_COMPARED.items():
        names = table.name[table.lies == lies]
        if len(names):
            lines.append(f"- {heading}: {join_words(names)}.")
    return "\n".join(lines)
