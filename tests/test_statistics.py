"""The statistics: exact against brute force and published values, intervals against simulation, and every odd shape of rows."""
import itertools
import math
import re
import subprocess
import sys
import warnings

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harnesslab.loop import UsageError
from harnesslab.statistics import (
    _difference, _newcombe, by_label, compare, cost_per_solved, outcome, over_tasks, overall, pass_at_k, pass_hat_k, power, score, shuffle_test,
    task_rate, tasks_needed, wilson,
)

np = pytest.importorskip("numpy")
stats = pytest.importorskip("scipy.stats")


def rows_of(label, counts, repeats=3, **more):
    return [{"label": label, "task": f"t{i}", "rep": r, "passed": r < c, "status": "done", **more} for i, c in enumerate(counts) for r in range(repeats)]


def rows_with(label, measure, figures, **more):
    """`figures`: for each task, the figure of each run."""
    return [{"label": label, "task": f"t{i}", "rep": r, "passed": True, "status": "done", measure: x, **more}
            for i, runs in enumerate(figures) for r, x in enumerate(runs)]


# pass@k and pass^k

@given(st.integers(0, 9).flatmap(lambda n: st.tuples(st.just(n), st.integers(0, n), st.integers(1, 11))))
def test_pass_k_is_what_picking_k_runs_gives(case):
    n, c, k = case
    picks = list(itertools.combinations([True] * c + [False] * (n - c), k))
    if not picks:
        assert math.isnan(pass_at_k(n, c, k)) and math.isnan(pass_hat_k(n, c, k))
    else:
        assert pass_at_k(n, c, k) == sum(map(any, picks)) / len(picks)
        assert pass_hat_k(n, c, k) == sum(map(all, picks)) / len(picks)


@given(st.floats(0, 1), st.integers(1, 12), st.integers(1, 12))
def test_pass_k_has_no_bias(rate, n, k):
    k = min(k, n)
    chance = [math.comb(n, c) * rate**c * (1 - rate) ** (n - c) for c in range(n + 1)]
    assert sum(p * pass_hat_k(n, c, k) for c, p in enumerate(chance)) == pytest.approx(rate**k, abs=1e-9)
    assert sum(p * pass_at_k(n, c, k) for c, p in enumerate(chance)) == pytest.approx(1 - (1 - rate) ** k, abs=1e-9)


def test_pass_k_of_many_runs_does_not_overflow():
    assert pass_at_k(5000, 1, 2500) == 0.5 and 0 < pass_hat_k(5000, 2500, 100) < 1e-30
    assert pass_at_k(200, 1, 1) == 1 / 200


@pytest.mark.parametrize("case", [(3, 4, 1), (3, -1, 1), (-1, 0, 1), (3, 2, 0), (3.0, 2, 1), (3, "2", 1), (3, 2, None)])
def test_pass_k_refuses_what_is_no_count(case):
    for rule in (pass_at_k, pass_hat_k):
        with pytest.raises(UsageError):
            rule(*case)


def test_over_tasks_leaves_out_by_name_and_never_counts_an_unknown_as_zero():
    rows = rows_of("v", [3, 2]) + [{"label": "v", "task": "short", "rep": 0, "passed": True, "status": "done"}]
    assert over_tasks(rows, 1).value == pytest.approx((1 + 2 / 3 + 1) / 3) and over_tasks(rows, 1).left_out == ()
    two = over_tasks(rows, 2)
    assert two.value == pytest.approx((1 + 1 / 3) / 2) and two.left_out == ("short",) and two.tasks == 2 and "short" in two.sentence
    assert over_tasks(rows, 2, pass_at_k).value == 1 and over_tasks(rows, 2, pass_at_k).name == "pass@2"
    four = over_tasks(rows, 4)
    assert math.isnan(four.value) and four.tasks == 0 and "unknown" in four.sentence
    nothing = over_tasks([{"label": "v", "task": "t", "rep": 0, "passed": None, "status": "not run: budget"}], 1)
    assert math.isnan(nothing.value) and nothing.left_out == ("t",)


# Intervals of one rate

