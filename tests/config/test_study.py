"""Reading a study: strict, everything wrong with it at once, in the user's terms."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest
import yaml

from scaffold.config import ConfigError, Resources, RunConfig, Study, iter_keys
from scaffold.config.keys import value_of
from scaffold.config.study import merge
from scaffold.errors import ExitCode, UserError

SHIPPED = sorted((Path(__file__).parents[2] / "config").glob("*.yaml"))


@pytest.fixture
def load(tmp_path):
    def make(text, *overrides):
        path = tmp_path / "study.yaml"
        path.write_text(text)
        return Study.load(path, overrides)

    return make


@pytest.fixture
def told(load):
    """Return what is said of a wrong study: one line per problem, the heading left out."""

    def make(text, *overrides):
        with pytest.raises(ConfigError) as caught:
            load(text, *overrides)
        heading, *lines = str(caught.value).splitlines()
        count = len(lines)
        assert heading.endswith(f"study.yaml: {count} problem{'s' if count != 1 else ''}")
        assert caught.value.exit_code == ExitCode.USER_ERROR
        return [line.strip() for line in lines]

    return make


def test_run_beats_defaults_and_flag_beats_both(load):
    text = "defaults: {seed: 1, epochs: 5, n_categories: 4}\nruns:\n  a: {epochs: 6}\n  b: {}\n"
    plain = load(text)
    assert [plain.run(name).config.epochs for name in "ab"] == [6, 5]
    assert plain.run("a").config.seed == 1
    forced = load(text, "epochs=9", "storage.image=labels")
    assert [forced.run(name).config.epochs for name in "ab"] == [9, 9]
    assert forced.run("b").config.storage.image == "labels"
    assert forced.run("b").config.n_categories == 4


def test_the_later_of_two_flags_wins(load):
    assert load("runs: {a: {}}", "seed=1", "seed=2").run("a").config.seed == 2


def test_seed_is_the_training_seed_unless_seeds_are_named(load):
    study = load("defaults: {seed: 5}\nruns:\n  a: {}\n  b: {seeds: [7, 8]}\n")
    assert [(job.run, job.seed, job.config.seed) for job in study.jobs()] == [("a", 5, 5), ("b", 7, 5), ("b", 8, 5)]
    # On the command line as in the file: `seed` is the data's.
    spec = load("runs:\n  b: {seeds: [7, 8]}\n", "seed=3").run("b")
    assert (spec.config.seed, spec.seeds) == (3, [7, 8])


def test_jobs_are_the_product_in_the_order_of_the_file(load):
    study = load("runs:\n  b: {ranks: [2, 1], seeds: [1, 2]}\n  a: {}\n")
    assert [(job.run, job.ranks, job.seed) for job in study.jobs()] == [
        ("b", 2, 1), ("b", 2, 2), ("b", 1, 1), ("b", 1, 2), ("a", 1, 42),
    ]  # fmt: skip


def test_all_problems_at_once_each_with_its_line(told):
    """One problem a try would cost the user as many tries as there are typing errors."""
    lines = told(
        "defaults:\n"
        "  problem_scale: 13\n"
        "  storage:\n"
        "    image: sparse\n"
        "runs:\n"
        "  a:\n"
        "    n_categoriez: 3\n"
        "    ranks: [0]\n"
        "  Big: {}\n"
        "default: {}\n",
        "sed=3",
    )
    assert sorted(lines) == sorted(
        [
            "line 2: defaults.problem_scale = 13: must be less than or equal to 12",
            "line 4: defaults.storage.image = 'sparse': must be 'dense' or 'labels'",
            "line 7: runs.a.n_categoriez: unknown key; did you mean n_categories?",
            "line 8: runs.a.ranks.0 = 0: must be greater than or equal to 1",
            "line 9: runs.Big: a run's name is a lower-case letter and up to 63 more letters, digits and _",
            "line 10: default: unknown key at the top of a study file; allowed are defaults and runs;"
            " did you mean defaults?",
            "--set sed: unknown key; did you mean seed?",
        ]
    )


def test_launch_keys_are_judged_although_a_key_is_wrong(told):
    lines = told("runs:\n  a: {seed: -1, ranks: [2, 2], seeds: [1]}\n  b: {seed: x, resources: {gpu: 1}}\n")
    assert "line 2: runs.a.ranks = [2, 2]: must not repeat a value" in lines
    assert "line 3: runs.b.resources.gpu: unknown key; did you mean resources.gpus?" in lines
    assert len(lines) == 4


def test_a_wrong_default_is_told_once_and_makes_no_others(told):
    """Judged with a stand-in for the wrong default, bottleneck 8 would be called too large for a scale nobody set."""
    text = "defaults: {problem_scale: 11, sead: 1}\nruns:\n  a: {unet_bottleneck_dim: 8}\n  b: {}\n"
    assert told(text) == ["line 1: defaults.sead: unknown key; did you mean seed?"]
    assert told(text.replace("sead", "seed").replace("11", "7")) == [
        "line 3: runs.a.unet_bottleneck_dim = 8: must be at most problem_scale - 1 = 6, so that the U-Net has a level"
    ]


def test_cross_check_points_to_the_line_of_an_inherited_key(told):
    lines = told("defaults:\n  problem_scale: 5\n  unet_bottleneck_dim: 5\nruns:\n  a: {}\n")
    assert [line.partition(":")[0] for line in lines] == ["line 3"]


@pytest.mark.parametrize(
    ("written", "advice"),
    [("1e-3", "write 1.0e-3"), ("5E4", "write 5.0e+4"), ("2.5e3", "write 2.5e+3")],
)
def test_numbers_that_yaml_reads_as_text(told, load, written, advice):
    """YAML 1.1 makes 1e-3 a string; the advice must itself be read as the number meant."""
    (line,) = told(f"runs:\n  a: {{starting_learning_rate: {written}, min_learning_rate: 1.0e-9}}\n")
    assert advice in line
    assert yaml.safe_load(advice.removeprefix("write ")) == float(written)


@pytest.mark.parametrize(
    ("setting", "expected"),
    [
        ("epochs: 3.0", "epochs = 3.0: must be a valid integer"),
        ("epochs: '3'", "epochs = '3': must be a valid integer"),
        ("epochs: true", "epochs = True: must be a valid integer"),
        ("epochs: null", "epochs = None: must be a valid integer"),
        ("torch_amp: 1", "torch_amp = 1: must be true or false"),
        ("torch_amp: 'no'", "torch_amp = 'no': must be true or false"),
        ("target_dice: true", "target_dice = True: must be a valid number"),
        ("target_dice: .nan", "target_dice = nan: must be a finite number"),
        ("max_runtime: .inf", "max_runtime = inf: must be a finite number"),
        ("optimizer: adam", "optimizer = 'adam': must be 'ADAM', 'SGD' or 'RMSProp'"),
        ("local_batch_size: [1, 2]", "a list; this key takes one value (make one run for each)"),
        ("dc_num_shards: [1, 1]", "dc_num_shards = [1, 1]: list should have at least 3 items"),
        ("storage: labels", "storage = 'labels': must be a mapping"),
        ("ranks: 2", "ranks = 2: must be a valid list"),
        ("seeds: []", "seeds = []: list should have at least 1 item"),
    ],
)
def test_types_are_strict(told, setting, expected):
    """Hazard 57: a toggle of "no" that is true, or a list that gives a stray type error."""
    (line,) = told(f"runs:\n  a: {{{setting}}}\n")
    assert expected in line


def test_whole_number_is_a_number(load):
    a, b = load("runs:\n  a: {target_dice: 1}\n  b: {target_dice: 1.0}\n").runs.values()
    assert a == b
    assert isinstance(a.config.target_dice, float)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", "must be a mapping with the keys defaults and runs"),
        ("- a", "must be a mapping with the keys defaults and runs"),
        ("runs:", "runs: is missing: a study needs at least one run"),
        ("defaults: {seed: 1}", "runs: is missing: a study needs at least one run"),
        ("run: {a: {}}", "allowed are defaults and runs; did you mean runs?"),
        ("runs: [a]", "runs = ['a']: must be a mapping"),
        ("runs: {a: 3}", "runs.a = 3: must be a mapping"),
        ("runs: {1: {}}", "runs.1: a run's name is a lower-case letter"),
        ("runs: {a: {1: 2}}", "runs.a.1 = 1: keys should be strings"),
        ("defaults: {ranks: [1]}\nruns: {a: {}}", "defaults.ranks: belongs under a run, as runs.NAME.ranks"),
        ("problem_scale: 7\nn_categories: 5", "convert it with: scaffold import-config FILE"),
    ],
)  # fmt: skip
def test_shape_of_the_file(told, text, expected):
    assert expected in told(text)[0]


@pytest.mark.parametrize(
    ("override", "expected"),
    [
        ("seed", "--set seed: must read key=value"),
        ("storage=labels", "--set storage: unknown key"),
        ("ranks=[1]", "--set ranks: unknown key"),
        ("epochs=1.5", "--set epochs = 1.5: must be a valid integer"),
        ("starting_learning_rate=1e-3", "YAML reads this as text; write 1.0e-3"),
        ("seed=[", "--set seed = '[': is not a YAML value"),
        ("storage.image=x", "--set storage.image = 'x': must be 'dense' or 'labels'"),
    ],
)
def test_wrong_overrides(told, override, expected):
    """Hazard 56: an override that bypasses validation."""
    (line,) = told("runs: {a: {}, b: {}}", override)
    assert expected in line


def test_override_takes_part_in_cross_checks(told):
    (line,) = told("runs:\n  a: {}\n", "unet_bottleneck_dim=7")
    assert "must be at most problem_scale - 1 = 6" in line


def test_which_run(load):
    study = load("runs: {alpha: {}, beta: {}}")
    with pytest.raises(ConfigError, match="choose one with --run: alpha, beta"):
        study.run(None)
    with pytest.raises(ConfigError, match="there are: alpha, beta; did you mean alpha"):
        study.run("alpa")
    assert load("runs: {alpha: {seed: 9}}").run(None).config.seed == 9


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.stem)
def test_shipped_studies_are_valid(path):
    assert Study.load(path).jobs()


def test_shipped_studies_are_all_here():
    assert {path.stem for path in SHIPPED} >= {"config", "scale7", "scale8", "llnl_scale11"}


def test_resolved_study_is_valid_and_equal(load, tmp_path):
    """The config.yaml beside a result must reproduce the run that made it."""
    text = "defaults: {epochs: 3}\nruns:\n  a: {ranks: [1, 2], max_runtime: 2.5}\n  b: {storage: {image: labels}}\n"
    study = load(text)
    path = tmp_path / "resolved.yaml"
    path.write_text(yaml.safe_dump(study.to_mapping()))
    again = Study.load(path)
    assert again.runs == study.runs
    assert again.to_mapping() == study.to_mapping()
    written = study.to_mapping()["runs"]["a"]
    assert set(written) == {*RunConfig.model_fields, "ranks", "seeds", "resources"}


def test_resolved_training_is_one_job_of_the_study(load):
    job = load("runs:\n  a: {ranks: [1, 2], seeds: [3, 4], torch_amp: false}\n").jobs()[-1]
    (again,) = Study.from_mapping(job.resolved(), "x").jobs()
    assert again == job


def test_default_resources():
    assert Resources() == Resources(runtime=120, mem_mb=4000, threads=1, gpus=0, ranks_per_node=None)


def test_ranks_are_spread_evenly_over_as_few_nodes_as_hold_them(load):
    """A scaling study has one entry of resources: 6 ranks at most 4 to a node are 2 x 3, not 4 + 2."""
    study = load("runs:\n  a: {ranks: [1, 2, 4, 6, 8], resources: {ranks_per_node: 4}}\n  b: {ranks: [1, 16]}\n")
    shapes = [(job.run, job.ranks, job.nodes, job.ranks_per_node) for job in study.jobs()]
    assert shapes == [
        ("a", 1, 1, 1), ("a", 2, 1, 2), ("a", 4, 1, 4), ("a", 6, 2, 3), ("a", 8, 2, 4), ("b", 1, 1, 1), ("b", 16, 1, 16)
    ]  # fmt: skip


def test_ranks_that_cannot_be_spread_evenly_are_refused(told):
    """Nodes with different numbers of ranks have no common shape to ask the scheduler for."""
    (line,) = told("runs:\n  a: {ranks: [5, 6], resources: {ranks_per_node: 4}}\n")
    assert line == "line 2: runs.a.resources.ranks_per_node = 4: 5 ranks cannot be spread evenly over 2 nodes"


def test_error_survives_pickling(told, load):
    """An error that another rank raised travels by pickle; it must arrive whole."""
    with pytest.raises(ConfigError) as caught:
        load("runs: {a: {sead: 1}}")
    again = pickle.loads(pickle.dumps(caught.value))
    assert str(again) == str(caught.value)
    assert again.problems == caught.value.problems


def test_missing_file_is_a_user_error(tmp_path):
    with pytest.raises(UserError, match=r"cannot read .*none\.yaml: No such file"):
        Study.load(tmp_path / "none.yaml")
    with pytest.raises(UserError, match="Is a directory"):
        Study.load(tmp_path)


def test_every_key_can_be_set_from_the_command_line(load):
    config = RunConfig()
    for dotted, _, _ in iter_keys(RunConfig):
        text = yaml.safe_dump(value_of(config, dotted), default_flow_style=True).removesuffix("...\n").strip()
        assert load("runs: {a: {}}", f"{dotted}={text}").run("a").config == config


def test_settings_are_laid_over_one_another_at_any_depth():
    """A nested key given by a run must leave its neighbours as the defaults have them, and change no input."""
    base, over = {"a": 1, "b": {"c": {"d": 1, "e": 2}}}, {"b": {"c": {"e": 3}}, "f": None}
    assert merge(base, over) == {"a": 1, "b": {"c": {"d": 1, "e": 3}}, "f": None}
    assert base == {"a": 1, "b": {"c": {"d": 1, "e": 2}}}
    assert merge({"a": {"b": 1}}, {"a": 2}) == {"a": 2}
