"""meta.yaml is what makes a folder a data set, and is never misread."""

from __future__ import annotations

import pytest
import yaml

from scaffold.dataset.meta import FORMAT_VERSION, load_meta
from scaffold.errors import DamagedFileError, UserError


def test_missing_meta_means_no_data_set(tmp_path):
    """Broken when a folder without meta.yaml is taken for a data set or called damaged."""
    with pytest.raises(UserError, match=r"is not a data set.*--force"):
        load_meta(tmp_path / "meta.yaml")


@pytest.mark.parametrize(
    "text",
    [
        "", "[1, 2]", "format: [", "{format: scaffold-dataset}", "dataset_format_version: true",
        "dataset_format_version: '1001'", "{format: other, dataset_format_version: 1001}",
        "dataset_format_version: 1001", "{dataset_format_version: 0}", "\xff\xfe",
    ],
)  # fmt: skip
def test_damaged_meta_is_never_another_format(tmp_path, text):
    """Hazard 44: broken when an unreadable meta.yaml falls back to some older format."""
    path = tmp_path / "meta.yaml"
    path.write_bytes(text.encode("latin1"))
    with pytest.raises(DamagedFileError) as caught:
        load_meta(path)
    assert str(path) in str(caught.value)


@pytest.mark.parametrize("version", [1, 2, 3, 4, 5])
def test_llnl_data_sets_are_refused_by_name(tmp_path, version):
    """Broken when LLNL's data, transposed in version 1, are read as ours or called damaged."""
    path = tmp_path / "meta.yaml"
    path.write_text(f"dataset_format_version: {version}\nconfig_id: 0123456789ab\n")
    with pytest.raises(UserError, match=f"LLNL ScaFFold data set .format {version}"):
        load_meta(path)


def test_llnl_folders_without_meta_are_refused_by_name(tmp_path):
    """Broken when LLNL's layout of version 1, which has no meta.yaml, is not recognised."""
    for name in ("volumes", "masks"):
        (tmp_path / name).mkdir()
    with pytest.raises(UserError, match="folders of an LLNL ScaFFold data set"):
        load_meta(tmp_path / "meta.yaml")


def test_llnl_would_refuse_ours():
    """Broken when our version is one that LLNL's loader (which takes up to 5) would read as its own."""
    assert FORMAT_VERSION > 5


def test_another_version_of_ours_says_how_to_go_on(tmp_path):
    """Broken when a data set of a later Scaffold is called damaged."""
    path = tmp_path / "meta.yaml"
    path.write_text(f"format: scaffold-dataset\ndataset_format_version: {FORMAT_VERSION + 1}\n")
    with pytest.raises(UserError, match="another version of Scaffold"):
        load_meta(path)


@pytest.mark.parametrize(
    ("edit", "problem"),
    [
        (lambda meta: meta.update(extra=1), "extra"),
        (lambda meta: meta.pop("edge"), "edge"),
        (lambda meta: meta.update(edge="16"), "edge"),
        (lambda meta: meta["palette"][1].__setitem__(0, 0.5), "altered"),
        (lambda meta: meta["sample_digests"].reverse(), "altered"),
        (lambda meta: meta["splits"]["training"].__setitem__(0, meta["splits"]["training"][1]), "each sample once"),
        (lambda meta: meta["palette"].pop(), "same labels"),
        (lambda meta: meta.update(n_validation=1), "n_validation"),
    ],
)
def test_altered_meta_is_damaged(made, copied, edit, problem):
    """Broken when a meta.yaml that was edited by hand still passes."""
    path = copied(made) / "meta.yaml"
    content = yaml.safe_load(path.read_text())
    edit(content)
    path.write_text(yaml.safe_dump(content))
    with pytest.raises(DamagedFileError, match=problem):
        load_meta(path)
