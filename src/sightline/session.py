"""Session of a run: what happens between two steps of training, whoever acts and whoever learns.

    start or restore ──► learn ──── learn ──── learn ──── … ──► the chosen checkpoint on the test seeds: result.json
                              │          │
                              └── between two steps, when it is time to:
                                    evaluate on the validation seeds ──► the best so far? ──► best checkpoint
                                    film a validation episode
                                    write a checkpoint, from which the run is resumed exactly
                                    stop, if asked to

A trainer brings what is its own: how it learns, what its checkpoints hold, how it plays. It calls
`RunSession.between_steps` wherever it could be stopped and resumed.
"""

from __future__ import annotations

import contextlib
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Protocol

from pydantic import ConfigDict, TypeAdapter, ValidationError

from sightline.config.recipe import Recipe
from sightline.envs.egl import drawing_in_words
from sightline.errors import BadInput, Damaged, RunFailed
from sightline.evaluation.episode_stats import describe
from sightline.evaluation.video import Film, write_scored_video
from sightline.rewards.base import Interrupted, Unavailable
from sightline.runs.archive import Archives
from sightline.runs.checkpoints import Checkpoint, CheckpointStore
from sightline.runs.files import read_document, write_document
from sightline.runs.folder import RunFolder
from sightline.runs.metrics import Metrics, check_metrics
from sightline.runs.progress import Progress
from sightline.runs.stopping import GivenUp, Stopped, StopRequests

STATE = "session.json"
EVERY_BEST = 10**6
"""Number of best checkpoints to keep, never reached: those that no kept checkpoint refers to are removed instead."""

_HAD_CHECKPOINTS = "had_checkpoints"
"""Key of `run.json`: a checkpoint was written that the run could be resumed from."""
CHOOSE_AGAIN = "go on with --resume, which chooses again, or train again"


@dataclass
class SessionState:
    """State of a session between two steps; a trainer's own state is beside it in every checkpoint.

    Attributes:
        step: transitions or turns at the last pause that was dealt with.
        best_step, best_score: of the best checkpoint; None before there is one.
        seconds: wall-clock time so far, over all sessions.
        warnings: issued so far.
        finished: the run ended before its last step, since it is good enough.
        validating: the evaluation of this very step was under way, or to come, when the checkpoint was written.
        constant: what has never varied so far, `pictures` or `reward`, so that nothing could be learned from it; None
            as long as nobody has looked.
        metrics_size: bytes of the metrics file that belong to this checkpoint; None if an earlier version wrote it.
    """

    __pydantic_config__ = ConfigDict(extra="forbid")

    step: int = 0
    best_step: int | None = None
    best_score: float | None = None
    seconds: float = 0.0
    warnings: list[str] = field(default_factory=list)
    finished: bool = False
    validating: bool = False
    constant: list[str] | None = None
    metrics_size: int | None = None


class Validation(Protocol):
    """Evaluation of the policy as it was at one step, which may go on while training does."""

    def numbers(self, wait: bool) -> dict[str, Any] | None:
        """Its summary; None if it is still under way, and `wait` is False."""

    def save(self, folder: Path | None) -> None:
        """Write the policy that is evaluated into a checkpoint's folder; None in a process that does not write."""

    def cancel(self) -> None:
        """Give it up."""


@dataclass(frozen=True)
class Finished:
    """Validation that was made on the spot: the policy is still what it was."""

    summary: dict[str, Any]
    save_policy: Callable[[Path | None], None]

    def numbers(self, wait: bool) -> dict[str, Any]:
        """See `Validation`."""
        return self.summary

    def save(self, folder: Path | None) -> None:
        """See `Validation`."""
        self.save_policy(folder)

    def cancel(self) -> None:
        """See `Validation`."""


