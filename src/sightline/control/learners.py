"""The algorithm that a recipe names: an off-policy or on-policy class of Stable-Baselines3, or one like them."""

from __future__ import annotations

import importlib
import inspect
import math
import warnings
from collections.abc import Iterable
from typing import Any

import gymnasium
import numpy as np
import torch
from gymnasium import spaces
from stable_baselines3 import TD3
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.buffers import DictRolloutBuffer, RolloutBuffer
from stable_baselines3.common.logger import Logger
from stable_baselines3.common.noise import NormalActionNoise, OrnsteinUhlenbeckActionNoise
from stable_baselines3.common.off_policy_algorithm import OffPolicyAlgorithm
from stable_baselines3.common.on_policy_algorithm import OnPolicyAlgorithm
from stable_baselines3.common.utils import LinearSchedule
from stable_baselines3.common.vec_env import VecEnv

from sightline.config.learners import (
    ActionNoise,
    DQNLearner,
    LearnerBase,
    OffPolicyLearner,
    OnPolicyLearner,
    PPOLearner,
    SACLearner,
)
from sightline.config.named_code import search_it_last
from sightline.config.recipe import ControlRecipe
from sightline.control.replay import CommittedReplayBuffer
from sightline.control.sizes import transitions_kept
from sightline.control.standardisation import ReadParts, StandardisedObservations
from sightline.envs.actions import describe_actions
from sightline.envs.observations import Observations
from sightline.envs.spaces import CONVOLVED, describe_observations, is_convolved, is_picture
from sightline.errors import BadInput, nearest, reason_of
from sightline.evaluation.episodes import Policy
from sightline.models.device import choose_device, weights_of_layers
from sightline.requirements import wheel_of
from sightline.runs.trust import KNOWN_PACKAGES

LARGE = 65_536
"""Pixels of a picture beyond which a policy that reads it learns slowly."""

_KNOWN = {name: f"stable_baselines3.{name}" for name in ("DQN", "SAC", "PPO")}
NOISE_OF_TD3 = 0.1
"""Standard deviation of the exploration noise of TD3 (Fujimoto et al., ICML 2018) and DDPG: their actors draw none."""
_KEYS_OF_THEIR_OWN = {
    "n_steps": "learner.chunk",
    "batch_size": "learner.batch_size",
    "gamma": "learner.gamma",
    "rollout_buffer_class": "learner.chunk",
    "rollout_buffer_kwargs": "learner.chunk",
}
"""Arguments of on-policy algorithms that recipes say otherwise, and on which collecting depends."""


def check_learner(recipe: ControlRecipe) -> None:
    """Refuse, before anything is begun, what could not be built.

    Raises:
        BadInput: no such class, options that it does not take or that mean nothing, no such device.
    """
    learner = recipe.learner
    algorithm = algorithm_class(learner)
    parameters = set(inspect.signature(algorithm).parameters)
    if isinstance(learner, OnPolicyLearner):
        _check_options(algorithm, parameters, _on_policy_arguments(learner))
        for name, key in _KEYS_OF_THEIR_OWN.items():
            if name in learner.options:
                raise BadInput(f"learner.options.{name} is a key of its own: say {key}")
    else:
        _check_options(algorithm, parameters, _off_policy_arguments(learner))
        _check_off_policy(learner, algorithm, parameters)
    for name in learner.options:
        if name in type(learner).model_fields:
            override = f"learner.algorithm={learner.algorithm} learner.{name}=…"
            raise BadInput(f"learner.options.{name} is a key of its own: say {override}")
    choose_device(recipe.device)


def policy_weights(recipe: ControlRecipe, space: spaces.Space[Any]) -> int | None:
    """Number of weights of the policy's plain layers; None where it reads pictures by convolutions."""
    policy, _ = choose_policy(algorithm_class(recipe.learner), space)
    if policy != "MlpPolicy" or space.shape is None:
        return None
    return weights_of_layers([math.prod(space.shape), *recipe.learner.hidden])


def _check_options(algorithm: type[BaseAlgorithm], parameters: set[str], arguments: Iterable[str]) -> None:
    """Refuse arguments that an algorithm's constructor does not take."""
    for name in arguments:
        if name not in parameters:
            hint = "; say learner.tau=null"
            if name != "tau":
                hint = nearest(name, {parameter for parameter in parameters if not parameter.startswith("_")})
            raise BadInput(f"{algorithm.__name__} takes no option '{name}'{hint}")


