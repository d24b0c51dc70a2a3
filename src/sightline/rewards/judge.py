"""The reward of a judge: a vision-language model is shown pictures and asked how near to the goal they are.

What is asked, and which number a reply means, is the form: `judging/forms.py`. Which pictures are shown is the scope
(`scopes.py`), and about which steps it is asked, `interpolation.py` says. A question without an answer is counted.
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
from sightline.rewards.base import Clip, Unavailable
from sightline.rewards.config import RewardConfig, RewardContext, RewardSetup
from sightline.rewards.interpolation import Cells, InterpolatedReward
from sightline.rewards.judging.asking import Asking, Judge, Pictures
from sightline.rewards.judging.forms import Form, Probability, Scale, Shuffled, YesNo, bundled_prompt
from sightline.rewards.scopes import Scope
from sightline.rewards.servers.answers import FILE, KeptAnswers


class JudgeConfig(RewardConfig, ChatModelConfig):
    """The judgement of a vision-language model, in this process or on any server (docs/judge.md)."""

    kind: Literal["judge"] = "judge"
    form: Literal["yes_no", "probability", "scale", "shuffled"] = "scale"
    """`yes_no`: the log-probability of yes; `probability`: the probability itself; `scale`: how near the goal;
    `shuffled`: percentages of pictures in a random order."""
    prompt: PromptText | None = None
    """A prompt file, in place of the form's own words; a run's recipe holds its text."""
    over: Literal["frame", "window", "prefix"] = "frame"
    """What is judged: a `frame` alone, the end of a `window` of steps, or of all steps since the reset (`prefix`)."""
    window: Annotated[int, Field(ge=2)] = 8
    """Steps of a window."""
    frames: Annotated[int, Field(ge=2)] = 8
    """Pictures of a window or prefix that are shown, at most: the first, the last, and others evenly between them."""
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
            raise ValueError("form=shuffled orders several pictures; say over=prefix or over=window")
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
        parse = {
            "yes_no": YesNo.parse,
            "probability": Probability.parse,
            "scale": Scale.parse,
            "shuffled": Shuffled.parse,
        }
        return parse[self.form](text)

    def make_form(self, goal: Sequence[str], baseline: Sequence[str]) -> Form:
        """The form, for a goal."""
        prompt = self.prompt_file()
        if self.form == "yes_no":
            return YesNo(prompt, goal, baseline)
        if self.form == "probability":
            return Probability(prompt, goal, baseline)
        if self.form == "scale":
            return Scale(prompt, goal, baseline, self.highest)
        return Shuffled(prompt, goal, baseline)

    def shown_prompt(self, goal: tuple[str, ...], baseline: tuple[str, ...]) -> str:
        height, width = self.frame_size or (64, 64)
        black = Picture(np.zeros((height, width, 3), np.uint8))
        count = {"frame": 1, "window": min(self.frames, self.window), "prefix": self.frames}[self.over]
        request, _ = self.make_form(goal, baseline).request([black] * count, 0)
        sections = {"system": request.system, "user": ChatRequest(request.parts).text, "reply": request.beginning}
        return "\n\n".join(f"[{name}]\n{text}" for name, text in sections.items() if text)

    @property
    def scope(self) -> Scope:
        """The frames that are judged together."""
        steps = {"frame": 1, "window": self.window, "prefix": self.frames}
        return Scope(self.over, steps[self.over])

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


class JudgeReward(InterpolatedReward):
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
        super().__init__(config.scope, config.every, config.output == "difference")
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

    def ask(self, clip: Clip, steps: Cells, resets: Cells) -> tuple[np.ndarray, np.ndarray]:
        """Values of some steps, and of the reset frames before some.

        Raises:
            Unavailable: the judge cannot be asked, or gives too few answers.
        """
        questions = [self._pictures(clip.shown(*cell, self.scope)[0]) for cell in steps]
        questions += [self._pictures(clip.reset_frame(*cell)[None]) for cell in resets]
        values = self._judge.values(questions)
        return values[: len(steps)], values[len(steps) :]

    def stand_in(self, values: np.ndarray, steps: int) -> float:
        """The mean of all answers, which claims nothing of an episode without one.

        Raises:
            Unavailable: there is no answer at all.
        """
        if np.isnan(values).all():
            raise Unavailable(f"the judge has no answer to any of {values.size} steps, and no reward is made up")
        return float(np.nanmean(values))

    def costs(self) -> dict[str, float]:
        return self._judge.costs()

    def _pictures(self, frames: Any) -> Pictures:
        """Pictures of frames: the first, the last and others evenly between."""
        shown = to_numpy(frames)
        count = min(self.config.frames, len(shown))
        picked = [len(shown) - 1] if count == 1 else np.linspace(0, len(shown) - 1, count).round().astype(int)
        return tuple(map(Picture, shown[picked]))
