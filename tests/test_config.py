"""Recipes: the bundled ones, overrides, and what a wrong one is told."""

from __future__ import annotations

import importlib.util
import io
import math
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import example, given, settings
from hypothesis import strategies as st

from conftest import our_tasks
from sightline.agents.algorithms.grpo import GRPO
from sightline.agents.algorithms.ppo import PPO
from sightline.agents.resolving import resolve as complete_agent
from sightline.config.bundled import bundled_recipes
from sightline.config.learners import DQNLearner, SACLearner
from sightline.config.loading import for_agent, for_control, leaves, load_recipe, validate_recipe
from sightline.config.recipe import AgentRecipe, ControlRecipe
from sightline.config.yaml import read_yaml, write_yaml
from sightline.control.resolving import resolve
from sightline.envs.tasks import find_task
from sightline.errors import BadInput, RunFailed, nearest
from sightline.runs.folder import RunFolder
from sightline_tasks.registration import METAWORLD_ID

WORDS = ("env=Pendulum-v1", "goal=a rod standing upright", "baseline=a rod")


def skip_without_simulator(task: str) -> None:
    """Meta-World is an extra; a recipe is completed by making its environment."""
    if find_task(task).env == METAWORLD_ID and importlib.util.find_spec("metaworld") is None:
        pytest.skip("pip install 'sightline[metaworld]'")


AGENTS = tuple(name for name in bundled_recipes() if isinstance(load_recipe(name), AgentRecipe))
POLICIES = tuple(name for name in bundled_recipes() if name not in AGENTS)


@pytest.mark.parametrize("name", POLICIES)
def test_every_bundled_recipe_is_complete_and_survives_yaml(name: str) -> None:
    recipe = for_control(load_recipe(name))
    assert recipe.description
    assert recipe.env in {task.name for task in our_tasks()}
    skip_without_simulator(recipe.env)
    completed = resolve(recipe)
    assert completed.goal
    assert completed.learner is not None
    assert completed.evaluation.every
    assert completed.checkpoints.every
    document = yaml.safe_load(yaml.safe_dump(completed.model_dump(mode="json"), sort_keys=False, allow_unicode=True))
    assert validate_recipe(document) == completed
    assert resolve(completed) == completed


@pytest.mark.parametrize("name", AGENTS)
def test_every_bundled_recipe_of_an_agent_is_complete_and_survives_yaml(name: str) -> None:
    recipe = for_agent(load_recipe(name))
    assert recipe.description
    assert "agent" in find_task(recipe.env).roles
    completed = complete_agent(recipe)
    assert completed.evaluation.every
    assert completed.checkpoints.every
    document = yaml.safe_load(yaml.safe_dump(completed.model_dump(mode="json"), sort_keys=False, allow_unicode=True))
    assert validate_recipe(document) == completed
    assert complete_agent(completed) == completed


def test_the_bundled_recipes_are_there() -> None:
    assert {"cartpole", "mountain-car", "drawer-open-chat", "sweep-into-chat", "soccer-chat"} <= set(POLICIES)
    assert {"numberline", "ezpoints"} <= set(AGENTS)


@pytest.mark.parametrize("task", our_tasks(), ids=lambda task: task.name)
def test_every_task_completes_from_its_name_alone(task: Any) -> None:
    skip_without_simulator(task.name)
    completed = resolve(load_recipe(None, [f"env={task.name}"]))
    assert completed.goal == task.goal
    assert completed.baseline == task.baseline
    assert completed.learner is not None


@pytest.mark.parametrize(("env", "algorithm"), [("cartpole", "DQN"), ("mountain-car", "SAC"), ("Pendulum-v1", "SAC")])
def test_the_learner_fits_the_actions(env: str, algorithm: str) -> None:
    completed = resolve(load_recipe(None, [f"env={env}", "goal=a rod"]))
    assert completed.learner is not None
    assert completed.learner.algorithm == algorithm
    other = {"DQN": "SAC", "SAC": "DQN"}[algorithm]
    with pytest.raises(BadInput, match=f"learner.algorithm={algorithm}"):
        resolve(load_recipe(None, [f"env={env}", "goal=a rod", f"learner.algorithm={other}"]))