@given(st.integers(1, 200).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n))), st.sampled_from([0.8, 0.95, 0.99]))
def test_wilson_is_scipys(case, level):
    passed, runs = case
    theirs = stats.binomtest(passed, runs).proportion_ci(level, "wilson")
    assert wilson(passed, runs, level) == pytest.approx((theirs.low, theirs.high), abs=1e-12)


@pytest.mark.parametrize("passed, runs, low, high", [(81, 263, 0.2553, 0.3662), (15, 148, 0.0624, 0.1605), (0, 20, 0.0, 0.1611), (1, 29, 0.0061, 0.1718)])
def test_wilson_against_newcombes_table(passed, runs, low, high):
    assert wilson(passed, runs) == pytest.approx((low, high), abs=5.1e-5)


@pytest.mark.parametrize("a, m, b, n, low, high", [
    (56, 70, 48, 80, 0.0524, 0.3339), (9, 10, 3, 10, 0.1705, 0.8090), (6, 7, 2, 7, 0.0582, 0.8062), (5, 56, 0, 29, -0.0381, 0.1926),
    (0, 10, 0, 20, -0.1611, 0.2775), (10, 10, 0, 10, 0.6075, 1.0)])
def test_difference_of_rates_against_newcombes_table(a, m, b, n, low, high):
    pair = ([1] * b + [0] * (n - b), [1] * a + [0] * (m - a))
    assert _newcombe([pair])[:2] == pytest.approx((low, high), abs=5.1e-5)


@pytest.mark.parametrize("case", [(4, 3), (-1, 3), (0, -1), (math.nan, 3), (1, math.inf)])
def test_wilson_refuses_what_is_no_count(case):
    with pytest.raises(UsageError):
        wilson(*case)


def test_overall_follows_the_rule():
    below, at = overall(rows_of("v", [3, 2, 0, 3, 1, 3, 3, 2, 0])), overall(rows_of("v", [3, 2, 0, 3, 1, 3, 3, 2, 0, 1]))
    assert (below.low, below.high) == wilson(17, 27) and below.about == "these tasks" and "nothing about other tasks" in below.sentence
    rates = [c / 3 for c in (3, 2, 0, 3, 1, 3, 3, 2, 0, 1)]
    theirs = stats.t.interval(0.95, 9, np.mean(rates), stats.sem(rates))
    assert (at.low, at.high) == pytest.approx(theirs) and at.about == "tasks like these" and at.method == "t over tasks"


@pytest.mark.parametrize("counts", [[3] * 10, [0] * 10, [3] * 9 + [2], [3] * 25, [0] * 24 + [1]])
def test_overall_is_never_surer_than_independent_runs_would_be(counts):
    rate, (low, high) = overall(rows_of("v", counts)), wilson(sum(counts), 3 * len(counts))
    assert 0 <= rate.low <= low + 1e-12 and high - 1e-12 <= rate.high <= 1 and rate.high - rate.low > 0.05


def test_every_task_weighs_the_same():
    rows = rows_of("v", [9], repeats=9) + [{"label": "v", "task": "other", "rep": 0, "passed": False, "status": "done"}]
    rate = overall(rows)
    assert rate.rate == 0.5 and (rate.passed, rate.runs) == (9, 10) and "mean of the tasks" in rate.sentence
    assert (rate.low, rate.high) == pytest.approx(wilson(1.8, 3.6))  # as unsure as 3.6 runs


@pytest.mark.parametrize("tasks, repeats, expected, pot", [(5, 3, 0.98, 0.96), (10, 3, 0.96, 0.91), (20, 5, 0.94, 0.81)])
def test_intervals_hold_the_truth_as_often_as_they_promise(tasks, repeats, expected, pot):
    """True rate 0.8, tasks differ (standard deviation 0.2). The five tasks are drawn once for each experiment, and their own mean is the truth."""
    dice, held, pooled, size = np.random.default_rng(tasks), 0, 0, 700
    for _ in range(size):
        rates = dice.beta(2.4, 0.6, tasks)
        counts = dice.binomial(repeats, rates)
        rate, truth = overall(rows_of("v", counts, repeats)), rates.mean() if tasks < 10 else 0.8
        held += rate.low <= truth <= rate.high
        low, high = wilson(int(counts.sum()), tasks * repeats)
        pooled += low <= 0.8 <= high
    assert held / size == pytest.approx(expected, abs=0.03)
    assert pooled / size == pytest.approx(pot, abs=0.05)


