"""Reading YAML strictly."""

from __future__ import annotations

import pytest

from scaffold.config.yamlfile import key_lines, load_yaml
from scaffold.errors import UserError


@pytest.fixture
def read(tmp_path):
    def make(content):
        path = tmp_path / "f.yaml"
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return load_yaml(path)[1]

    return make


def test_key_given_twice_is_refused_with_its_line(read):
    """YAML would let the last one win, and the first stay in the file as a lie."""
    with pytest.raises(UserError, match=r"f\.yaml line 3: not valid YAML: key 'seed' is given twice"):
        read("seed: 1\nepochs: 2\nseed: 3\n")
    with pytest.raises(UserError, match=r"line 3.*'a' is given twice"):
        read("runs:\n  a: {}\n  a: {}\n")
    assert read("a: {x: 1}\nb: {x: 1}\n") == {"a": {"x": 1}, "b": {"x": 1}}


def test_merge_keys_still_work(read):
    assert read("a: &a {x: 1, y: 1}\nb: {<<: *a, y: 2}\n")["b"] == {"x": 1, "y": 2}


@pytest.mark.parametrize(
    ("content", "told"),
    [
        ("a: [1, 2", "line 1"),
        ("a: b: c", "line 1: not valid YAML: mapping values are not allowed here"),
        ("\tx: 1", "line 1"),
        ("? [1]\n: 2", "unhashable key"),
        (b"\xff\xfe\xfd", "cannot read"),
        ("a: !!python/object/apply:os.system ['true']", "could not determine a constructor"),
        ("a: *nowhere", "undefined alias"),
    ],
)
def test_what_is_not_yaml(read, content, told):
    with pytest.raises(UserError, match=told):
        read(content)


def test_lines_of_nested_keys():
    text = "# comment\nruns:\n  a:\n    storage:\n      image: dense\n    seed: 1\n"
    assert key_lines(text) == {"runs": 2, "runs.a": 3, "runs.a.storage": 4, "runs.a.storage.image": 5, "runs.a.seed": 6}


def test_alias_inside_what_it_stands_for_ends():
    assert key_lines("a: &a\n  b: *a\n") == {"a": 1, "a.b": 2}
