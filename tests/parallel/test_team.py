"""Deciding and failing together."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from scaffold.errors import DamagedFileError, ExitCode, StoppedError, UserError
from scaffold.parallel.team import RankError, Solo, Team


class Threads(Team):
    """A rank of a team whose ranks are threads of this process; what they exchange is pickled, as over MPI."""

    def __init__(self, rank, size, shared):
        self.rank, self.size, self._shared = rank, size, shared

    def exchange(self, value):
        import pickle

        values, barrier = self._shared
        values[self.rank] = pickle.dumps(value)
        barrier.wait()
        result = [pickle.loads(item) for item in values]
        barrier.wait()
        return result


def run(size, work):
    """Run ``work(team)`` on ``size`` ranks; return each rank's result or exception. A lone wait ends in an error."""
    shared = [None] * size, threading.Barrier(size, timeout=10)

    def rank(index):
        try:
            return work(Threads(index, size, shared))
        except Exception as error:
            return error

    with ThreadPoolExecutor(size) as pool:
        return list(pool.map(rank, range(size)))


def test_agreement_returns_everyones_result_in_order():
    assert run(3, lambda team: team.agree(team.rank**2)) == [[0, 1, 4]] * 3


def test_all_ranks_raise_the_same_error():
    """Hazard 33: a rank that raises alone leaves its peers in the next collective."""

    def work(team):
        outcome = UserError("no such file") if team.rank == 1 else "fine"
        team.agree(outcome, "reading meta.yaml")

    found = run(3, work)
    assert [str(error) for error in found] == ["rank 1 of 3, reading meta.yaml: no such file"] * 3
    assert {type(error) for error in found} == {RankError}
    assert {error.exit_code for error in found} == {ExitCode.USER_ERROR}


def test_the_lowest_rank_that_failed_is_named():
    def work(team):
        team.agree(StoppedError("stop") if team.rank else ValueError("bad"), "working")

    found = run(3, work)
    assert {str(error) for error in found} == {"rank 0 of 3, working: ValueError: bad"}
    assert {error.exit_code for error in found} == {ExitCode.INTERNAL}


def test_own_exception_is_the_cause_on_the_rank_that_failed():
    """Its traceback is what a defect is found by."""
    cause = ValueError("bad")
    found = run(2, lambda team: team.agree(cause if team.rank else None))
    assert found[1].__cause__ is cause
    assert found[0].__cause__ is None
    assert [error.defect for error in found] == [None, cause]


def test_a_defect_keeps_its_traceback_through_an_outer_block():
    """What is agreed upon twice is pickled twice, which drops causes."""
    cause = ValueError("bad")

    def work(team):
        with team.together("outer"):
            team.agree(cause if team.rank else None, "inner")

    assert [error.defect for error in run(2, work)] == [None, cause]


def test_what_the_user_is_told_is_no_defect():
    found = run(2, lambda team: team.agree(UserError("no such file") if team.rank else None))
    assert [error.defect for error in found] == [None, None]


def test_block_fails_together_or_ends_together():
    def work(team):
        with team.together("writing part 3"):
            if team.rank == 2:
                raise DamagedFileError("p.npy", "is truncated", "make it")
        return "went on"

    found = run(3, work)
    assert {str(error) for error in found} == {
        "rank 2 of 3, writing part 3: p.npy is truncated; rebuild it with: make it"
    }
    assert {error.exit_code for error in found} == {ExitCode.DAMAGED}

    def well(team):
        with team.together("writing"):
            pass
        return team.barrier()

    assert run(3, well) == [None] * 3


@pytest.mark.parametrize("size", [1, 3])
def test_an_agreed_error_passes_an_outer_block_unchanged(size):
    """Agreed upon again it must not turn into another error with another exit code."""

    def work(team):
        with team.together("outer"):
            team.agree(StoppedError("time is up") if team.rank == size - 1 else None, "inner")

    found = run(size, work)
    told = "time is up" if size == 1 else "rank 2 of 3, inner: time is up"
    assert [str(error) for error in found] == [told] * size
    assert {error.exit_code for error in found} == {ExitCode.RUN_AGAIN}
    assert {error.rank for error in found} == {size - 1}


def test_an_exception_that_cannot_be_pickled_is_told_all_the_same():
    class LocalError(Exception):
        pass

    found = run(2, lambda team: team.agree(LocalError("lost") if team.rank == 0 else None, "working"))
    assert {str(error) for error in found} == {"rank 0 of 2, working: RuntimeError: LocalError: lost"}


def test_an_exception_whose_copy_cannot_be_made_is_told_all_the_same():
    class PickyError(Exception):
        def __init__(self, a, b):
            super().__init__(f"{a} and {b}")

    globals()["PickyError"] = PickyError
    PickyError.__qualname__ = "PickyError"
    found = run(2, lambda team: team.agree(PickyError(1, 2) if team.rank == 0 else None, "working"))
    assert {str(error) for error in found} == {"rank 0 of 2, working: RuntimeError: PickyError: 1 and 2"}


def test_rank_zero_decides():
    """Hazard 53: a decision from each rank's own view of the file system."""
    assert run(3, lambda team: team.decide({"resume": True} if team.rank == 0 else "ignored")) == [{"resume": True}] * 3


def test_none_and_false_are_results():
    assert run(2, lambda team: team.agree(None)) == [[None, None]] * 2
    assert run(2, lambda team: team.decide(False)) == [False, False]


def test_alone_the_message_speaks_of_no_rank():
    with pytest.raises(RankError) as caught:
        Solo().agree(UserError("wrong"))
    assert str(caught.value) == "wrong"
    assert Solo().agree(7) == [7]
    assert Solo().decide("x") == "x"