class Trainer(Protocol):
    """What learns in a session."""

    @property
    def step(self) -> int:
        """Transitions or turns so far."""

    def start(self) -> None:
        """Begin without a checkpoint."""

    def restore(self, folder: Path) -> None:
        """Take over the state of a checkpoint.

        Raises:
            Damaged: it does not fit the recipe.
        """

    def learn(self) -> None:
        """Learn until the recipe's last step, and call `RunSession.between_steps` in between."""

    def save(self, folder: Path | None) -> None:
        """Write everything that `restore` needs into a checkpoint's folder, but for the rows in `RunSession.archives`.

        Args:
            folder: None in a process that does not write, which only takes part in what all processes do together,
                such as gathering weights.
        """

    def validate(self) -> Validation:
        """Evaluate the present policy on the validation seeds.

        Raises:
            Interrupted: a stop was asked for.
        """

    def score(self, numbers: Mapping[str, Any]) -> float | None:
        """What checkpoints are chosen by; None if these numbers mean nothing yet."""

    def good_enough(self, numbers: Mapping[str, Any]) -> bool:
        """True if training may end before the recipe's last step."""

    def film(self, step: int) -> Film | None:
        """Play one validation episode by the present policy; None without pictures."""

    def test(self, best: Path) -> dict[str, Any]:
        """Evaluate the policy of a best checkpoint on the test seeds, and what it is compared with."""

    def illustrate(self) -> None:
        """Make the pictures of the report, once the result is written."""

    def close(self) -> None:
        """Close environments and whatever else is open."""


