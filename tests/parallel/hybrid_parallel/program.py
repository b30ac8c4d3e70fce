"""One of several ranks: trains by each method in turn with scripts/run_llama_npu.py, in one process.

program.py FOLDER RANKS WHICH FOLDERS ARGUMENTS...    WHICH: of a Method. FOLDERS: JSON, of the models and
data of Methods
"""

import json
import os
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import paddle  # noqa: F401 - which loads the plugin, whose kernels are watched
import ranks
from fused_models.rounding import round_otherwise

import paddle_fused
import virtual_npu
from hybrid_parallel.many_runs import forget_groups
from hybrid_parallel.methods import Method, methods
from llm_npu.commands import train
from llm_npu.models import families


def noted(fallback: virtual_npu.HostFallback, left: set[tuple[str, str]]) -> bool:
    left.add((fallback.kernel, fallback.dtype))
    return False  # it may run


@contextmanager
def roundings_of(method: Method) -> Iterator[None]:
    """The models that are made meanwhile have other roundings, where the method says so."""
    upstream = families.new_model

    def rounded(config):
        model = upstream(config)
        round_otherwise(model, method.otherwise)
        return model

    if method.otherwise is not None:
        families.new_model = rounded
    yield
    families.new_model = upstream


def main(folder: Path, count: int, which: str, folders: str, arguments: list[str]) -> None:
    run, results, had_groups = train.main, {}, False
    for number, method in enumerate(methods(count, which)):
        output_dir = folder / f"out-{count}-{number}"
        print(f"==== {method.key}", flush=True)
        words = [*arguments, *method.argv(), "--output_dir", str(output_dir)]
        if method.model:
            words += ["--model_name_or_path", json.loads(folders)[method.model]]
        if method.data:
            words += ["--input_dir", json.loads(folders)[method.data]]
        if number and method.flags:
            forget_groups(same_method=not (had_groups or method.has_groups))
        had_groups = method.has_groups
        left: set[tuple[str, str]] = set()  # kernels that a card would leave to the host
        try:
            watch = virtual_npu.watch_host_fallbacks(lambda line, left=left: noted(line, left))
            with roundings_of(method), watch:
                code = run(words)
            assert code == 0, code
        except BaseException:
            traceback.print_exc()
            os._exit(1)  # the other ranks, somewhere in this method, learn at once that this one is gone
        if int(os.environ["PADDLE_TRAINER_ID"]):
            continue  # the first rank records what is true of all
        records = [json.loads(line) for line in (output_dir / "metrics.jsonl").read_text().splitlines()]
        backends = sorted({entry.backend for entry in paddle_fused.dispatch_log()})
        results[method.key] = {"records": records, "backends": backends, "left the card": sorted(left)}
    ranks.write(results)


main(Path(sys.argv[1]), int(sys.argv[2]), *sys.argv[3:5], sys.argv[5:])
