"""Golden runs: seven tiny recipes whose numbers are committed, so that it is seen whether a change changes anything.

    PYTHONPATH=tools python tests/golden_runs.py ACTION

    --write [NAME…]                  makes tests/golden/*.json again
    --compare [NAME…] [key=value…]   how far this machine, or these overrides, are from them
    --into FOLDER                    what the test does: all alone, and killed and resumed

Nothing here depends on weights that come with Sightline: the encoder and the vision-language model are built from a
seed. Runs are short, so that what another processor rounds otherwise has no time to grow.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

GOLDEN = Path(__file__).parent / "golden"
TOLERANCE = 1e-4
"""Absolute and relative, between machines."""
KILLED = -9
"""Exit code of a process that was sent SIGKILL."""

# -- what is run -------------------------------------------------------------------------------------------------------

CONTROL = """
    videos=false tensorboard=false evaluation.episodes=2 evaluation.test_episodes=3
    learner.hidden=[16,16] learner.batch_size=16 learner.chunk=8 learner.gradient_steps=4 learner.learning_rate=0.003
"""
LESSONS = """
    envs=2 steps=256 checkpoints.every=64 evaluation.every=64 learner.learning_starts=32 learner.buffer_size=200
    reward.kind=learned reward.explore=64 reward.every=64 reward.questions=10 reward.reset_updates=3
    reward.fitting.epochs=4 reward.fitting.ensemble=2
"""
AGENT = """
    role=agent env=numberline env_options.max_position=3 policy.model=./vlm replies.thoughts=false replies.max_tokens=16
    tensorboard=false steps=60 checkpoints.every=12 evaluation.every=12 evaluation.episodes=6 evaluation.test_episodes=6
    update.minibatch=12 update.micro_batch=8 update.learning_rate=0.001
    warm_start.batch=8 warm_start.learning_rate=0.003
"""
RECIPES = {
    "words-dqn": f"""{CONTROL}
        env=cartpole seed=5 envs=4 steps=320 episode_steps=20 checkpoints.every=96 evaluation.every=96
        reward.kind=zero_shot reward.encoder=local-dir:encoder
        learner.algorithm=DQN learner.learning_starts=64 learner.buffer_size=200 learner.gradient_steps=16
        learner.target_update_interval=64 learner.learning_rate_end=0.1
    """,
    "words-sac": f"""{CONTROL}
        env=mountain-car envs=2 steps=256 episode_steps=40 checkpoints.every=64 evaluation.every=64
        reward.kind=zero_shot reward.encoder=local-dir:encoder rescale_observations=true
        learner.algorithm=SAC learner.learning_starts=64 learner.ent_coef=0.05 learner.use_sde=true
        learner.options.use_sde_at_warmup=true learner.options.policy_kwargs.log_std_init=0
    """,
    "words-ppo": """
        videos=false tensorboard=false evaluation.episodes=2 evaluation.test_episodes=3
        env=cartpole-continuous seed=2 envs=4 steps=320 episode_steps=20 checkpoints.every=96 evaluation.every=96
        reward.kind=zero_shot reward.encoder=local-dir:encoder
        learner.algorithm=PPO learner.hidden=[16,16] learner.chunk=8 learner.batch_size=16 learner.learning_rate=0.003
        learner.frames_every=2 learner.ent_coef=0.01 learner.initial_std=0.5
    """,
    "preferences-encoder": f"""{CONTROL} {LESSONS}
        env=cartpole seed=3 episode_steps=40 learner.algorithm=DQN reward.teacher.kind=encoder
        reward.teacher.encoder=local-dir:encoder reward.model.kind=embeddings reward.model.encoder=local-dir:encoder
        reward.model.hidden=[16] reward.pool=240 reward.scale=0.1 reward.lag=true
    """,
    "preferences-scripted": f"""{CONTROL} {LESSONS}
        env=cartpole-continuous seed=1 episode_steps=20 learner.algorithm=SAC reward.teacher.kind=scripted
        reward.teacher.mistake=0.1 reward.teacher.gamma=0.9 reward.model.kind=states reward.model.hidden=[16]
        reward.segment=4 reward.pool=40 reward.feedback.sampler=disagreement
    """,
    "agent-ppo": f"""{AGENT}
        seed=0 algorithm.kind=ppo rollouts.tasks=4 update.epochs=2 update.schedule=linear warm_start.samples=640
    """,
    "agent-grpo": f"""{AGENT}
        seed=0 replies.facts=false algorithm.kind=grpo algorithm.group=3 rollouts.tasks=3 rollouts.window=2
        update.epochs=1 update.kl_actions=0.1 update.kl_thoughts=0.2 update.entropy=0.01 warm_start.samples=560
    """,
}
"""Overrides by name; the models that they speak of are folders beside the run.