@pytest.mark.parametrize(
    ("override", "key", "value"),
    [
        ("steps=123", "steps", 123),
        ("seed=7", "seed", 7),
        ("videos=false", "videos.final", False),
        ("reward.alpha=0.25", "reward.alpha", 0.25),
        ("learner.learning_rate=1e-4", "learner.learning_rate", 1e-4),
        ("learner.hidden=[8, 16]", "learner.hidden", [8, 16]),
        ("evaluation.episodes=3", "evaluation.episodes", 3),
        ("learner.options.max_grad_norm=5", "learner.options.max_grad_norm", 5),
        ("env_options={look: dusk}", "env_options.look", "dusk"),
        ("goal=a pole", "goal", ["a pole"]),
        ('goal=["a pole", "a stick, upright"]', "goal", ["a pole", "a stick, upright"]),
        ("goal=a pole, upright", "goal", ["a pole, upright"]),
        ("goal=on", "goal", ["on"]),
        ("goal=2026-01-01", "goal", ["2026-01-01"]),
        ("steps=1e5", "steps", 100_000),
        ("learner.options.max_grad_norm=1e-3", "learner.options.max_grad_norm", 1e-3),
        ("goal=this: a pole", "goal", ["this: a pole"]),
        ("goal=a pole = a stick", "goal", ["a pole = a stick"]),
        ("goal='quoted: words'", "goal", ["quoted: words"]),
        ("goal=it's a pole # upright", "goal", None),
        ("goal= padded ", "goal", ["padded"]),
        ("learner.algorithm=sb3_contrib.TQC", "learner.algorithm", "sb3_contrib.TQC"),
    ],
)
def test_overrides(override: str, key: str, value: Any) -> None:
    flat = leaves(load_recipe("cartpole", [override]))
    if value is None:
        assert "it's a pole" in flat[key][0]
    else:
        assert flat[key] == value


@pytest.mark.parametrize("sentence", ["no", "yes: a pole", "12", "true", "null", "[a pole", "a: b: c", "-", "*pole"])
def test_sentences_that_look_like_yaml(sentence: str) -> None:
    """Whatever the words are, they are words or one clear line; never something else without a word about it."""
    try:
        taken: Any = load_recipe("cartpole", [f"goal={sentence}"]).goal
    except BadInput as error:
        taken = str(error)
    assert taken == (sentence,) or ("goal" in taken and "\n" not in taken)


@settings(max_examples=100, deadline=None)
@given(st.from_regex(r"[a-z][a-z0-9 ,.;!?()-]{0,30}[a-z]", fullmatch=True))
def test_plain_sentences_are_taken_as_they_are(sentence: str) -> None:
    if sentence in ("true", "false", "yes", "no", "on", "off", "null"):
        return
    assert load_recipe("cartpole", [f"goal={sentence}"]).goal == (sentence,)


@pytest.mark.parametrize(
    ("override", "expected"),
    [
        ("stepz=3", "'steps'"),
        ("reward.alfa=0.5", "'alpha'"),
        ("reward.encodr=bundled", "'encoder'"),
        ("learner.gama=0.5", "'gamma'"),
        ("learner.exploration_fractoin=0.5", "'exploration_fraction'"),
        ("evaluation.episode=3", "'episodes'"),
        ("checkpoints.kep=3", "'keep'"),
    ],
)
def test_unknown_keys_name_the_nearest(override: str, expected: str) -> None:
    with pytest.raises(BadInput) as caught:
        load_recipe("cartpole", [override])
    message = str(caught.value)
    assert override.partition("=")[0] in message
    assert f"did you mean {expected}" in message
    assert "\n" not in message


def test_unknown_keys_of_other_learners_name_the_nearest() -> None:
    for override, expected in (("learner.ent_coeff=0.1", "'ent_coef'"), ("learner.use_sda=true", "'use_sde'")):
        with pytest.raises(BadInput, match=f"did you mean {expected}"):
            load_recipe("mountain-car", [override])


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        (["reward.alpha=1.5"], "alpha"),
        (["reward.alpha=-0.1"], "alpha"),
        (["reward.alpha=.nan"], "alpha"),
        (["goal="], "empty"),
        (["goal=[]", "env=Pendulum-v1"], "goal"),
        (["baseline=[pole, '']"], "empty"),
        (["goal=pole and cart"], "same words"),
        (["steps=0"], "steps"),
        (["steps=many"], "steps"),
        (["seed=-1"], "seed"),
        (["envs=0"], "envs"),
        (["reward.kind=learnt"], "reward"),
        (["reward.kind=learned", "reward.pool=100"], "reward: pool=100"),
        (["reward.dtype=int8"], "dtype"),
        (["workers=threads"], "workers"),
        (["learner.algorithm=Dreamer"], "algorithm"),
        (["learner.gamma=2"], "gamma"),
        (["learner.buffer_size=10"], "buffer_size"),
        (["learner=5", "learner.chunk=16"], "learner=5 and learner.chunk=16 exclude each other; leave one out"),
        (["videos.every=100", "videos=false"], "videos=False and videos.every=100 exclude each other"),
        (["goal=a pole", "goal.x=1"], "exclude each other"),
        (["baseline.x=1"], "baseline.x: baseline is 'pole and cart', which has no keys of its own"),
        (["goal={left: pole}"], "goal must be a sentence, or a list of sentences, not a map of keys and values"),
        (["learner.hidden=[1000000000000]"], "learner.hidden=[1000000000000]) would take"),
        (["learner.hidden=[300000, 300000]"], "lower learner.hidden"),
        (["steps"], "key=value"),
        (["=3"], "key=value"),
    ],
)
def test_wrong_values_are_refused_in_one_line(overrides: list[str], expected: str) -> None:
    with pytest.raises(BadInput) as caught:
        resolve(load_recipe("cartpole", overrides))
    assert expected in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("overrides", [["goal=[]"], ["env=mountain-car", "goal=[]", "reward.alpha=null"]])
