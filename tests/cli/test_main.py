"""The command line itself: help, mistakes, exit codes."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from scaffold import cli
from scaffold.cli import main
from scaffold.errors import DamagedFileError, StoppedError, UserError
from scaffold.parallel.team import Solo

VERBS = list(cli.build_parser()[1])


def run(*arguments, **options):
    return subprocess.run(
        [sys.executable, "-m", "scaffold", *arguments], capture_output=True, text=True, timeout=60, **options
    )


@pytest.fixture
def verb_that(monkeypatch):
    """Make ``check-config FILE`` do something else."""

    def make(action):
        monkeypatch.setattr(cli.settings, "_check_config", action)

    return make


def raising(error):
    def action(arguments):
        raise error

    return action


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (UserError("no such run"), 2),
        (DamagedFileError("f", "is truncated", "make it"), 65),
        (StoppedError("time is up"), 75),
    ],
)
def test_an_error_for_the_user_is_its_message_and_its_code(verb_that, capsys, error, code):
    """A traceback for a wrong path would bury the one line that helps."""
    verb_that(raising(error))
    assert main(["check-config", "x"]) == code
    assert capsys.readouterr().err == f"scaffold check-config: {error}\n"


def test_verbose_shows_where_it_came_from(verb_that, capsys):
    verb_that(raising(UserError("no such run")))
    assert main(["-v", "check-config", "x"]) == 2
    assert "Traceback" in capsys.readouterr().err


def test_a_defect_keeps_its_traceback(verb_that):
    verb_that(raising(ZeroDivisionError("ours")))
    with pytest.raises(ZeroDivisionError):
        main(["check-config", "x"])


def test_a_defect_that_ranks_agreed_upon_keeps_its_traceback(verb_that, capsys):
    """Whatever fails in a block of a team is a RankError, whose message alone does not say where the defect is."""

    def the_defect():
        raise ZeroDivisionError("ours")

    def action(arguments):
        with Solo().together("working"):
            the_defect()

    verb_that(action)
    assert main(["check-config", "x"]) == 1
    told = capsys.readouterr().err
    assert "in the_defect" in told
    assert told.endswith("\nscaffold check-config: ZeroDivisionError: ours\n")


def test_interrupt(verb_that, capsys):
    verb_that(raising(KeyboardInterrupt()))
    assert main(["check-config", "x"]) == 130
    assert capsys.readouterr().err == "scaffold check-config: interrupted\n"


@pytest.mark.parametrize(("returned", "code"), [(None, 0), (0, 0), (2, 2)])
def test_what_a_verb_returns_is_the_exit_code(verb_that, returned, code):
    verb_that(lambda arguments: returned)
    assert main(["check-config", "x"]) == code


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["chek-config", "x"], "scaffold: unknown verb chek-config; did you mean check-config? (scaffold --help lists"),
        (["-v", "zzz"], "scaffold: unknown verb zzz (scaffold --help lists all)"),
        (
            ["check-config", "x", "--sett", "seed=1"],
            "scaffold: check-config: unknown argument --sett; did you mean --set? (see scaffold check-config --help)",
        ),
        (["compare", "a", "b", "--jsn=1"], "unknown argument --jsn=1; did you mean --json?"),
        (["check-config", "x", "y"], "scaffold: check-config: unknown argument y (see"),
    ],
)
def test_unknown_verbs_and_options_name_the_nearest(capsys, arguments, told):
    assert main(arguments) == 2
    assert told in capsys.readouterr().err


@pytest.mark.parametrize("arguments", [[], ["check-config"], ["fom", "--results"]])
def test_what_is_missing_is_told_with_the_same_code(capsys, arguments):
    with pytest.raises(SystemExit) as caught:
        main(arguments)
    assert caught.value.code == 2
    assert "usage: scaffold" in capsys.readouterr().err


def test_options_are_not_abbreviated(capsys):
    """A shortened option would change its meaning on the day a longer one is added."""
    assert main(["compare", "a", "b", "--forc"]) == 2
    assert "unknown argument --forc; did you mean --force?" in capsys.readouterr().err


@pytest.mark.parametrize("verb", [None, *VERBS])
def test_help(capsys, verb):
    with pytest.raises(SystemExit) as caught:
        main([verb, "--help"] if verb else ["--help"])
    assert caught.value.code == 0
    text = capsys.readouterr().out
    assert all(name in text for name in VERBS) if verb is None else f"usage: scaffold {verb}" in text


def test_help_needs_neither_torch_nor_mpi_and_bears_any_environment():
    """Hazard 49: a launcher's variable that is empty or "auto" kills even --help."""
    code = (
        "import sys; from scaffold.cli import build_parser; build_parser();"
        "print(sorted(sys.modules.keys() & {'torch', 'mpi4py', 'numba', 'pandas', 'matplotlib'}))"
    )
    environment = {
        "PATH": "/usr/bin:/bin",
        "SLURM_LOCALID": "",
        "FLUX_TASK_LOCAL_ID": "auto",
        "OMPI_COMM_WORLD_SIZE": "x",
    }
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**environment, "PYTHONPATH": ":".join(sys.path)},
        capture_output=True,
        text=True,
    )
    assert (done.stdout, done.stderr) == ("[]\n", "")


@pytest.mark.parametrize("runs", [1, 400], ids=["fits the buffer", "does not"])
def test_a_reader_that_has_seen_enough_is_no_error(tmp_path, runs):
    """`scaffold check-config ... | head -1` must not end in a complaint of the interpreter."""
    study = tmp_path / "s.yaml"
    study.write_text("runs:\n" + "".join(f"  r{i}: {{seed: {i}}}\n" for i in range(runs)))
    reader, writer = os.pipe()
    os.close(reader)
    command = [sys.executable, "-m", "scaffold", "check-config", str(study)]
    buffered = {**os.environ, "PYTHONUNBUFFERED": ""}
    done = subprocess.run(command, stdout=writer, stderr=subprocess.PIPE, text=True, timeout=60, env=buffered)
    os.close(writer)
    assert (done.returncode, done.stderr) == (0, "")


def test_as_a_module():
    done = run("--version")
    assert (done.returncode, done.stdout) == (0, "scaffold 0.1.0\n")