Two things make rounding large where a reward is learned. What all frames have in common cancels from comparisons: its
gradient is nothing but rounding, of which Adam makes whole steps. With a convolutional network two processors agree to
two digits only, so there is none here. And embeddings are kept as float16, so that a few of them are rounded to other
sides: hence the small `reward.scale`, and the large pool, in which it matters little that neighbours change places.
"""
DEATHS: dict[str, tuple[str, int]] = {
    "words-dqn": ("evaluating", 3),
    "words-sac": ("collecting", 150),
    "words-ppo": ("collecting", 45),
    "preferences-encoder": ("lesson", 2),
    "preferences-scripted": ("collecting", 150),
    "agent-ppo": ("update", 4),
    "agent-grpo": ("step", 4),
}
"""Where each run is killed (see `agent_worker.PLACES`), and at the so-manieth call there: past its first checkpoint."""


# -- tiny models -------------------------------------------------------------------------------------------------------

PROMPTS = (
    "The picture shows two numbers, a target number and a current number. Bring the current number to the target "
    "number: + adds one to it and - takes one away. It cannot go below 0 or above 5.\nThe action is one of",
    "Reply in JSON with what you see (current, target) and one action:\n0 1 2 3 4 5",
)
"""The tokenizer learns its words from these. Other prompts are read as well, in more tokens."""
PHRASES = ('{"action": "', '{"current": "', '", "target": "', '", "action": "', '"}')
"""One token each, so that replies are short and soon learned."""
EYES = {
    "embed_dim": 16,
    "vision_cfg": {"image_size": 16, "layers": 1, "width": 32, "patch_size": 8, "pool_type": "avg"},
}
CONTRAST = {"mean": [0.96, 0.96, 0.96], "std": [0.1, 0.1, 0.1]}
"""An encoder that is random finds all frames alike, unless their bright ground is made nothing and all else a lot."""
SIDE, PATCH = 32, 8
TEMPLATE = (
    "{% for message in messages %}{% if message['role'] == 'assistant' %}<|reply|>{% endif %}"
    "{% for part in message['content'] %}{% if part['type'] == 'image' %}<image>{% else %}{{ part['text'] }}{% endif %}"
    "{% endfor %}{% if message['role'] == 'assistant' %}<|end|>{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|reply|>{% endif %}"
)


def build_models(folder: Path) -> None:
    """An encoder in `folder/encoder`, and a LLaVA in `folder/vlm`."""
    import torch

    from conftest import write_open_clip_encoder

    write_open_clip_encoder(folder / "encoder", EYES, CONTRAST)
    processor = build_processor()
    torch.manual_seed(0)
    build_vlm(processor).save_pretrained(folder / "vlm")
    processor.save_pretrained(folder / "vlm")


def build_processor() -> Any:
    """Whole words, single digits and signs, and the phrases; anything else byte by byte."""
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import LlavaProcessor, PreTrainedTokenizerFast, SiglipImageProcessor

    tokenizer = Tokenizer(models.BPE())
    words = pre_tokenizers.Split(Regex(r" ?[A-Za-z]+|\d|\s+|[^\sA-Za-z\d]"), "isolated")
    bytewise = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([words, bytewise])
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=600,
        special_tokens=["<pad>", "<image>", "<|reply|>", "<|end|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(PROMPTS, trainer)
    tokenizer.add_tokens(list(PHRASES))
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="<pad>", eos_token="<|end|>")
    fast.add_special_tokens({"additional_special_tokens": ["<image>", "<|reply|>"]})
    return LlavaProcessor(
        image_processor=SiglipImageProcessor(size={"height": SIDE, "width": SIDE}),
        tokenizer=fast,
        patch_size=PATCH,
        vision_feature_select_strategy="full",
        chat_template=TEMPLATE,
        num_additional_image_tokens=0,
    )


def build_vlm(processor: Any) -> Any:
    """Fresh weights, drawn so wide that a net this narrow is not blind."""
    import torch
    from transformers import LlamaConfig, LlavaConfig, LlavaForConditionalGeneration, SiglipVisionConfig

    tokenizer = processor.tokenizer
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_attention_heads": 4}
    ends = {"eos_token_id": tokenizer.eos_token_id, "pad_token_id": tokenizer.pad_token_id}
    text = LlamaConfig(**sizes, **ends, num_hidden_layers=2, vocab_size=len(tokenizer), bos_token_id=None)
    config = LlavaConfig(
        vision_config=SiglipVisionConfig(
            **sizes, num_hidden_layers=1, image_size=SIDE, patch_size=PATCH, vision_use_head=False
        ),
        text_config=text,
        image_token_index=tokenizer.convert_tokens_to_ids("<image>"),
        vision_feature_select_strategy="full",
        vision_feature_layer=-1,
    )
    model: Any = LlavaForConditionalGeneration(config)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if "embed_tokens" in name or "position_embedding" in name:
                torch.nn.init.normal_(weight, std=0.5)
            elif weight.ndim > 1:
                torch.nn.init.normal_(weight, std=weight[0].numel() ** -0.5)
    for name, token in ends.items():
        setattr(model.generation_config, name, token)
    return model


# -- what came out -----------------------------------------------------------------------------------------------------


def outcome(run: Path) -> dict[str, Any]:
    """A run's `metrics` and `result` without wall times.

    Lines that are no record of a step, and the formats of files, are passed over: they say how things are written.
    """
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    metrics = [{k: v for k, v in line.items() if not k.startswith("time/")} for line in lines if "step" in line]
    result = _without_seconds(json.loads((run / "result.json").read_text()))
    result.pop("format", None)
    return {"metrics": metrics, "result": result}


def _without_seconds(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_seconds(one) for key, one in value.items() if not key.startswith("seconds")}
    return [_without_seconds(one) for one in value] if isinstance(value, list) else value


def committed(name: str) -> dict[str, Any]:
    document: dict[str, Any] = json.loads((GOLDEN / f"{name}.json").read_text())
    return document


def write(name: str, found: dict[str, Any]) -> None:
    """One record a line, so that a change is a line of a diff; digits beyond float32's mean nothing."""
    lines = [json.dumps(_rounded(record)) for record in found["metrics"]]
    result = json.dumps(_rounded(found["result"]), indent=1)
    GOLDEN.mkdir(exist_ok=True)
    text = '{\n"metrics": [\n' + ",\n".join(lines) + '\n],\n"result": ' + result + "\n}\n"
    (GOLDEN / f"{name}.json").write_text(text)