def test_an_empty_goal_is_refused_where_the_task_has_words(overrides: list[str]) -> None:
    with pytest.raises(BadInput, match="an empty goal was given; leave it out"):
        resolve(load_recipe("cartpole", overrides))
    with pytest.raises(BadInput, match="an empty goal"):
        resolve(ControlRecipe(env="cartpole", goal=()))
    assert resolve(load_recipe(None, ["env=cartpole"])).goal == find_task("cartpole").goal


def test_a_recipe_that_needs_no_words_is_read_again_with_none() -> None:
    completed = resolve(load_recipe(None, ["env=CartPole-v1", "reward.kind=ground_truth"]))
    assert completed.goal == ()
    assert resolve(validate_recipe(completed.model_dump(mode="json"))) == completed


@pytest.mark.parametrize("null", ["null", "~", " null ", "NULL"])
def test_null_is_no_goal_unless_the_word_is_meant(null: str) -> None:
    with pytest.raises(BadInput, match="goal: null is not a sentence") as caught:
        load_recipe("cartpole", [f"goal={null}"])
    assert "\n" not in str(caught.value)
    assert load_recipe("cartpole", [f"goal='{null}'"]).goal == (null.strip(),)
    with pytest.raises(BadInput, match="goal: null is not a sentence"):
        validate_recipe({"env": "cartpole", "goal": None})


@pytest.mark.parametrize("none", ["baseline=null", "baseline=[]"])
def test_a_baseline_of_null_is_none_and_not_the_tasks(none: str) -> None:
    assert resolve(load_recipe(None, ["env=cartpole", none])).baseline == ()
    assert resolve(load_recipe("cartpole", [none, "reward.alpha=null"])).baseline == ()
    with pytest.raises(BadInput, match="alpha=null"):
        load_recipe("cartpole", [none])


@pytest.mark.parametrize(
    ("override", "key"),
    [
        ("goal=[a", "goal"),
        ("goal=[a pole] upright", "goal"),
        ("baseline=[", "baseline"),
        ("learner.hidden=[8, 16", "learner.hidden"),
        ("env_options={look: dusk", "env_options"),
        ("learner.options.title=[x", "learner.options.title"),
    ],
)
def test_what_begins_like_a_list_or_a_map_must_be_one(override: str, key: str) -> None:
    with pytest.raises(BadInput, match=f"the value of {key} is not valid YAML.*quote it") as caught:
        load_recipe("cartpole", [override])
    assert "\n" not in str(caught.value)


def test_a_list_within_quotes_is_a_sentence() -> None:
    assert load_recipe("cartpole", ["goal='[a pole'"]).goal == ("[a pole",)