def test_the_guard_near_one_is_needed():
    """At a true rate of 0.95 the t interval alone holds 7 times in 10; with the guard, always."""
    dice, held, alone = np.random.default_rng(5), 0, 0
    for _ in range(400):
        counts = dice.binomial(3, dice.beta(3.56, 0.1875, 10))
        rate = overall(rows_of("v", counts))
        held += rate.low <= 0.95 <= rate.high
        half = stats.t.ppf(0.975, 9) * np.std(counts / 3, ddof=1) / math.sqrt(10)
        alone += abs(np.mean(counts / 3) - 0.95) <= half
    assert held / 400 > 0.97 and alone / 400 < 0.8


# What counts

@pytest.mark.parametrize("row, kind", [
    ({"passed": True, "status": "done"}, "passed"), ({"passed": False, "status": "done"}, "failed"), ({"passed": False, "status": "max_steps"}, "failed"),
    ({"passed": True, "status": "wall_clock"}, "passed"), ({"passed": False, "status": "wall_clock"}, "timed out"),
    ({"passed": True, "status": "api_error"}, "error"), ({"passed": False, "status": "rate_limited"}, "error"), ({"passed": None, "status": "sandbox_lost"}, "error"),
    ({"passed": None, "status": "done"}, "unverified"), ({"passed": False, "status": "done", "verifier_error": "no fence"}, "unverified"),
    ({"passed": math.nan, "status": "done"}, "unverified"), ({"passed": False, "status": "done", "verifier_error": math.nan}, "failed"),
    ({"passed": None, "status": "not run: budget"}, "not run"), ({"passed": None}, "not run"), ({"passed": None, "status": None}, "not run"),
    ({"passed": 1, "status": "done"}, "passed"), ({"passed": np.False_, "status": "done"}, "failed"), ({"passed": True}, "passed")])
def test_outcome(row, kind):
    assert outcome(row) == kind


def test_a_verdict_that_is_a_word_is_refused():
    with pytest.raises(UsageError, match="'False'"):
        outcome({"passed": "False", "status": "done"})


def test_broken_runs_stay_out_of_the_rate_and_in_the_sentence():
    rows = rows_of("v", [3, 0], dollars=0.5) + [
        {"label": "v", "task": "t0", "rep": 7, "passed": False, "status": "api_error", "dollars": 0.5},
        {"label": "v", "task": "t1", "rep": 7, "passed": False, "status": "wall_clock", "dollars": 0.5},
        {"label": "v", "task": "t1", "rep": 8, "passed": None, "status": "done", "verifier_error": "lost", "dollars": 0.5},
        {"label": "v", "task": "t1", "rep": 9, "passed": None, "status": "not run: budget", "dollars": None}]
    whole = score(rows)
    assert whole.outcomes == {"passed": 3, "failed": 3, "timed out": 1, "error": 1, "unverified": 1, "not run": 1}
    assert whole.rate.runs == 7 and whole.statuses["done"] == 7 and whole.statuses["not run: budget"] == 1
    for words in ("timed out 1", "error 1", "unverified 1", "not run 1"):
        assert words in whole.sentence
    assert whole.bounds == pytest.approx(((3 / 4 + 0) / 2, (1 + 2 / 6) / 2))
    assert whole.cost_per_solved == pytest.approx(9 * 0.5 / 3)
    table = whole.table()
    assert list(table["task"]) == ["t0", "t1"] and list(table["timed out"]) == [0, 1] and list(table["not run"]) == [0, 1]


def test_cost_per_solved_task():
    assert cost_per_solved(rows_of("v", [2, 1], dollars=0.1)) == pytest.approx(0.2)
    assert cost_per_solved(rows_of("v", [0], dollars=0.1)) == math.inf and "Nothing was solved" in score(rows_of("v", [0], dollars=0.1)).sentence
    for unknown in (None, math.nan):
        assert math.isnan(cost_per_solved([*rows_of("v", [3], dollars=0.1), {"label": "v", "task": "x", "passed": True, "status": "done", "dollars": unknown}]))
    assert math.isnan(cost_per_solved([{"label": "v", "task": "x", "passed": None, "status": "not run: budget"}]))
    assert cost_per_solved(rows_of("v", [3], dollars=0.0)) == 0  # a local model is free, and that is known