class RunSession:
    """A run in progress, from its start or its newest checkpoint to its result.

    Args:
        recipe: resolved.
        run: run folder, owned by the process that leads.
        progress: progress bar and messages.
        stop: requests to stop.
        resume: go on from the newest whole checkpoint; without one, start from the beginning.
        leads: whether this process writes; of several, one does, and all of them call the same methods.
        in_any: whether something is true in any process.

    Attributes:
        archives: rows that every checkpoint shares with earlier ones, such as those of a replay buffer.
        state: see `SessionState`.
        saved_step: step of the last checkpoint; None before the first.
    """

    def __init__(
        self,
        recipe: Recipe,
        run: RunFolder,
        progress: Progress,
        stop: StopRequests,
        resume: bool = False,
        leads: bool = True,
        in_any: Callable[[bool], bool] = bool,
    ) -> None:
        self.recipe = recipe
        self.run = run
        self.progress = progress
        self.stop = stop
        self._leads = leads
        self._in_any = in_any
        self._steps = CheckpointStore(run, "step", recipe.checkpoints.keep)
        self._best = CheckpointStore(run, "best", EVERY_BEST)
        self.archives = Archives(run.replay)
        self.state = SessionState()
        self.saved_step: int | None = None
        self._started = time.monotonic()
        self._earlier_seconds = 0.0
        self._resumes = resume
        self._resumed_from: Checkpoint | None = None
        if resume:
            self._resumed_from = self._steps.latest(progress.say)
            if self._resumed_from is None:
                _check_may_begin_again(run)
            else:
                self.state = _read_state(self._resumed_from)
        self._metrics: Metrics | None = None
        self._validation: tuple[int, Validation] | None = None
        self._trainer: Trainer

    def carry_out(self, trainer: Trainer) -> dict[str, Any]:
        """Train to the end.

        Returns:
            The content of the run's `result.json`.

        Raises:
            Stopped: a signal asked for it; what can be resumed is saved.
            RunFailed: in one line; earlier checkpoints are whole.
        """
        try:
            with self.begun(trainer):
                trainer.learn()
                return self._conclude()
        except (GivenUp, Interrupted):
            raise self.stopped() from None
        except Unavailable as reason:
            saved = "nothing was saved yet"
            if self.saved_step is not None:
                saved = f"what was saved at step {self.saved_step} counts"
            raise RunFailed(f"{reason}; {saved}, and --resume goes on from there") from reason

    @contextlib.contextmanager
    def begun(self, trainer: Trainer) -> Iterator[None]:
        """Context in which a trainer can learn, from its start or the newest checkpoint; closes it in the end."""
        self._trainer = trainer
        try:
            self._begin()
            yield
        finally:
            if self._validation is not None:
                self._validation[1].cancel()
            trainer.close()
            if self._metrics is not None:
                self._metrics.close()

    def _begin(self) -> None:
        if self._leads:
            self._open_metrics()
        if self.recipe.workers == "processes" and (line := drawing_in_words()) is not None:
            self.progress.say(line)
        if self._resumed_from is not None:
            self._restore(self._resumed_from)
            return
        if self._leads and self._resumes:
            self._best.clear()  # chosen in steps that are about to be repeated
        self._trainer.start()

    def _open_metrics(self) -> None:
        """Open the metrics, without the records of steps that are about to be repeated."""
        last_step: int | None = None
        if self._resumed_from is not None:
            # An evaluation that was under way is made again, and logged at the step of the checkpoint.
            last_step = self._resumed_from.step - self.state.validating
        elif self._resumes:
            last_step = -1  # without a checkpoint nothing is kept, not even metrics from before the first step
        self._metrics = Metrics(
            self.run, self.recipe.tensorboard, self.recipe.wandb, last_step, self.state.metrics_size
        )

    def _restore(self, checkpoint: Checkpoint) -> None:
        """Go on from a checkpoint."""
        state = self.state
        self.progress.say(f"resuming from step {checkpoint.step} of {self.run.path}")
        self._trainer.restore(checkpoint.path)
        self.saved_step = checkpoint.step
        self._earlier_seconds = state.seconds
        if state.best_step is not None:
            try:
                _best_folder(self._best, state.best_step)
            except Damaged as error:
                self.progress.say(f"{error.args[0].partition(';')[0]}; another one is chosen from here on")
                state.best_step = None
                state.best_score = None
                # The policy of this step is the first candidate.
                state.validating = True
        self._remove_other_best()
        if state.finished and state.step < self.recipe.steps:
            self.progress.say("this run has ended already: its validation score reached evaluation.stop_at")
        if state.validating and checkpoint.step == 0:
            self.begin_choosing()
        elif state.validating:
            self._validate(checkpoint.step)

    def begin_choosing(self) -> None:
        """Evaluate and save before the first step, for trainers whose policies are worth something untrained."""
        self._validate(self._trainer.step)
        self._settle(wait=True)
        self.save()

    def between_steps(self, last: bool = False) -> None:
        """Evaluate, film and save if it is time to; stop if asked to.

        Args:
            last: no step comes after.

        Raises:
            Stopped: after saving.
        """
        state = self.state
        recipe = self.recipe
        now = self._trainer.step
        before = state.step
        stopping = self._in_any(self.stop.requested())
        # Equal after resuming: this pause was dealt with before it was saved.
        if now > before:
            self._settle(wait=False)
            if last or _due(recipe.evaluation.every, before, now):
                self._validate(now)
            if _due(recipe.videos.every, before, now):
                self._film(now)
            state.step = now
            if last or stopping or state.finished or _due(recipe.checkpoints.every, before, now):
                self.save()
        if stopping:
            # A pause that was dealt with before it was saved is not saved again.
            if self.saved_step != now and now > 0:
                self.save()
            # Of several processes, only one that got the signal itself knows how long ago that was.
            if self.stop.requested() and self.saved_step is not None:
                self.progress.say(
                    f"saved {self.stop.waited():.1f} s after the request to stop; a scheduler has to wait at least as "
                    "long (its grace period)"
                )
            raise self.stopped()

    def stopped(self) -> Stopped:
        """What is raised to stop the run now."""
        # Of several processes, another one may have got the signal.
        return Stopped(self.stop.signal_number or signal.SIGTERM, self.saved_step)

    def save_and_stop(self, reason: str = "") -> Stopped | RunFailed:
        """Save in the middle of a pause, which is dealt with once more after resuming.

        Args:
            reason: why the run cannot go on for now; empty if it was asked to stop.

        Returns:
            The error to raise.
        """
        self.save()
        if reason:
            return RunFailed(f"{reason}; saved at step {self.saved_step}, and --resume goes on from there")
        return self.stopped()

    def give_up_if_overdue(self) -> None:
        """Stop in the middle of a step if that was asked for long ago; the step is lost.

        Raises:
            Stopped: with the step of the last checkpoint.
        """
        if self.stop.overdue():
            raise self.stopped()

    def save(self, before_choosing: bool = False) -> None:
        """Write a checkpoint; a run that is resumed from it goes on bit by bit as this one does.

        Args:
            before_choosing: `begin_choosing` is to come.
        """
        if self._validation is not None and self._validation[0] != self._trainer.step:
            self._settle(wait=True)  # its policy is in no checkpoint
        state = self.state
        state.seconds = self._seconds()
        state.validating = before_choosing or self._validation is not None
        if self._metrics is not None:
            state.metrics_size = self._metrics.size()
        with self.checkpoint() as folder:
            self._trainer.save(folder)
        if self.saved_step is None:
            self.write_json("run.json", (self.run.read_json("run.json") or {}) | {_HAD_CHECKPOINTS: True})
        self.saved_step = self._trainer.step

    @contextlib.contextmanager
    def checkpoint(self) -> Iterator[Path | None]:
        """Context in which the checkpoint of the present step is written; all processes enter it.

        Yields:
            The folder to write into; None in a process that does not write.
        """
        with self._writing(self._steps, self._trainer.step, self.archives.digests) as folder:
            yield folder
            if folder is not None:
                write_document(folder / STATE, asdict(self.state))
        self._remove_other_best()

    @contextlib.contextmanager
    def _writing(
        self, store: CheckpointStore, step: int, shared_files: Callable[[], Mapping[str, str]] = dict
    ) -> Iterator[Path | None]:
        """Context in which the process that leads writes a checkpoint, see `CheckpointStore.writing`; the others wait
        at its end, so that all of them find the checkpoint whole when they go on."""
        writing: contextlib.AbstractContextManager[Path | None] = contextlib.nullcontext()
        if self._leads:
            writing = store.writing(step, shared_files)
        with writing as folder:
            # The others begin when there is a folder: where there is none, they end in a line.
            self._wait_for_all()
            yield folder
        self._wait_for_all()

    def _wait_for_all(self) -> None:
        """Wait until all processes are here."""
        self._in_any(False)  # the answer does not matter: no process gets it before all have asked

    def log(self, step: int, values: Mapping[str, float | None]) -> None:
        """Write metrics, and show them beside the progress bar."""
        if self._metrics is not None:
            self._metrics.write(step, dict(values))

    def warn(self, line: str) -> None:
        """Show a warning, and keep it for the report."""
        self.progress.say(f"warning: {line}")
        if line not in self.state.warnings:
            self.state.warnings.append(line)
        self.write_json("warnings.json", {"warnings": self.state.warnings})

    def write_json(self, name: str, document: Mapping[str, Any]) -> None:
        """Write a document of the run folder, in the process that writes."""
        if self._leads:
            self.run.write_json(name, dict(document))

    def single_checkpoint(self, kind: str) -> contextlib.AbstractContextManager[Path | None]:
        """Context in which the checkpoint of a kind is written of which a run has one, such as the policy before RL.

        All processes enter it. It holds what is written within it alone, not the session's state.
        """
        return self._writing(CheckpointStore(self.run, kind, 1), 0)

    def find_single_checkpoint(self, kind: str) -> Path | None:
        """Folder of what was written in `single_checkpoint`; None if it is gone or damaged."""
        checkpoint = CheckpointStore(self.run, kind, 1).latest()
        return None if checkpoint is None else checkpoint.path

    def forget_scores(self) -> None:
        """Choose from here on: earlier scores do not compare with later ones, as they were given by another reward."""
        self._settle(wait=True)
        self.state.best_score = None

    def save_film(self, name: str, film: Film, limits: tuple[float, float] | None = None) -> None:
        """Write a video into the run folder, and log it.

        Args:
            limits: rewards at the bottom and at the top of the curve; default: the lowest and highest of the film.
        """
        if not self._leads:
            return
        file = self.run.videos / f"{name}.mp4"
        with self.run.writing():
            write_scored_video(file, film.frames, film.rewards, film.fps, film.caption, limits)
        if self._metrics is not None:
            self._metrics.film(name, file, film.frames, film.fps, self._trainer.step)

    # -- evaluation ------------------------------------------------------------------------------------------------

    def _validate(self, step: int) -> None:
        self._settle(wait=True)
        try:
            self._validation = (step, self._trainer.validate())
        # The pause is left open: it is dealt with after resuming.
        except Interrupted:
            raise self.save_and_stop() from None
        except Unavailable as reason:
            raise self.save_and_stop(str(reason)) from reason
        self._settle(wait=False)

    def _settle(self, wait: bool) -> None:
        """Take the numbers of the evaluation that is under way, and keep its policy if it is the best so far.

        Args:
            wait: until it is done.
        """
        if self._validation is None:
            return
        state = self.state
        step, validation = self._validation
        numbers = validation.numbers(wait)
        if numbers is None:  # it is still under way
            return
        self._validation = None
        state.validating = False
        measured = {name: number for name, number in numbers.items() if _is_measured(number, name)}
        self.log(step, {f"evaluation/{name}": number for name, number in measured.items()})
        self.progress.say(f"step {step:>6}  validation: {describe(numbers)}")
        score = self._trainer.score(numbers)
        # Of equal scores the later one: it has learned longer.
        if score is not None and (state.best_score is None or score >= state.best_score):
            state.best_score = score
            state.best_step = step
            with self._writing(self._best, step) as folder:
                validation.save(folder)
        state.finished = self._trainer.good_enough(numbers)

    def _film(self, step: int) -> None:
        """Film a validation episode. If that fails, the run goes on."""
        try:
            film = self._trainer.film(step)
            if film is not None:
                self.save_film(f"step-{step:09d}", film)
        except (Stopped, Interrupted, Unavailable):
            raise
        except Exception as error:
            self.warn(f"the video of step {step} could not be made: {' '.join(str(error).split())[:200]}")

    def _conclude(self) -> dict[str, Any]:
        self._settle(wait=True)
        best_step = self.state.best_step
        if best_step is None:
            raise RunFailed("the run ended before anything was learned from the teacher; raise steps")
        folder = _best_folder(self._best, best_step)
        earlier_result = self._earlier_result(best_step)
        if earlier_result is not None:
            return earlier_result
        self.progress.say(f"testing the checkpoint of step {best_step}")
        result = {"chosen_step": best_step} | self._trainer.test(folder)
        if self.state.constant:
            result["constant"] = self.state.constant
        result["seconds"] = self._seconds()
        self.write_json("result.json", result)
        try:
            self._trainer.illustrate()
        except (Stopped, Interrupted, Unavailable):
            raise
        except Exception as error:  # the numbers stand all the same
            self.warn(f"the pictures of the report are not complete: {' '.join(str(error).split())[:200]}")
        return result

    def _earlier_result(self, best_step: int) -> dict[str, Any] | None:
        """The result of a run that had ended before, if nothing was learned since; None if there is none."""
        if self._resumed_from is None or self._resumed_from.step != self._trainer.step:
            return None
        # The report is the last thing that is made: with it, the pictures are there, too.
        if not self.run.report_file.exists():
            return None
        result = self.run.read_json("result.json")
        if not result or result.get("chosen_step") != best_step:
            return None
        return result

    def _remove_other_best(self) -> None:
        """Remove best checkpoints that no kept checkpoint refers to, nor the session itself."""
        if not self._leads:
            return
        needed = {self.state.best_step}
        for checkpoint in self._steps.all():
            with contextlib.suppress(OSError, BadInput):  # damaged: it cannot be resumed from
                needed.add(_read_state(checkpoint).best_step)
        with self.run.writing():
            for best in self._best.all():
                if best.step not in needed:
                    best.remove()

    def _seconds(self) -> float:
        """Time spent on this run, over all sessions."""
        return self._earlier_seconds + time.monotonic() - self._started


