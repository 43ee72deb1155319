"""A study on a slow machine trains fewer fresh runs, the most instructive ones, and says so."""

import json
import math
import re

import pytest

from mambanorm_study.basics.text import spell
from mambanorm_study.report.plan import plan_study
from mambanorm_study.runs.machine import machine
from mambanorm_study.tables import budget
from mambanorm_study.tables.notebook_runs import NOTEBOOKS


@pytest.fixture(scope="module")
def plan():
    return plan_study("evening", draw=False)


@pytest.fixture
def machine_of_speed(monkeypatch):
    """Return a function that makes this machine `speed` times as fast as the recorded one, and the
    list of the probes.
    """
    probes = []

    def set_speed(speed):
        def training_seconds(configs):
            probes.extend(configs)
            return sum(budget.recorded_seconds(configs).values()) / speed

        monkeypatch.setattr(budget, "training_seconds", training_seconds)
        return probes

    return set_speed


@pytest.mark.parametrize("speed", [0.1, 1.0, 10.0])
def test_the_slower_a_machine_the_fewer_runs_fit_and_the_sentence_says_so(
    speed, plan, machine_of_speed, tmp_path
):
    machine_of_speed(speed)
    planned = budget.plan_budget(plan.optional, 4.0, 2, tmp_path)
    assert planned.speed == pytest.approx(speed)
    assert list(planned.seconds) == [config.run_id for config in plan.optional]
    sentence = planned.sentence()
    assert sentence.startswith(f"This machine trains at {speed:g} × the recorded speed: ")
    total = sum(budget.recorded_seconds(plan.optional).values()) / speed / 2
    if total <= 240:
        assert f"{len(plan.optional)} fresh runs in about" in sentence
        return
    n, of, minutes = map(
        int,
        re.search(
            r"about (\d+) of (\d+) fresh runs fit in 4 min \(--minutes (\d+)", sentence
        ).groups(),
    )
    assert of == len(plan.optional)
    seconds = list(planned.seconds.values())
    assert sum(seconds[:n]) / 2 <= 240 < sum(seconds[: n + 1]) / 2
    assert minutes == math.ceil(total / 60)
    assert "or --fresh all trains the rest, about " in sentence


def test_the_number_of_runs_grows_with_speed_minutes_and_workers(plan, machine_of_speed, tmp_path):
    def n_fit(speed, minutes=4.0, workers=2):
        machine_of_speed(speed)
        store = tmp_path / f"{speed}"
        text = budget.plan_budget(plan.optional, minutes, workers, store).sentence()
        return int(re.search(r"(\d+)(?: of \d+)? fresh runs", text)[1])

    assert 0 < n_fit(0.1) < n_fit(0.3) < n_fit(1.0) <= n_fit(10.0) == len(plan.optional)
    assert n_fit(0.1) < n_fit(0.1, minutes=15.0) < n_fit(0.1, minutes=15.0, workers=4)
    assert n_fit(0.1, minutes=None) == len(plan.optional)


def test_the_minutes_of_earlier_studies_count(plan, machine_of_speed, tmp_path):
    machine_of_speed(0.5)
    assert budget.earlier_minutes(plan.optional, tmp_path) == 0
    budget.save_minutes(plan.optional, 4.0, tmp_path)
    assert budget.earlier_minutes(plan.optional[::-1], tmp_path) == 4
    assert budget.earlier_minutes(plan.optional[1:], tmp_path) == 0  # another study
    rest = plan.optional[20:]
    for minutes, n_fit in ((4.0, 0), (3.0, 0), (1000.0, len(rest)), (None, len(rest))):
        planned = budget.plan_budget(rest, minutes, 2, tmp_path, 4.0)
        assert (planned.spent, planned.n_fit) == (240.0, n_fit)
    assert budget.earlier_minutes(plan.optional, tmp_path) == 4
    sentence = budget.plan_budget(rest, 4.0, 2, tmp_path, 4.0).sentence()
    more = sum(planned.seconds.values()) / 2
    assert f"about 0 of {len(rest)} fresh runs fit in 4 min, of which earlier studies" in sentence
    assert f"have used 4 min (--minutes {math.ceil((240 + more) / 60)} or" in sentence
    assert f"about {spell(more)} more)" in sentence


def test_one_arm_a_task_is_timed_once_and_kept_under_the_name_of_the_machine(
    plan, machine_of_speed, tmp_path
):
    probes = machine_of_speed(0.5)
    tasks = {config.task for config in plan.optional}
    first = budget.plan_budget(plan.optional, 4.0, 2, tmp_path)
    assert sorted(config.task for config in probes) == sorted(tasks)
    assert budget.plan_budget(plan.optional, 4.0, 2, tmp_path) == first
    assert len(probes) == len(tasks)
    path = tmp_path / budget.STUDY_FILE
    assert set(json.loads(path.read_text())["speeds"][machine()]) == tasks
    path.write_text("damaged")
    assert budget.plan_budget(plan.optional, 4.0, 2, tmp_path) == first
    # another machine on the same disk measures its own speed
    path.write_text(json.dumps({"speeds": {"another machine": dict.fromkeys(tasks, 9.0)}}))
    assert budget.plan_budget(plan.optional, 4.0, 2, tmp_path) == first
    assert "another machine" in json.loads(path.read_text())["speeds"]


def test_a_real_probe_takes_seconds_and_gives_a_plausible_speed(plan, tmp_path):
    quick = [config for config in plan.optional if config.task == "digits"]
    assert 0.01 < budget.plan_budget(quick, 4.0, 1, tmp_path).speed < 100


def test_the_main_comparison_of_each_notebook_comes_first(plan):
    order = [config.run_id for config in plan.optional]
    assert len(order) == len(set(order)) > 50
    first, rest = set(), set()
    for name, configs in plan.to_train.items():
        arms = NOTEBOOKS[name].first_arms
        assert arms, name
        of_pair = {config.run_id for config in configs if config.arm in arms}
        assert len({config.arm for config in configs if config.arm in arms}) == len(arms), name
        first |= of_pair
        rest |= {config.run_id for config in configs} - of_pair
    assert set(order[: len(first)]) == first
    assert set(order) == first | rest
    # and the notebooks that tell how to read the others begin
    assert {config.task for config in plan.optional[:2]} == {"digits"}
    assert {config.seed for config in plan.optional[:2]} == {0}  # notebook 00 trains its own seed
