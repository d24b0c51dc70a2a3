"""What a recipe may say. A recipe is a YAML file that describes a whole run; a wrong one cannot be expressed.

`load_recipe` reads a bundled recipe by name or a file by path, applies `key.sub=value` overrides and checks everything.
"""

from __future__ import annotations

import datetime
import re
from collections.abc import Sequence
from importlib import resources
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Discriminator,
    Field,
    NonNegativeInt,
    PositiveInt,
    Tag,
    ValidationError,
    model_validator,
)

from sightline.errors import BadInput, nearest


class Strict(BaseModel):
    """Unknown keys are errors, and nothing changes after it was checked."""

    model_config = ConfigDict(extra="forbid", frozen=True)


def _as_sentences(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


def _not_empty(sentence: str) -> str:
    if not sentence.strip():
        raise ValueError("a sentence is empty; write what the picture should show")
    return sentence.strip()


Sentence = Annotated[str, BeforeValidator(lambda s: _not_empty(s) if isinstance(s, str) else s)]
Sentences = Annotated[tuple[Sentence, ...], BeforeValidator(_as_sentences)]


class ZeroShotReward(Strict):
    """The similarity of a frame to the goal's words, regularised towards the direction from baseline to goal."""

    kind: Literal["zero_shot"] = "zero_shot"
    encoder: str = "bundled"
    """`bundled`, `Architecture/tag` (open_clip), `hf:owner/name`, `local-dir:/path` (open_clip format)."""
    alpha: float | None = Field(default=None, ge=0, le=1)
    """Strength of the regularisation in [0, 1]; without baseline there is none. Default 0.5."""
    batch_size: PositiveInt = 256
    """Frames per forward pass of the image tower."""
    device: str = "auto"
    dtype: Literal["auto", "float32", "float16", "bfloat16"] = "auto"
    keep_embeddings: bool = False
    """Keep every frame's embedding (float16) beside its transition, so that other words need no new frames."""


class GroundTruthReward(Strict):
    """The environment's own reward, through the same path as every other."""

    kind: Literal["ground_truth"]


def _reward_tag(value: Any) -> str:
    kind = value.get("kind", "zero_shot") if isinstance(value, dict) else getattr(value, "kind", None)
    return str(kind)


Reward = Annotated[
    Annotated[ZeroShotReward, Tag("zero_shot")] | Annotated[GroundTruthReward, Tag("ground_truth")],
    Discriminator(_reward_tag),
]


class LearnerBase(Strict):
    """What all off-policy learners share. Steps are transitions, summed over environments, unless said otherwise."""

    learning_rate: float = Field(default=1e-3, gt=0)
    learning_rate_end: float = Field(default=1.0, ge=0, le=1)
    """The learning rate falls linearly to this fraction of its start."""
    buffer_size: PositiveInt = 100_000
    batch_size: PositiveInt = 128
    gamma: float = Field(default=0.99, ge=0, le=1)
    tau: float = Field(default=1.0, gt=0, le=1)
    learning_starts: NonNegativeInt = 2_000
    chunk: PositiveInt = 32
    """Vector steps collected, then scored, between two rounds of updates."""
    gradient_steps: PositiveInt = 64
    """Updates in a round."""
    hidden: tuple[PositiveInt, ...] = (128, 128)
    """Widths of the hidden layers."""
    options: dict[str, Any] = {}
    """Any further keyword arguments of the algorithm's class."""


class AutoLearner(LearnerBase):
    """DQN for discrete actions, SAC for continuous ones; what is set here goes to whichever it is."""

    algorithm: Literal["auto"] = "auto"


class DQNLearner(LearnerBase):
    algorithm: Literal["DQN"] = "DQN"
    target_update_interval: PositiveInt = 500
    exploration_fraction: float = Field(default=0.3, ge=0, le=1)
    exploration_final_eps: float = Field(default=0.04, ge=0, le=1)


class SACLearner(LearnerBase):
    """The defaults differ from SB3's: rewards from words vary by tenths only, and an entropy coefficient that starts at
    1 drowns them."""

    algorithm: Literal["SAC"] = "SAC"
    tau: float = Field(default=0.02, gt=0, le=1)
    ent_coef: float | str = "auto_0.05"
    use_sde: bool = False


def _dotted(name: str) -> str:
    if not re.fullmatch(r"\w+(\.\w+)+", name):
        raise ValueError(f"'{name}' is not auto, DQN, SAC, or the dotted name of a class such as sb3_contrib.TQC")
    return name


class OtherLearner(LearnerBase):
    """Any class that follows Stable-Baselines3's off-policy algorithms, by dotted name: `sb3_contrib.TQC`."""

    algorithm: Annotated[str, AfterValidator(_dotted)]
    tau: float = Field(default=0.005, gt=0, le=1)


def _learner_tag(value: Any) -> str:
    algorithm = value.get("algorithm", "auto") if isinstance(value, dict) else getattr(value, "algorithm", None)
    return algorithm if algorithm in ("auto", "DQN", "SAC") else "other"


Learner = Annotated[
    Annotated[AutoLearner, Tag("auto")]
    | Annotated[DQNLearner, Tag("DQN")]
    | Annotated[SACLearner, Tag("SAC")]
    | Annotated[OtherLearner, Tag("other")],
    Discriminator(_learner_tag),
]


class Evaluation(Strict):
    """Deterministic episodes on fixed panels of seeds. Checkpoints are chosen on one panel and reported on another."""

    every: PositiveInt | None = None
    """Steps between evaluations on the validation panel; default: a tenth of the run."""
    episodes: PositiveInt = 16
    """Episodes of the validation panel."""
    test_episodes: PositiveInt = 100
    """Episodes of the test panel, played once at the end by the chosen checkpoint."""


class Checkpoints(Strict):
    every: PositiveInt | None = None
    """Steps between checkpoints; default: a tenth of the run."""
    keep: PositiveInt = 2
    """How many of the latest to keep (each can be resumed from); the best by evaluation is kept apart."""


class Recipe(Strict):
    """A whole run."""

    role: Literal["reward"] = "reward"
    """What the vision-language model does in this run."""
    description: str = ""
    env: str
    """A task of ours (`sightline tasks`), a Gymnasium id, or `module:attribute` of your own."""
    env_options: dict[str, Any] = {}
    """Keyword arguments for the environment."""
    goal: Sentences = ()
    """One sentence, or several to be averaged, that describe what the picture should show."""
    baseline: Sentences = ()
    """The same for what it shows anyway."""
    steps: PositiveInt = 40_000
    """Transitions to collect, summed over environments; rounded up to whole chunks (`learner.chunk` x `envs`)."""
    seed: NonNegativeInt = 0
    envs: PositiveInt = 8
    """Environments stepped together."""
    workers: Literal["inline", "processes"] = "inline"
    """`inline` steps all environments in this process; `processes` gives each its own (for heavy simulators)."""
    rescale_observations: bool = False
    """Show the learner observations that are scaled to [-1, 1] by the bounds of the environment's space."""
    episode_steps: PositiveInt | None = None
    """Time limit of an episode, instead of the environment's own."""
    reward: Reward = ZeroShotReward()
    learner: Learner = AutoLearner()
    evaluation: Evaluation = Evaluation()
    checkpoints: Checkpoints = Checkpoints()
    videos: bool = True
    tensorboard: bool = True
    wandb: str | None = None
    """Name of a Weights & Biases project to log to as well."""
    device: str = "auto"
    """Where the policy learns."""
    threads: PositiveInt = 1
    """Threads per tensor operation on the CPU; small networks are fastest with one."""

    @model_validator(mode="after")
    def _words_make_sense(self) -> Recipe:
        if isinstance(self.reward, ZeroShotReward):
            check_words(self.goal, self.baseline, self.reward.alpha, goal_required=False)
        return self

    @model_validator(mode="after")
    def _buffer_holds_two_chunks(self) -> Recipe:
        if self.learner.buffer_size < 2 * self.learner.chunk * self.envs:
            raise ValueError(
                f"learner.buffer_size={self.learner.buffer_size} is too small: it must hold two chunks of "
                f"learner.chunk x envs = {self.learner.chunk * self.envs} transitions"
            )
        return self


def check_words(goal: Sequence[str], baseline: Sequence[str], alpha: float | None, goal_required: bool = True) -> None:
    """Refuse words that cannot make a reward.

    Raises:
        ValueError: no goal, an empty sentence, goal equal to baseline, alpha outside [0, 1], alpha without baseline.
    """
    if goal_required and not goal:
        raise ValueError(
            'there is no goal; say what the picture should show, for example goal="a rod standing upright"'
        )
    for sentence in (*goal, *baseline):
        _not_empty(sentence)
    if goal and sorted(goal) == sorted(baseline):
        raise ValueError("goal and baseline are the same words; the baseline should say what the picture shows anyway")
    if alpha is not None and not 0 <= alpha <= 1:
        raise ValueError(f"alpha={alpha} is outside [0, 1]")
    if alpha and goal and not baseline:
        raise ValueError(f"alpha={alpha} needs a baseline; add one or leave alpha out")


def bundled_recipes() -> list[str]:
    """Names of the recipes that come with Sightline."""
    folder = resources.files("sightline.recipes")
    return sorted(entry.name.removesuffix(".yaml") for entry in folder.iterdir() if entry.name.endswith(".yaml"))


def load_recipe(name_or_path: str | None, overrides: Sequence[str] = ()) -> Recipe:
    """Read a recipe and apply overrides.

    Args:
        name_or_path: a bundled name, the path of a YAML file, or None to start from the defaults.
        overrides: `key.sub=value`; values are read as YAML where they are numbers, booleans, null, lists or maps, and
            as text otherwise.

    Raises:
        BadInput: in one line, with the nearest valid name where a name is unknown.
    """
    document = _read(name_or_path) if name_or_path else {}
    # What a block is comes first, for it decides which of its keys there are.
    for override in sorted(overrides, key=lambda text: not text.startswith(("learner.algorithm=", "reward.kind="))):
        _apply(document, override)
    if "env" not in document:
        raise BadInput("no environment: name a recipe (see 'sightline recipes') or say env=… goal=…")
    return validate_recipe(document)


def validate_recipe(document: dict[str, Any]) -> Recipe:
    """Check a recipe given as plain data.

    Raises:
        BadInput: in one line.
    """
    try:
        return Recipe.model_validate(document)
    except ValidationError as error:
        raise BadInput(_in_one_line(error)) from error


def _read(name_or_path: str) -> dict[str, Any]:
    if name_or_path in bundled_recipes():
        text = (resources.files("sightline.recipes") / f"{name_or_path}.yaml").read_text()
    elif Path(name_or_path).is_file():
        try:
            text = Path(name_or_path).read_text()
        except (OSError, UnicodeDecodeError) as error:
            raise BadInput(f"cannot read the recipe {name_or_path}: {error}") from error
    else:
        raise BadInput(f"there is no recipe '{name_or_path}'{nearest(name_or_path, bundled_recipes())}")
    try:
        document = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise BadInput(f"{name_or_path} is not valid YAML: {' '.join(str(error).split())}") from error
    if not isinstance(document, dict):
        raise BadInput(f"{name_or_path} must be a YAML map of keys and values")
    return document


def _apply(document: dict[str, Any], override: str) -> None:
    key, equals, text = override.partition("=")
    if not equals or not key:
        hint = "; the recipe comes first" if override in bundled_recipes() else ""
        raise BadInput(f"'{override}' is not of the form key=value{hint}")
    *parents, last = key.split(".")
    place = document
    for parent in parents:
        if not isinstance(place.get(parent), dict):
            place[parent] = {}
        place = place[parent]
    value = _parse_value(text, is_sentence=key in ("goal", "baseline", "description"))
    if (key == "learner.algorithm" or key == "reward.kind") and place.get(last, value) != value:
        # Another algorithm keeps what it shares with the one before; the rest would be unknown to it.
        known = _BY_TAG.get(value, OtherLearner).model_fields
        for name in [name for name in place if name not in known]:
            del place[name]
    place[last] = value


def _parse_value(text: str, is_sentence: bool) -> Any:
    """Numbers, booleans, null, lists and maps as YAML reads them; everything else is the text as it stands."""
    quoted = text.lstrip().startswith(("'", '"'))
    if is_sentence and not (quoted or text.lstrip().startswith("[")):
        return text
    if re.fullmatch(r"[+-]?(\d+\.?\d*|\.\d+)[eE][+-]?\d+", text.strip()):
        return float(text)
    try:
        value = yaml.safe_load(text)
    except yaml.YAMLError:
        return text
    is_text = not quoted and (isinstance(value, str | datetime.date) or not text.strip())
    return text if is_text or (isinstance(value, dict) and not text.lstrip().startswith("{")) else value


def _in_one_line(error: ValidationError) -> str:
    problems = []
    for item in error.errors():
        path = [str(part) for part in item["loc"] if str(part) not in _BY_TAG]
        name = ".".join(path)
        if item["type"] == "extra_forbidden":
            problems.append(f"unknown key '{name}'{nearest(path[-1], _known_keys(item['loc']))}")
        else:
            message = item["msg"].removeprefix("Value error, ")
            problems.append(f"{name}: {message}" if name else message)
    return "; ".join(dict.fromkeys(problems))


_BY_TAG: dict[str, type[Strict]] = {
    "zero_shot": ZeroShotReward,
    "ground_truth": GroundTruthReward,
    "auto": AutoLearner,
    "DQN": DQNLearner,
    "SAC": SACLearner,
    "other": OtherLearner,
}
"""The members of the unions, by the tags that appear in pydantic's error locations."""


def _known_keys(location: tuple[int | str, ...]) -> list[str]:
    """The valid keys beside an unknown one."""
    owners = _BY_TAG | {"evaluation": Evaluation, "checkpoints": Checkpoints}
    owner = owners.get(str(location[-2]), Recipe) if len(location) > 1 else Recipe
    return list(owner.model_fields)


def leaves(model: BaseModel) -> dict[str, Any]:
    """Every key of a checked recipe with its value, as `key.sub`: for tables and for comparing two recipes."""
    flat: dict[str, Any] = {}

    def visit(prefix: str, value: Any) -> None:
        if isinstance(value, dict) and value:
            for key, child in value.items():
                visit(f"{prefix}.{key}" if prefix else str(key), child)
        else:
            flat[prefix] = value

    visit("", model.model_dump(mode="json"))
    return flat
