"""The figures of merit as a page of the report."""

from __future__ import annotations

from scaffold.reporting.fom import figure_of_merit
from scaffold.reporting.page import page
from scaffold.reporting.results import read_training
from scaffold.reporting.tables import summary


def test_page_says_the_figures_of_merit_and_their_conditions(training):
    """A recipient of the report has this page alone: no file beside it, no repository."""
    figure = figure_of_merit([read_training(training().publish())])
    text = page(summary([figure]))
    assert "tiny on 1 rank (Example CPU 9000): validation Dice 0.95 in" in text
    assert figure.dataset.digest in text
    assert f"<td>{figure.parameters}</td>" in text
    assert "<td>kernels</td><td>all eager</td>" in text


def test_names_cannot_break_the_page(training):
    figure = figure_of_merit([read_training(training().publish())])
    table = summary([figure])
    table["device"] = "<b>A&B</b>"
    assert "&lt;b&gt;A&amp;B&lt;/b&gt;" in page(table)