def test_rows_that_cannot_be_right_are_refused():
    rows = rows_of("v", [3])
    with pytest.raises(UsageError, match="stands twice"):
        score(rows + rows[:1])
    with pytest.raises(UsageError, match="one label"):
        score(rows + rows_of("w", [1]))
    with pytest.raises(UsageError, match="one label"):
        score([])
    with pytest.raises(UsageError, match="a label and a task"):
        by_label([{"task": "t"}])
    with pytest.raises(UsageError, match="a label and a task"):
        by_label("results.jsonl")
    assert list(by_label(rows + rows_of("w", [1]))) == ["v", "w"]


def test_a_data_frame_gives_the_same(tmp_path):
    pandas = pytest.importorskip("pandas")
    rows = rows_of("v", [3, 1], steps=5, dollars=None, scripted=True) + [{"label": "v", "task": "t0", "rep": 9, "passed": None, "status": "not run: budget"}]
    ours, theirs = score(rows), score(pandas.DataFrame(rows))
    assert (ours.rate, ours.outcomes, ours.scripted, ours.sentence) == (theirs.rate, theirs.outcomes, theirs.scripted, theirs.sentence)
    assert theirs.scripted and "scripted" in theirs.sentence


# Version against version

@given(st.lists(st.tuples(*[st.lists(st.integers(0, 3), min_size=1, max_size=2)] * 2), min_size=1, max_size=3))
@settings(max_examples=60, deadline=None)
def test_shuffle_is_all_ways_of_dealing(pairs):
    def change(deal):
        return sum(sum(b) / len(b) - sum(a) / len(a) for a, b in deal)

    def deals(a, b):
        both = a + b
        for chosen in itertools.combinations(range(len(both)), len(b)):
            yield [x for i, x in enumerate(both) if i not in chosen], [both[i] for i in chosen]

    every = [abs(change(deal)) for deal in itertools.product(*(deals(a, b) for a, b in pairs))]
    assert shuffle_test(pairs) == pytest.approx(sum(x >= abs(change(pairs)) - 1e-9 for x in every) / len(every))


def test_shuffle_of_single_figures_is_scipys_sign_flip():
    changes = np.random.default_rng(3).normal(0.5, 1, 9)
    theirs = stats.permutation_test((changes,), lambda x, axis: np.mean(x, axis), permutation_type="samples", n_resamples=np.inf, vectorized=True)
    assert shuffle_test([([0.0], [x]) for x in changes]) == pytest.approx(theirs.pvalue)
    assert shuffle_test([([0.0], [x]) for x in changes], draws=500) == pytest.approx(theirs.pvalue, abs=0.1)
    assert shuffle_test([([0.0] * 8, [1.0] * 8)] * 3) == 1 / 10_001  # a drawn p is never 0


def test_two_in_thirty_two_is_all_that_five_tasks_can_say():
    assert shuffle_test([([9], [1])] * 5) == 2 / 32
    verdict = compare(rows_with("a", "steps", [[9]] * 5), rows_with("b", "steps", [[1]] * 5))
    assert not verdict.differences["steps"].decided and "Cannot decide" in verdict.differences["steps"].sentence
    assert "about 6 tasks" in verdict.differences["steps"].needed and "cannot decide with 5 tasks" in verdict.sentence
    assert compare(rows_with("a", "steps", [[9]] * 6), rows_with("b", "steps", [[1]] * 6)).differences["steps"].decided


def test_pairing_sees_what_the_pot_does_not():
    ease = [4, 20, 7, 15, 11, 30, 9, 12, 25, 6]
    before, after = [[x] for x in ease], [[x - 2 + (i % 3 == 0)] for i, x in enumerate(ease)]
    steps = compare(rows_with("a", "steps", before), rows_with("b", "steps", after)).differences["steps"]
    theirs = stats.ttest_rel([x[0] for x in after], [x[0] for x in before]).confidence_interval()
    assert steps.decided and (steps.low, steps.high) == pytest.approx(theirs) and steps.about == "tasks like these" and steps.p < 0.001
    assert stats.ttest_ind(after, before).pvalue[0] > 0.5


