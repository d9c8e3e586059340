"""What is recorded of the kernels that served a training."""

import threading

from tiny_learner import ThreadTeam

from scaffold.kernels import ladder
from scaffold.parallel.team import Solo
from scaffold.records import Kernels
from scaffold.training import served

TRITON, EAGER = {"group_norm_relu": {"triton": 9}}, {"group_norm_relu": {"eager": 9}}


def gathered(monkeypatch, of_rank):
    """Gather on as many threads as there are ranks, each having been served what ``of_rank`` says."""
    own = threading.local()
    monkeypatch.setattr(ladder, "served", lambda: own.calls)

    def gather(team):
        own.calls = of_rank[team.rank]
        return served.gather(team)

    return ThreadTeam.run(len(of_rank), gather)


def test_ranks_on_other_kernels_are_named(monkeypatch):
    """One rank whose kernel failed sets the pace of all, and its rounding differs."""
    fewer = {"group_norm_relu": {"triton": 7}}
    results = gathered(monkeypatch, [TRITON, EAGER, fewer, {"group_norm_relu": {"triton": 1, "eager": 8}}])
    assert results == [{"calls": TRITON, "differing_ranks": [1, 3], "switches": {}}] * 4
    assert Kernels.model_validate(results[0]).model_dump() == results[0]


def test_rank_0_tells_what_serves_and_why(monkeypatch, caplog):
    """The reason stands where the user looks, not only the fact."""
    caplog.set_level("INFO")
    monkeypatch.setattr(ladder, "refusals", lambda: {"group_norm_relu": {"triton": ["too small"]}})
    served.tell({"calls": EAGER, "differing_ranks": [2]}, Solo())
    told, warned = [record.getMessage() for record in caplog.records]
    assert told == "group_norm_relu runs as eager (not triton: too small)"
    assert "rank 2" in warned
    caplog.clear()
    served.tell({"calls": {}, "differing_ranks": []}, Solo())
    ThreadTeam.run(2, lambda team: team.rank and served.tell({"calls": EAGER, "differing_ranks": [2]}, team))
    assert not caplog.records


def test_switches_that_are_set_are_recorded_and_misspelt_ones_told(monkeypatch, caplog):
    """Two results with other kernels could not be told apart; a switch misspelt would do nothing, silently."""
    monkeypatch.setenv("SCAFFOLD_GROUPNORM_TRITON", "0")
    monkeypatch.setenv("SCAFFOLD_TIMEOUT", "60")
    assert served.gather(Solo())["switches"] == {"SCAFFOLD_GROUPNORM_TRITON": "0"}
    served.warn_of_unknown_switches(Solo())
    assert not caplog.records, "control: both are known"
    monkeypatch.setenv("SCAFFOLD_GROUPNRM_TRITON", "0")
    served.warn_of_unknown_switches(Solo())
    (warned,) = [record.getMessage() for record in caplog.records]
    assert warned.startswith("SCAFFOLD_GROUPNRM_TRITON is set, which no training reads; did you mean SCAFFOLD_GROUP")
