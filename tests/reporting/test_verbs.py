"""The verbs fom, summary and compare, from files to exit codes."""

from __future__ import annotations

import json

import pytest

from scaffold.cli import main


@pytest.fixture
def fom(training, tmp_path):
    """Publish trainings and join them by the verb; return the fom.json."""

    def make(name, seeds=(1, 2, 3), **arguments):
        folders = [str(training(seed=seed, **arguments).publish()) for seed in seeds]
        path = tmp_path / f"{name}.json"
        assert main(["fom", "--results", *folders, "--output", str(path)]) == 0
        return str(path)

    return make


def test_fom_says_the_figure_in_one_sentence(fom, capsys):
    fom("a", seeds=(1,))
    headline, kernels, note = capsys.readouterr().out.splitlines()
    assert headline.startswith("tiny on 1 rank (Example CPU 9000): validation Dice 0.95 in ")
    assert kernels == "  kernels: all eager"
    assert note == "  note: 1 seed; LLNL asks for the median of at least 3"


def test_fom_of_a_damaged_result(training, tmp_path, capsys):
    directory = training().publish()
    (directory / "result.json").write_text("{")
    output = tmp_path / "fom.json"
    assert main(["fom", "--results", str(directory), "--output", str(output)]) == 65
    assert (
        f"rebuild it with: snakemake --profile profiles/local --configfile results/study.yaml --force {directory}"
        in capsys.readouterr().err
    )
    assert not output.exists()


def test_compare_equals(fom, capsys):
    a, b = fom("a", epoch_s=2.0), fom("b", ranks=2, epoch_s=1.0)
    capsys.readouterr()
    assert main(["compare", a, b]) == 0
    text = capsys.readouterr().out
    assert "B reaches the target" in text
    assert "\x1b" not in text
    assert "kernels" not in text
    # A pipe must not fold the table at 80 columns.
    (row,) = (line for line in text.splitlines() if line.startswith("time to target (s)"))
    assert len(row) > 80


def test_compare_of_what_cannot_be_compared(fom, capsys):
    """Exit code 2, and the keys by name with both values; the ratios only on demand."""
    a, b = fom("a"), fom("b", target_dice=0.9, ranks=2)
    capsys.readouterr()
    assert main(["compare", a, b]) == 2
    out, err = capsys.readouterr()
    assert [line.split() for line in out.splitlines() if line.startswith("target_dice")] == [
        ["target_dice", "0.95", "0.9"]
    ]
    assert "they differ in target_dice" in err
    assert "time to target" not in out
    assert main(["compare", a, b, "--force"]) == 0
    assert "time to target" in capsys.readouterr().out


def test_kernels_of_one_side_that_fell_back_are_told(fom, training, tmp_path, capsys):
    """Eager kernels on one side would pass for a slower machine."""
    a, fallen = fom("a"), training(ranks=2)
    fallen.result["kernels"]["calls"]["clipped_adam"] = {"triton": 5}
    b = str(tmp_path / "b.json")
    assert main(["fom", "--results", str(fallen.publish()), "--output", b]) == 0
    capsys.readouterr()
    assert main(["compare", a, b]) == 0
    told = "the records of the kernels that ran differ. A: all eager. B: triton, but stem_convolution: eager."
    assert f"Note: {told}" in capsys.readouterr().out.splitlines()
    assert main(["compare", a, b, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["notes"] == [told]


def test_compare_as_json(fom, capsys):
    a, b = fom("a"), fom("b", optimizer="SGD", ranks=2)
    capsys.readouterr()
    assert main(["compare", a, b, "--json"]) == 2
    content = json.loads(capsys.readouterr().out)
    assert content["comparable"] is False
    assert content["differences"] == [{"name": "optimizer", "a": "ADAM", "b": "SGD"}]
    assert main(["compare", a, a, "--json"]) == 0
    content = json.loads(capsys.readouterr().out)
    assert content["comparable"] is True
    assert content["ratios"][0]["ratio"] == 1


def test_compare_without_a_figure_of_merit(fom, capsys):
    a, b = fom("a"), fom("b", converged=False, ranks=2)
    capsys.readouterr()
    assert main(["compare", a, b]) == 2
    assert "B (tiny on 2 ranks) has no figure of merit" in capsys.readouterr().err


def test_compare_with_a_file_that_is_not_there(fom, tmp_path, capsys):
    a = fom("a")
    assert main(["compare", a, str(tmp_path / "none.json")]) == 2
    assert "none.json does not exist" in capsys.readouterr().err
    (tmp_path / "cut.json").write_text('{"format_version": 1, ')
    assert main(["compare", a, str(tmp_path / "cut.json")]) == 65


def test_summary_writes_and_shows(fom, tmp_path, capsys):
    a, b = fom("a"), fom("b", ranks=2, epoch_s=1.1)
    capsys.readouterr()
    path = str(tmp_path / "summary.csv")
    assert main(["summary", path, "--foms", b, a]) == 0
    assert capsys.readouterr().out == f"{path}: the summary of 2 figures of merit\n"
    assert main(["summary", path]) == 0
    written = capsys.readouterr().out
    rows = [line.split() for line in written.splitlines() if line.startswith("tiny ")]
    assert [row[:3] for row in rows[:2]] == [["tiny", "1", "3"], ["tiny", "2", "3"]]