def _check_off_policy(learner: OffPolicyLearner, algorithm: type[BaseAlgorithm], parameters: set[str]) -> None:
    if learner.action_noise is not None and "action_noise" not in parameters:
        raise BadInput(f"{algorithm.__name__} takes no noise on its actions; leave out learner.action_noise")
    if "action_noise" in learner.options:
        raise BadInput("the noise on actions is a key of its own: say learner.action_noise=0.1")
    n_steps = learner.options.get("n_steps", 1)
    if not isinstance(n_steps, int) or isinstance(n_steps, bool) or n_steps < 1:
        raise BadInput(f"learner.options.n_steps={n_steps!r}: say a whole number, at least 1")


def build_learner(
    recipe: ControlRecipe,
    env: VecEnv,
    feature_shape: tuple[int, ...] | None,
    feature_dtype: Any,
    capacity: int | None = None,
) -> OffPolicyAlgorithm:
    """Make the off-policy algorithm of a completed recipe, with a replay buffer that waits for rewards.

    Args:
        feature_shape, feature_dtype: of what a reward model keeps beside each transition; no shape keeps nothing.
        capacity: transitions that there is room for; default: as many as the run can fill (`transitions_kept`).

    Raises:
        BadInput: the values of its options do not fit.
    """
    learner = recipe.learner
    assert isinstance(learner, OffPolicyLearner)
    # The first chunk's rewards are committed at the end of the second.
    first_rewards = 2 * learner.chunk * recipe.envs
    algorithm: Any = algorithm_class(learner)
    arguments = _off_policy_arguments(learner, env.observation_space)
    if capacity is None:
        capacity = transitions_kept(recipe)
    arguments["buffer_size"] = min(arguments["buffer_size"], capacity)
    policy, _ = choose_policy(algorithm, env.observation_space)
    buffer_arguments = {
        "feature_shape": feature_shape,
        "feature_dtype": feature_dtype,
        # Returns over several steps are made by the buffer alone. SB3 would warn that it does not make them itself.
        "n_steps": arguments.pop("n_steps", 1),
        "gamma": arguments["gamma"],
    }
    noise = _noise(learner, algorithm, env.action_space)
    try:
        model: OffPolicyAlgorithm = algorithm(
            policy,
            env,
            train_freq=(learner.chunk, "step"),
            learning_starts=max(learner.learning_starts, first_rewards - 1),
            replay_buffer_class=CommittedReplayBuffer,
            replay_buffer_kwargs=buffer_arguments,
            seed=recipe.seed,
            device=choose_device(recipe.device, policy_weights(recipe, env.observation_space)),
            **arguments,
            **noise,
        )
    except (TypeError, ValueError, AssertionError) as error:
        raise BadInput(f"learner {learner.algorithm} cannot be built: {' '.join(str(error).split())}") from error
    except MemoryError as error:
        raise BadInput(
            f"there is not enough memory for the replay buffer ({reason_of(error)}); lower learner.buffer_size, or "
            "observe smaller pictures"
        ) from error
    keep_log_in_memory(model)
    return model


def build_on_policy_learner(recipe: ControlRecipe, env: VecEnv) -> OnPolicyAlgorithm:
    """Make the on-policy algorithm of a completed recipe; its rollout buffer holds one chunk.

    Raises:
        BadInput: the values of its options do not fit, or it keeps rollouts of another kind, as recurrent policies do.
    """
    learner = recipe.learner
    assert isinstance(learner, OnPolicyLearner)
    algorithm: Any = algorithm_class(learner)
    policy, _ = choose_policy(algorithm, env.observation_space)
    device = choose_device(recipe.device, policy_weights(recipe, env.observation_space))
    arguments = _on_policy_arguments(learner, env.observation_space)
    try:
        with warnings.catch_warnings():
            # SB3 advises against GPUs, and against minibatches that do not divide a chunk; `device` and
            # `learner.batch_size` are the user's, and checked.
            warnings.simplefilter("ignore", UserWarning)
            model: OnPolicyAlgorithm = algorithm(policy, env, seed=recipe.seed, device=device, **arguments)
    except (TypeError, ValueError, AssertionError) as error:
        raise BadInput(f"learner {learner.algorithm} cannot be built: {' '.join(str(error).split())}") from error
    except MemoryError as error:
        raise BadInput(
            f"there is not enough memory for a chunk ({reason_of(error)}); lower learner.chunk or envs, or observe "
            "smaller pictures"
        ) from error
    if type(model.rollout_buffer) not in (RolloutBuffer, DictRolloutBuffer):
        raise BadInput(
            f"'{learner.algorithm}' keeps its rollouts in a {type(model.rollout_buffer).__name__}; only classes with "
            "Stable-Baselines3's plain RolloutBuffer can be trained, such as PPO"
        )
    keep_log_in_memory(model)
    return model


