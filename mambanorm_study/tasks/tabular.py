"""Three regressions on tables. Source S2 (docs/sources.md) names the first two.

- `energy`: UCI Energy Efficiency, 768 simulated buildings, 8 features, heating and cooling load
  (kWh/m²).
- `california_housing`: 20,640 districts in 1990, 9 columns, median house value (dollars).
- `diabetes`: 442 patients, 10 features, disease progression after a year; part of scikit-learn, so
  nothing is downloaded.

Each feature of a table is a position, in the order of the file. Inputs are (n, L, 32): position j
has the value x_j in slot j, and a 1 in slot 16 + j to identify the feature. A linear stem then
computes x_j·w_j + b_j, as the tokenizer of the FT-Transformer does (Gorishniy et al. 2021). All
tables have 32 slots, so a model can be trained on one table and fine-tuned on another.
Features are standardized by the mean and the standard deviation of the training rows.

Sources: Tsanas & Xifara (2012), UCI, doi:10.24432/C51307; Pace & Barry (1997), in the edition of
Géron (2019), which lacks the number of bedrooms of 207 districts and has a column ocean_proximity;
Efron et al. (2004).
"""

from functools import partial

import numpy as np
import pandas as pd
import torch

from mambanorm_study.basics.settings import Later
from mambanorm_study.tasks.base import Split, TaskData
from mambanorm_study.tasks.files import downloaded_file, fetch
from mambanorm_study.tasks.registry import Shape, register_task

datasets = Later("sklearn.datasets")

SLOTS = 16  # largest number of features of a table
MAX_ROWS = {"smoke": 200, "quick": 6_000, "evening": 6_000}  # number of rows; other scales use all
HELD_OUT = 0.2  # validation and test each have this share of the rows

GITHUB = "https://raw.githubusercontent.com"
# Arguments of `fetch`: the URL of the folder, and a map from file name to digest
ENERGY_FILE = (
    f"{GITHUB}/sradicwebster/counterfactuals/81187b3ecbdfdde380ff1f5b7e7413ccd246c8ef",
    {
        "ENB2012_data.xlsx": "sha256:"
        "be1176575d2622b3647e2b336e3b6d06a6e3033ea911d18d72658d3ef53c40bd"
    },
)
HOUSING_FILE = (
    f"{GITHUB}/ageron/handson-ml2/aa555aa16b9d0af6c84e67c7757f3317d05acb12/datasets/housing",
    {"housing.csv": "sha256:8a3727f4cf54ac1a327f69b1d5b4db54c5834ea81c6e4efc0d163300022a685e"},
)
LOADS = ("heating load, kWh/m²", "cooling load, kWh/m²")
HOUSE_VALUE = ("median house value, $",)
PROGRESSION = ("progression, points",)
PROXIMITY = ("<1H OCEAN", "INLAND", "ISLAND", "NEAR BAY", "NEAR OCEAN")
# The inputs contain the logarithms of these columns, because the columns have long tails
COUNTS = ("total_rooms", "total_bedrooms", "population", "households")


def _split_sizes(rows: int, scale: str) -> tuple[int, int, int]:
    """Return the number of rows of train, validation and test, for a table with `rows` rows."""
    rows = min(rows, MAX_ROWS.get(scale, rows))
    held_out = round(HELD_OUT * rows)
    return rows - 2 * held_out, held_out, held_out


def _shape(rows: int, features: int, targets: tuple[str, ...], scale: str) -> Shape:
    return Shape(
        len(targets),
        features,
        in_features=2 * SLOTS,
        sizes=_split_sizes(rows, scale),
        reshuffled=True,
        targets=targets,
    )


@register_task(
    "energy",
    title="Energy Efficiency: heating and cooling load of buildings",
    source="Tsanas & Xifara (2012), UCI, doi:10.24432/C51307",
    prepare=partial(fetch, "energy", *ENERGY_FILE),
    shape=partial(_shape, 768, 8, LOADS),
)
def load_energy(scale: str, seed: int) -> TaskData:
    """Return the 768 buildings (smoke: 200). Blank rows and columns of the file are dropped."""
    table = pd.read_excel(downloaded_file("energy", "ENB2012_data.xlsx", ENERGY_FILE[1]))
    table = table.dropna(how="all").dropna(axis=1, how="all")
    return make_table_data(table.iloc[:, :8], table.iloc[:, 8:], LOADS, scale, seed)


@register_task(
    "california_housing",
    title="California Housing: the median value of a district's houses",
    source="Pace & Barry (1997), in the edition of Géron (2019)",
    prepare=partial(fetch, "california_housing", *HOUSING_FILE),
    shape=partial(_shape, 20_640, 14, HOUSE_VALUE),
)
def load_california_housing(scale: str, seed: int) -> TaskData:
    """Return the 20,640 districts (smoke: 200; quick and evening: 6,000).

    207 districts lack the number of bedrooms: the feature no_bedrooms is 1 for these districts, and
    the median replaces the missing number. The column ocean_proximity becomes five 0/1 features,
    one per value.
    """
    table = pd.read_csv(downloaded_file("california_housing", "housing.csv", HOUSING_FILE[1]))
    features = table.drop(columns=["median_house_value", "ocean_proximity"])
    features[[*COUNTS]] = np.log1p(features[[*COUNTS]])
    features["no_bedrooms"] = features.total_bedrooms.isna().astype(float)
    for value in PROXIMITY:
        features[value] = (table.ocean_proximity == value).astype(float)
    return make_table_data(features, table[["median_house_value"]], HOUSE_VALUE, scale, seed)


@register_task(
    "diabetes",
    title="Diabetes: progression after one year",
    source="Efron et al. (2004); scikit-learn load_diabetes",
    shape=partial(_shape, 442, 10, PROGRESSION),
)
def load_diabetes(scale: str, seed: int) -> TaskData:
    """Return the 442 patients (smoke: 200) with 10 features and one target."""
    features, target = datasets.load_diabetes(return_X_y=True, as_frame=True, scaled=False)
    return make_table_data(features, target.to_frame(), PROGRESSION, scale, seed)


def make_table_data(
    features: pd.DataFrame,
    targets: pd.DataFrame,
    target_names: tuple[str, ...],
    scale: str,
    seed: int,
) -> TaskData:
    """Return the data of a table: 60 % of the rows are train, 20 % validation and 20 % test.

    The seed decides which rows each split has. A missing value of a feature is replaced by the
    feature's median over the training rows. Raises BadData for a target that is not finite.
    """
    x, y = features.to_numpy(float), targets.to_numpy(float, copy=True)
    n_train, n_val, n_test = _split_sizes(len(x), scale)
    order = np.random.default_rng(seed).permutation(len(x))
    val, test, train = np.split(order[: n_train + n_val + n_test], [n_val, n_val + n_test])
    mean, std = np.nanmean(x[train], axis=0), np.nanstd(x[train], axis=0)
    x = np.where(np.isnan(x), np.nanmedian(x[train], axis=0), x)
    x = (x - mean) / np.where(std > 0, std, 1.0)
    inputs = torch.zeros(len(x), x.shape[1], 2 * SLOTS)
    feature = torch.arange(x.shape[1])
    inputs[:, feature, feature] = torch.as_tensor(x, dtype=torch.float32)
    inputs[:, feature, SLOTS + feature] = 1.0
    labels = torch.as_tensor(y, dtype=torch.float32)
    splits = [Split(inputs[rows], labels[rows]) for rows in (train, val, test)]
    return TaskData(
        *splits, n_classes=len(target_names), in_features=2 * SLOTS, targets=target_names
    )
