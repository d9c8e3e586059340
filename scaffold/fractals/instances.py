"""Instances: 145 variations of a category, and the file of their clouds.

Instance 0 is the category itself. Instance 1 + 12 * c + f scales coefficient c of both maps by factor f:
coefficients in the order a00, a01, ..., a22, b0, b1, b2, factors 0.4, 0.5, ..., 0.9, 1.1, ..., 1.6. The
probabilities stay.

A scaled contraction can run away. Then the factor's deviation from 1 is halved, quartered, cut to a
tenth, and at last the unscaled map is taken, each time with the same draws, which are a pure function of
(seed, category, instance).

A file holds the 145 clouds of a category, (145, points, 3) float32, as NumPy's ``.npy``. Each cloud is
played and written in pieces of 3 MB, so a worker's memory does not grow with the problem's scale (at
scale 11 one cloud has 400 MB and the file 58 GB).
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from scaffold import atomic, provenance, rng
from scaffold.arrays import ArrayFile, write_at
from scaffold.config import INSTANCES_PER_CATEGORY, RunConfig, stage_version
from scaffold.config.identity import library_settings
from scaffold.errors import DamagedFileError, UserError
from scaffold.fractals import ifs
from scaffold.fractals.categories import COEFFICIENT_NAMES
from scaffold.parallel.team import Solo, Team
from scaffold.progress import track
from scaffold.remedy import rebuild_command

FACTORS = (0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.1, 1.2, 1.3, 1.4, 1.5, 1.6)

ATTENUATIONS = (1.0, 0.5, 0.25, 0.1, 0.0)
"""Shares of a factor's deviation from 1 that are tried in turn until the cloud is bounded."""

_DTYPE = np.dtype("<f4")
_PIECE = 1 << 18

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Attenuated:
    """An instance that ran away at its full factor.

    Attributes:
        instance: 1 .. 144.
        coefficient: name of the scaled coefficient.
        factor: the full factor.
        attenuation: share of its deviation from 1 that was kept; 0 is the category itself.
    """

    instance: int
    coefficient: str
    factor: float
    attenuation: float


def instance_key(seed: int, category: int, instance: int) -> int:
    """Return the key of the stream of draws of one instance's cloud."""
    return rng.key(seed, "instance", category, instance)


def instance_weight(instance: int) -> tuple[int, float]:
    """Return which coefficient (0 .. 11) instance 1 .. 144 scales, and by what factor."""
    coefficient, factor = divmod(instance - 1, len(FACTORS))
    return coefficient, FACTORS[factor]


def instance_params(
    category_params: NDArray[np.float64], instance: int, attenuation: float = 1.0
) -> NDArray[np.float64]:
    """Return the system of one instance.

    Args:
        category_params: (2, 13) float64; left as it is.
        instance: 0 .. 144.
        attenuation: share of the factor's deviation from 1 to apply.

    Returns:
        (2, 13) float64.

    Raises:
        IndexError: there is no such instance.
    """
    if not 0 <= instance < INSTANCES_PER_CATEGORY:
        raise IndexError(f"instance {instance} is not one of 0 .. {INSTANCES_PER_CATEGORY - 1}")
    params = category_params.copy()
    if instance > 0:
        coefficient, factor = instance_weight(instance)
        params[:, coefficient] *= 1.0 + attenuation * (factor - 1.0)
    return params


def generate_instances(
    config: RunConfig,
    category_params: NDArray[np.float64],
    category: int,
    output: Path,
    team: Team | None = None,
    threads: int = 1,
) -> list[Attenuated]:
    """Make the clouds of all instances of a category. Collective.

    Ranks and threads divide the instances and write into one temporary file at the clouds' own offsets;
    it becomes ``output`` when all are there. Its bytes do not depend on ranks or threads. A JSON file of
    the same name beside it, written just before, records settings, attenuated instances and provenance.

    Args:
        config: gives seed and point_num.
        category_params: (2, 13) float64.
        category: index of the category in its library.
        output: the ``.npy`` to make.
        team: the ranks that share the work; one process by default.
        threads: threads of each rank.

    Returns:
        The attenuated instances, in order, the same on every rank.

    Raises:
        RankError: alike on every rank: writing failed, or an instance has no bounded cloud.
    """
    team = team or Solo()
    clouds = _Clouds(config, category_params, category, output)
    temporary = Path(team.decide(str(atomic.temporary_path(output))))
    try:
        with team.together(f"creating {output}"):
            if team.rank == 0:
                clouds.create(temporary)
        attenuated: list[Attenuated] = []
        with team.together(f"making instances of category {category}"):
            mine = range(team.rank, INSTANCES_PER_CATEGORY, team.size)
            attenuated = clouds.make(mine, temporary, team.rank, threads)
        everyones = [item for part in team.exchange(attenuated) for item in part]
        everyones.sort(key=lambda item: item.instance)
        with team.together(f"finishing {output}"):
            if team.rank == 0:
                _warn(category, everyones)
                atomic.write_json(output.with_suffix(".json"), _description(config, category, everyones))
                atomic.commit(temporary, output)
        return everyones
    finally:
        if team.rank == 0:
            temporary.unlink(missing_ok=True)


