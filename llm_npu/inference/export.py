"""Export a model with fused operators as one program for paddle.inference.

    export.export("output/checkpoint-100", "served")          # a checkpoint, or a model
    predictor = export.load("served", device="npu")            # in a new process, on npu or cpu
    logits = predictor([[5, 17, 3], [9, 2, 0]])                # float32 [B, T, V]

The program is causal and has no padding mask: pad shorter rows at the end with any token, and ignore the
logits of the padding. A new process needs only ``load``. A program that builds its own
``paddle.inference.Config`` must call ``paddle_fused.load_operators()`` first.

B rows, T tokens of the longest row, V vocabulary size. Importing this module imports no framework.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np

import paddle_fused
from llm_npu import config as configuration
from llm_npu import device as devices
from llm_npu import launch
from llm_npu.core.atomic import publish, unfinished
from llm_npu.core.errors import UserError
from llm_npu.core.untrusted import plain_json
from llm_npu.models import families, library
from llm_npu.models.families import FAMILIES
from paddle_fused import strict_json

PROGRAM, PARAMETERS, ABOUT = "model.json", "model.pdiparams", "export.json"
SELECTED = "FLAGS_selected_npus"  # the device of a rank

# Backend of the program's operators -> kinds of device that support it.
RUNS_ON = {"native": ("virtual", "cpu"), "ascend": ("card", "virtual")}


def export(
    model,
    folder: str | Path,
    dtype: str | None = None,
    backend: str = "native",
    shape: tuple[int, int] | None = None,
) -> Path:
    """Write ``model`` as a program to the new folder ``folder`` and return the folder.

    Args:
        model: a causal language model of PaddleNLP, or a checkpoint folder for ``pretrained.load_model``.
            A model without fused operators is fused for the export.
        dtype: float32, bfloat16 or float16; only with a folder.
        backend: ``native`` for the CPU place and the virtual NPU, or ``ascend`` (the operators of
            paddle-custom-npu) for a card and the virtual NPU.
        shape: B and T of the program, to which the predictor pads batches; required for ``ascend``.

    Raises:
        UserError: with PaddleFormers, if ``folder`` exists, for an unknown backend or an invalid shape, and
            if the backend does not support an operator's dtype or shape.
    """
    from llm_npu import surgery
    from llm_npu.models.pretrained import load_model
    from llm_npu.surgery.apply import applied_kernels

    from .generate import inference, whole_tables

    folder = Path(folder)
    check_target(folder, backend)
    if isinstance(model, (str, Path)):
        model = load_model(model, dtype)
    elif dtype is not None:
        raise UserError("dtype requires a checkpoint folder; a model is exported in its own dtype")
    about, kernels = describe(model, backend, shape), applied_kernels(model)
    family = FAMILIES.get(model.config.model_type)  # None is rejected below: no layer can be fused
    if family and family.exported_as:
        model = _as(family.exported_as, model)
    is_upstream = not applied_kernels(model)
    if is_upstream:
        surgery.apply_fused_kernels(model, kernels or "auto")
    try:
        with inference(model), whole_tables(model), paddle_fused.use_backend(backend, strict=True):
            _write(_logits(model), about, folder)
    except paddle_fused.BackendError as error:
        raise unsupported(backend, error) from None
    finally:
        if is_upstream:
            surgery.remove_fused_kernels(model)
    return folder


def check_target(folder: Path, backend: str) -> None:
    """Raise UserError with PaddleFormers, if ``folder`` exists, and for an unknown backend."""
    if library.installed_or_none() == library.PADDLEFORMERS:
        raise UserError(
            "the models of PaddleFormers cannot be captured as one program; generate with "
            "llm-npu generate, or export the checkpoint of a Llama or Qwen2 in an environment with the "
            "paddlenlp extra"
        )
    if folder.exists():
        raise UserError(f"{folder} exists already; choose a new folder")
    if backend not in RUNS_ON:
        raise UserError(f"backend is {backend!r}; accepted: {', '.join(RUNS_ON)}")


def unsupported(backend: str, error: Exception) -> UserError:
    """Convert a ``paddle_fused.BackendError`` to the UserError for an unsupported backend."""
    refusal = str(error).rpartition("BackendError: ")[2].strip()
    return UserError(f"The model cannot be exported with backend={backend!r}. {refusal}")


def load(folder: str | Path, device: str = "npu") -> Predictor:
    """Load the program in ``folder`` with paddle.inference.

    Selects the device and loads the operators. Call it before anything imports paddle.

    Args:
        device: as for ``llm_npu.device.select``.

    Raises:
        UserError: for a folder without a program, a device that does not support the operators or the dtype,
            and a number of processes that differs from the number of exported ranks (``export_ranks``).
        RuntimeError: as ``device.select`` and ``paddle_fused.load_operators``.
    """
    folder = Path(folder)
    try:
        about = plain_json.mapping(folder / ABOUT)
    except (OSError, ValueError) as error:
        raise UserError(f"{folder} contains no program of llm_npu.inference.export: {error}") from None
    if (
        about.get("backend") not in RUNS_ON
        or not {"dtype", "rows", "positions", "vocab_size"} <= about.keys()
    ):
        raise UserError(
            f"{folder / ABOUT} does not describe a program of llm_npu.inference.export; export it again"
        )
    chosen = devices.select(device)
    if chosen.kind not in RUNS_ON[about["backend"]]:
        other = next(name for name, kinds in RUNS_ON.items() if chosen.kind in kinds)
        raise UserError(
            f"the program in {folder} uses operators of the backend {about['backend']}, which this device "
            f"({chosen.kind}) does not support; export it with backend={other!r}"
        )
    if chosen.kind == "cpu" and about["dtype"] != "float32":
        raise UserError(
            f"the program in {folder} computes in {about['dtype']}, which the CPU place does not support for "
            "matrix products; export it with dtype='float32'"
        )
    several = _check_processes(folder, about, chosen)
    from paddle import inference

    paddle_fused.load_operators()
    if several:
        folder = _join(folder, about)
    config = inference.Config(str(folder / PROGRAM), str(folder / PARAMETERS))
    config.disable_glog_info()
    if chosen.kind != "cpu":
        config.enable_custom_device("npu", _device_number(chosen))
    return Predictor(inference.create_predictor(config), about)


def _check_processes(folder: Path, about: dict, chosen: devices.Device) -> bool:
    """Return whether the programs need several ranks, and prepare the environment in that case."""
    needed, rings = about.get("ranks", 1), about.get("rings")
    if needed == 1:
        return False
    if not (isinstance(rings, list) and all(isinstance(ring, int) for ring in rings)):
        raise UserError(f"{folder / ABOUT} lists no rings; export the programs again")
    processes = configuration.process_count()
    if processes != needed:
        raise UserError(
            f"{folder} contains programs for {needed} ranks, but {processes} processes are running; start "
            f"{needed} with paddle.distributed.launch"
        )
    launch.prepare_rank(configuration.Early(argv=(), is_rank=True), chosen)
    return True


def _join(folder: Path, about: dict) -> Path:
    """Create the communicators that this rank's program refers to by number; return the rank's folder."""
    import paddle.distributed as dist
    from paddle.distributed.auto_parallel.static import process_group

    from llm_npu.patches import auto_parallel

    auto_parallel.apply()
    dist.init_parallel_env()
    for ring in about["rings"]:
        process_group.new_process_group(list(range(about["ranks"])), group_id=ring).instantiate()
    return folder / of_rank(dist.get_rank())


def of_rank(rank: int) -> str:
    """The folder name of a rank's program."""
    return f"rank-{rank}"


