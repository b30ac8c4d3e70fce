"""Training hangs without a word if every example of a data set is rejected.

Examples that are too long or malformed are left out. If nothing remains, ``InfiniteDataset`` repeats an
empty list for ever.

:versions: paddleformers 1.2.0
:device: cpu
:at:
    paddleformers/datasets/reader/multi_source_datasets.py:55 `while True:`
:prints:
    reading
:ends: hangs
:should print:
    reading
    ValueError
:change:
    Raise a ValueError in ``__init__`` if ``self.data`` is empty, with the reasons for which examples
    were left out.
:workaround: none
"""

from paddleformers.datasets.reader.multi_source_datasets import InfiniteDataset

print("reading", flush=True)
try:
    next(iter(InfiniteDataset([])))
except ValueError:
    print("ValueError")
