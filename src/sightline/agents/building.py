"""Resolve an agent's recipe, and build what a run needs: environment, policy, engine, sampler, rollout workers."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from sightline.agents.algorithms.base import AlgorithmConfig
from sightline.agents.demos import Demo, demonstrations, read_demos
from sightline.agents.engines.engine import Engine
from sightline.agents.prompting import BLANK, demonstration, prompt_text
from sightline.agents.rewards import TurnRewards
from sightline.agents.rollouts import RolloutWorker
from sightline.agents.samplers import Sampler
from sightline.agents.samplers.policy import PolicySampler
from sightline.config.agents import WarmStart
from sightline.config.loading import for_agent, validate_recipe
from sightline.config.recipe import AGENT_REWARD, AgentRecipe
from sightline.envs.frames import rgb_frame
from sightline.envs.games.checking import HOW_TO_STATE_SUCCESS, states_success
from sightline.envs.games.making import GameMaker
from sightline.envs.games.wrapping import begin_once
from sightline.envs.tasks import find_task
from sightline.envs.vector import close_env
from sightline.errors import BadInput
from sightline.evaluation.seeds import EvalSeeds, make_panel, played
from sightline.images import Picture
from sightline.models.vlm.card import with_taught_form
from sightline.models.vlm.model import VLM
from sightline.models.vlm.types import EVERY_TOKEN, ChatTurn, Truncation
from sightline.rewards.base import OnlineRewardModel, RewardModel, frame_shrinker
from sightline.rewards.config import (
    RewardContext,
    RewardSetup,
    RunContext,
    resolved_words,
    reward_config,
    run_shrinker,
)
from sightline.rewards.config import build_reward as build_model_of

if TYPE_CHECKING:
    from sightline.agents.learning import PolicyLearner
    from sightline.agents.samplers.server import ServerSampler
    from sightline.agents.samplers.vllm import VLLMSampler


def resolve(recipe: AgentRecipe) -> AgentRecipe:
    """Fill in what the recipe leaves open, and check that its environment and demonstrations exist.

    Raises:
        BadInput: there is no such environment, it does not take these options, it has no pictures, or there are no
            demonstrations of it.
        RunFailed: the environment cannot be built on this machine.
    """
    recipe = with_form_of_model(recipe)
    for make in (game_maker(recipe), game_maker(recipe, training=True)):
        game = make()
        try:
            begin_once(game, recipe.env)
        finally:
            close_env(game)
    if recipe.warm_start is not None:
        # Read or make one demonstration: a warm start that cannot begin is refused before the model is loaded.
        settings = recipe.warm_start
        next(best_play(recipe, settings, 1) if settings.demos is None else read_demos(Path(settings.demos)), None)
    _check_success(recipe)
    document: dict[str, Any] = recipe.model_dump(mode="json") | resolved_words(recipe, find_task(recipe.env))
    tenth = max(recipe.steps // 10, 1)
    document["evaluation"]["every"] = recipe.evaluation.every or tenth
    document["checkpoints"]["every"] = recipe.checkpoints.every or tenth
    return for_agent(validate_recipe(document))


def with_form_of_model(recipe: AgentRecipe) -> AgentRecipe:
    """The recipe with the form of replies that its model was taught, where it leaves the form open.

    Raises:
        BadInput: the model's card states a form that there is not.
    """
    return recipe.model_copy(update={"replies": with_taught_form(recipe.replies, recipe.policy.model)})


def _check_success(recipe: AgentRecipe) -> None:
    """Refuse to learn from success, or to wait for it, where the environment does not state it.

    Raises:
        BadInput: in some random episodes no info says whether a state is a success.
    """
    stop_at, needs = recipe.evaluation.stop_at, ""
    if recipe.reward.reads_success:
        needs = f"reward.kind={recipe.reward.kind} pays for success"
    elif stop_at is not None:
        needs = f"evaluation.stop_at={stop_at:g} is a share of episodes with success"
    if not needs:
        return
    game = game_maker(recipe)()
    try:
        stated = states_success(game, recipe.seed)
    except BadInput:
        raise
    except Exception:
        return  # an environment that breaks is told of where it is played
    finally:
        game.close()
    if not stated:
        raise BadInput(f"{needs}, and '{recipe.env}' does not state it; {HOW_TO_STATE_SUCCESS}")


def game_maker(recipe: AgentRecipe, training: bool = False, changed: Mapping[str, Any] | None = None) -> GameMaker:
    """Factory of the recipe's environment for evaluation, or with the changed options and time limit of training.

    Args:
        recipe: names the environment.
        training: whether its games are to be learned from.
        changed: options over all others, those of the demonstrated game.
    """
    options, steps = recipe.env_options, recipe.episode_steps
    if training:
        options, steps = options | recipe.rollouts.train_env_options, recipe.rollouts.episode_steps or steps
    options = options | dict(changed or {})
    return GameMaker(
        recipe.env,
        options,
        recipe.prompt,
        recipe.actions,
        steps,
        recipe.text_only,
        recipe.success_from,
        ignores_reward=not recipe.reward.reads_own_reward,
    )


def best_play(recipe: AgentRecipe, settings: WarmStart, samples: int) -> Iterator[Demo]:
    """Demonstrated turns of the recipe's training games, with the options that its warm start changes."""
    maker = game_maker(recipe, training=True, changed=settings.env_options)
    return demonstrations(maker, recipe.replies, samples, recipe.seed, settings)


