"""What is said of the kernels that served, from the records of the seeds."""

from __future__ import annotations

import pytest

from scaffold.records import Kernels
from scaffold.reporting.kernels import in_words, joined


def of(differing=(), switches=None, **calls):
    return Kernels(calls=calls, differing_ranks=list(differing), switches=switches or {})


@pytest.mark.parametrize(
    ("kernels", "words"),
    [
        (None, "not recorded"),
        (of(), "not recorded"),
        (of(a={"triton": 1}, b={"triton": 7}), "all triton"),
        (of(a={"triton": 1}, b={"eager": 99}, c={"triton": 1}), "triton, but b: eager"),
        (of(a={"triton": 1}, b={"triton": 1}, c={"triton": 9, "eager": 1}), "triton, but c: eager and triton"),
        (of([3, 5], a={"triton": 1}), "all triton; otherwise on 2 ranks (3, 5)"),
        (of(switches={"SCAFFOLD_B": "0"}, a={"eager": 1}), "all eager; with SCAFFOLD_B=0"),
    ],
)
def test_what_differs_from_the_rest_is_named(kernels, words):
    """A single call that fell back would drown in those that did not."""
    assert in_words(kernels) == words


def test_no_seed_hides_what_another_fell_back_to():
    """The first seed's record would stand for all."""
    seeds = [of(a={"triton": 2}), None, of([1], {"SCAFFOLD_B": "0"}, a={"triton": 1, "eager": 4}, b={"eager": 1})]
    assert joined(seeds) == of([1], {"SCAFFOLD_B": "0"}, a={"triton": 3, "eager": 4}, b={"eager": 1})
    assert joined([None, None]) is None


def test_a_record_from_before_switches_were_noted_is_read():
    """Results of an earlier version would be refused."""
    assert Kernels.model_validate({"calls": {"a": {"eager": 1}}, "differing_ranks": []}) == of(a={"eager": 1})