@pytest.mark.parametrize(
    ("recipe", "override", "expected"),
    [
        ("cartpole", "learner.learning_rate=.inf", "learner.learning_rate: must be a finite number"),
        ("cartpole", "learner.learning_rate=nan", "learner.learning_rate: must be a finite number"),
        ("cartpole", "learner.learning_rate=1e999", "learner.learning_rate: must be a finite number"),
        ("cartpole", "steps=1e400", "steps: must be a finite number"),
        ("cartpole", "steps=nan", "steps: must be a whole number"),
        ("cartpole", "steps=" + "9" * 5000, "steps: is too large"),
        ("cartpole", "steps=yes", "steps: must be a number, not true or false"),
        ("cartpole", "learner.gamma=on", "learner.gamma: must be a number, not true or false"),
        ("cartpole", "evaluation.every=true", "evaluation.every: must be a number, not true or false"),
        ("cartpole", "steps=12:30", "steps: must be a whole number"),
        ("cartpole", "seed=4294967296", "seed: must be less than or equal to 4294967295"),
        ("cartpole", "threads=1000000000000", "threads: must be less than"),
        ("cartpole", "learner.hidden=8", "learner.hidden: must be a list"),
        ("cartpole", "learner=null", "learner: must be a map"),
        ("cartpole", "reward=null", "reward must be a map"),
        ("cartpole", "goal=" + "long " * 3000, "15000 characters; at most 10000"),
        ("cartpole", "baseline=[" + "a," * 1001 + "]", "1001 sentences are too many"),
        ("cartpole", "goal=not UTF-8: \udcff", "the value of goal is not text in UTF-8"),
        ("cartpole", "learner.options.x=" + "[" * 3000, "nested too deep"),
        ("cartpole", "learner.options={a: 1, a: 2}", "the key 'a' twice (line 1)"),
        ("mountain-car", "learner.ent_coef=.inf", "learner.ent_coef: must be a finite number"),
        ("mountain-car", "learner.ent_coef=automatic", "learner.ent_coef: must be a number from 0, auto"),
        ("numberline", "update.learning_rate=.inf", "update.learning_rate: must be a finite number"),
        ("numberline", "rollouts.temperature=.inf", "rollouts.temperature: must be a finite number"),
        ("numberline", "prompt=" + "x" * 100_001, "prompt: must have at most 100000 characters"),
    ],
    ids=lambda value: value[:30],
)
def test_what_would_fail_later_is_refused_when_the_recipe_is_checked(recipe: str, override: str, expected: str) -> None:
    with pytest.raises(BadInput) as caught:
        load_recipe(recipe, [override])
    assert expected in str(caught.value)
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 300


def test_numbers_at_their_bounds_are_taken() -> None:
    assert load_recipe("cartpole", ["seed=4294967295"]).seed == 2**32 - 1
    for said, taken in (("0", 0.0), ("0.2", 0.2), ("auto", "auto"), ("auto_0.05", "auto_0.05"), ("auto_1", "auto_1")):
        assert leaves(load_recipe("mountain-car", [f"learner.ent_coef={said}"]))["learner.ent_coef"] == taken
    assert load_recipe("cartpole", ["goal=" + "x" * 10_000]).goal == ("x" * 10_000,)


def test_a_prompt_is_taken_as_it_stands() -> None:
    for prompt in ("{text}", "[{text}] Which?", "12", "yes"):
        assert for_agent(load_recipe("numberline", [f"prompt={prompt}"])).prompt == prompt
    assert for_agent(load_recipe("numberline", ["prompt=null"])).prompt is None


def test_what_only_looks_like_a_date_is_text() -> None:
    flat = leaves(load_recipe("cartpole", ["env_options.day=2026-13-45", "env_options.hour=12:30"]))
    assert (flat["env_options.day"], flat["env_options.hour"]) == ("2026-13-45", "12:30")


@pytest.mark.parametrize(
    ("env", "expected"),
    [
        ("env_options={what: text}", "are text"),
        ("env_options={what: string}", "not an array of numbers: 'a door'"),
        ("env_options={what: none}", "not an array of numbers: None"),
        ("env_options={what: shape}", "shape [2, 3] where its observation_space says [3]"),
        ("env_options={what: plan}", "are of the kind Sequence"),
        ("learner.action_noise=0.1", "learner.action_noise is for continuous actions"),
        ("learner={algorithm: PPO, action_cost: 1}", "learner.action_cost is of continuous actions"),
    ],
)
@pytest.mark.parametrize("reward", ["zero_shot", "ground_truth"])
def test_what_no_learner_takes_is_refused_before_anything_is_loaded(env: str, expected: str, reward: str) -> None:
    with pytest.raises(BadInput) as caught:
        resolve(load_recipe(None, ["env=small_envs:Odd", "goal=a door", f"reward.kind={reward}", env]))
    assert expected in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("reward", ["zero_shot", "ground_truth"])
def test_a_first_reset_that_goes_wrong(reward: str) -> None:
    recipe = load_recipe(
        None, ["env=small_envs:Failing", "env_options={how: reset}", "goal=a door", f"reward.kind={reward}"]
    )
    with pytest.raises(RunFailed, match=r"'small_envs:Failing' failed in reset\(seed=0\): KeyError: 'no map'"):
        resolve(recipe)


def test_a_sub_key_of_something_that_is_no_map() -> None:
    for override in ("steps.more=3", "goal.first=a pole"):
        with pytest.raises(BadInput) as caught:
            load_recipe("cartpole", [override])
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["cartpol", "CARTPOLE"])
def test_unknown_recipes(name: str) -> None:
    with pytest.raises(BadInput, match="no recipe") as caught:
        load_recipe(name)
    assert "cartpole" in str(caught.value)
    assert "\n" not in str(caught.value)
    with pytest.raises(BadInput, match=r"there is no file '/no/such/recipe\.yaml'"):
        load_recipe("/no/such/recipe.yaml")


