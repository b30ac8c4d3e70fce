"""The table of a device's tasks, independent of the profile's format."""

from __future__ import annotations

import numpy as np
import pandas as pd
from pandas.api.types import union_categoricals

from llm_npu.core.untrusted.plain_text import printable

from .. import classes

TEXT = ("stream", "name", "kind", "engine", "shapes", "dtypes", "site")
LONGEST = 4096  # characters of a text


def table(start, duration, launched=None, **text) -> pd.DataFrame:
    """A row per task, ordered by start. Tasks that only wait for events are dropped.

    Adds the columns ``operator`` (the type, derived from the name if necessary) and ``work`` (one of
    classes.CLASSES). dtypes are spelled as in numpy. Text is printable, and truncated at LONGEST.

    Args:
        start, duration: nanoseconds.
        launched: time at which the host launched the task; -1 if unknown.
        text: the categorical columns TEXT; ``kind`` is the operator type, ``site`` the calling source line.
    """
    frame = pd.DataFrame({"start": np.asarray(start, np.int64), "duration": np.asarray(duration, np.int64)})
    frame["launched"] = -1 if launched is None else np.asarray(launched, dtype=np.int64)
    for column in TEXT:
        values = text.get(column)
        frame[column] = _constant("", len(frame)) if values is None else renamed(values, _shown)
    frame["dtypes"] = renamed(frame["dtypes"], classes.dtypes)

    # Operators and classes are determined once per distinct task. Names only matter for tasks without a type,
    # because collectives all have distinct names.
    unknown = frame["kind"].isin(classes.UNKNOWN).to_numpy()
    name = np.where(unknown, frame["name"].cat.codes, -1).astype(np.int64)
    kind, engine = (frame[column].cat.codes.to_numpy(np.int64) for column in ("kind", "engine"))
    kinds, engines = len(frame["kind"].cat.categories), len(frame["engine"].cat.categories)
    different = (name * kinds + kind) * engines + engine
    _, examples, which = np.unique(different, return_index=True, return_inverse=True)
    rows = list(frame.iloc[examples][["kind", "name", "engine"]].itertuples(index=False, name=None))
    frame["operator"] = _categorical([classes.operator(kind, name) for kind, name, _ in rows], which)
    frame["work"] = _categorical([classes.classify(*row) for row in rows], which)
    works = np.array([not classes.waits(engine) for _, _, engine in rows], dtype=bool)
    return frame[works[which]].sort_values("start", kind="stable", ignore_index=True)


def collectives(rows: pd.DataFrame) -> pd.Series:
    """The rows of a ``table`` that are collectives, without HCCL's AICPU kernels for them."""
    carriers = [name for name in rows["operator"].cat.categories if classes.carries_collective(name)]
    return (rows["work"] == classes.COMMUNICATION) & ~rows["operator"].isin(carriers)


def joined(tables: list[pd.DataFrame]) -> pd.DataFrame:
    """The rows of all ``tables``, ordered by start."""
    if len(tables) == 1:
        return tables[0]
    columns = {}
    for name in tables[0]:
        parts = [rows[name] for rows in tables]
        text = isinstance(parts[0].dtype, pd.CategoricalDtype)
        columns[name] = union_categoricals(parts) if text else np.concatenate(parts)
    return pd.DataFrame(columns).sort_values("start", kind="stable", ignore_index=True)


def renamed(values, rename) -> pd.Categorical:
    """``values`` with ``rename`` applied to each category; equal names are merged, missing ones become ""."""
    values = pd.Series(values, dtype="category").cat
    names = [*(rename(str(name)) for name in values.categories), ""]
    codes, different = pd.factorize(np.array(names, dtype=object))
    return pd.Categorical.from_codes(codes[values.codes.to_numpy()], categories=list(different))


def _shown(text: str) -> str:
    return printable(text.strip(), longest=LONGEST)


def _categorical(values: list[str], which: np.ndarray) -> pd.Categorical:
    codes, different = pd.factorize(np.array(values, dtype=object))
    return pd.Categorical.from_codes(codes[which], categories=list(different))


def _constant(value: str, count: int) -> pd.Categorical:
    return pd.Categorical.from_codes(np.zeros(count, dtype=np.int8), categories=[value])
