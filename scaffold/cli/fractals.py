"""Verbs of the fractals: search, instances, import-library, export-library."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from scaffold.cli.common import (
    Verbs,
    add_ranks_argument,
    add_selection_arguments,
    add_threads_argument,
    add_verb,
    joined_team,
    select_config,
)
from scaffold.errors import UserError

if TYPE_CHECKING:
    from scaffold.config import RunConfig
    from scaffold.parallel.team import Team


def register(verbs: Verbs) -> None:
    """Add the verbs of this group."""
    search = add_verb(verbs, "search", _search, "Search the fractal categories of a library.")
    add_selection_arguments(search, "library")
    search.add_argument("--output", required=True, metavar="DIR", help="where categories.csv and .json go")
    _add_workers(search)

    instances = add_verb(verbs, "instances", _instances, "Make the point clouds of a category's 145 instances.")
    add_selection_arguments(instances, "library")
    instances.add_argument("--categories", required=True, metavar="FILE", help="categories.csv of the library")
    instances.add_argument("--category", required=True, type=int, metavar="K", help="which category, from 0")
    instances.add_argument("--output", required=True, metavar="FILE", help="the .npy to make; a .json goes beside it")
    _add_workers(instances)

    imported = add_verb(verbs, "import-library", _import_library, "Convert LLNL's folder of NNNNNN.csv to a library.")
    imported.add_argument("folder", metavar="FOLDER", help="LLNL's folder, one file a category")
    imported.add_argument("--output", required=True, metavar="DIR", help="where categories.csv and .json go")

    exported = add_verb(verbs, "export-library", _export_library, "Convert a library to LLNL's folder of NNNNNN.csv.")
    exported.add_argument("categories", metavar="FILE", help="categories.csv of the library")
    exported.add_argument("--output", required=True, metavar="FOLDER", help="where the files go, one a category")


def _add_workers(parser: argparse.ArgumentParser) -> None:
    add_ranks_argument(parser)
    add_threads_argument(parser, "threads of each rank")


def _search(arguments: argparse.Namespace) -> None:
    from scaffold.fractals.categories import write_library
    from scaffold.fractals.search import find_categories

    with joined_team(arguments) as team:
        config = _library_config(arguments, team)
        # All ranks give up alike; agreed upon, rank 0 alone tells.
        with team.together("searching categories"):
            library = find_categories(config, team, arguments.threads)
        with team.together("writing the library"):
            if team.rank == 0:
                table = write_library(library, Path(arguments.output))
                tried = library.description["candidates"]
                print(f"{table}: {len(library.params)} categories among {tried} candidates")


def _instances(arguments: argparse.Namespace) -> None:
    from scaffold.fractals.categories import load_categories
    from scaffold.fractals.instances import generate_instances

    output, category = Path(arguments.output), arguments.category
    with joined_team(arguments) as team:
        config = _library_config(arguments, team)
        with team.together("reading the library"):
            categories = load_categories(arguments.categories)
            if not 0 <= category < len(categories):
                raise UserError(
                    f"--category {category}: {arguments.categories} has the categories 0 .. {len(categories) - 1}"
                )
        attenuated = generate_instances(config, categories[category], category, output, team, arguments.threads)
        if team.rank == 0:
            print(f"{output}: 145 clouds of {config.point_num} points, {len(attenuated)} of them attenuated")


def _library_config(arguments: argparse.Namespace, team: Team) -> RunConfig:
    with team.together("reading the study"):
        return select_config(arguments, "library")


def _import_library(arguments: argparse.Namespace) -> None:
    from scaffold.fractals import llnl_csv
    from scaffold.fractals.categories import write_library

    library = llnl_csv.read_folder(Path(arguments.folder))
    table = write_library(library, Path(arguments.output))
    print(f"{table}: {len(library.params)} categories imported from {arguments.folder}")


def _export_library(arguments: argparse.Namespace) -> None:
    from scaffold.fractals import llnl_csv
    from scaffold.fractals.categories import load_categories

    files = llnl_csv.write_folder(load_categories(arguments.categories), Path(arguments.output))
    print(f"{arguments.output}: {len(files)} files, {files[0].name} to {files[-1].name}")
