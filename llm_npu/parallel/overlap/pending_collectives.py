"""Collectives in flight on the communication stream.

Paddle keeps the memory of a collective's inputs until it has run, but reuses the memory of its outputs as
soon as they are unreferenced. Here both stay referenced until ``wait`` returns.
"""

from __future__ import annotations

import paddle
import paddle.distributed as dist


class PendingCollective:
    """One collective; ``wait`` returns its output."""

    def __init__(self, task, source: paddle.Tensor, output: paddle.Tensor):
        self._task, self._source, self._output = task, source, output

    def wait(self) -> paddle.Tensor:
        """Synchronise the compute stream with the collective, and return its output."""
        if self._task is not None:
            self._task.wait()
            self._task = self._source = None
        return self._output


class PendingCollectives:
    """Starts collectives of ``group``. As a context manager it waits for all of them on exit."""

    def __init__(self, group):
        self._group, self._started = group, []

    def __enter__(self) -> PendingCollectives:
        return self

    def __exit__(self, *_error) -> None:
        failed = []
        for collective in self._started:  # wait for all, because raising an error frees their memory
            try:
                collective.wait()
            except Exception as error:
                failed.append(error)
        if failed:
            raise failed[0]

    def all_reduce(self, tensor: paddle.Tensor) -> PendingCollective:
        """The sum of ``tensor`` over the ranks, in place."""
        return self._start(tensor, tensor, dist.all_reduce(tensor, group=self._group, sync_op=False))

    def all_gather(self, tensor: paddle.Tensor) -> PendingCollective:
        """The rows of all ranks, in rank order: [ranks * rows, ...]."""
        rows, *others = tensor.shape
        output = paddle.empty([rows * self._group.nranks, *others], tensor.dtype)
        return self._start(
            tensor, output, dist.stream.all_gather(output, tensor, group=self._group, sync_op=False)
        )

    def reduce_scatter(self, tensor: paddle.Tensor, output: paddle.Tensor | None = None) -> PendingCollective:
        """This rank's rows of the sum of ``tensor`` over the ranks, written to ``output`` if given."""
        if output is None:
            rows, *others = tensor.shape
            output = paddle.empty([rows // self._group.nranks, *others], tensor.dtype)
        return self._start(
            tensor, output, dist.stream.reduce_scatter(output, tensor, group=self._group, sync_op=False)
        )

    def _start(self, source, output, task) -> PendingCollective:
        self._started.append(PendingCollective(task, source, output))
        return self._started[-1]
