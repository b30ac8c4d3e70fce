"""The table of tasks that a device ran, independent of the profile's format."""

from __future__ import annotations

import numpy as np
import pandas as pd
from pandas.api.types import union_categoricals

from llm_npu.core.untrusted.plain_text import printable

from .. import classes

TEXT = ("stream", "name", "kind", "engine", "shapes", "dtypes", "site")
LONGEST = 4096  # characters of a text


def table(start, duration, launched=None, **text) -> pd.DataFrame:
    """One row per task, ordered by start.

    Columns ``start``, ``duration`` and ``launched``, in nanoseconds; ``launched`` is the time at which the
    host launched the task, -1 if unknown. Categorical columns TEXT, given as ``text``: ``kind`` is the
    operator's type, ``site`` the line of the program that called it. Added are ``operator`` (the type,
    derived from the name if necessary) and ``work`` (one of classes.CLASSES). dtypes are spelt as in numpy;
    text is printable, and cut at LONGEST;
    tasks that only wait for events are dropped.
    """
    found = pd.DataFrame({"start": np.asarray(start, np.int64), "duration": np.asarray(duration, np.int64)})
    found["launched"] = -1 if launched is None else np.asarray(launched, dtype=np.int64)
    for column in TEXT:
        values = text.get(column)
        found[column] = _constant("", len(found)) if values is None else renamed(values, _shown)
    found["dtypes"] = renamed(found["dtypes"], classes.dtypes)

    # Operators and classes are determined once per distinct task. A name matters only without a type: those
    # of collectives are all distinct.
    unknown = found["kind"].isin(classes.UNKNOWN).to_numpy()
    name = np.where(unknown, found["name"].cat.codes, -1).astype(np.int64)
    kind, engine = (found[column].cat.codes.to_numpy(np.int64) for column in ("kind", "engine"))
    kinds, engines = len(found["kind"].cat.categories), len(found["engine"].cat.categories)
    different = (name * kinds + kind) * engines + engine
    _, examples, which = np.unique(different, return_index=True, return_inverse=True)
    rows = list(found.iloc[examples][["kind", "name", "engine"]].itertuples(index=False, name=None))
    found["operator"] = _categorical([classes.operator(kind, name) for kind, name, _ in rows], which)
    found["work"] = _categorical([classes.classify(*row) for row in rows], which)
    works = np.array([not classes.waits(engine) for _, _, engine in rows], dtype=bool)
    return found[works[which]].sort_values("start", kind="stable", ignore_index=True)


def collectives(rows: pd.DataFrame) -> pd.Series:
    """The rows of a ``table`` that are collectives, each once: without HCCL's AICPU kernels for them."""
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
    """``values`` with ``rename`` applied to each category; equal names are merged, and a missing one becomes
    ""."""
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