def _device_number(chosen: devices.Device) -> int:
    return int(chosen.name.partition(":")[2] or os.environ.get(SELECTED) or 0)


class Predictor:
    """A program on its device: ``predictor(ids)`` returns logits. ``about`` is the record of `export`."""

    def __init__(self, predictor, about: dict):
        self.about, self._predictor = about, predictor
        self._ids = predictor.get_input_handle(predictor.get_input_names()[0])
        self._logits = predictor.get_output_handle(predictor.get_output_names()[0])

    def __call__(self, input_ids: Sequence[Sequence[int]] | np.ndarray) -> np.ndarray:
        """Return the logits, float32 [B, T, V], of the token after each of ``input_ids`` [B, T].

        Raises UserError for a wrong shape, rows longer than the model's positions, and ids outside the
        vocabulary.
        """
        ids = np.asarray(input_ids, dtype=np.int64)
        rows, positions, vocabulary = (self.about[name] for name in ("rows", "positions", "vocab_size"))
        if ids.ndim != 2 or ids.size == 0 or ids.shape[1] > positions or ids.shape[0] > (rows or len(ids)):
            accepted = f"{'' if rows is None else f'up to {rows} '}rows of 1 to {positions} tokens"
            raise UserError(f"input_ids has shape {list(ids.shape)}; accepted: [B, T], {accepted}")
        unknown = ids[(ids < 0) | (ids >= vocabulary)]
        if unknown.size:
            raise UserError(f"input_ids contains {unknown[0]}; accepted: 0 to {vocabulary - 1}")
        count, length = ids.shape
        if rows is not None:
            ids = np.pad(ids, ((0, rows - count), (0, positions - length)))
        self._ids.reshape(ids.shape)
        self._ids.copy_from_cpu(np.ascontiguousarray(ids))
        self._predictor.run()
        return self._logits.copy_to_cpu()[:count, :length]