def chosen_checkpoint(run: RunFolder) -> Checkpoint:
    """The best checkpoint of a run so far.

    Raises:
        BadInput: none was chosen yet.
        Damaged: it is.
    """
    store = CheckpointStore(run, "best", EVERY_BEST)
    result = run.read_json("result.json") or {}
    step = result.get("chosen_step")
    if step is None:  # the run has not ended
        newest = next(store.all(), None)
        if newest is None:
            raise BadInput(f"'{run.path}' has no chosen checkpoint yet; let it train until its first evaluation")
        step = newest.step
    if not isinstance(step, int):
        raise Damaged(f"'{run.path / 'result.json'}' is damaged: chosen_step is {str(step)[:40]!r}")
    return Checkpoint(_best_folder(store, step), step, run.replay)


def newest_checkpoint(run: RunFolder) -> Checkpoint:
    """The newest whole checkpoint that a run can be resumed from.

    Raises:
        BadInput: there is none.
    """
    checkpoint = CheckpointStore(run, "step", keep=1).latest()
    if checkpoint is None:
        raise BadInput(f"'{run.path}' has no whole checkpoint yet")
    return checkpoint


def last_saved_step(run: RunFolder) -> int | None:
    """Step of a run's newest checkpoint, None if there is none."""
    newest = next(CheckpointStore(run, "step", keep=1).all(), None)
    return None if newest is None else newest.step