def played_game(recipe: AgentRecipe) -> str:
    """Name of the evaluated environment with all options that change it, as evaluation seeds depend on it."""
    # Panels are drawn from this name: `in_words` was the key of `text_only`, and keeps their seeds what they were.
    return played(
        recipe.env,
        env_options=recipe.env_options,
        episode_steps=recipe.episode_steps,
        in_words=recipe.text_only,
        success_from=recipe.success_from,
    )


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
        return self.reward.model if self.reward is not None and self.reward.model.needs else None

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
        shape = _first_frame(recipe).shape
        context = RunContext(folder, recipe.env, recipe.goal, shape, recipe.seed, recipe.steps, None, say)
        return reward_config(recipe.reward).online(self.reward, context)

    def rollout_worker(self, training: bool = False) -> RolloutWorker:
        """Rollout worker of training (this process's part of the parallel episodes) or of evaluation."""
        recipe = self.recipe
        if not training:
            return evaluation_worker(recipe, self.vlm, self.judge)
        return RolloutWorker(
            game_maker(recipe, training=True),
            recipe.replies,
            recipe.rollouts.window,
            max(recipe.rollouts.parallel // self.engine.world, 1),
            self.vlm,
            find_task(recipe.env).success,
            keeps_frames=self.judge is not None,
            workers=recipe.workers,
            prompt_tokens=recipe.rollouts.prompt_tokens,
            step_timeout=recipe.step_timeout,
            shrink=None if self.judge is None else run_shrinker(reward_config(recipe.reward), self.judge),
        )

    def sampler(self, training: bool = False) -> Sampler:
        """Sampler of the policy, at the temperature of training or of evaluation."""
        recipe = self.recipe
        temperature = recipe.rollouts.temperature if training else recipe.evaluation.temperature
        if self.server is not None:
            return self.server.at(temperature)
        cut = recipe.rollouts
        truncation = Truncation(cut.top_k, cut.top_p, cut.min_p) if training else EVERY_TOKEN
        return PolicySampler(self.vlm, temperature, recipe.replies.max_tokens, truncation)

    def learner(self, say: Callable[[str], None] = print) -> PolicyLearner:
        """What trains the policy, with new optimiser state; the engine must have prepared the policy.

        Raises:
            BadInput: the recipe's algorithm, a plug-in, cannot compute advantages; or what stale rollouts were sampled
                with would be forgotten.
        """
        from sightline.agents.learning import PolicyLearner

        recipe, algorithm = self.recipe, self.recipe.algorithm
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
    game = game_maker(recipe)()
    try:
        names, queried_facts = game.get_wrapper_attr("action_names"), game.get_wrapper_attr("asked")
        observation, info = begin_once(game, recipe.env)
        shown = names or tuple(info.get("legal_actions", ()))
        text = prompt_text(observation.text, recipe.replies, queried_facts, shown)
        vlm.encode([ChatTurn(text, tuple(Picture(np.array(image)) for image in observation.images))])
    finally:
        close_env(game)

    thoughts = BLANK * 8
    facts = dict.fromkeys(queried_facts, BLANK)
    shortest = (demonstration(recipe.replies, facts, thoughts, name) for name in names or (BLANK,))
    minimum = max(len(vlm.tokens.encode(reply)) for reply in shortest) + 1
    if minimum > recipe.replies.max_tokens:
        raise BadInput(
            f"replies.max_tokens={recipe.replies.max_tokens} is too few: even a short reply of this model has "
            f"{minimum} tokens; raise it (256 is usual with thoughts)"
        )


def load_model(recipe: AgentRecipe) -> VLM:
    """Load the model that the recipe's block `policy` describes, with what its algorithm needs.

    Raises:
        BadInput: there is no such model, or it cannot be trained as configured.
    """
    from sightline.models.vlm.model import load_vlm

    policy = recipe.policy
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


def _check_trainable(recipe: AgentRecipe) -> None:
    """Refuse what can be evaluated but not trained, before any process group is joined or model loaded.

    Raises:
        BadInput: whole weights in bfloat16, or several processes with one GPU or one server for all of them.
    """
    policy, processes = recipe.policy, int(os.environ.get("WORLD_SIZE", "1"))
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

    _check_trainable(recipe)
    torch.set_num_threads(recipe.threads)
    engine = start_engine(recipe.engine, recipe.device)
    vlm = load_model(recipe)
    if not any(parameter.requires_grad for parameter in vlm.model.parameters()):
        raise BadInput("nothing is left to learn: policy.freeze names all parts; take one out")
    _check_texts(recipe, vlm)
    server: VLLMSampler | ServerSampler | None = None
    if recipe.policy.sampler == "vllm":
        from sightline.agents.samplers.vllm import VLLMSampler

        server = VLLMSampler(vlm, max_tokens=recipe.replies.max_tokens, settings=recipe.policy.vllm)
    elif recipe.policy.sampler == "server":
        from sightline.agents.samplers.server import ServerSampler

        server = ServerSampler(vlm, recipe.policy.server, max_tokens=recipe.replies.max_tokens)
        server.take_over_weights()  # whatever it serves at first
    return AgentSetup(recipe, vlm, engine, server, build_reward(recipe))


def build_reward(recipe: AgentRecipe, asks: bool = True) -> RewardSetup | None:
    """Build the recipe's reward model; None for the environment's own rewards, turn by turn, which episodes have.

    Args:
        asks: False if no teacher will be asked, because what it has taught is only evaluated.

    Raises:
        BadInput, RunFailed: as the encoders, the words and the teacher say.
    """
    usual = AGENT_REWARD.make_default()
    if recipe.reward == usual and recipe.rollouts.rewards == "turn":
        return None

    context = RewardContext(recipe.goal, recipe.baseline, recipe.seed, asks, lambda *size: _first_frame(recipe))
    return build_model_of(reward_config(recipe.reward), context)


def _first_frame(recipe: AgentRecipe) -> np.ndarray:
    """The newest picture of the environment's first state, at its own size."""
    game = game_maker(recipe)()
    try:
        observation, _ = game.reset(seed=0)
        return observation.images[-1] if observation.images else rgb_frame(game)
    finally:
        close_env(game)
