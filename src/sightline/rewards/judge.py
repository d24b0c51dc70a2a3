"""The reward of a judge: a vision-language model is shown pictures and asked how near to the goal they are.

    steps of an episode     1    2    3    4    5    6    7    8
    asked, every=3          ●    ●              ●              ●      the last, every third before it, and the first
    value                  .1   .2   .3   .4   .5   .6   .7   .8      between two that were asked: on their line
    output=value           .1   .2   .3   .4   .5   .6   .7   .8
    output=difference       0   .1   .1   .1   .1   .1   .1   .1      adds up to the last value less the first

What is asked, and which number a reply means, is the form: `judging/forms.py`. A question without an answer is counted,
and its step lies on the line between its neighbours, as if it had not been asked.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import Field, NonNegativeFloat, PositiveInt, model_validator

from sightline.config.basics import Fraction, check_words
from sightline.config.blocks import Reach, checked_block
from sightline.errors import BadInput
from sightline.images import Picture
from sightline.models.chat.calling import check
from sightline.models.chat.config import ChatModelConfig
from sightline.models.chat.messages import ChatRequest
from sightline.models.chat.retiring import retirement_of
from sightline.models.prompt_files import PromptFile, PromptText
from sightline.rewards.arrays import to_numpy
from sightline.rewards.base import Clip, RewardModel, Unavailable
from sightline.rewards.config import RewardConfig, RewardContext, RewardSetup
from sightline.rewards.judging.asking import Asking, Judge
from sightline.rewards.judging.forms import Form, Scale, Shuffled, YesNo, bundled_prompt
from sightline.rewards.servers.answers import FILE, KeptAnswers


class JudgeConfig(RewardConfig, ChatModelConfig):
    """The judgement of a vision-language model, in this process or on any server (docs/judge.md)."""

    kind: Literal["judge"] = "judge"
    form: Literal["yes_no", "scale", "shuffled"] = "scale"
    """`yes_no`: how probable the model thinks yes; `scale`: how near the goal; `shuffled`: percentages of pictures in a
    random order."""
    prompt: PromptText | None = None
    """A prompt file, in place of the form's own words; a run's recipe holds its text."""
    over: Literal["frame", "window"] = "frame"
    """What is judged: a `frame` alone, or the end of a `window` of steps, none of them before the episode's first."""
    window: Annotated[int, Field(ge=2)] = 8
    """Steps of a window."""
    frames: Annotated[int, Field(ge=2)] = 8
    """Pictures of a window that are shown, at most: the first, the last, and others evenly between them."""
    every: PositiveInt | Literal["end"] = 1
    """Steps from one that is judged to the next; `end`: only the last step of each episode is judged, and paid."""
    output: Literal["value", "difference"] = "value"
    """What is paid: the value of each step, or its difference from that of the step before."""
    highest: Annotated[int, Field(ge=1, le=1000)] = 9
    """Highest number of the form `scale`; up to 9 its probabilities count, where they are given."""
    orders: PositiveInt = 1
    """Random orders in the form `shuffled`, of which the mean counts."""
    missing: Fraction = 0.1
    """Share of questions that may have no answer; above it the run stops."""
    frame_size: tuple[PositiveInt, PositiveInt] | None = (224, 224)
    """Height and width of the pictures; null: the environment's own."""
    input_price: NonNegativeFloat = 0.0
    """Price of a million tokens that the model reads, in any currency."""
    output_price: NonNegativeFloat = 0.0
    """Price of a million tokens that it writes."""

    @model_validator(mode="after")
    def _fits_together(self) -> JudgeConfig:
        self.prompt_file()
        if self.form == "shuffled" and self.over == "frame":
            raise ValueError("form=shuffled orders several pictures; say over=window")
        if self.every == "end" and self.output == "difference":
            raise ValueError("output=difference needs more than the last value of an episode; leave out every=end")
        return self

    @property
    def needs_words(self) -> bool:
        return True

    @property
    def judges_single_frames(self) -> bool:
        return self.over == "frame" and self.every == 1 and self.output == "value"

    def check(self, recipe: Any) -> None:
        check_words(recipe.goal, (), None, goal_required=False)

    def reaches(self) -> Iterator[Reach]:
        return ChatModelConfig.reaches(self)

    def facts(self) -> dict[str, str]:
        return super().facts() | {"Judge": f"{self.model}, {self.form}"}

    def prompt_file(self) -> PromptFile:
        """What is asked.

        Raises:
            ValueError: the prompt is not for this form.
        """
        text = self.prompt or bundled_prompt(self.form)
        parse = {"yes_no": YesNo.parse, "scale": Scale.parse, "shuffled": Shuffled.parse}
        return parse[self.form](text)

    def make_form(self, goal: Sequence[str], baseline: Sequence[str]) -> Form:
        """The form, for a goal."""
        prompt = self.prompt_file()
        if self.form == "yes_no":
            return YesNo(prompt, goal, baseline)
        if self.form == "scale":
            return Scale(prompt, goal, baseline, self.highest)
        return Shuffled(prompt, goal, baseline)

    def shown_prompt(self, goal: tuple[str, ...], baseline: tuple[str, ...]) -> str:
        height, width = self.frame_size or (64, 64)
        black = Picture(np.zeros((height, width, 3), np.uint8))
        count = 1 if self.over == "frame" else min(self.frames, self.window)
        request, _ = self.make_form(goal, baseline).request([black] * count, 0)
        sections = {"system": request.system, "user": ChatRequest(request.parts).text, "reply": request.beginning}
        return "\n\n".join(f"[{name}]\n{text}" for name, text in sections.items() if text)

    def build(self, context: RewardContext) -> RewardSetup:
        end = retirement_of(self.provider, self.model)
        settings = self.model_dump(exclude={"kind"})
        folder = context.folder
        if not context.asks and self.open().batched:
            # What evaluates beside training computes in batches of its own, whose last digits training must not find.
            folder = None
        model = JudgeReward(context.goal, baseline=context.baseline, folder=folder, **settings)
        if context.asks:
            model.check()
        return RewardSetup(model, self.frame_size, warnings=() if end is None else (str(end),))