def test_welch_within_one_task_is_scipys():
    a, b = [5.0, 7.0, 6.0, 9.0], [3.0, 4.0, 2.0]
    steps = compare(rows_with("a", "steps", [a]), rows_with("b", "steps", [b])).differences["steps"]
    theirs = stats.ttest_ind(b, a, equal_var=False).confidence_interval()
    assert (steps.low, steps.high) == pytest.approx((theirs.low, theirs.high)) and steps.about == "this task"


def test_luck_without_scatter_does_not_fool_it():
    """Three runs that come out alike have no scatter: the interval is sure of itself, and the shuffle is not."""
    errors = compare(rows_with("a", "tool_errors", [[1, 1, 1]]), rows_with("b", "tool_errors", [[0, 0, 0]])).differences["tool errors"]
    assert errors.low == errors.high == -1 and errors.p == 2 / 20 and not errors.decided and "Cannot decide" in errors.sentence
    passed = compare(rows_of("a", [0]), rows_of("b", [3])).differences["pass rate"]
    assert passed.low > 0 and passed.p == 2 / 20 and not passed.decided


def test_from_ten_tasks_on_it_is_the_paired_t_test():
    before, after = [1, 0, 3, 2, 2, 0, 1, 1, 2, 1], [2, 2, 3, 3, 2, 1, 1, 3, 2, 2]
    rate = compare(rows_of("a", before), rows_of("b", after)).differences["pass rate"]
    theirs = stats.ttest_rel([c / 3 for c in after], [c / 3 for c in before])
    assert rate.p == pytest.approx(theirs.pvalue) and (rate.low, rate.high) == pytest.approx(tuple(theirs.confidence_interval())) and rate.decided


@pytest.mark.parametrize("counts", [[3], [0], [3] * 5, [0] * 5, [3] * 10, [0] * 12, [1, 2, 3]])
def test_no_difference_is_never_decided_and_no_number_is_named(counts):
    rate = compare(rows_of("a", counts), rows_of("b", counts)).differences["pass rate"]
    assert rate.difference == 0 and rate.p == 1 and not rate.decided and rate.low < 0 < rate.high
    assert "no number of runs" in rate.sentence


def test_one_run_of_one_task():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        verdict = compare(rows_with("a", "steps", [[9]]), rows_with("b", "steps", [[2]]))
    steps = verdict.differences["steps"]
    assert math.isnan(steps.low) and not steps.decided and steps.p == 1 and "repeat the task" in steps.sentence and "nan" not in steps.sentence
    assert "cannot decide with 1 task." in verdict.sentence and "1 task paired" in verdict.sentence


def test_runs_that_never_vary():
    one = compare(rows_with("a", "steps", [[9, 9, 9]]), rows_with("b", "steps", [[7, 7, 7]])).differences["steps"]
    assert one.p == 2 / 20 and not one.decided and "about 4 runs" in one.needed
    five = compare(rows_with("a", "steps", [[9, 9, 9]] * 5), rows_with("b", "steps", [[7, 7, 7]] * 5)).differences["steps"]
    assert five.decided and five.low == five.high == -2 and five.method == "no scatter within tasks"
    ten = compare(rows_with("a", "steps", [[9]] * 10), rows_with("b", "steps", [[7]] * 10)).differences["steps"]
    assert ten.decided and ten.method == "no scatter between tasks"


def test_unequal_repeats_and_tasks_on_one_side_only():
    a = rows_with("a", "steps", [[5, 6, 7], [9], [4, 4]]) + [{"label": "a", "task": "only a", "rep": 0, "passed": True, "status": "done", "steps": 1}]
    b = rows_with("b", "steps", [[5, 5], [8, 9, 7], [3, 4]]) + [{"label": "b", "task": "only b", "rep": 0, "passed": False, "status": "done", "steps": 99}]
    a.append({"label": "a", "task": "lost", "rep": 0, "passed": True, "status": "done", "steps": 1})
    b.append({"label": "b", "task": "lost", "rep": 0, "passed": None, "status": "api_error", "steps": 1})
    verdict = compare(a, b)
    assert verdict.tasks == ("t0", "t1", "t2") and verdict.unpaired == ("only a", "lost", "only b")
    steps = verdict.differences["steps"]
    assert steps.before == pytest.approx((6 + 9 + 4) / 3) and steps.tasks == pytest.approx({"t0": -1, "t1": -1, "t2": -0.5})
    assert steps.method == "t over tasks"  # one task has a single run: no scatter within it
    assert "only a, lost, only b" in verdict.sentence


