"""The command in the message about a damaged file."""

from pathlib import Path

import pytest

from scaffold.remedy import rebuild_command


@pytest.mark.parametrize(
    ("path", "target"),
    [
        ("/home/results/study/results/datasets/d/meta.yaml", "results/datasets/d/meta.yaml"),
        ("/elsewhere/d/meta.yaml", "/elsewhere/d/meta.yaml"),
    ],
)
def test_rebuild_command_names_the_workflows_target(path, target):
    """Broken when the command that we tell the user names a file that no rule of the workflow makes."""
    assert rebuild_command(Path(path)).endswith(f"--force {target}")