def build_acting_learner(recipe: ControlRecipe, env: VecEnv) -> BaseAlgorithm:
    """Make the algorithm of a completed recipe with next to no buffer, for acting only.

    Raises:
        BadInput: the values of its options do not fit.
    """
    learner = recipe.learner
    if isinstance(learner, OnPolicyLearner):
        smallest: dict[str, Any] = {"chunk": 2}
        if learner.batch_size is not None:
            smallest["batch_size"] = 2
        acting = recipe.model_copy(update={"learner": learner.model_copy(update=smallest)})
        return build_on_policy_learner(acting, env)
    return build_learner(recipe, env, None, np.float16, capacity=env.num_envs)


def choose_policy(algorithm: type[BaseAlgorithm], space: spaces.Space[Any]) -> tuple[str, str | None]:
    """Choose SB3's policy for observations of this space: convolutions for pictures, else plain layers.

    Returns:
        Its name, and a warning in one line if it is a poor choice for pictures.

    Raises:
        BadInput: the algorithm has none for pictures beside numbers.
    """
    if isinstance(space, spaces.Dict):
        if "MultiInputPolicy" in algorithm.policy_aliases:
            return "MultiInputPolicy", None
        pictures = [name for name, part in space.items() if is_picture(part)]
        numbers = [name for name, part in space.items() if not is_picture(part)]
        raise BadInput(
            f"{algorithm.__name__} has no network for several parts of an observation (pictures: "
            f"{', '.join(pictures)}; numbers: {', '.join(numbers) or 'none'}); choose some by observation_keys=[…], "
            "or another learner.algorithm"
        )
    if not is_picture(space):
        return "MlpPolicy", None
    assert space.shape is not None
    if "CnnPolicy" not in algorithm.policy_aliases:
        why = f"{algorithm.__name__} has no network for pictures"
    elif not is_convolved(space):
        size = f"{space.shape[1]}x{space.shape[2]}"
        why = f"pictures of {size} are too small for convolutions, which need {CONVOLVED}x{CONVOLVED} at least"
    else:
        return "CnnPolicy", None
    return "MlpPolicy", f"the observations are pictures, and the policy reads them as plain numbers: {why}"


def spaces_in_words(recipe: ControlRecipe, env: gymnasium.Env[Any, Any]) -> list[str]:
    """What a policy reads and does in an adapted environment, each in one line, where it is not what that gives itself.

    Raises:
        BadInput: the algorithm cannot read it.
    """
    policy, warning = choose_policy(algorithm_class(recipe.learner), env.observation_space)
    reading = describe_observations(env, convolves=policy != "MlpPolicy")
    if reading is None:
        reading = warning
    lines = [reading, _slow_to_read(env.observation_space), describe_actions(env)]
    return [line for line in lines if line is not None]


def _slow_to_read(space: spaces.Space[Any]) -> str | None:
    """Warning in one line if a policy reads pictures of many pixels, which make its updates slow."""
    parts = space.values() if isinstance(space, spaces.Dict) else [space]
    sizes = [part.shape[1:] for part in parts if is_picture(part) and part.shape is not None]
    height, width = max(sizes, key=math.prod, default=(0, 0))
    if height * width <= LARGE:
        return None
    return (
        f"the policy reads pictures of {height}x{width}, which makes its updates slow (84x84 is usual); have the "
        "environment observe smaller ones (env_options), or wrap it in gymnasium.wrappers.ResizeObservation"
    )


def _noise(learner: OffPolicyLearner, algorithm: type[BaseAlgorithm], actions: spaces.Space[Any]) -> dict[str, Any]:
    """The noise on actions as an argument, if there is any. It is drawn from NumPy's generator, which is in every
    checkpoint; what drifts is kept there too (`sightline.control.state`)."""
    noise = learner.action_noise
    if noise is None and isinstance(algorithm, type) and issubclass(algorithm, TD3):
        # Without it their deterministic actors would never explore.
        noise = ActionNoise(sigma=NOISE_OF_TD3)
    if noise is None or not noise.sigma or not isinstance(actions, spaces.Box):
        return {}
    mean = np.full(actions.shape, noise.mean)
    sigma = np.full(actions.shape, noise.sigma)
    if noise.kind == "normal":
        return {"action_noise": NormalActionNoise(mean, sigma)}
    return {"action_noise": OrnsteinUhlenbeckActionNoise(mean, sigma, theta=noise.theta, dt=noise.dt)}


