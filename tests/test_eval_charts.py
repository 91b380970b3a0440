"""Charts of an eval: they draw, they say who answered, and they show nothing as known that is not."""
import sys

import pytest

from harnesslab.eval_charts import SCRIPTED, cost_against_pass_rate, differences, pass_rates
from harnesslab.loop import UsageError
from harnesslab.statistics import compare

pytest.importorskip("altair")
convert = pytest.importorskip("vl_convert")


def rows_of(label, counts, repeats=3, steps=9, **more):
    given = {"tok_in": 900, "tok_out": 90, "tool_errors": 1, "dollars": 0.02} | more
    return [{"label": label, "task": f"t{i}", "rep": r, "passed": r < c, "status": "done", "steps": steps + r + i, **given}
            for i, c in enumerate(counts) for r in range(repeats)]


def drawn(chart):
    return convert.vegalite_to_svg(chart.to_json())


V1, V2 = rows_of("v1", [3, 2, 0]), rows_of("v2", [3, 3, 1], steps=4)


@pytest.mark.parametrize("make", [lambda a, b: pass_rates(a + b), lambda a, b: differences(compare(a, b)), lambda a, b: cost_against_pass_rate(a + b)],
                         ids=["rates", "differences", "cost"])
def test_a_scripted_model_is_named_on_every_chart(make):
    assert SCRIPTED not in drawn(make(V1, V2))
    assert SCRIPTED in drawn(make([row | {"scripted": True} for row in V1], V2))  # one side is enough


def test_rates_show_intervals_counts_and_what_broke():
    broken = {"label": "v1", "task": "lost", "rep": 0, "passed": None, "status": "api_error"}
    svg = drawn(pass_rates([*V1, broken]))
    for words in ("t0", "lost", "all tasks", "v1: 5 of 9 runs passed; error: 1.", "these tasks (Wilson)"):
        assert words in svg
    data = [line for lines in pass_rates(V1).to_dict()["datasets"].values() for line in lines]
    assert {line["task"]: round(line["low"], 3) for line in data if line["task"] != "all tasks"} == {"t0": 0.439, "t1": 0.208, "t2": 0.0}


def test_an_undecided_difference_is_hollow():
    fills = [mark["mark"]["fill"] for panel in differences(compare(V1, V2), ["steps", "pass rate"]).to_dict()["concat"] for mark in panel["layer"]
             if mark["mark"].get("shape") == "diamond"]
    assert len(fills) == 2 and fills[0] != "white" and fills[1] == "white"


def test_unknown_figures_are_named_and_not_drawn():
    unknown = rows_of("v3", [3, 3, 3], dollars=None)
    assert "not drawn: v3." in drawn(cost_against_pass_rate(V1 + unknown))
    with pytest.raises(UsageError, match="known price"):
        cost_against_pass_rate(unknown)
    assert "not drawn: dollars." in drawn(differences(compare(V1, unknown), ["steps", "dollars"]))
    with pytest.raises(UsageError, match="dollars"):
        differences(compare(V1, unknown), ["dollars"])


@pytest.mark.parametrize("rows", [rows_of("v", [3]), rows_of("v", [0], repeats=1), rows_of("v", [3] * 12, repeats=1), rows_of("v", [3, 1], dollars=0.0)])
def test_small_and_odd_results_still_draw(rows):
    for chart in (pass_rates(rows), cost_against_pass_rate(rows), differences(compare(rows, rows), ["pass rate", "steps", "tokens", "tool errors", "dollars"])):
        svg = drawn(chart)
        assert svg.startswith("<svg") and "NaN" not in svg


def test_bad_use_is_one_sentence(monkeypatch):
    with pytest.raises(UsageError, match="one to four labels"):
        pass_rates([row for n in range(5) for row in rows_of(f"v{n}", [1])])
    with pytest.raises(UsageError, match="one to four labels"):
        pass_rates([])
    with pytest.raises(UsageError, match="not speed"):
        differences(compare(V1, V2), ["speed"])
    monkeypatch.setitem(sys.modules, "altair", None)
    with pytest.raises(UsageError, match=r"harnesslab-kit\[lab\]"):
        pass_rates(V1)
