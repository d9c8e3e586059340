"""Trainings on a real Slurm: what is asked of it, and how each goes on after it was broken.

What was done to them, and all their attempts, is in build/cluster-tests.log.
"""

import re

import pytest
from broken_study import EPOCHS, LIMIT_S, BrokenStudy
from slurm_cluster import slurm

# The fixture runs the whole study; the limit is a test's with all its fixtures.
pytestmark = [pytest.mark.cluster, pytest.mark.timeout(LIMIT_S + 120)]

UNDISTURBED = {"limit": "long", "requeue": "steady", "cancel": "steady", "killed": "steady", "node": "steady"}


def asked_for(job: str, *names: str) -> list[str]:
    """Return what Slurm's description of a job says of ``names``."""
    return [found[1] if (found := re.search(rf"\b{re.escape(name)}=(\S+)", job)) else "" for name in names]


def test_each_training_has_the_shape_of_its_run(study: BrokenStudy) -> None:
    """Ranks beside each other, spread, and both: a benchmark on other nodes than it says is worth nothing."""
    shapes = {name: asked_for(job, "NumNodes", "NumTasks", "CPUs/Task") for name, job in study.jobs.items()}
    assert shapes["long_1_42"] == ["1", "1", "1"]
    assert shapes["steady_2_42"] == ["1", "2", "1"]
    assert shapes["wide_2_42"] == ["2", "2", "1"]
    assert shapes["grid_4_42"] == ["2", "4", "1"]
    # Memory is of each rank; Slurm counts it by node.
    assert asked_for(study.jobs["grid_4_42"], "MinMemoryNode") == ["1200M"]
    assert asked_for(study.jobs["wide_2_42"], "MinMemoryNode") == ["600M"]


def test_ranks_and_gpus_are_spread_evenly(study: BrokenStudy) -> None:
    """Asked for four tasks on two nodes, Slurm gives 3 + 1, and the third rank of a node finds no GPU."""
    placed = re.findall(r"Nodes=(\S+) CPU_IDs=(\S+) Mem=\d+ GRES=(\S*)", study.jobs["grid_4_42"])
    cores = {nodes: len(_numbers(cpus)) for nodes, cpus, _ in placed}
    assert cores in ({"n[1-2]": 2}, {"n1": 2, "n2": 2})
    assert {re.sub(r"\(.*", "", gpus) for *_, gpus in placed} == {"gpu:2"}


def test_ranks_on_two_nodes_train_as_on_one(study: BrokenStudy) -> None:
    """Which nodes ranks are on is no setting: to the last bit of the first epoch."""
    assert study.rows("wide") == study.rows("steady")[:1]
    assert study.rows("grid") != study.rows("steady")[:1], "four ranks have another global batch"


@pytest.mark.parametrize(("run", "undisturbed"), UNDISTURBED.items())
def test_broken_training_ends_as_if_it_had_not_been(study: BrokenStudy, run: str, undisturbed: str) -> None:
    """Hazards 22, 27, 30: it is started again, continues, and every bit but times is as without the break."""
    attempts = study.result(run)["attempts"]
    assert len(attempts) >= 2
    assert attempts[-1]["first_epoch"] > 3, "it must have continued, not begun anew"
    assert study.rows(run) == study.rows(undisturbed)
    assert study.weights(run) == study.weights(undisturbed)


def test_undisturbed_trainings_take_one_attempt(study: BrokenStudy) -> None:
    """The control of the test above: nothing else on this cluster breaks a training."""
    for run in ("wide", "grid", "long", "steady"):
        assert len(study.result(run)["attempts"]) == 1
    assert [len(study.rows(run)) for run in ("wide", "grid", "long", "steady")] == [1, 1, EPOCHS[1], EPOCHS[2]]
    assert study.weights("long") != study.weights("steady")


def test_restart_sh_asks_for_what_the_job_had(study: BrokenStudy) -> None:
    """Hazard 59: the job has lost Slurm's variables; with the default memory its training would be killed."""
    (script,) = study.folder("grid").glob("work/*/restart.sh")
    head = script.read_text().partition("\nset ")[0].splitlines()
    assert {"#SBATCH --mem=1200M", "#SBATCH --gres=gpu:2", "#SBATCH --partition=batch"} <= set(head)
    slurm("sbatch", "--test-only", str(script))


def test_time_limit_is_kept_by_the_training_itself(study: BrokenStudy) -> None:
    """A training that waits for Slurm to end it loses the epoch it is in, or its checkpoint."""
    first = study.result("limit")["attempts"][0]
    assert (first["ending"], first["exit_code"]) == ("time limit", 75)
    assert first["wall_s"] < 120


def test_requeued_job_is_the_same_job(study: BrokenStudy) -> None:
    """Slurm starts it again by itself; a second submission beside it would be a second training in its folder."""
    first, second = study.result("requeue")["attempts"]
    assert first["job"] == second["job"]


@pytest.mark.parametrize("run", ["cancel", "killed", "node"])
def test_lost_job_is_submitted_again(study: BrokenStudy, run: str) -> None:
    """What Slurm does not start again by itself, the profile's `retries` do."""
    first, second = study.result(run)["attempts"]
    assert first["job"] != second["job"]
    assert study.result(run)["lost_s"] > 0


def test_incurable_failure_is_submitted_once(study: BrokenStudy) -> None:
    """Ten retries of a diverging training wait ten times in the queue; the other runs must go on meanwhile."""
    (attempt,) = study.attempts("diverging")
    assert (attempt["ending"], attempt["exit_code"]) == ("failed", 70)
    assert [run for run in study.submitted if run == "diverging"] == ["diverging"]
    assert study.submitted.count("cancel") == 2, "the control: this one was submitted again"
    assert study.code == 1


def _numbers(ranges: str) -> list[int]:
    numbers = []
    for part in ranges.split(","):
        first, _, last = part.partition("-")
        numbers += range(int(first), int(last or first) + 1)
    return numbers