def test_no_environment() -> None:
    with pytest.raises(BadInput, match="no environment"):
        load_recipe(None, ["goal=a pole"])


@pytest.mark.parametrize(
    "text", ["[1, 2", "just text", "- a\n- b", "\x00\x01", "", "env: [1]\n", "1: 2\nenv: cartpole"]
)
def test_files_that_are_no_recipes(tmp_path: Path, text: str) -> None:
    file = tmp_path / "recipe.yaml"
    file.write_text(text)
    with pytest.raises(BadInput) as caught:
        load_recipe(str(file))
    assert "\n" not in str(caught.value)


def test_a_file_that_is_not_text(tmp_path: Path) -> None:
    (tmp_path / "recipe.yaml").write_bytes(b"\xff\xfe\x00env: \xba")
    with pytest.raises(BadInput) as caught:
        load_recipe(str(tmp_path / "recipe.yaml"))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("env: cartpole\nseed: 1\nsteps: 2\nseed: 3\n", "has the key 'seed' twice (lines 2 and 4)"),
        ("env: cartpole\nreward:\n  alpha: 1\n  'alpha': 0\n", "has the key 'alpha' twice (lines 3 and 4)"),
        ("env: cartpole\nenv_options: {on: 1, true: 2}\n", "has the key 'true' twice (line 2)"),
        ("env: cartpole\nenv_options: &a {b: *a}\n", "refers to itself (line 2)"),
        ("env: cartpole\nenv_options: " + "{a: " * 60 + "1" + "}" * 60, "is nested too deep"),
        ("env: " + "[" * 100_000, "is nested too deep"),
        ("env:\n  " + "- " * 100_000, "is nested too deep"),
        ("env: cartpole\ngoal: " + "x" * 1_000_000, "is larger than the limit of 1 MB"),
        ("env: cartpole\nsteps: !!timestamp 2026-99-99\n", "is not valid YAML: month must be"),
        ("env: cartpole\nsteps: " + "9" * 5000, "is not valid YAML: Exceeds the limit"),
        ("env: cartpole\nsteps: !!bool maybe\n", "is not valid YAML"),
        ("env: cartpole\nsteps: !!python/object/apply:os.getpid []\n", "which is not read; leave it out (line 2)"),
        ("env: cartpole\n--- {}\n", "is not valid YAML"),
        ("env: [cartpole\n", "is not valid YAML: expected ',' or ']'"),
        ("env: *nowhere\n", "is not valid YAML: found undefined alias 'nowhere' (line 1)"),
    ],
    ids=lambda value: value[:40].replace("\n", " "),
)
def test_yaml_that_is_not_meant_is_refused_and_named(tmp_path: Path, text: str, expected: str) -> None:
    file = tmp_path / "recipe.yaml"
    file.write_text(text)
    with pytest.raises(BadInput) as caught:
        load_recipe(str(file))
    assert str(caught.value).startswith(str(file))
    assert expected in str(caught.value)
    assert "\n" not in str(caught.value)


def test_aliases_that_grow_without_end_are_refused_before_they_are_written_out() -> None:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]" for i in range(1, 30)]
    with pytest.raises(BadInput, match="the file holds more than 100000 values, with aliases expanded"):
        read_yaml("\n".join(lines), "the file")
    with pytest.raises(BadInput, match="more than 100000 values"):
        read_yaml("[" + "1," * 100_001 + "]", "the file")
    merged = ["a0: &a0 {x: 1}", *(f"a{i}: &a{i} {{<<: [{', '.join([f'*a{i - 1}'] * 9)}]}}" for i in range(1, 30))]
    with pytest.raises(BadInput, match="more than 100000 values"):
        read_yaml("\n".join(merged), "the file")


def test_modest_aliases_and_merged_keys_are_read() -> None:
    assert read_yaml("a: &a {x: 1, y: 2}\nb: {<<: *a, y: 3}\nc: [*a, *a]\n", "it") == {
        "a": {"x": 1, "y": 2},
        "b": {"x": 1, "y": 3},
        "c": [{"x": 1, "y": 2}] * 2,
    }
    assert read_yaml("", "it") is None
    assert read_yaml("- 杆\n- 1e3\n", "it") == ["杆", 1000.0]


@settings(deadline=None)
@given(st.recursive(st.none() | st.booleans() | st.integers() | st.text(), st.lists, max_leaves=20))
@example("\x85")
@example(["two\u2028lines", "a\u2029b"])
def test_what_was_dumped_is_read_as_yaml_reads_it(document: Any) -> None:
    assert read_yaml(write_yaml(document), "it") == document