class JudgeReward(RewardModel):
    """The judgement of a vision-language model as a reward.

    >>> reward = JudgeReward("the drawer is open", model="bundled", provider="local")
    >>> reward(frames)  # uint8[N, H, W, 3] -> float32[N]

    Args:
        goal: a sentence, or several that mean the same.
        model: its name, as the provider calls it; `bundled`, a folder or `owner/name` with `provider="local"`.
        baseline: what pictures show anyway, for prompts that say it.
        folder: of a run, where answers are kept, so that none is paid for twice; None keeps none.
        settings: see `JudgeConfig`.

    Raises:
        BadInput: no goal, or a setting is wrong.
        Unavailable: later, when the model cannot be asked, or gives too few answers.
    """

    def __init__(
        self,
        goal: str | Sequence[str],
        model: str = "bundled",
        *,
        baseline: str | Sequence[str] = (),
        folder: str | Path | None = None,
        **settings: Any,
    ) -> None:
        config = checked_block(JudgeConfig, {"model": model, **settings})
        goal = (goal,) if isinstance(goal, str) else tuple(goal)
        baseline = (baseline,) if isinstance(baseline, str) else tuple(baseline)
        try:
            check_words(goal, (), None)
        except ValueError as error:
            raise BadInput(str(error)) from error
        self.config = config
        self._model = config.open()
        self._form = config.make_form(goal, baseline)
        if "reply" in self._form.prompt.sections and not getattr(self._model, "begins_replies", False):
            raise BadInput(
                f"provider={config.provider} cannot be sent the beginning of a reply; leave the section [reply] out of "
                "the prompt"
            )
        answers = KeptAnswers(None if folder is None else Path(folder) / FILE)
        asking = Asking(config.orders, config.missing, config.input_price, config.output_price)
        signature = self._signature(goal, baseline)
        self._judge = Judge(self._model, config, self._form, asking, signature, answers)
        self._steps = 1 if config.over == "frame" else config.window
        # Each value alone needs the steps of its own; a line or a difference also the value of the step before.
        alone = config.every in (1, "end") and config.output == "value"
        self.window = self._steps if alone else self._steps + 1

    def _signature(self, goal: tuple[str, ...], baseline: tuple[str, ...]) -> str:
        """All that an answer depends on, beside the pictures."""
        config = self.config
        keys = ("form", "highest", "orders", "temperature", "structured", "options")
        settings = {key: getattr(config, key) for key in keys}
        source = [config.provider, config.place(self._model), config.model, self._form.prompt.digest]
        return json.dumps([source, goal, baseline, settings], sort_keys=True, default=str)

    def check(self) -> None:
        """Check the connection with a trivial request; a model in this process is loaded when it is first asked.

        Raises:
            BadInput: package or key missing, key refused, model unknown, or it cannot be asked so.
            RunFailed: the server does not answer.
        """
        if self._model.batched:
            return
        red = Picture(np.full((64, 64, 3), (200, 30, 30), np.uint8))
        check(self._model, self.config.limits(self._model), ChatRequest(("Which colour?", red), max_tokens=64))

    def reward(self, clip: Clip) -> np.ndarray:
        """float32[T, N].

        Raises:
            BadInput: `every="end"`, and nothing says where episodes end.
            Unavailable: the judge cannot be asked, or gives too few answers.
        """
        assert clip.frames is not None, "a model that needs frames is given frames"
        mask = self._steps_to_judge(clip)
        frames = to_numpy(clip.frames)
        starts = _episode_starts(clip.first)
        questions = []
        for step, env in np.argwhere(mask):
            begin = max(starts[step, env], step - self._steps + 1)
            shown = frames[begin : step + 1, env]
            questions.append(tuple(map(Picture, self._picked(shown))))
        values = np.full(clip.shape, np.nan)
        values[mask] = self._judge.values(questions)
        if self.config.every == "end":
            return _pay_at_the_end(values, mask)
        values = _interpolate(values, clip.first)
        if self.config.output == "difference":
            before = np.concatenate([values[:1], values[:-1]])
            values = np.where(clip.first, 0.0, values - before)
        return values.astype(np.float32)

    def costs(self) -> dict[str, float]:
        return self._judge.costs()

    def _picked(self, frames: np.ndarray) -> np.ndarray:
        """The first, the last and others evenly between, uint8[F, H, W, 3]."""
        count = min(self.config.frames, len(frames))
        if count == 1:
            return frames[-1:]
        return np.asarray(frames[np.linspace(0, len(frames) - 1, count).round().astype(int)])

    def _steps_to_judge(self, clip: Clip) -> np.ndarray:
        """bool[T, N], the steps that the judge is asked about."""
        steps, envs = clip.shape
        if self.config.every == "end":
            if clip.ended is None:
                raise BadInput("reward.every=end needs to know where episodes end, which this clip does not say")
            return np.asarray(clip.ended & self._whole(clip.first))
        mask = np.zeros((steps, envs), bool)
        for env in range(envs):
            for begin, end in _episodes(clip.first[:, env]):
                # Backwards from the last step, so that chunks whose length is a multiple of `every` go on evenly.
                mask[np.arange(end - 1, begin - 1, -self.config.every), env] = True
                mask[begin, env] = True
        whole = self._whole(clip.first)
        # The first whole window of a clip that goes on with an episode: the last one of the clip before.
        earliest = whole & ~np.concatenate([np.zeros((1, envs), bool), whole[:-1]])
        return np.asarray((mask | earliest) & whole)

    def _whole(self, first: np.ndarray) -> np.ndarray:
        """bool[T, N], whether a step's window lies in the clip or begins with its episode. Earlier steps were asked
        about with the clip before."""
        steps = np.arange(len(first))[:, None]
        return np.asarray(np.logical_or.accumulate(first, axis=0) | (steps >= self._steps - 1))