def reset_critic(model: OffPolicyAlgorithm) -> None:
    """Reset the critic (all value functions), as after a change of the reward's scale and meaning; the actor stays.

    Raises:
        BadInput: see `name_of_values`.
    """
    policy: Any = model.policy
    name = name_of_values(model)
    values = getattr(policy, name)
    if name == "critic":
        untrained = policy.make_critic(features_extractor=None)
        optimiser = values.optimizer
    else:  # a Q network is all of the policy, whose optimiser is its own
        untrained = policy.make_q_net()
        optimiser = policy.optimizer
    values.load_state_dict(untrained.state_dict())
    if hasattr(policy, f"{name}_target"):  # CrossQ does without
        getattr(policy, f"{name}_target").load_state_dict(untrained.state_dict())
    # Its running means belong to the gradients of the old values.
    optimiser.state.clear()


def name_of_values(model: OffPolicyAlgorithm) -> str:
    """Name of the policy's value functions.

    Raises:
        BadInput: the algorithm has neither critics nor a Q network.
    """
    for name in ("critic", "q_net"):
        if getattr(model.policy, name, None) is not None:
            return name
    raise BadInput(f"{type(model).__name__} has no critic that can be reset; say reward.reset_critic=false")


def reset_values(model: OnPolicyAlgorithm, untrained: OnPolicyAlgorithm) -> None:
    """Reset the value function of an on-policy learner to that of an untrained one; the policy stays.

    Raises:
        BadInput: see `value_weights`.
    """
    weights = untrained.policy.state_dict()
    parameters = dict(model.policy.named_parameters())
    for name in value_weights(model):
        with torch.no_grad():
            parameters[name].copy_(weights[name])
        model.policy.optimizer.state.pop(parameters[name], None)


def value_weights(model: OnPolicyAlgorithm) -> list[str]:
    """Names of the parameters of an on-policy learner that only its value function has.

    Raises:
        BadInput: there are none.
    """
    names = [name for name, _ in model.policy.named_parameters() if "value_net" in name]
    if not names:
        raise BadInput(f"{type(model).__name__} has no value function that can be reset; say reward.reset_critic=false")
    return names


def greedy(model: BaseAlgorithm) -> Policy:
    """The deterministic policy of a learner."""

    def act(states: Observations) -> np.ndarray:
        actions, _ = model.predict(states, deterministic=True)
        return actions

    return act


def keep_log_in_memory(model: BaseAlgorithm) -> None:
    """Replace SB3's logger, which writes files of its own; the trainer writes its values with all others."""
    model.set_logger(Logger(folder=None, output_formats=[]))


def algorithm_class(learner: OffPolicyLearner | OnPolicyLearner) -> type[BaseAlgorithm]:
    """The class that a recipe's learner names.

    Raises:
        BadInput: it cannot be imported, or is no algorithm of the learner's kind.
    """
    name: str = getattr(learner, "algorithm", "")
    # `DQN` is short for `stable_baselines3.DQN`; any other name is that of a module and a class in it.
    module_name, _, class_name = _KNOWN.get(name, name).rpartition(".")
    if not module_name:
        what = f"is '{name}'" if name else "is not stated"
        raise BadInput(f"learner.algorithm {what}; say DQN, SAC, PPO, or a class such as sb3_contrib.TQC")
    if module_name.split(".")[0] not in KNOWN_PACKAGES:  # or a stranger's file could stand in for a missing package
        search_it_last()
    try:
        algorithm = getattr(importlib.import_module(module_name), class_name)
    except (ImportError, AttributeError) as error:
        package = module_name.split(".")[0]
        if isinstance(error, ModuleNotFoundError) and error.name == package:
            wheel = wheel_of(package)
            raise BadInput(f"learner '{name}' needs a package that is not installed: pip install {wheel}") from error
        reason = f": '{module_name}' has no class '{class_name}'"
        if isinstance(error, ImportError):
            reason = f" ({error})"
        message = f"there is no learner '{name}'{reason}; say DQN, SAC, PPO, or a class such as sb3_contrib.TQC"
        raise BadInput(message) from error
    # Looked at before anything is called: a recipe can name any class.
    is_on_policy = isinstance(algorithm, type) and issubclass(algorithm, OnPolicyAlgorithm)
    is_off_policy = isinstance(algorithm, type) and issubclass(algorithm, OffPolicyAlgorithm)
    if isinstance(learner, OnPolicyLearner):
        if not is_on_policy:
            hint = "; leave out learner.on_policy" if is_off_policy else ""
            raise BadInput(f"'{name}' is no on-policy algorithm of Stable-Baselines3, nor a subclass of one{hint}")
    elif not is_off_policy:
        hint = "; it learns on-policy: add learner.on_policy=true" if is_on_policy else ""
        raise BadInput(f"'{name}' is no off-policy algorithm of Stable-Baselines3, nor a subclass of one{hint}")
    return algorithm  # type: ignore[no-any-return]


