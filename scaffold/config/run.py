"""The configuration of one benchmark run: every key, its type, its range, and what follows from it."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from scaffold.config.keys import key

INSTANCES_PER_CATEGORY = 145
"""The category itself and 12 coefficients x 12 factors (fractal data specification, section 2)."""

_PART_BYTES = 512 * 2**20
_PART_VOLUMES = 64


class Storage(BaseModel):
    """How samples are stored."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)

    image: Literal["dense", "labels"] = key(
        "dense",
        "`dense`: float32 image and uint16 mask, LLNL's I/O load; `labels`: uint8 mask alone, the image is"
        " painted from the palette when it is read (about 14 times fewer bytes)",
        stage="dataset",
        must_match=True,
    )


class RunConfig(BaseModel):
    """One benchmark run. Names are LLNL ScaFFold's where it has the key. Immutable."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)

    # Categories
    seed: int = key(
        42,
        "seed of the data: categories, instances, composition and split; also the training seed where a"
        " run names no `seeds`",
        stage="search",
        must_match=True,
        ge=0,
        lt=2**63,
    )
    n_categories: int = key(
        5,
        "number of fractal categories, hence classes less the background",
        stage="search",
        must_match=True,
        ge=1,
        le=32767,
    )
    problem_scale: int = key(
        7,
        "volumes have edge 2^problem_scale; a cloud has volume / 256 points",
        stage="search",
        must_match=True,
        ge=4,
        le=12,
        unit="log2 voxels",
    )
    normalize: float = key(
        1.0,
        "half width of the cube that clouds are normalised to before the variance test",
        stage="search",
        must_match=True,
        gt=0,
        le=1e6,
    )
    variance_threshold: float = key(
        0.15,
        "least variance of a normalised cloud along every axis, for a category to be accepted",
        stage="search",
        must_match=True,
        ge=0,
        le=0.9,
    )

    # Data set
    n_instances_used_per_fractal: int = key(
        145,
        "instances of each category that are placed in volumes; rounded down to a multiple of"
        " `n_fracts_per_vol`; above 145 they repeat",
        stage="dataset",
        must_match=True,
        ge=1,
    )
    n_fracts_per_vol: int = key(
        3,
        "fractals painted into each volume, later ones over earlier ones",
        stage="dataset",
        must_match=True,
        ge=1,
        le=64,
    )
    val_split: int = key(
        30,
        "share of the volumes that validate, rounded down",
        stage="dataset",
        must_match=True,
        ge=1,
        le=99,
        unit="percent",
    )
    coloring: Literal["category", "uniform"] = key(
        "category",
        "`category`: one random colour per category, as LLNL; `uniform`: one colour for all,"
        " so that shape must be learned",
        stage="dataset",
        must_match=True,
    )
    storage: Storage = Field(default_factory=Storage, description="how samples are stored")

    # Model
    unet_bottleneck_dim: int = key(
        3,
        "log2 of the bottleneck's edge; the U-Net has problem_scale - unet_bottleneck_dim levels",
        stage="train",
        must_match=True,
        ge=0,
        unit="log2 voxels",
    )
    unet_base_channels: int = key(
        64,
        "channels at full resolution; they double at each level",
        stage="train",
        must_match=True,
        ge=1,
        le=4096,
    )
    group_norm_groups: int = key(
        8,
        "groups of each GroupNorm; must divide `unet_base_channels`",
        stage="train",
        must_match=True,
        ge=1,
    )
    group_norm_statistics: Literal["global", "local"] = key(
        "global",
        "`global`: over the whole sample however it is sharded; `local`: per shard, as LLNL",
        stage="train",
        must_match=True,
    )
    activation_checkpointing: bool = key(
        False,
        "recompute each block's activations in the backward pass",
        stage="train",
        must_match=False,
    )

    # Training
    target_dice: float = key(
        0.95,
        "validation Dice at which training ends",
        stage="train",
        must_match=True,
        resume=True,
        ge=0,
        le=1,
    )
    epochs: int = key(
        -1,
        "greatest number of epochs; -1 trains until `target_dice` (only then is there a figure of merit)",
        stage="train",
        must_match=False,
        resume=True,
        ge=-1,
        unit="epochs",
    )
    local_batch_size: int = key(
        1,
        "samples per step and replica",
        stage="train",
        must_match=False,
        ge=1,
        unit="samples",
    )
    optimizer: Literal["ADAM", "SGD", "RMSProp"] = key(
        "ADAM",
        "optimizer, with PyTorch's defaults apart from the learning rate",
        stage="train",
        must_match=True,
    )
    starting_learning_rate: float = key(
        1.0e-3,
        "learning rate at the start of each cosine period",
        stage="train",
        must_match=True,
        gt=0,
        le=1e3,
    )
    min_learning_rate: float = key(
        1.0e-4,
        "learning rate at the end of each cosine period",
        stage="train",
        must_match=True,
        ge=0,
        le=1e3,
    )
    T_0: int = key(
        100,
        "length of the first cosine period",
        stage="train",
        must_match=True,
        ge=1,
        unit="epochs",
    )
    T_mult: int = key(
        2,
        "factor between the lengths of successive cosine periods",
        stage="train",
        must_match=True,
        ge=1,
    )
    disable_scheduler: bool = key(
        False,
        "keep the starting learning rate",
        stage="train",
        must_match=True,
    )
    torch_amp: bool = key(
        True,
        "bf16 autocast of forward and loss inputs; parameters and optimizer stay float32",
        stage="train",
        must_match=False,
    )
    warmup_batches: int = key(
        64,
        "training and validation steps run and undone before the clock starts; 0 switches it off",
        stage="train",
        must_match=False,
        ge=0,
        unit="batches",
    )
    ce_weight_sample_fraction: float = key(
        0.1,
        "share of the training masks that the class weights are estimated from",
        stage="train",
        must_match=True,
        gt=0,
        le=1,
    )
    more_determinism: bool = key(
        False,
        "also refuse kernels that PyTorch knows to be non-deterministic",
        stage="train",
        must_match=False,
    )

    # Sharding
    dc_num_shards: list[Annotated[int, Field(ge=1)]] = key(
        [1, 1, 1],
        "number of blocks that each sample is cut into, per dimension of `dc_shard_dims`",
        stage="train",
        must_match=False,
        min_length=3,
        max_length=3,
    )
    dc_shard_dims: list[Literal[2, 3, 4]] = key(
        [2, 3, 4],
        "the dimensions of (N, C, D, H, W) that `dc_num_shards` cuts",
        stage="train",
        must_match=True,
        min_length=3,
        max_length=3,
    )

    # Launch
    dataloader_num_workers: int = key(
        1,
        "loader processes per rank; 0 loads in the training process",
        stage="launch",
        must_match=False,
        ge=0,
        le=1024,
        unit="processes",
    )
    checkpoint_interval: int = key(
        1,
        "epochs between checkpoints; -1 saves at the end only",
        stage="launch",
        must_match=False,
        ge=-1,
        unit="epochs",
    )
    async_save: bool = key(
        True,
        "write checkpoints in the background",
        stage="launch",
        must_match=False,
    )
    max_runtime: float | None = key(
        None,
        "stop, save and exit with code 75 after this time; null never stops",
        stage="launch",
        must_match=False,
        gt=0,
        unit="minutes",
    )

    @property
    def vol_size(self) -> int:
        """Edge of a volume in voxels."""
        return 1 << self.problem_scale

    @property
    def point_num(self) -> int:
        """Points of a cloud: one per 256 voxels."""
        return self.vol_size**3 // 256

    @property
    def unet_layers(self) -> int:
        """Number of poolings of the U-Net."""
        return self.problem_scale - self.unet_bottleneck_dim

    @property
    def instances_used(self) -> int:
        """Instances each category contributes: rounded down so that all volumes are full."""
        return self.n_instances_used_per_fractal // self.n_fracts_per_vol * self.n_fracts_per_vol

    @property
    def n_volumes(self) -> int:
        """Volumes of the data set, both splits."""
        return self.n_categories * self.instances_used // self.n_fracts_per_vol

    @property
    def n_validation(self) -> int:
        """Validation volumes."""
        return self.n_volumes * self.val_split // 100

    @property
    def n_training(self) -> int:
        """Training volumes."""
        return self.n_volumes - self.n_validation

    @property
    def total_shards(self) -> int:
        """Blocks that one sample is cut into, which is ranks per replica."""
        depth, height, width = self.dc_num_shards
        return depth * height * width

    @property
    def volume_bytes(self) -> int:
        """Bytes of one stored sample: float32 image of 3 channels and uint16 mask, or uint8 mask."""
        return self.vol_size**3 * (3 * 4 + 2 if self.storage.image == "dense" else 1)

    @property
    def dataset_bytes(self) -> int:
        """Bytes of all stored samples."""
        return self.n_volumes * self.volume_bytes

    @property
    def instances_bytes(self) -> int:
        """Bytes of the clouds of all instances of all categories, three float32 a point."""
        return self.n_categories * INSTANCES_PER_CATEGORY * self.point_num * 3 * 4

    @property
    def volumes_per_part(self) -> int:
        """Samples per part of the data set: about 512 MiB, at most 64; a function of the content alone."""
        return min(max(_PART_BYTES // self.volume_bytes, 1), _PART_VOLUMES)

    @property
    def n_parts(self) -> int:
        """Number of parts of the data set."""
        return -(-self.n_volumes // self.volumes_per_part)