def _write(layer, about: dict, folder: Path) -> None:
    import paddle

    rows = about["rows"]
    ids = paddle.static.InputSpec([rows, rows and about["positions"]], "int64", "input_ids")
    with unfinished(folder) as new:
        program = paddle.jit.to_static(layer, input_spec=[ids], full_graph=True)
        paddle.jit.save(program, str(new / Path(PROGRAM).stem))
        (new / ABOUT).write_text(strict_json.dumps(about, indent=2) + "\n")
        publish(new, folder)


def describe(model, backend: str, shape: tuple[int, int] | None) -> dict:
    """The record that ``load`` reads. Raises UserError for an invalid shape."""
    from .generate import positions

    room = positions(model.config)
    if shape is not None and not (len(shape) == 2 and shape[0] >= 1 and 1 <= shape[1] <= room):
        accepted = f"(rows, tokens of a row), 1 to {room} tokens, or None"
        raise UserError(f"shape is {shape}; accepted: {accepted}")
    if shape is None and backend == "ascend":
        raise UserError("backend='ascend' requires shape: flash_attention_npu needs a fixed shape")
    return {
        "model_type": model.config.model_type,
        "backend": backend,
        "dtype": str(next(iter(model.parameters())).dtype).removeprefix("paddle."),
        "vocab_size": model.config.vocab_size,
        "positions": shape[1] if shape else room,
        "rows": shape[0] if shape else None,
    }


def _as(family: str, model):
    """Convert ``model`` to the equivalent classes of another family."""
    from llm_npu.models import weights
    from llm_npu.models.upstream_config import SHARED_FIELDS

    if any(".lora_" in name for name in model.state_dict()):
        name = FAMILIES[model.config.model_type].name
        raise UserError(f"This {name} has LoRA layers, which the export would drop; merge them first")
    fields = {name: getattr(model.config, name) for name in SHARED_FIELDS}
    other = families.model_class(family)(families.config_class(family)(**fields))
    families.cast(other, next(iter(model.parameters())).dtype)
    weights.from_upstream(other, weights.to_upstream(model))
    return other


def _logits(model):
    """A layer from input_ids to float32 logits."""
    import paddle

    class Logits(paddle.nn.Layer):
        def __init__(self):
            super().__init__()
            self.model = model

        def forward(self, input_ids):
            return self.model(input_ids=input_ids, use_cache=False)[0].astype("float32")

    return Logits()
