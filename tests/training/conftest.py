"""The data set that whole trainings share."""

import pytest
import training_jobs


@pytest.fixture(scope="session")
def data(tmp_path_factory):
    """Folder of a data set of 16 volumes, with its study."""
    return training_jobs.dataset(tmp_path_factory)