def check_resumable(run: RunFolder) -> None:
    """Refuse to resume a run that would begin again and so replace what it has chosen, or whose metrics are none.

    Raises:
        Damaged: its metrics file is damaged.
        BadInput: all checkpoints that it could go on from were removed; or they are damaged, which takes longer to find
            out and is looked at here only if the run has ended.
    """
    check_metrics(run.metrics_file)
    store = CheckpointStore(run, "step", keep=1)
    has_ended = (run.path / "result.json").is_file()
    checkpoint = store.latest() if has_ended else next(store.all(), None)
    if checkpoint is None:
        _check_may_begin_again(run)


def _check_may_begin_again(run: RunFolder) -> None:
    """Refuse to begin a run again that has chosen something; one that was killed before its first checkpoint may, as it
    finds the same once more."""
    best = next(CheckpointStore(run, "best", EVERY_BEST).all(), None)
    had_checkpoints = (run.read_json("run.json") or {}).get(_HAD_CHECKPOINTS)
    if (run.path / "result.json").is_file() or (best is not None and had_checkpoints):
        raise BadInput(
            f"'{run.path}' has no whole checkpoint left to go on from (checkpoints/step-…), and to begin again would "
            "replace what it has chosen; 'sightline evaluate' and 'report' work on it as it is: to train again choose "
            "another --run-dir"
        )