def _off_policy_arguments(learner: OffPolicyLearner, space: spaces.Space[Any] | None = None) -> dict[str, Any]:
    """Arguments of an off-policy algorithm, by SB3's names, from the recipe's."""
    arguments: dict[str, Any] = {
        "learning_rate": _schedule(learner),
        "buffer_size": learner.buffer_size,
        "batch_size": learner.batch_size,
        "gamma": learner.gamma,
        "gradient_steps": learner.gradient_steps,
    }
    if learner.tau is not None:
        arguments["tau"] = learner.tau
    if isinstance(learner, DQNLearner):
        arguments |= {
            "target_update_interval": learner.target_update_interval,
            "exploration_fraction": learner.exploration_fraction,
            "exploration_final_eps": learner.exploration_final_eps,
        }
    if isinstance(learner, SACLearner):
        arguments |= {"ent_coef": learner.ent_coef, "use_sde": learner.use_sde}
    policy = _extractor(space, standardises=False)
    if isinstance(learner, DQNLearner | SACLearner) and "optimizer_class" not in _policy_options(learner):
        policy["optimizer_kwargs"] = {"fused": True}  # one call for all weights: small networks wait for calls
    return _with_options(learner, arguments, policy)


def _on_policy_arguments(learner: OnPolicyLearner, space: spaces.Space[Any] | None = None) -> dict[str, Any]:
    """Arguments of an on-policy algorithm, by SB3's names, from the recipe's."""
    arguments: dict[str, Any] = {
        "learning_rate": _schedule(learner),
        "n_steps": learner.chunk,
        "gamma": learner.gamma,
        "gae_lambda": learner.gae_lambda,
    }
    policy = _extractor(space, learner.standardise_observations)
    if learner.batch_size is not None:
        arguments["batch_size"] = learner.batch_size
    if isinstance(learner, PPOLearner):
        arguments |= {
            "n_epochs": learner.epochs,
            "clip_range": learner.clip_range,
            "ent_coef": learner.ent_coef,
            "vf_coef": learner.vf_coef,
            "max_grad_norm": learner.max_grad_norm,
        }
        policy["log_std_init"] = math.log(learner.initial_std)
    return _with_options(learner, arguments, policy)


def _extractor(space: spaces.Space[Any] | None, standardises: bool) -> dict[str, Any]:
    """Arguments of a policy that say how observations are read, where SB3's own way is not ours.

    Observations are standardised in the policy's features extractor, not by `VecNormalize` around the environments.
    """
    if isinstance(space, spaces.Dict):
        return {"features_extractor_class": ReadParts, "features_extractor_kwargs": {"standardises": standardises}}
    if standardises and isinstance(space, spaces.Box) and not is_picture(space):
        return {"features_extractor_class": StandardisedObservations}
    return {}


def _with_options(learner: LearnerBase, arguments: dict[str, Any], policy: dict[str, Any]) -> dict[str, Any]:
    """Arguments of the algorithm and of its policy, over which the recipe's `learner.options` count."""
    policy = {"net_arch": list(learner.hidden)} | policy | _policy_options(learner)
    return arguments | learner.options | {"policy_kwargs": policy}


def _policy_options(learner: LearnerBase) -> dict[str, Any]:
    """What the recipe says of the policy by SB3's own names."""
    options: dict[str, Any] = learner.options.get("policy_kwargs", {})
    return options


def _schedule(learner: LearnerBase) -> LinearSchedule:
    return LinearSchedule(learner.learning_rate, learner.learning_rate * learner.learning_rate_end, 1.0)
