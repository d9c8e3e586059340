"""The work folder: what failures, seals and cleaning leave in it."""

import json
import subprocess
import sys

import pytest
from work_folders import ended, opened

from scaffold.errors import DamagedFileError, Ending, ExitCode, IncurableError, UserError
from scaffold.training import workdir
from scaffold.training.attempts import ATTEMPTS, Attempts
from scaffold.training.lock import LOCK


def test_a_failure_that_no_retry_cures_is_kept(tmp_path):
    """Hazard 16: retried, a diverged run diverges again, at the price of its allocation."""
    ended(tmp_path, Ending.FAILED, ExitCode.INCURABLE, reason="loss is not finite")
    with pytest.raises(IncurableError, match="loss is not finite"):
        opened(tmp_path)
    assert not (tmp_path / LOCK).exists()
    assert len(Attempts(tmp_path).all) == 1


@pytest.mark.parametrize("code", [ExitCode.RUN_AGAIN, ExitCode.IO_ERROR, ExitCode.INTERNAL, ExitCode.DAMAGED])
def test_other_failures_may_be_retried(tmp_path, code):
    """Once a damaged file is rebuilt, or the disk has room, the same command must go on."""
    ended(tmp_path, Ending.FAILED, code)
    opened(tmp_path).close(Ending.CONVERGED, "converged", ExitCode.DONE)


@pytest.mark.parametrize("name", [ATTEMPTS, workdir.SEALED, LOCK])
@pytest.mark.parametrize("content", ["[{", "[1]", "{}", "null"])
def test_an_unreadable_record_is_named_and_costs_no_checkpoint(tmp_path, name, content):
    """A record that is silently begun anew would forget the failures; no checkpoint need go with it."""
    if (name, content) == (ATTEMPTS, "{}"):
        content = '{"a": 1}'
    (tmp_path / name).write_text(content)
    with pytest.raises(DamagedFileError, match=name) as caught:
        opened(tmp_path)
    assert caught.value.remedy == f"rm {tmp_path / name}"
    (tmp_path / name).unlink()
    opened(tmp_path).close(Ending.CONVERGED, "converged", ExitCode.DONE)


def finished(output, identity="abc"):
    """Return the work folder of a run with a published result."""
    work = workdir.work_path(output, "resume")
    ended(work)
    (work / "checkpoints").mkdir()
    (work / "checkpoints" / "last.safetensors").touch()
    (output / "result.json").write_text(json.dumps({"training_identity": identity, "resume_identity": "resume"}))
    return work


def test_a_sealed_run_starts_afresh(tmp_path):
    """A forced rerun that only published the old result again would measure nothing."""
    work = finished(tmp_path)
    workdir.seal(tmp_path)
    fresh = opened(work, "abc")
    assert not (work / "checkpoints").exists()
    assert len(fresh.attempts.all) == 1
    fresh.close(Ending.CONVERGED, "converged", ExitCode.DONE)
    assert not (work / workdir.SEALED).exists()


def test_a_sealed_run_with_a_raised_target_continues(tmp_path):
    """Otherwise raising target_dice would throw the training away."""
    work = finished(tmp_path)
    workdir.seal(tmp_path)
    again = opened(work, "other")
    assert (work / "checkpoints" / "last.safetensors").exists()
    assert len(again.attempts.all) == 2
    again.close(Ending.CONVERGED, "converged", ExitCode.DONE)


def test_an_unsealed_run_keeps_its_work(tmp_path):
    """Killed between the result and its recording, the same command must publish again, not train again."""
    work = finished(tmp_path)
    opened(work, "abc").close(Ending.PUBLISHED, "published", ExitCode.DONE)
    assert (work / "checkpoints" / "last.safetensors").exists()


def test_sealing_needs_a_result(tmp_path):
    """Sealing runs in the workflow's handlers, where an exception would hide the real error."""
    workdir.seal(tmp_path)
    work = finished(tmp_path)
    (tmp_path / "result.json").write_text("{")
    workdir.seal(tmp_path)
    assert not (work / workdir.SEALED).exists()


def test_the_workflow_can_seal_without_torch():
    """Snakemake's own process seals; torch there would cost seconds and a gigabyte at every start."""
    code = "import sys, scaffold.training.workdir; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], timeout=60).returncode == 0


def test_clean_run_removes_work_and_nothing_else(tmp_path):
    """Results that are already published stay."""
    work = finished(tmp_path)
    assert workdir.clean(tmp_path) == [work]
    assert not work.exists()
    assert (tmp_path / "result.json").exists()
    with pytest.raises(UserError, match="has no work folder"):
        workdir.clean(tmp_path)


def test_clean_run_refuses_while_training_runs(tmp_path):
    """Checkpoints pulled away under a running job."""
    work = workdir.work_path(tmp_path, "resume")
    running = opened(work)
    with pytest.raises(UserError, match="another training is running"):
        workdir.clean(tmp_path)
    running.close(Ending.CONVERGED, "converged", ExitCode.DONE)
    assert workdir.clean(work) == [work]
