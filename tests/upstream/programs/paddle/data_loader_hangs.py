"""DataLoader with num_workers=0 waits for ever when the dataset raises an exception.

The thread that reads the dataset fetches outside of its second ``try``, and the first one only expects
StopIteration. So the thread ends without closing the queue, and the training loop waits for it for ever.
The exception is shown as one of a thread, and cannot be caught.

:versions: paddlepaddle 3.0.0 to 3.3.1
:device: cpu
:at:
    paddle/io/dataloader/dataloader_iter.py:251 `batch = self._dataset_fetcher.fetch(`
    paddle/io/dataloader/dataloader_iter.py:254 `except StopIteration:`
:prints:
    reading
:ends: hangs
:should print:
    reading
    the sample is damaged
:change:
    Keep any other exception of ``fetch`` (``except Exception as error: self._error = error``), close the
    queue by ``_exit_thread_unexpectedly()``, and let ``__next__`` raise the kept exception when the
    queue is closed.
:workaround: llm_npu.patches.fix_data_loader_errors
"""

import paddle


class Samples(paddle.io.Dataset):
    def __len__(self):
        return 4

    def __getitem__(self, index):
        raise ValueError("the sample is damaged")


print("reading", flush=True)
try:
    list(paddle.io.DataLoader(Samples(), batch_size=1))
except ValueError as error:
    print(error)