def _best_folder(store: CheckpointStore, step: int) -> Path:
    for checkpoint in store.all():
        if checkpoint.step == step:
            if damage := checkpoint.damage():
                raise Damaged(f"the chosen checkpoint '{checkpoint.path}' is damaged ({damage}); {CHOOSE_AGAIN}")
            return checkpoint.path
    raise Damaged(f"the chosen checkpoint of step {step} is gone; {CHOOSE_AGAIN}")


def _read_state(checkpoint: Checkpoint) -> SessionState:
    try:
        document = read_document(checkpoint.path / STATE)
    except FileNotFoundError as error:
        raise BadInput(
            f"'{checkpoint.path}' was written by an earlier version and cannot be resumed; 'sightline evaluate' and "
            "'report' still work on its run"
        ) from error
    try:
        return TypeAdapter(SessionState).validate_python(document)
    except ValidationError as error:
        raise Damaged(f"'{checkpoint.path / STATE}' is damaged: {error.errors()[0]['msg']}") from error


def _is_measured(value: Any, name: str) -> bool:
    """True for the numbers of a summary that change; counts of the panel do not."""
    return isinstance(value, int | float) and name not in ("episodes", "errors")


def _due(every: int | None, before: int, now: int) -> bool:
    """True if a multiple of `every` steps was reached since `before`."""
    return every is not None and now // every > before // every
