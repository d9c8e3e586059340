"""The figure of the kernel benchmark, drawn from what the repository holds."""

import csv
from pathlib import Path

import pytest
from matplotlib.figure import Figure

from scaffold.errors import DamagedFileError, UserError
from scaffold.kernels.bench import roofline

RESULTS = Path(__file__).parents[3] / "benchmarks" / "results"


def is_of_kernels(path):
    return path.read_text().startswith("device,workload,")


COMMITTED = sorted(path for path in RESULTS.glob("*/*.csv") if is_of_kernels(path))


def test_the_committed_results_are_found():
    """Control of the next test, which would pass without a file."""
    assert {path.name for path in COMMITTED} >= {"gated_stack.csv", "unet_kernels.csv"}


@pytest.mark.parametrize("path", COMMITTED, ids=lambda path: path.stem)
def test_committed_results_can_be_read_and_drawn(path, tmp_path):
    """Whoever draws the figure anew would be told that our own file is damaged."""
    rows = roofline.read_rows(path, "again")
    assert {row["limit"] for row in rows} <= {"bytes", "float32", "bfloat16"}
    figure = tmp_path / "roofline.svg"
    roofline.plot(rows, figure)
    assert figure.stat().st_size > 10_000
    drawn = figure.read_text()
    assert ("bfloat16" in drawn) == all(row["bfloat16_tflop_per_s"] for row in rows), "only what was measured"


@pytest.mark.parametrize("column", ["limit", "bfloat16_tflop_per_s", "score"])
def test_results_without_a_column_are_refused(column, tmp_path):
    """Control: drawing would end in a KeyError."""
    with open(COMMITTED[0], newline="") as file:
        rows = list(csv.DictReader(file))
    path = tmp_path / "bench.csv"
    with open(path, "w", newline="") as file:
        writer = csv.DictWriter(file, [name for name in rows[0] if name != column], extrasaction="ignore")
        writer.writeheader()
        writer.writerows(rows)
    with pytest.raises(DamagedFileError, match="not a kernel benchmark"):
        roofline.read_rows(path, "again")


def test_unreadable_results_are_told(tmp_path):
    """A figure would be drawn from something else, or fail with a KeyError."""
    path = tmp_path / "bench.csv"
    with pytest.raises(UserError, match="make it with: snakemake"):
        roofline.read_rows(path, "snakemake")
    path.write_text("a,b\n1,2\n")
    with pytest.raises(DamagedFileError, match="not a kernel benchmark"):
        roofline.read_rows(path, "snakemake")


def test_a_single_case_has_room(tmp_path, recwarn, monkeypatch):
    """Matplotlib gives up laying out, with a warning, where a panel has no room: labels lie over labels, or are cut."""
    rows = roofline.read_rows(RESULTS / "nvidia-h200" / "unet_kernels.csv", "again")
    case = [row for row in rows if (row["workload"], row["case"]) == ("loss_sums_forward", "6 @ 128^3")]
    assert {row["arm"] for row in case} == {"triton", "stock", "triton (again)"}
    drawn, save = [], Figure.savefig

    def keep(figure, *arguments, **options):
        drawn.append(figure)
        save(figure, *arguments, **options)

    monkeypatch.setattr(Figure, "savefig", keep)
    roofline.plot(case, tmp_path / "roofline.png")
    assert not recwarn.list
    *_, panel = drawn[0].get_axes()
    assert panel.get_title() == "loss_sums_forward: fraction of the roof"
    assert panel.get_position().height * panel.figure.bbox.height / drawn[0].dpi > roofline._ROW
