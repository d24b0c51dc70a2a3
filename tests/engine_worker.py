"""What tests of engines have each process do: `python engine_worker.py FOLDER PORT JOB…`.

For each job two processes are forked, with torchrun's environment: libraries are imported once. Exit codes are printed,
as a list of pairs; `JOB-RANK.log` in the folder is what a process said.

`learned` and what it calls are also what the test itself does in one process, to compare with.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from forked import forked
from sightline.agents.agent_setup import AgentSetup, load_model
from sightline.agents.engines.ddp import DDP
from sightline.agents.engines.engine import Engine
from sightline.agents.engines.fsdp2 import FSDP2
from sightline.agents.engines.starting import start_engine
from sightline.agents.learning import PolicyLearner
from sightline.agents.rollouts import EpisodeTask, RolloutWorker
from sightline.agents.samplers.policy import PolicySampler
from sightline.agents.sharing import gather_episodes
from sightline.agents.types import Trajectory
from sightline.config.agents import Replies
from sightline.config.recipe import AgentRecipe
from sightline.envs.games.making import GameMaker
from sightline.errors import RunFailed
from sightline.models.vlm.model import VLM
from sightline.runs.folder import RunFolder
from sightline.runs.progress import ProgressBar
from sightline.runs.state import read_state, write_state
from sightline.runs.stopping import StopRequests
from sightline.session import RunSession

GAME = GameMaker("numberline", {"max_position": 2, "render_size": (32, 32)})
SEEDS = (3, 14, 15)
"""Of the tasks: an odd number, so that shares are unequal."""
PPO = {"kind": "ppo", "gamma": 0.9}
CASES: dict[str, dict[str, Any]] = {
    "ppo": {"algorithm": PPO, "update": {"micro_batch": 2, "minibatch": 6}},
    "grpo": {
        "algorithm": {"kind": "grpo", "group": 2},
        "update": {"micro_batch": 3, "minibatch": 9, "epochs": 1, "kl_thoughts": 0.1, "ratio": "token"},
        "policy": {"gradient_checkpointing": True},
    },
    # steps of one turn: the second process has nothing to do in any of them
    "lonely": {"algorithm": PPO, "update": {"minibatch": 1, "epochs": 1}},
    "lora": {
        "algorithm": {"kind": "grpo", "group": 2},
        "update": {"micro_batch": 4, "minibatch": 9, "epochs": 1, "kl_thoughts": 0.1},
        "policy": {"lora": {"rank": 2, "alpha": 4}},
    },
}
"""Settings by name. Their optimiser is given a larger epsilon: Adam takes the sign of gradients, be they rounding
errors, and weights without any effect would go anywhere."""
LEFT_OUT = {("ddp", "lora")}
"""Would tell nothing new."""
ENGINES: dict[str, Callable[[], Engine]] = {"ddp": DDP, "fsdp2": FSDP2}


def recipe_of(case: str, model: Path | str) -> AgentRecipe:
    settings = CASES[case]
    return AgentRecipe.model_validate(
        {
            "env": "numberline",
            "policy": {"model": str(model), **settings.get("policy", {})},
            "replies": {"max_tokens": 7, "penalty": 0.2},
            "algorithm": settings["algorithm"],
            "update": {"learning_rate": 0.001, "entropy": 0.01, **settings["update"]},
        }
    )


def learner_of(recipe: AgentRecipe, engine: Engine, vlm: VLM) -> PolicyLearner:
    engine.prepare(vlm)
    learner = AgentSetup(recipe, vlm, engine).learner()
    for group in learner.optimiser.param_groups:
        group["eps"] = 1e-3
    return learner


def vlm_of(recipe: AgentRecipe) -> VLM:
    return load_model(recipe)


def play(recipe: AgentRecipe, engine: Engine, vlm: VLM, learner: PolicyLearner, update: int) -> list[Trajectory]:
    """The episodes of all processes, judged, in the order of their tasks."""
    worker = RolloutWorker(GAME, recipe.replies, parallel=4, vlm=vlm)
    sampler = PolicySampler(vlm, recipe.rollouts.temperature, recipe.replies.max_tokens)
    tasks = [EpisodeTask(seed, member) for seed in SEEDS for member in range(recipe.algorithm.group)]
    with engine.full_params():
        mine = worker.play(sampler, tasks[engine.rank :: engine.world], (update,))
        learner.compute_values(mine)
    worker.close()
    return gather_episodes(engine, mine, group=1)


def weights_of(engine: Engine, vlm: VLM) -> dict[str, torch.Tensor]:
    with engine.full_params():
        return {name: values.detach().clone() for name, values in vlm.scorer.state_dict().items()}


def learned(case: str, engine: Engine, model: Path, spoil: bool = False) -> dict[str, Any]:
    """Two updates: what was said, judged and measured, and the weights that came out."""
    recipe = recipe_of(case, model)
    vlm = vlm_of(recipe)
    if spoil:  # what is not process 0 has to take over the weights of process 0
        with torch.no_grad():
            for parameter in vlm.scorer.parameters():
                parameter.add_(1.0)
    learner = learner_of(recipe, engine, vlm)
    if recipe.update.kl_thoughts and recipe.policy.lora is None:
        with engine.full_params():
            vlm.keep_reference()
    told: dict[str, Any] = {"said": [], "values": [], "references": [], "metrics": []}
    for update in range(2):
        played = play(recipe, engine, vlm, learner, update)
        turns = [turn for episode in played for turn in episode.turns]
        told["said"].append([turn.sample.ids.tolist() for turn in turns])
        told["values"].append([turn.value for turn in turns])
        told["metrics"].append(learner.learn(played, learner.compute_advantages(played), update, update / 2))
        # Each process scores its own turns with the reference.
        of_all = engine.gather([turn.ref_logprobs for turn in turns])
        told["references"].append(
            [next((one for one in found if one is not None), None) for found in zip(*of_all, strict=True)]
        )
    return told | {"weights": weights_of(engine, vlm)}


# -- jobs --------------------------------------------------------------------------------------------------------------


def compare(folder: Path) -> None:
    """All cases with all engines; and going on with what was saved."""
    started = start_engine("ddp")
    for name, engine in ENGINES.items():
        for case in CASES:
            if (name, case) in LEFT_OUT:
                continue
            made = engine()
            told = learned(case, made, folder / "model", spoil=made.rank > 0)
            torch.save(told, folder / f"{name}-{case}-{made.rank}.pt")
    hand_on(folder)
    started.close()


def hand_on(folder: Path) -> None:
    """Go on from what one process saved, in shards; then from that, with replicas. Each time saving at once, and after
    another update."""
    before = folder / "single"
    for name in ("fsdp2", "ddp"):
        engine = ENGINES[name]()
        recipe = recipe_of("ppo", folder / "model")
        vlm = vlm_of(recipe)
        learner = learner_of(recipe, engine, vlm)
        with engine.full_params():
            vlm.load_weights(before)
        engine.load_optimiser_state(learner.optimiser, read_state(before / "optimiser.safetensors"))
        write(folder / f"{name}-at-once", engine, vlm, learner)
        played = play(recipe, engine, vlm, learner, 1)
        learner.learn(played, learner.compute_advantages(played), 1, 0.5)
        before = folder / name
        write(before, engine, vlm, learner)
        engine.largest(0)  # the others must not read before it is written
        find_what_is_written_late(folder / f"{name}-late", engine, recipe)


def write(folder: Path, engine: Engine, vlm: VLM, learner: PolicyLearner) -> None:
    optimiser = engine.optimiser_state(learner.optimiser)
    assert bool(optimiser) == (engine.rank == 0)
    with engine.full_params():
        if engine.rank == 0:  # what only one process does must not wait for the others
            vlm.save(folder)
            write_state(folder / "optimiser.safetensors", optimiser)
            worker = RolloutWorker(GAME, Replies(max_tokens=9), vlm=vlm)
            assert worker.play(PolicySampler(vlm, 0.0, 9), [EpisodeTask(1)])[0].turns


def find_what_is_written_late(run: Path, engine: Engine, recipe: AgentRecipe) -> None:
    """A checkpoint of a run, for which the main process takes its time."""
    with StopRequests() as stop, ProgressBar(1, "late", quiet=True) as progress:
        session = RunSession(
            recipe,
            RunFolder(run),
            progress,
            stop,
            leads=engine.rank == 0,
            in_any=lambda flag: bool(engine.largest(int(flag))),
        )
        with session.single_checkpoint("late") as folder:
            assert (folder is not None) == (engine.rank == 0)
            if folder is not None:
                time.sleep(1.0)
                (folder / "weights").touch()
        assert session.find_single_checkpoint("late"), "a process went on before the checkpoint was written"


def fail(folder: Path) -> None:
    """A loss that is not finite, in the share of one process."""
    start_engine("ddp")
    for name, engine in ENGINES.items():
        made = engine()
        recipe = recipe_of("ppo", folder / "model")
        vlm = vlm_of(recipe)
        learner = learner_of(recipe, made, vlm)
        played = play(recipe, made, vlm, learner, 0)
        played[0].turns[0].sample.logprobs[:] = np.nan
        try:
            learner.learn(played, learner.compute_advantages(played), 0, 0.0)
        except RunFailed as error:
            print(f"{name}: {error}")


JOBS: dict[str, Callable[[Path], None]] = {"compare": compare, "fail": fail}
LIBRARIES = ("peft", "torch._dynamo", "torch.distributed.fsdp", "transformers.models.llava.modeling_llava")
"""What a process would import when it loads, shares and trains the model."""


def start(job: str, folder: Path, environment: dict[str, str]) -> int:
    """Begin a job in a child of its own; gives its process id."""

    def carry_out() -> None:
        os.environ.update(environment)
        JOBS[job](folder)

    return forked(folder / f"{job}-{environment['RANK']}.log", carry_out)


def main(folder: Path, port: str, *jobs: str) -> None:
    torch.set_num_threads(1)
    for library in LIBRARIES:
        importlib.import_module(library)
    codes = []
    for job in jobs:
        shared = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
        started = [start(job, folder, shared | {"RANK": str(rank), "LOCAL_RANK": str(rank)}) for rank in range(2)]
        codes.append([os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in started])
    print(json.dumps(codes))


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
