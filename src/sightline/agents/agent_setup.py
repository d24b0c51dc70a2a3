"""`AgentSetup`: what a run of an agent needs, built from its completed recipe (policy, engine, reward model), and what
is made from that: rollout workers, samplers, the learner."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from sightline.agents.algorithms.base import AlgorithmConfig
from sightline.agents.engines.engine import Engine
from sightline.agents.prompting import BLANK, demonstration, prompt_text
from sightline.agents.resolving import game_maker, played_game
from sightline.agents.rewards import TurnRewards
from sightline.agents.rollouts import RolloutWorker
from sightline.agents.samplers import Sampler
from sightline.agents.samplers.policy import PolicySampler
from sightline.agents.sizes import FEW_EPISODES
from sightline.config.recipe import AGENT_REWARD, AgentRecipe
from sightline.envs.frames import rgb_frame
from sightline.envs.games.wrapping import begin_once
from sightline.envs.stepping import close_env
from sightline.envs.tasks import find_task
from sightline.errors import BadInput
from sightline.evaluation.seeds import EvalSeeds, make_panel
from sightline.images import Picture
from sightline.models.device import choose_device
from sightline.models.vlm.loading import NEEDS_PEFT, reads_pictures, weights_known
from sightline.models.vlm.model import VLM
from sightline.models.vlm.types import EVERY_TOKEN, ChatTurn, Truncation
from sightline.models.vlm.words_only import READS_NO_PICTURES
from sightline.rewards.base import OnlineRewardModel, RewardModel, frame_shrinker
from sightline.rewards.config import (
    RewardContext,
    RewardSetup,
    RunContext,
    reward_config,
    run_shrinker,
)
from sightline.rewards.config import build_reward as build_model_of

if TYPE_CHECKING:
    from sightline.agents.learning import PolicyLearner
    from sightline.agents.samplers.server import ServerSampler
    from sightline.agents.samplers.vllm import VLLMSampler


@dataclass(frozen=True)
class AgentSetup:
    """Policy, engine and sampler of a run.

    Attributes:
        recipe: resolved.
        vlm: the policy, with the weights that the recipe names.
        engine: the processes that it is trained on.
        server: vLLM, in this process or as a server, with a copy of the weights; None if the policy samples by itself.
        reward: the reward model that episodes are scored by, and what goes with it; None where they keep the
            environment's own rewards.
    """

    recipe: AgentRecipe
    vlm: VLM
    engine: Engine
    server: VLLMSampler | ServerSampler | None = None
    reward: RewardSetup | None = None

    @property
    def judge(self) -> RewardModel | None:
        """The reward model that evaluations report and checkpoints are chosen by; None where it sees nothing, so that
        success says it all."""
        if self.reward is None or not self.reward.model.needs:
            return None
        return self.reward.model

    def turn_rewards(self, online: OnlineRewardModel | None = None) -> TurnRewards | None:
        """What scores episodes; None where they keep the environment's own rewards.

        Args:
            online: the reward model that is learned in the run, in place of the one that was built.
        """
        if self.reward is None:
            return None
        model = self.reward.model if online is None else online
        instruction = "; ".join(self.recipe.goal) or None
        return TurnRewards(model, self.recipe.rollouts.rewards, instruction, self.recipe.reward.reads_success)

    def online_reward(self, folder: Path, say: Callable[[str], None]) -> OnlineRewardModel | None:
        """The reward model that is learned during a run, from a teacher's answers; None for any other reward.

        Raises:
            BadInput: there are several processes: each would ask, and learn, for itself.
        """
        if self.reward is None or self.recipe.reward.teaching is None:
            return None
        if self.engine.world > 1:
            raise BadInput("a reward that is learned from a teacher pays an agent in one process; leave out torchrun")
        recipe = self.recipe
        frame_shape = _first_frame(recipe).shape
        context = RunContext(folder, recipe.env, recipe.goal, frame_shape, recipe.seed, recipe.steps, None, say)
        return reward_config(recipe.reward).online(self.reward, context)

    def rollout_worker(self, training: bool = False) -> RolloutWorker:
        """Rollout worker of training (this process's part of the parallel episodes) or of evaluation."""
        recipe = self.recipe
        if not training:
            return evaluation_worker(recipe, self.vlm, self.judge)

        # Each process plays its part of the episodes. Frames are kept, smaller if the run allows it, until a reward
        # model has scored them.
        share = (recipe.rollouts.parallel or FEW_EPISODES) // self.engine.world
        shrink = None
        if self.judge is not None:
            shrink = run_shrinker(reward_config(recipe.reward), self.judge)
        return RolloutWorker(
            game_maker(recipe, training=True),
            recipe.replies,
            recipe.rollouts.window,
            max(share, 1),
            self.vlm,
            find_task(recipe.env).success,
            keeps_frames=self.judge is not None,
            workers=recipe.workers,
            prompt_tokens=recipe.rollouts.prompt_tokens,
            step_timeout=recipe.step_timeout,
            shrink=shrink,
        )

    def sampler(self, training: bool = False) -> Sampler:
        """Sampler of the policy, at the temperature of training or of evaluation."""
        rollouts = self.recipe.rollouts
        if training:
            temperature = rollouts.temperature
            truncation = Truncation(rollouts.top_k, rollouts.top_p, rollouts.min_p)
        else:
            temperature = self.recipe.evaluation.temperature
            truncation = EVERY_TOKEN
        if self.server is not None:
            return self.server.at(temperature)
        return PolicySampler(self.vlm, temperature, self.recipe.replies.max_tokens, truncation)

    def learner(self, say: Callable[[str], None] = print) -> PolicyLearner:
        """What trains the policy, with new optimiser state; the engine must have prepared the policy.

        Raises:
            BadInput: the recipe's algorithm, a plug-in, cannot compute advantages; or what stale rollouts were sampled
                with would be forgotten.
        """
        from sightline.agents.learning import PolicyLearner

        recipe = self.recipe
        algorithm = recipe.algorithm
        if recipe.rollouts.staleness and recipe.update.importance_cap is None and not self.vlm.exact:
            # In bfloat16 old log-probabilities are computed anew, with weights that have sampled none of these replies.
            raise BadInput(
                f"rollouts.staleness={recipe.rollouts.staleness} learns from replies of earlier weights, which nothing "
                "corrects for in bfloat16; say update.importance_cap=2"
            )
        if not isinstance(algorithm, AlgorithmConfig):
            raise BadInput(
                f"the algorithm '{algorithm.kind}' is no sightline.AlgorithmConfig; its package must subclass that"
            )
        return PolicyLearner(
            self.vlm,
            self.engine,
            algorithm,
            recipe.update,
            temperature=recipe.rollouts.temperature,
            seed=recipe.seed,
            say=say,
        )

    def weights_changed(self, version: int | None = None) -> None:
        """Hand new weights to a sampler that has a copy of them.

        Args:
            version: their number, updates before them; None if they are none of training's.
        """
        if self.server is not None:
            with self.engine.full_params():
                self.server.take_over_weights(version)

    def eval_seeds(self, name: str, episodes: int, seed: int = 0) -> EvalSeeds:
        """Evaluation seeds of the recipe's environment; other options give other seeds."""
        return make_panel(name, played_game(self.recipe), episodes, seed)


def evaluation_worker(recipe: AgentRecipe, vlm: VLM | None = None, judge: RewardModel | None = None) -> RolloutWorker:
    """Rollout worker of evaluation, in which a reply without an action is a failure of the agent.

    Args:
        vlm: the policy, see `RolloutWorker`.
        judge: the reward model that scores what is played, if it sees anything.
    """
    return RolloutWorker(
        game_maker(recipe),
        recipe.replies.model_copy(update={"unparsable": recipe.evaluation.unparsable}),
        recipe.rollouts.window,
        recipe.evaluation.parallel,
        vlm,
        find_task(recipe.env).success,
        keeps_frames=judge is not None,
        workers=recipe.workers,
        prompt_tokens=recipe.rollouts.prompt_tokens,
        step_timeout=recipe.step_timeout,
        shrink=frame_shrinker(judge),
    )


def _check_texts(recipe: AgentRecipe, vlm: VLM) -> None:
    """Refuse a prompt that the model's processor cannot read, and a token limit below the shortest complete reply.

    Raises:
        BadInput: as the processor says; or naming the minimum.
    """
    # The first prompt of a game is encoded as a rollout would do it.
    game = game_maker(recipe)()
    try:
        action_names = game.get_wrapper_attr("action_names")
        queried_facts = game.get_wrapper_attr("asked")
        observation, info = begin_once(game, recipe.env)
        listed_actions = action_names or tuple(info.get("legal_actions", ()))
        text = prompt_text(observation.text, recipe.replies, queried_facts, listed_actions)
        pictures = tuple(Picture(np.array(image)) for image in observation.images)
        vlm.check_prompts([vlm.encode([ChatTurn(text, pictures)])], recipe.replies.max_tokens)
        # Some templates leave earlier replies out, and the prompt of a second turn is longer.
        if recipe.rollouts.window > 1:
            second = vlm.encode([ChatTurn(text, pictures, (vlm.tokens.stop,)), ChatTurn(text, pictures)])
            if recipe.rollouts.prompt_tokens is None:
                vlm.check_prompts([second], recipe.replies.max_tokens)
    finally:
        close_env(game)

    # Every action must fit, with short facts, some words of thought, and the token that ends a reply.
    thoughts = BLANK * 8
    facts = dict.fromkeys(queried_facts, BLANK)
    lengths = []
    for name in action_names or (BLANK,):
        reply = demonstration(recipe.replies, facts, thoughts, name)
        lengths.append(len(vlm.tokens.encode(reply)))
    minimum = max(lengths) + 1
    if minimum > recipe.replies.max_tokens:
        raise BadInput(
            f"replies.max_tokens={recipe.replies.max_tokens} is too few: even a short reply of this model has "
            f"{minimum} tokens; raise it (256 is usual with thoughts)"
        )


def load_model(recipe: AgentRecipe) -> VLM:
    """Load the model that the recipe's block `policy` describes, with what its algorithm needs.

    Raises:
        BadInput: there is no such model, it reads no pictures and the game shows some, or it cannot be trained as
            configured.
    """
    from sightline.models.vlm.model import load_vlm

    policy = recipe.policy
    check_senses(recipe)  # before gigabytes of weights are fetched
    return load_vlm(
        policy.model,
        lora=policy.lora,
        freeze=policy.freeze,
        dtype=policy.dtype,
        four_bit=policy.four_bit,
        gradient_checkpointing=policy.gradient_checkpointing,
        value_head=recipe.algorithm.needs_values,
        device=recipe.device,
        seed=recipe.seed,
    )


def check_senses(recipe: AgentRecipe) -> None:
    """Refuse a game that shows pictures to a model that reads none.

    Raises:
        BadInput: as said.
    """
    model = recipe.policy.model
    if not reads_pictures(model) and _first_pictures(recipe):
        raise BadInput(f"'{model}' {READS_NO_PICTURES}")


def _check_trainable(recipe: AgentRecipe) -> None:
    """Refuse what can be evaluated but not trained, before any process group is joined or model loaded.

    Raises:
        BadInput: adapters without PEFT, whole weights in bfloat16, or several processes with one GPU or one server for
            all of them.
    """
    policy = recipe.policy
    if policy.lora is not None and importlib.util.find_spec("peft") is None:
        raise BadInput(NEEDS_PEFT)
    processes = int(os.environ.get("WORLD_SIZE", "1"))
    if policy.dtype == "bfloat16" and policy.lora is None:
        raise BadInput(
            "policy.dtype=bfloat16 rounds the steps of an optimiser away; leave it at auto (float32 weights, bfloat16 "
            "arithmetic on a GPU), or train adapters with policy.lora={}"
        )
    if processes > 1 and recipe.device.startswith("cuda:"):
        raise BadInput(
            f"device={recipe.device} would put all {processes} processes on one GPU; say device=cuda, and each takes "
            "a GPU of its own"
        )
    if processes > 1 and policy.sampler != "transformers":
        raise BadInput(
            f"policy.sampler={policy.sampler} is for one process, and torchrun has started {processes}; take "
            "policy.sampler=transformers, or start without torchrun"
        )


def build(recipe: AgentRecipe) -> AgentSetup:
    """Load the policy and start the engine.

    Raises:
        BadInput: there is no such model, it cannot be used as the recipe says, or processes were started in another way
            than the engine needs.
    """
    import torch

    from sightline.agents.engines.starting import start_engine

    # What needs no model is checked first: loading one takes minutes.
    _check_trainable(recipe)
    torch.set_num_threads(recipe.threads)
    device = choose_device(recipe.device, weights_known(recipe.policy.model, recipe.policy.four_bit))
    engine = start_engine(recipe.engine, device.type)
    vlm = load_model(recipe)
    if not any(parameter.requires_grad for parameter in vlm.model.parameters()):
        raise BadInput("nothing is left to learn: policy.freeze names all parts; take one out")
    _check_texts(recipe, vlm)
    # By default the policy samples by itself; vLLM gets a copy of its weights.
    server: VLLMSampler | ServerSampler | None = None
    if recipe.policy.sampler == "vllm":
        from sightline.agents.samplers.vllm import VLLMSampler

        server = VLLMSampler(vlm, max_tokens=recipe.replies.max_tokens, settings=recipe.policy.vllm)
    elif recipe.policy.sampler == "server":
        from sightline.agents.samplers.server import ServerSampler

        server = ServerSampler(vlm, recipe.policy.server, max_tokens=recipe.replies.max_tokens)
        server.take_over_weights()  # it may serve any weights of the model at first
    return AgentSetup(recipe, vlm, engine, server, build_reward(recipe))


def build_reward(recipe: AgentRecipe, asks: bool = True) -> RewardSetup | None:
    """Build the recipe's reward model; None for the environment's own rewards, turn by turn, which episodes have.

    Args:
        asks: False if no teacher will be asked, because what it has taught is only evaluated.

    Raises:
        BadInput, RunFailed: as the encoders, the words and the teacher say.
    """
    default = AGENT_REWARD.make_default()
    if recipe.reward == default and recipe.rollouts.rewards == "turn":
        return None
    context = RewardContext(recipe.goal, recipe.baseline, recipe.seed, asks, lambda *size: _first_frame(recipe))
    return build_model_of(reward_config(recipe.reward), context)


def _first_pictures(recipe: AgentRecipe) -> tuple[np.ndarray, ...]:
    """The pictures that are shown of the environment's first state; none where it is told in words."""
    game = game_maker(recipe)()
    try:
        observation, _ = begin_once(game, recipe.env)
        return tuple(observation.images)
    finally:
        close_env(game)


def _first_frame(recipe: AgentRecipe) -> np.ndarray:
    """The newest picture of the environment's first state, at its own size."""
    game = game_maker(recipe)()
    try:
        observation, _ = game.reset(seed=0)
        frame: np.ndarray = observation.images[-1] if observation.images else rgb_frame(game)
        return frame
    finally:
        close_env(game)
