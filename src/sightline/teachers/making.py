"""The teacher that a recipe names."""

from __future__ import annotations

from collections.abc import Callable

from sightline.config import (
    ChatTeacherConfig,
    EncoderTeacherConfig,
    HumanTeacherConfig,
    ScriptedTeacherConfig,
)
from sightline.config import Teacher as TeacherConfig
from sightline.labels.store import Context, LabelStore
from sightline.labels.types import Teacher
from sightline.rewards.zero_shot import ZeroShotReward


def make_teacher(
    config: TeacherConfig,
    judge: ZeroShotReward | None,
    store: LabelStore,
    context: Callable[[], Context],
    say: Callable[[str], None],
    seed: int,
) -> Teacher:
    """Who will answer.

    Args:
        judge: the zero-shot reward by which an encoder teaches.
        store, context, say: where people find their questions, in which circumstances they are asked, and how people
            are told.
        seed: of a scripted teacher's failings.
    """
    match config:
        case EncoderTeacherConfig():
            from sightline.teachers.encoder import EncoderTeacher

            assert judge is not None, "an encoder teacher comes with its reward"
            return EncoderTeacher(config, judge)
        case ScriptedTeacherConfig():
            from sightline.teachers.scripted import ScriptedTeacher

            return ScriptedTeacher(config, seed)
        case ChatTeacherConfig():
            from sightline.teachers.chat import ChatTeacher

            return ChatTeacher(config)
        case HumanTeacherConfig():
            from sightline.teachers.human import HumanTeacher

            return HumanTeacher(config, store, context, say)
