"""Choosing settings from the command line."""

from __future__ import annotations

import argparse

import pytest

from scaffold.cli import main
from scaffold.cli.common import add_selection_arguments, load_run, select_config
from scaffold.config import ConfigError, RunConfig, dataset_name, library_name
from scaffold.errors import UserError


@pytest.fixture
def parse(tmp_path):
    path = tmp_path / "study.yaml"
    path.write_text("runs:\n  a: {seed: 1}\n  b: {seed: 2}\n")

    def make(product, *arguments):
        parser = argparse.ArgumentParser()
        add_selection_arguments(parser, product)
        return parser.parse_args(["--config", str(path), *arguments])

    return make


@pytest.mark.parametrize(("product", "name_of"), [("library", library_name), ("dataset", dataset_name)])
def test_product_is_found_by_its_name(parse, product, name_of):
    """Snakemake names the product, so that renaming a run redoes nothing."""
    wanted = RunConfig(seed=2)
    assert select_config(parse(product, f"--{product}", name_of(wanted)), product) == wanted
    assert select_config(parse(product, "--run", "b"), product) == wanted


def test_name_that_no_run_makes_is_a_changed_study(parse):
    """The job of an older plan must not make data of other settings under the old name."""
    name = library_name(RunConfig(seed=3))
    with pytest.raises(UserError, match=f"makes the library {name} .*run Snakemake again"):
        select_config(parse("library", "--library", name), "library")


def test_run_must_be_named_where_there_are_several(parse):
    with pytest.raises(ConfigError, match="choose one with --run: a, b"):
        load_run(parse("library"))
    assert load_run(parse("library", "--run", "a", "--set", "epochs=3")).config == RunConfig(seed=1, epochs=3)


@pytest.mark.parametrize("threads", ["0", "-1", "two"])
@pytest.mark.parametrize("verb", ["search --config x --output x", "verify-dataset x"])
def test_threads_must_be_a_positive_number(capsys, verb, threads):
    """Zero threads would wait for ever."""
    with pytest.raises(SystemExit):
        main([*verb.split(), "--threads", threads])
    assert f"'{threads}' is not an integer of at least 1" in capsys.readouterr().err