NUMBERS: dict[str, Any] = {
    "1e-3": 1e-3,
    "1E4": 1e4,
    "-1e+3": -1e3,
    "1.e2": 100.0,
    ".5": 0.5,
    "5.": 5.0,
    "+.5e1": 5.0,
    "6.02e23": 6.02e23,
    "010": 10,
    "-007": -7,
    "+12": 12,
    "0": 0,
    "09": 9,
    "0o10": 8,
    "0x1F": 31,
    "08.5": 8.5,
    "-.inf": -math.inf,
    ".Inf": math.inf,
    "1e400": math.inf,
    "12:30": "12:30",
    "1_000": "1_000",
    "1_2.5": "1_2.5",
    "0b11": "0b11",
    "-0x1F": "-0x1F",
    "1e": "1e",
    "e1": "e1",
    "1.2.3": "1.2.3",
    "190:20:30": "190:20:30",
    ".": ".",
    "-": "-",
    "0o8": "0o8",
    "inf": "inf",
    "1e-3m": "1e-3m",
    "2026-11-28": "2026-11-28",
    "2001-12-14t21:59:43.10-05:00": "2001-12-14t21:59:43.10-05:00",
}


@pytest.mark.parametrize("text", NUMBERS)
def test_numbers_are_those_of_yaml_1_2_everywhere(text: str) -> None:
    """In free maps 1e-3 reached environments as a text, and 010 was eight."""
    expected = NUMBERS[text]
    written = "{x: '-'}" if text == "-" else f"{{x: {text}}}"
    read = read_yaml(written, "it")["x"]
    assert read == expected and type(read) is type(expected)
    recipe = load_recipe("cartpole", [f"env_options={written}", f"env_options.y={text}"])
    assert recipe.env_options == {"x": expected, "y": expected}
    # What is text stays text, and what is a number a number, when a run folder is written and read.
    for value in (text, expected):
        again = read_yaml(write_yaml({"x": value}), "it")["x"]
        assert again == value and type(again) is type(value)


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16", "utf-32"])
def test_recipes_of_windows_are_read(tmp_path: Path, encoding: str, monkeypatch: pytest.MonkeyPatch) -> None:
    text = "env: cartpole\r\ngoal: eine Stange, die längs steht\r\n"
    file = tmp_path / "recipe.yaml"
    file.write_bytes(text.encode(encoding))
    assert load_recipe(str(file)).goal == ("eine Stange, die längs steht",)
    monkeypatch.setattr("sys.stdin", io.StringIO("\ufeff" + text))
    assert load_recipe("-").goal == ("eine Stange, die längs steht",)


def test_whole_numbers_may_be_written_as_others(tmp_path: Path) -> None:
    file = tmp_path / "recipe.yaml"
    file.write_text("env: cartpole\ngoal: a pole\nbaseline: a cart\nsteps: 1e4\nseed: 010\nreward: {alpha: 5e-1}\n")
    recipe: Any = load_recipe(str(file))
    assert (recipe.steps, recipe.seed, recipe.reward.alpha) == (10_000, 10, 0.5)
    assert load_recipe("cartpole", ["seed=010"]).seed == 10
    with pytest.raises(BadInput, match="steps: must be a whole number"):
        load_recipe("cartpole", ["steps=1e-3"])


def test_a_folder_is_no_recipe(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"is a folder; a recipe is a YAML file or a bundled name$"):
        load_recipe(str(tmp_path))
    (tmp_path / "recipe.yaml").write_text("env: cartpole")
    with pytest.raises(BadInput, match=r"recipe\.yaml, and --resume goes on with it"):
        load_recipe(str(tmp_path))