def _rounded(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _rounded(one) for key, one in value.items()}
    if isinstance(value, list):
        return [_rounded(one) for one in value]
    return float(f"{value:.8g}") if isinstance(value, float) else value


# -- how it differs ----------------------------------------------------------------------------------------------------


class _Nothing:
    def __repr__(self) -> str:
        return "nothing"


NOTHING = _Nothing()
"""Stands for the value of a key that is not there."""


def flat(outcome: dict[str, Any]) -> dict[tuple[str, str], Any]:
    """(step, key) -> value. Records of a step are told apart by their number, and nested keys are joined by dots."""
    values: dict[tuple[str, str], Any] = {}
    seen: dict[int, int] = {}
    for record in outcome["metrics"]:
        number = seen[record["step"]] = seen.get(record["step"], 0) + 1
        step = f"step {record['step']}" + (f" (record {number})" if number > 1 else "")
        values |= {(step, key): value for key, value in _leaves(record)}
    return values | {("result", key): value for key, value in _leaves(outcome["result"])}


def _leaves(value: Any, key: str = "") -> list[tuple[str, Any]]:
    if not isinstance(value, dict | list) or not value:
        return [(key, value)]
    inner = value.items() if isinstance(value, dict) else enumerate(value)
    return [leaf for name, one in inner for leaf in _leaves(one, f"{key}.{name}" if key else str(name))]


