"""The recipe block of a reward that is learned from a teacher's answers."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from sightline.errors import BadInput
from sightline.labels.store import LabelStore
from sightline.labels.types import Lesson, Question, Segment
from sightline.models.encoders import warn_of_cropping
from sightline.models.familiarity import warn_of_unfamiliar_pictures
from sightline.preferences.settings import LearnedSettings
from sightline.preferences.stored_labels import lessons_of
from sightline.rewards.config import RewardContext, RewardSetup, RunContext
from sightline.teachers.base import TeacherContext, build_teacher

if TYPE_CHECKING:
    from sightline.models.encoder_base import Encoder
    from sightline.preferences.pebble import Pebble
    from sightline.rewards.learned.reward import LearnedReward


class LearnedConfig(LearnedSettings):
    """A reward model learned from a teacher's answers (PEBBLE, Lee et al., ICML 2021; RL-VLM-F, Wang et al., 2024)."""

    kind: Literal["learned"] = "learned"

    def build(self, context: RewardContext) -> RewardSetup:
        if context.asks and self.labels is not None and Path(self.labels).is_file():
            raise BadInput(f"reward.labels: '{self.labels}' is a file; a label store is a folder")
        warnings: list[str] = []
        encoder = self.model.load_encoder(self.device)
        teacher = None
        if context.asks and self.questions:
            teacher_context = TeacherContext(
                context.goal, context.baseline, context.seed, self.device, encoder, warnings.append
            )
            teacher = build_teacher(self.teacher, teacher_context)
        if encoder is not None:
            encoder.free_text_tower()  # the teacher has read its words by now

        # Pictures that the encoder or the teacher cannot judge are warned of before training.
        size = self.shown_size(encoder)
        frame = context.first_seen(size, False)
        if encoder is not None:
            cropped = warn_of_cropping(encoder, frame.shape[0], frame.shape[1], "reward.model.aspect")
            if cropped:
                warnings.append(cropped)
        unfamiliar = warn_of_unfamiliar_pictures(encoder, frame[None])
        if unfamiliar:
            warnings.append(unfamiliar)
        if teacher is not None:
            teacher.check_frames(frame, warnings.append)

        reward_input = context.first_seen(size, True) if self.model.reads_states else frame
        model = self.make_reward(reward_input.shape, encoder, context.seed, reward_input.dtype)
        lessons: Sequence[Lesson] = ()
        if context.asks and self.labels_from:
            lessons = lessons_of(self.labels_from, self, model, context.goal, frame.shape, warnings.append)
        return RewardSetup(
            model,
            size,
            encoder=encoder,
            teacher=teacher,
            lessons=tuple(lessons),
            warnings=tuple(dict.fromkeys(warnings)),  # a teacher may warn of the same encoder
        )

    def make_reward(
        self, seen_shape: tuple[int, ...], encoder: Encoder | None, seed: int, seen_dtype: Any = np.float32
    ) -> LearnedReward:
        """The reward model before it has learned anything; see `sightline.rewards.learned.reward.LearnedReward`."""
        return self.feedback.build_reward(
            self.model,
            self.fitting,
            seen_shape=seen_shape,
            encoder=encoder,
            seed=seed,
            seen_dtype=seen_dtype,
            scale=self.scale,
            device=self.device,
        )

    @property
    def reads_own_reward(self) -> bool:
        return self.teacher.knows_truth

    @property
    def judges_single_frames(self) -> bool:
        return not self.model.reads_states

    @property
    def teaching(self) -> LearnedConfig:
        return self

    def shown_prompt(self, goal: tuple[str, ...], baseline: tuple[str, ...]) -> str:
        height, width = self.shown_size(None)
        black = Segment.of_frames(np.zeros((self.segment, height, width, 3), np.uint8))
        kind = self.feedback.question
        segments = (black, black) if kind == "compare" else (black,)
        return self.teacher.shown_prompt(Question(kind, segments, goal, self.feedback.question_levels))

    def online(self, setup: RewardSetup, context: RunContext) -> Pebble:
        from sightline.preferences.pebble import Pebble

        store = LabelStore(Path(self.labels) if self.labels else context.folder / "labels")
        return Pebble(self, setup.model, setup.teacher, store, context, setup.lessons)  # type: ignore[arg-type]