def test_unknown_figures_leave_the_task_out_of_that_measure_alone():
    a = rows_with("a", "dollars", [[0.1, 0.2], [0.1, None], [0.3, 0.2]], steps=3)
    b = rows_with("b", "dollars", [[0.1, 0.1], [0.1, 0.1], [math.nan, 0.2]], steps=2)
    verdict = compare(a, b)
    dollars, steps = verdict.differences["dollars"], verdict.differences["steps"]
    assert list(dollars.tasks) == ["t0"] and dollars.left_out == ("t1", "t2") and "Left out, not known: t1, t2." in dollars.sentence
    assert len(steps.tasks) == 3 and steps.left_out == ()
    assert verdict.differences["tokens"].tasks == {} and "unknown" in verdict.differences["tokens"].sentence
    assert "nan" not in verdict.sentence


def test_no_common_task_is_one_sentence():
    with pytest.raises(UsageError, match="No task"):
        compare(rows_of("a", [1]), [{"label": "b", "task": "t0", "rep": 0, "passed": None, "status": "api_error"}])


def test_scripted_rows_are_called_so_everywhere():
    verdict = compare(rows_of("a", [1], scripted=True), rows_of("b", [1]))
    assert verdict.scripted and "scripted model" in verdict.sentence and verdict.table()["scripted"].all()


def test_swapping_the_sides_mirrors_the_verdict():
    a, b = rows_with("a", "steps", [[5, 6, 7], [9, 8, 9]]), rows_with("b", "steps", [[3, 4, 4], [7, 6, 8]])
    for there, back in zip(compare(a, b).differences.values(), compare(b, a).differences.values()):
        if there.tasks:
            assert (there.difference, there.low, there.high) == pytest.approx((-back.difference, -back.high, -back.low)) and there.p == back.p


# Error rates and power, by simulation

def simulate(measure, make, tasks, experiments, seed=0):
    """Share of experiments that are decided, and whose interval holds the true mean difference."""
    dice, decided, held = np.random.default_rng(seed), 0, 0
    for _ in range(experiments):
        sides, truth = make(dice, tasks)
        d = _difference(measure, *sides)
        decided += d.decided
        held += d.low <= truth <= d.high
    return decided / experiments, held / experiments


def passes(rate_a, rate_b, repeats, spread=0.0):
    def make(dice, tasks):
        ease = dice.normal(0, spread, tasks) if spread else np.zeros(tasks)
        rates = [np.clip(rate + ease, 0, 1) for rate in (rate_a, rate_b)]
        counts = [dice.binomial(repeats, rate) for rate in rates]
        sides = [{str(i): [{"passed": r < c, "status": "done"} for r in range(repeats)] for i, c in enumerate(side)} for side in counts]
        return sides, (rates[1] - rates[0]).mean()

    return make


def counts(factor, repeats, heavy=False):
    def make(dice, tasks):
        ease = dice.gamma(4, 2, tasks)
        def runs(mean):
            return [{"passed": True, "status": "done", "steps": int(x)} for x in dice.poisson(mean * (dice.gamma(1, 1, repeats) if heavy else np.ones(repeats)))]
        return [{str(i): runs(m * f) for i, m in enumerate(ease)} for f in (1, factor)], (ease * (factor - 1)).mean()

    return make


@pytest.mark.parametrize("measure, make, tasks", [
    ("pass rate", passes(0.7, 0.7, 3, 0.2), 5), ("pass rate", passes(0.5, 0.5, 3), 12), ("steps", counts(1, 3), 5), ("steps", counts(1, 3, True), 5), ("steps", counts(1, 1), 12)])
def test_equal_versions_are_seldom_told_apart(measure, make, tasks):
    decided, held = simulate(measure, make, tasks, 250)
    assert decided <= 0.08 and held >= 0.91