def load_instance(path: str | os.PathLike[str], instance: int) -> NDArray[np.float32]:
    """Read one cloud of a category's file, and nothing else of it.

    Args:
        path: the ``.npy`` of :func:`generate_instances`.
        instance: 0 .. 144.

    Returns:
        (points, 3) float32.

    Raises:
        UserError: there is no such file.
        DamagedFileError: it is not a whole file of instances.
        IndexError: there is no such instance.
    """
    path = Path(path)
    if not 0 <= instance < INSTANCES_PER_CATEGORY:
        raise IndexError(f"instance {instance} is not one of 0 .. {INSTANCES_PER_CATEGORY - 1}")
    try:
        with path.open("rb") as file:
            points = _read_header(file, path)
            file.seek(instance * _cloud_bytes(points), os.SEEK_CUR)
            cloud = np.fromfile(file, _DTYPE, points * 3)
    except FileNotFoundError:
        raise UserError(f"{path} does not exist; make it with: {rebuild_command(path)}") from None
    except OSError as error:
        raise DamagedFileError(path, f"cannot be read ({error.strerror})", rebuild_command(path)) from error
    return cloud.reshape(points, 3)


@dataclass(frozen=True)
class _Clouds:
    """The clouds of one category, which become the file ``output``."""

    config: RunConfig
    params: NDArray[np.float64]
    category: int
    output: Path

    @property
    def file(self) -> ArrayFile:
        return ArrayFile(self.output, (INSTANCES_PER_CATEGORY, self.config.point_num, 3), _DTYPE.str)

    def create(self, temporary: Path) -> None:
        """Make ``temporary`` a file of full length, without clouds yet."""
        with atomic.refusals(self.output):
            temporary.parent.mkdir(parents=True, exist_ok=True)
            atomic.remove_temporaries(temporary.parent)
            with temporary.open("wb") as stream:
                stream.write(self.file.header)
                stream.truncate(self.file.size)

    def make(self, instances: Iterable[int], temporary: Path, rank: int, threads: int) -> list[Attenuated]:
        """Write the clouds of ``instances`` and make them durable; return those that were attenuated."""
        todo = list(instances)
        with atomic.refusals(self.output):
            descriptor = os.open(temporary, os.O_WRONLY)
            try:
                with ThreadPoolExecutor(threads) as pool:
                    futures = [pool.submit(self._make_one, instance, descriptor) for instance in todo]
                    try:
                        done = track(as_completed(futures), f"category {self.category}", len(todo), rank)
                        outcomes = [future.result() for future in done]
                    except BaseException:
                        pool.shutdown(wait=False, cancel_futures=True)
                        raise
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
        return [outcome for outcome in outcomes if outcome is not None]

    def _make_one(self, instance: int, descriptor: int) -> Attenuated | None:
        key = instance_key(self.config.seed, self.category, instance)
        for attenuation in ATTENUATIONS if instance else (1.0,):
            if self._write(instance_params(self.params, instance, attenuation), key, instance, descriptor):
                if attenuation == 1.0:
                    return None
                coefficient, factor = instance_weight(instance)
                return Attenuated(instance, COEFFICIENT_NAMES[coefficient], factor, attenuation)
        raise UserError(
            f"category {self.category}, instance {instance}: even the unscaled category leaves"
            f" |x| <= {ifs.LIMIT:g} with this instance's draws; choose another seed"
        )

    def _write(self, params: NDArray[np.float64], key: int, instance: int, descriptor: int) -> bool:
        """Play and write one cloud; return False, with part of it written, as soon as it runs away."""
        points, file = self.config.point_num, self.file
        walk = ifs.Walk(params, key)
        buffer = np.empty((min(_PIECE, points), 3), _DTYPE)
        for start in range(0, points, _PIECE):
            piece = buffer[: points - start]
            if not walk.fill(piece):
                return False
            write_at(descriptor, piece, file.offset(instance, start))
        return True


def _read_header(file: BinaryIO, path: Path) -> int:
    """Return the points per cloud; leave ``file`` at the first cloud."""
    try:
        version = npy.read_magic(file)
        if version != (1, 0):
            raise ValueError(f"its format version is {version}")
        shape, fortran_order, dtype = npy.read_array_header_1_0(file)
    except ValueError as error:
        raise DamagedFileError(path, f"is not a .npy file ({error})", rebuild_command(path)) from None
    if len(shape) != 3 or (shape[0], shape[2]) != (INSTANCES_PER_CATEGORY, 3) or fortran_order or dtype != _DTYPE:
        problem = f"holds {dtype} {shape} instead of float32 ({INSTANCES_PER_CATEGORY}, points, 3)"
        raise DamagedFileError(path, problem, rebuild_command(path))
    points: int = shape[1]
    found, expected = os.fstat(file.fileno()).st_size, file.tell() + INSTANCES_PER_CATEGORY * _cloud_bytes(points)
    if found != expected:
        raise DamagedFileError(path, f"has {found} bytes instead of {expected}", rebuild_command(path))
    return points


def _cloud_bytes(points: int) -> int:
    return points * 3 * _DTYPE.itemsize


def _warn(category: int, attenuated: list[Attenuated]) -> None:
    for item in attenuated:
        kept = f"scaled by {1 + item.attenuation * (item.factor - 1):g}" if item.attenuation else "left unscaled"
        _log.warning(
            "category %d, instance %d: runs away with %s scaled by %g; %s instead",
            category,
            item.instance,
            item.coefficient,
            item.factor,
            kept,
        )


def _description(config: RunConfig, category: int, attenuated: list[Attenuated]) -> dict[str, object]:
    return {
        "category": category,
        "settings": {**library_settings(config), "version.instances": stage_version("instances")},
        "instances": INSTANCES_PER_CATEGORY,
        "points": config.point_num,
        "attenuated": [asdict(item) for item in attenuated],
        "provenance": provenance.stamp(),
    }
