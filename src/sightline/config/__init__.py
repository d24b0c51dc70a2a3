"""What a recipe may say (a recipe is a YAML file that describes a whole run; a wrong one cannot be expressed), and how
one is loaded."""

from sightline.config.basics import Strict, check_words
from sightline.config.learners import AutoLearner, DQNLearner, Learner, LearnerBase, OtherLearner, SACLearner
from sightline.config.loading import bundled_recipes, leaves, load_recipe, validate_recipe
from sightline.config.recipe import Checkpoints, Evaluation, Recipe
from sightline.config.rewards import (
    CNNConfig,
    EmbeddingHeadConfig,
    Feedback,
    FittingConfig,
    GroundTruthConfig,
    LadderConfig,
    LearnedConfig,
    PairsConfig,
    RatingsConfig,
    ResNetConfig,
    Reward,
    RewardNet,
    ScoresConfig,
    SparseConfig,
    StatesConfig,
    ZeroShotConfig,
)
from sightline.config.teachers import (
    Budget,
    ChatTeacherConfig,
    EncoderTeacherConfig,
    HumanTeacherConfig,
    ScriptedTeacherConfig,
    Teacher,
)

__all__ = [
    "AutoLearner", "Budget", "CNNConfig", "ChatTeacherConfig", "Checkpoints", "DQNLearner", "EmbeddingHeadConfig",
    "EncoderTeacherConfig", "Evaluation", "Feedback", "FittingConfig", "GroundTruthConfig", "HumanTeacherConfig",
    "LadderConfig", "LearnedConfig", "Learner", "LearnerBase", "OtherLearner", "PairsConfig", "RatingsConfig", "Recipe",
    "ResNetConfig", "Reward", "RewardNet", "SACLearner", "ScoresConfig", "ScriptedTeacherConfig", "SparseConfig",
    "StatesConfig", "Strict", "Teacher", "ZeroShotConfig", "bundled_recipes", "check_words", "leaves", "load_recipe",
    "validate_recipe",
]  # fmt: skip