def differences(name: str, found: dict[str, Any], wanted: dict[str, Any], tolerance: float = 0.0) -> list[str]:
    """A line for every value that is not as wanted: recipe, step, key, and both values."""
    mine, theirs = flat(found), flat(wanted)
    return [
        f"{name}, {step}, {key}: {mine.get((step, key), NOTHING)!r} instead of {theirs.get((step, key), NOTHING)!r}"
        for step, key in {**theirs, **mine}
        if not _alike(mine.get((step, key), NOTHING), theirs.get((step, key), NOTHING), tolerance)
    ]


def _alike(mine: Any, theirs: Any, tolerance: float) -> bool:
    if tolerance and _is_number(mine) and _is_number(theirs):
        return math.isclose(mine, theirs, rel_tol=tolerance, abs_tol=tolerance)
    return type(mine) is type(theirs) and mine == theirs


def farthest(found: dict[str, Any], wanted: dict[str, Any]) -> tuple[float, str]:
    """The largest difference of two numbers, relative where they are larger than 1, and where it is."""
    mine, theirs = flat(found), flat(wanted)
    return max(
        (abs(mine[place] - theirs[place]) / max(1.0, abs(theirs[place])), ", ".join(place))
        for place in mine.keys() & theirs.keys()
        if _is_number(mine[place]) and _is_number(theirs[place])
    )


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


# -- running -----------------------------------------------------------------------------------------------------------


def job(name: str, run: str, die: tuple[str, int] | None = None, resume: bool = False, more: Sequence[str] = ()) -> Any:
    """A job for `agent_worker.run`; what it says goes to `log-…` beside the run."""
    arguments = ["train", "--run-dir", run, *(["--resume"] if resume else [*RECIPES[name].split(), *more])]
    return {"arguments": arguments, "log": f"log-{run}{'-resumed' if resume else ''}", "die": die and [*die, -KILLED]}


def run_all(folder: Path, jobs: Sequence[tuple[Any, int]]) -> None:
    """Build the models in a folder, and carry out jobs there, each with the exit code that it must have.

    Raises:
        SystemExit: one has another; with what it said last.
    """
    os.environ |= {"OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false", "HF_HUB_OFFLINE": "1"}
    os.environ["CUDA_VISIBLE_DEVICES"] = ""  # where there is a GPU, numbers are others
    import torch

    from light_runs import lighten_runs

    lighten_runs()
    # What is imported here need not be in every child.
    import sightline.control.trainer
    import sightline.preferences.rounds
    import sightline.reports.run_page
    import sightline.roles  # noqa: F401
    from agent_worker import run
    from empty_plots import leave_plots_empty

    leave_plots_empty()
    torch.set_num_threads(1)
    os.chdir(folder)
    build_models(folder)
    for one, expected in jobs:
        began = time.monotonic()
        code = run(one)
        print(f"{one['log']}: {code} after {time.monotonic() - began:.1f} s", flush=True)
        if code != expected:
            sys.exit(f"{one['log']} ended with {code}, not {expected}:\n{Path(one['log']).read_text()[-2000:]}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    action = parser.add_mutually_exclusive_group(required=True)
    action.add_argument("--write", action="store_true")
    action.add_argument("--compare", action="store_true")
    action.add_argument("--into", type=Path)
    parser.add_argument("rest", nargs="*")
    arguments = parser.parse_args()
    if arguments.into is not None:
        jobs = [(job(name, f"{name}-whole"), 0) for name in RECIPES]
        for name, die in DEATHS.items():
            jobs += [(job(name, f"{name}-killed", die), KILLED), (job(name, f"{name}-killed", resume=True), 0)]
        run_all(arguments.into, jobs)
        return
    overrides = [one for one in arguments.rest if "=" in one]
    names = [one for one in arguments.rest if "=" not in one] or list(RECIPES)
    if overrides and arguments.write:
        parser.error("what is committed is without overrides")
    with tempfile.TemporaryDirectory() as folder:
        run_all(Path(folder), [(job(name, name, more=overrides), 0) for name in names])
        for name in names:
            found = outcome(Path(folder) / name)
            if arguments.write:
                write(name, found)
            else:
                size, place = farthest(found, committed(name))
                print(f"{name}: at most {size:.1e} apart ({place})")
                print("".join(f"  {line}\n" for line in differences(name, found, committed(name), TOLERANCE)), end="")


if __name__ == "__main__":
    main()