def test_a_recipe_of_ones_own(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text("env: cartpole\ngoal:\n  - ein Stab, aufrecht\n  - 杆\nseed: 4\n", encoding="utf-8")
    recipe = load_recipe(str(file), ["seed=5"])
    assert recipe.goal == ("ein Stab, aufrecht", "杆")
    assert recipe.seed == 5


def test_switching_the_algorithm_keeps_what_both_know() -> None:
    before = load_recipe("cartpole").learner
    assert isinstance(before, DQNLearner)
    other = load_recipe("cartpole", ["learner.algorithm=SAC"]).learner
    assert isinstance(other, SACLearner)
    shared = set(DQNLearner.model_fields) & set(SACLearner.model_fields) - {"algorithm"}
    assert {"gamma", "chunk", "hidden", "learning_starts"} <= shared
    assert all(getattr(before, key) == getattr(other, key) for key in shared - {"tau"})
    assert other.learning_rate_end == 0.0, "not a default of either"
    named = load_recipe("cartpole", ["learner.algorithm=sb3_contrib.TQC", "learner.gamma=0.77"]).learner
    assert named is not None
    assert named.algorithm == "sb3_contrib.TQC"
    assert named.gamma == 0.77
    assert named.hidden == before.hidden
    assert named.buffer_size == before.buffer_size
    assert load_recipe("cartpole", ["learner.algorithm=DQN"]).learner == before


def test_switching_the_reward() -> None:
    recipe = load_recipe("cartpole", ["reward.kind=ground_truth"])
    assert recipe.reward.model_dump() == {"kind": "ground_truth", "scale": 1.0}
    assert resolve(recipe).reward.kind == "ground_truth"


def test_any_environment_from_words_alone() -> None:
    completed = resolve(load_recipe(None, WORDS))
    assert completed.goal == ("a rod standing upright",)
    assert completed.baseline == ("a rod",)
    with pytest.raises(BadInput, match="no goal"):
        resolve(load_recipe(None, ["env=MountainCar-v0"]))


@pytest.mark.parametrize(("env", "algorithm"), [("cartpole", "DQN"), ("Pendulum-v1", "SAC")])
def test_one_key_of_the_default_learner_can_be_set(env: str, algorithm: str) -> None:
    learner = resolve(load_recipe(None, [f"env={env}", "goal=a rod", "learner.gamma=0.9"])).learner
    assert (learner.algorithm, learner.gamma) == (algorithm, 0.9)


def test_nothing_changes_after_checking() -> None:
    recipe = load_recipe("cartpole")
    with pytest.raises(ValueError, match="frozen"):
        recipe.steps = 3  # type: ignore[misc]


def test_leaves_are_flat() -> None:
    flat = leaves(load_recipe("cartpole"))
    assert flat["learner.algorithm"] == "DQN"
    assert flat["reward.alpha"] == 0.5
    assert "learner" not in flat


@pytest.mark.parametrize(
    ("wanted", "known", "expected"),
    [
        ("cartpol", ["cartpole", "mountain-car"], "; did you mean 'cartpole'?"),
        ("CartPole", ["cartpole"], "; did you mean 'cartpole'?"),
        ("zzz", ["b", "a"], "; known: a, b"),
        ("zzz", [], ""),
    ],
)
def test_nearest(wanted: str, known: list[str], expected: str) -> None:
    assert nearest(wanted, known) == expected


# -- agents ------------------------------------------------------------------------------------------------------------


def test_the_role_says_what_a_recipe_is() -> None:
    assert isinstance(load_recipe("cartpole"), ControlRecipe)
    assert isinstance(load_recipe(None, ["env=cartpole"]), ControlRecipe)
    assert isinstance(load_recipe(None, ["env=blackjack", "role=agent"]), AgentRecipe)
    with pytest.raises(BadInput, match="role=agent"):
        for_agent(load_recipe("cartpole"))
    with pytest.raises(BadInput, match="agent"):
        for_control(load_recipe("numberline"))


@pytest.mark.parametrize(
    ("override", "key", "value"),
    [
        ("steps=123", "steps", 123),
        ("algorithm.gamma=0.5", "algorithm.gamma", 0.5),
        ("policy.lora.rank=4", "policy.lora.rank", 4),
        ("policy.lora={}", "policy.lora.rank", 16),
        ("policy.freeze=[vision]", "policy.freeze", ["vision"]),
        ("actions=[-, +]", "actions", ["-", "+"]),
        ("actions=[1, 2]", "actions", ["1", "2"]),
        ("rollouts.train_env_options.max_position=3", "rollouts.train_env_options.max_position", 3),
        ("warm_start={}", "warm_start.samples", 20_000),
        ("warm_start.stop_at=0.9", "warm_start.stop_at", 0.9),
        ("evaluation.stop_at=null", "evaluation.stop_at", None),
        ("prompt=Go to: {text}", "prompt", "Go to: {text}"),
        ("replies.format=tags", "replies.format", "tags"),
    ],
)
def test_overrides_of_an_agent(override: str, key: str, value: Any) -> None:
    assert leaves(load_recipe("numberline", [override]))[key] == value


@pytest.mark.parametrize(
    ("recipe", "override", "said"),
    [
        ("numberline", "in_words=true", "in_words is called text_only now"),
        ("ezpoints", "rollouts.practice={}", "rollouts.practice is called rollouts.train_env_options now"),
        ("numberline", "warm_start.truthful=0.9", "warm_start.truthful is called warm_start.stop_at now"),
        ("numberline", "alarms.truthful_drop=0.1", "alarms.truthful_drop is called alarms.perception_drop now"),
        (
            "drawer-open-chat",
            "reward.fitting.fresh=true",
            "reward.fitting.fresh is called reward.fitting.reset_weights now",
        ),
    ],
)
def test_a_key_of_earlier_versions_is_refused_with_its_present_name(recipe: str, override: str, said: str) -> None:
    with pytest.raises(BadInput, match=f"^{re.escape(said)}$"):
        load_recipe(recipe, [override])


def test_only_the_block_that_had_a_key_is_told_of_its_new_name() -> None:
    """`patience` was the human teacher's; other blocks have keys of that name, and a teacher of others might."""
    taught = {"env": "CartPole-v1", "goal": "a pole", "reward": {"kind": "learned", "teacher": {"kind": "human"}}}
    taught["reward"]["teacher"]["patience"] = 5  # type: ignore[index]
    with pytest.raises(BadInput, match=r"^reward\.teacher\.patience is called reward\.teacher\.timeout now$"):
        load_recipe(taught)
    taught["reward"]["teacher"] = {"kind": "scripted", "patience": 5}  # type: ignore[index]
    with pytest.raises(BadInput, match=r"^unknown key 'reward\.teacher\.patience'"):
        load_recipe(taught)


def test_the_recipe_of_an_earlier_version_s_run_is_read_with_present_names(tmp_path: Path) -> None:
    (tmp_path / "recipe.yaml").write_text(
        "format: 1\nrole: agent\nenv: numberline\nin_words: true\nrollouts: {practice: {max_position: 3}}\n"
        "warm_start: {truthful: 0.5}\n"
    )
    recipe = for_agent(RunFolder(tmp_path).recipe())
    assert recipe.text_only
    assert recipe.rollouts.train_env_options == {"max_position": 3}
    assert recipe.warm_start is not None
    assert recipe.warm_start.stop_at == 0.5


def test_switching_the_algorithm_of_an_agent_keeps_what_both_know() -> None:
    recipe = for_agent(load_recipe("numberline", ["algorithm.kind=grpo"]))
    assert isinstance(recipe.algorithm, GRPO)
    assert recipe.algorithm.group == 8
    back = for_agent(load_recipe("ezpoints", ["algorithm.kind=ppo", "algorithm.gamma=0.7"]))
    assert isinstance(back.algorithm, PPO)
    assert (back.algorithm.gamma, back.algorithm.group) == (0.7, 8)


@pytest.mark.parametrize(
    ("override", "expected"),
    [
        ("polcy.model=bundled", "did you mean 'policy'"),
        ("policy.modl=bundled", "did you mean 'model'"),
        ("algorithm.gama=0.5", "did you mean 'gamma'"),
        ("algorithm.kind=trpo", "only ppo, grpo, rloo, gigpo, reinforce"),
        ("algorithm.kind=gigpo algorithm.gae_lambda=1", "unknown key 'algorithm.gae_lambda'"),
        ("algorithm.gamma=1.5", "algorithm.gamma"),
        ("update.clip_low=0", "update.clip_low"),
        ("update.thought_weight=2", "update.thought_weight"),
        ("rollouts.window=0", "rollouts.window"),
        ("rollouts.temperature=0", "rollouts.temperature"),
        ("policy.freeze=[eyes]", "policy.freeze"),
        ("policy.lora.rnk=3", "unknown key 'policy.lora.rnk'"),
        ("warm_start.sample=3", "unknown key 'warm_start.sample'"),
        ("warm_start.samples=0", "warm_start.samples"),
        ("evaluation.stop_at=2", "evaluation.stop_at"),
        ("alarms.patients=3", "did you mean 'patience'"),
        ("learner.gamma=0.5", "'learner' is a key of role=control"),
        ("reward.alpha=0.5", "unknown key 'reward.alpha'"),
        ("engine=dpp", "engine"),
    ],
)
def test_wrong_values_of_an_agent_are_refused_in_one_line(override: str, expected: str) -> None:
    with pytest.raises(BadInput) as caught:
        load_recipe("numberline", override.split(" "))
    assert expected in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("named", ["[yes, no]", "[left, null]", "{on: 1, go: 2}"])
def test_names_of_actions_that_yaml_does_not_read_as_text_are_refused_once(named: str) -> None:
    with pytest.raises(BadInput) as caught:
        load_recipe("numberline", [f"actions={named}"])
    assert str(caught.value) == (
        "actions: YAML reads yes, no, on, off and null as other things than text; put names of actions in quotes"
    )
