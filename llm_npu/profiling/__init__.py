"""Records some steps of a program on the device npu, to show where the time is spent.

    from llm_npu import profiling

    profiling.prepare("profile")  # on a card: before paddle is imported
    import paddle

    with profiling.Capture("profile", warmup=1, active=3, shapes=True) as capture:
        for batch in batches:
            train(batch)
            capture.step()

``docs/profiling.md`` describes the files, and ``llm-npu profile report`` explains them. Importing this
package imports neither paddle nor paddlenlp.
"""

from .capture import Capture
from .folders import prepare

__all__ = ["Capture", "prepare"]
