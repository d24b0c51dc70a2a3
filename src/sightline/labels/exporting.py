"""Export of labels: a Parquet file, or a dataset folder that Hugging Face's `datasets` loads."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from sightline.errors import BadInput, RunFailed
from sightline.labels.parquet import write_parquet
from sightline.labels.store import LabelStore, StoredLabel
from sightline.runs.files import write_atomically

DATA = Path("data") / "train-00000-of-00001.parquet"
"""Path of the rows in a dataset folder, as `datasets` expects it."""


@dataclass(frozen=True)
class Exported:
    """Result of an export.

    Attributes:
        path: the file or the folder.
        bytes: size of the rows.
        left_out: number of labels that were not exported because one of their frames is missing or damaged.
        why: the frame that is missing or damaged, for the first of these labels; empty if there are none.
    """

    path: Path
    labels: int
    bytes: int
    left_out: int = 0
    why: str = ""


def export_labels(store: LabelStore, target: Path, run: str | None = None) -> Exported:
    """Export the labels of a store, of one run or of all, with their frames.

    Retracted labels are left out, and so are labels with a missing or damaged frame; the latter are counted.
    `sightline label import` reads the Parquet file back.

    Args:
        target: a name that ends in `.parquet` makes a file; any other, a folder with a dataset and its card.

    Raises:
        BadInput: the target exists, there is nothing to export (not even with damaged frames left out), or pyarrow is
            missing.
        RunFailed: it could not be written.
    """
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise BadInput(f"'{target}' exists already; name another, or move it away")
    labels = store.labels(run)
    if not labels:
        place = f"of run '{run}'" if run else f"in '{store.folder}'"
        raise BadInput(f"there are no labels to export {place}")
    is_dataset = target.suffix != ".parquet"
    file = target
    if is_dataset:
        file = target / DATA
    # Rows first: a folder with a card and no rows would look like a dataset.
    result = write_parquet(file, store, labels)
    if is_dataset:
        try:
            write_atomically(target / "README.md", dataset_card(result.labels).encode())
        except OSError as error:
            raise RunFailed(f"'{target}' cannot be written: {error.strerror or error}") from error
    count = len(result.labels)
    return Exported(target, count, file.stat().st_size, left_out=len(labels) - count, why=result.problem)


def dataset_card(labels: Sequence[StoredLabel]) -> str:
    """Dataset card (README): the questions, the teachers, and the columns."""
    goals: set[str] = set()
    for label in labels:
        goals.update(label.goal)
    tasks = sorted({label.context.task for label in labels if label.context.task})
    teachers = Counter(label.teacher for label in labels)
    counts = Counter(label.answer.outcome.value for label in labels)
    teacher_lines = [f"{name}: {count} labels" for name, count in teachers.most_common()]
    outcome_lines = [f"{name}: {count}" for name, count in counts.most_common()]
    header = {
        "pretty_name": "Labels of a teacher, by Sightline",
        "tags": ["preferences", "reward-model", "sightline"],
        "configs": [{"config_name": "default", "data_files": [{"split": "train", "path": "data/*.parquet"}]}],
    }
    # JSON is YAML, and what the recipe's author wrote cannot break out of it.
    return f"""---
{json.dumps(header, indent=2)}
---

# Labels of a teacher

{len(labels)} answers to questions about frames of a simulation, exported by Sightline {metadata.version("sightline")}.

{_listed("Tasks", tasks)}
{_listed("Goals", sorted(goals))}
{_listed("Teachers", teacher_lines)}
{_listed("Outcomes", outcome_lines)}
## Columns

| column | content |
|---|---|
| `kind` | `compare`: which of two segments is nearer to the goal; `rate`: on which of `levels` levels is the first; \
`score`: how near is it, from 0 to 1 |
| `goal` | sentences that say what the picture should show |
| `first_frames`, `second_frames` | the frames of the segments, PNG |
| `outcome` | `first`, `second`, `equal`, `value`; without a label: `unsure`, `skipped`, `refused`, `unparsable`, \
`failed` |
| `value` | to `compare` 0 first, 1 second, 0.5 equal; to `rate` the level; to `score` the score |
| `confidence` | the probability that the teacher gives its own answer, if it says one |
| `first_rewards`, `second_rewards` | the environment's own rewards, which the teacher was not shown; not a number \
where unknown |
| `first_states`, `second_states` | the states of the segments' steps, with the actions behind them where they were \
imported so; empty where unknown |
| `teacher`, `signature` | who answered, and everything the answer depends on |
| `exchanges` | every request to a model with its raw reply, tokens, seconds and cost |
| `task`, `run`, `step`, `time`, `seconds`, `reason`, `origin` | when and how it was asked |

```python
from datasets import load_dataset

labels = load_dataset("path/to/this/folder", split="train")
labels[0]["first_frames"][-1]  # a PIL image
```
"""


def _listed(title: str, items: Sequence[str]) -> str:
    if not items:
        return ""
    lines = [f"- {' '.join(item.split())}\n" for item in items]
    return f"{title}:\n\n" + "".join(lines)