def _episodes(first: np.ndarray) -> list[tuple[int, int]]:
    """Half-open ranges of steps, one for each episode in bool[T]."""
    begins = sorted({0, *np.flatnonzero(first).tolist()})
    return list(zip(begins, [*begins[1:], len(first)], strict=True))


def _episode_starts(first: np.ndarray) -> np.ndarray:
    """int[T, N], the step at which each step's episode begins in the clip."""
    steps = np.arange(len(first))[:, None]
    return np.asarray(np.maximum.accumulate(np.where(first, steps, 0), axis=0))


def _interpolate(values: np.ndarray, first: np.ndarray) -> np.ndarray:
    """Values [T, N] with those that are NaN on the line between their neighbours in the same episode.

    An episode without an answer in this clip has the mean of all answers, which claims nothing of it.

    Raises:
        Unavailable: there is no answer at all.
    """
    if np.isnan(values).all():
        raise Unavailable(f"the judge has no answer to any of {values.size} steps, and no reward is made up")
    mean = np.nanmean(values)
    complete = values.copy()
    for env in range(values.shape[1]):
        for begin, end in _episodes(first[:, env]):
            of_episode = values[begin:end, env]
            answers = np.flatnonzero(~np.isnan(of_episode))
            if len(answers):
                complete[begin:end, env] = np.interp(np.arange(end - begin), answers, of_episode[answers])
            else:
                complete[begin:end, env] = mean
    return complete


def _pay_at_the_end(values: np.ndarray, mask: np.ndarray) -> np.ndarray:
    """float32[T, N]: the value at the last step of each episode, and otherwise 0.

    Raises:
        Unavailable: no episode of several has an answer.
    """
    answers = ~np.isnan(values)
    if mask.any() and not answers.any():
        raise Unavailable(f"the judge has no answer to any of {mask.sum()} episodes, and no reward is made up")
    rewards = np.where(answers, values, 0.0)
    # An episode without an answer is worth the mean of the others, which claims nothing of it.
    if answers.any():
        rewards[mask & ~answers] = np.nanmean(values)
    return rewards.astype(np.float32)