def test_pass_rates_say_little_where_steps_say_much():
    """Five tasks, three runs: 40 % fewer steps are seen nearly always, 60 % against 80 % hardly ever."""
    assert simulate("steps", counts(0.6, 3), 5, 150)[0] > 0.7
    assert simulate("pass rate", passes(0.6, 0.8, 3), 5, 150)[0] < 0.25


@pytest.mark.parametrize("tasks, repeats, expected", [(5, 3, 0.16), (10, 3, 0.32), (20, 5, 0.85)])
def test_power_is_what_simulation_gives(tasks, repeats, expected):
    assert power(0.6, 0.8, tasks, repeats) == pytest.approx(expected, abs=0.025)
    dice = np.random.default_rng(1)
    changes = (dice.binomial(repeats, 0.8, (4000, tasks)) - dice.binomial(repeats, 0.6, (4000, tasks))) / repeats
    with np.errstate(all="ignore"):
        seen = abs(changes.mean(1)) / (changes.std(1, ddof=1) / math.sqrt(tasks)) > stats.t.ppf(0.975, tasks - 1)
    assert seen.mean() == pytest.approx(power(0.6, 0.8, tasks, repeats), abs=0.03)
    if tasks >= 10:  # and it is what `compare` does
        assert simulate("pass rate", passes(0.6, 0.8, repeats), tasks, 200)[0] == pytest.approx(expected, abs=0.1)


def test_as_many_tasks_and_runs_as_named_do_decide():
    assert power(0.6, 0.8, tasks_needed(0.6, 0.8, 5), 5) == pytest.approx(0.8, abs=0.03)
    seen = compare(rows_of("a", [6] * 5, repeats=10), rows_of("b", [8] * 5, repeats=10)).differences["pass rate"]
    runs = int(seen.needed.split("about ")[1].split()[0])
    assert 14 <= runs <= 22 and simulate("pass rate", passes(0.6, 0.8, runs), 5, 80)[0] == pytest.approx(0.8, abs=0.15)


@pytest.mark.parametrize("plan", [(0.6, 0.6, 3), (0.0, 0.5, 3), (0.5, 1.0, 3), (0.5, 0.6, 0)])
def test_plans_that_cannot_be_are_refused(plan):
    with pytest.raises(UsageError):
        tasks_needed(*plan)


def test_a_plan_with_one_task_is_refused_and_a_hopeless_one_has_no_number():
    with pytest.raises(UsageError, match="2 tasks"):
        power(0.5, 0.6, 1, 3)
    with pytest.raises(UsageError):
        power(0.5, 0.6, 5, 3, spread=0.6)
    assert tasks_needed(0.5, 0.5001, 1) is None
    assert tasks_needed(0.1, 0.9, 10) == 10 and tasks_needed(0.6, 0.8, uneven=0.3) > tasks_needed(0.6, 0.8)


# The surroundings

def test_without_scipy_or_pandas_it_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "scipy.stats", None)
    with pytest.raises(UsageError, match=r"needs scipy: pip install 'harnesslab-kit\[evals\]'"):
        wilson(1, 2)
    monkeypatch.undo()
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(UsageError, match="needs pandas"):
        score(rows_of("v", [1])).table()


def test_importing_it_is_light_and_hides_nothing():
    code = ("import sys, statistics, random, harnesslab.statistics; assert statistics.mean([1, 3]) == 2 and 'harnesslab' not in statistics.__file__;"
            "print([m for m in ('numpy', 'scipy', 'pandas', 'altair') if m in sys.modules])")
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip() == "[]"


@pytest.mark.parametrize("tasks", [2, 3, 4, 5])
def test_the_number_of_tasks_that_would_decide_can_decide(tasks):
    """With one run per side, fewer than 6 tasks never give p < 0.05, however large and even the change."""
    rows = lambda label, steps: [{"label": label, "task": f"t{n}", "rep": 0, "status": "done", "passed": True, "steps": steps + n / 100, "tok_in": 1, "tok_out": 1, "tool_errors": 0} for n in range(tasks)]
    difference = compare(rows("a", 10), [{**row, "steps": row["steps"] * 0.8} for row in rows("b", 10)]).differences["steps"]
    assert int(re.search(r"about (\d+) tasks", difference.needed).group(1)) >= 6 > tasks, difference.needed
