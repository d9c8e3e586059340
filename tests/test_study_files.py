"""Reading the study that a Snakemake command names."""

import json
import os
import shutil
import sys
from pathlib import Path

import pytest

from scaffold import study_files
from scaffold.config import ConfigError, Study, training_identity
from scaffold.errors import UserError

DEFAULT = "defaults: {problem_scale: 5}\nruns: {tiny: {ranks: [1, 2]}}\n"
OTHER = "runs: {other: {problem_scale: 6}}\n"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    Path("default.yaml").write_text(DEFAULT)
    Path("other.yaml").write_text(OTHER)
    return tmp_path


def read(*files: str | Path, replaced: bool = True, **keys: object) -> Study:
    return study_files.read_study("default.yaml", files, keys, replaced)


def test_default_study(folder: Path) -> None:
    """A plain command runs the workflow's own study."""
    assert read(replaced=False).runs.keys() == {"tiny"}


def test_other_study_replaces_the_default(folder: Path) -> None:
    """Merging two studies would add the default's runs and keys to what was asked for."""
    study = read(folder / "other.yaml")
    assert study.runs.keys() == {"other"}
    assert study.source == "other.yaml"


def test_merging_is_refused(folder: Path) -> None:
    """Without --replace-workflow-config Snakemake merges silently; the user must hear of it."""
    with pytest.raises(UserError, match=r"--configfile other\.yaml would be merged with default\.yaml"):
        read(folder / "other.yaml", replaced=False)


def test_command_line_keys_win(folder: Path) -> None:
    """--config is a flag, and a flag beats the file; it must also not wipe the rest of the file."""
    study = read(runs={"tiny": {"seed": 7}})
    assert study.runs["tiny"].config.seed == 7
    assert study.runs["tiny"].config.problem_scale == 5
    assert study.runs["tiny"].ranks == [1, 2]


def test_command_line_values_have_their_types(folder: Path) -> None:
    """Snakemake leaves what is nested in --config as text, and a number in quotes is no number."""
    study = read(
        defaults={"seed": "7", "torch_amp": "false", "max_runtime": "", "starting_learning_rate": "2.0e-3"},
        runs={"tiny": {"ranks": ["1", "4"], "optimizer": "SGD"}},
    )
    config = study.runs["tiny"].config
    assert (config.seed, config.torch_amp, config.max_runtime, config.optimizer) == (7, False, None, "SGD")
    assert config.starting_learning_rate == 0.002
    assert study.runs["tiny"].ranks == [1, 4]


def test_wrong_command_line_key_is_named(folder: Path) -> None:
    """An error of --config must not send the user to look into the file."""
    with pytest.raises(ConfigError, match=r"default\.yaml \+ --config: 1 problem"):
        read(defaults={"seeed": 7})


def test_errors_have_line_numbers(folder: Path) -> None:
    """Snakemake parses the file before us and drops the lines: the study is read from the file itself."""
    Path("other.yaml").write_text("runs:\n  other:\n    seed: x\n")
    with pytest.raises(ConfigError, match=r"line 3: runs\.other\.seed"):
        read("other.yaml")


def test_resolved_study_is_the_same_study(folder: Path) -> None:
    """All jobs read the resolved study: it must define the very same runs."""
    study = read(defaults={"seed": 3})
    study_files.write_resolved(study, Path("results"))
    assert Study.load(study_files.resolved_path(Path("results"))).runs == study.runs


def test_environment_comes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without an activated environment jobs would start the system's python, which has no scaffold."""
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    study_files.activate_environment()
    assert Path(shutil.which("python") or "").parent == Path(sys.executable).parent
    assert os.environ["PATH"].endswith(":/usr/bin:/bin")


def test_source_digest_sees_every_file(tmp_path: Path) -> None:
    """An edit of the plotting code that does not redo the figures leaves figures that nobody can explain."""
    package, script = tmp_path / "reporting", tmp_path / "plot.py"
    (package / "deep").mkdir(parents=True)
    script.touch()
    digests = [study_files.source_digest(package, script)]
    for path, text in [
        (package / "a.py", "1"), (package / "a.py", "2"), (package / "deep/b.py", "2"), (script, "2"),
        (package / "notes.txt", ""),
    ]:  # fmt: skip
        path.write_text(text)
        digests.append(study_files.source_digest(package, script))
    assert len(set(digests[:5])) == 5
    assert digests[5] == digests[4]


def test_trained_is_what_has_the_result_of_these_settings(folder: Path) -> None:
    """Taken for trained by mistake, a training does not wait for its data; the other way, it is repeated."""
    job = read().jobs()[0]
    result = study_files.training_folder(folder, job) / "result.json"
    assert not study_files.is_trained(folder, job)
    result.parent.mkdir(parents=True)
    for content in ("", "[]", "{}", '{"training_identity": "0123456789ab"}'):
        result.write_text(content)
        assert not study_files.is_trained(folder, job)
    result.write_text(json.dumps({"training_identity": training_identity(job.config)}))
    assert study_files.is_trained(folder, job)
    assert not study_files.is_trained(folder, read(defaults={"optimizer": "SGD"}).jobs()[0])


def test_the_command_line_reads_scalars_as_a_file_does(tmp_path: Path) -> None:
    """Read by another loader, 12:30:00 would be a month of minutes there, and a malformed date a traceback."""
    path = tmp_path / "study.yaml"
    path.write_text("runs: {a: {}}\n")
    for text in ("12:30:00", "2020-13-45"):
        with pytest.raises(ConfigError, match=rf"max_runtime = '{text}'"):
            study_files.read_study(str(path), [str(path)], {"defaults": {"max_runtime": text}}, replaced=True)
