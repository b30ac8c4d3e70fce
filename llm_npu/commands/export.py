"""Write a checkpoint as a program for paddle.inference, with the fused operators inside.

    llm-npu export output/checkpoint-100 served
    llm-npu export CHECKPOINT served --backend ascend --shape 4 512      # for a card
    llm-npu export CHECKPOINT served --nproc 2 --tensor_parallel_degree 2 --shape 4 512

``llm_npu.inference.export.load`` reads the folder. With --nproc the folder has a program for each rank, for
PaddleNLP's Llama or Qwen2, split by auto-parallel's annotations. Exit codes: 0 done; 2 bad input, with an
error on stderr; 130 after Ctrl-C.
"""

import argparse

from llm_npu import device
from llm_npu.commands import ranks
from llm_npu.core import console, paths
from llm_npu.core.errors import UserError, caused_by_the_user
from llm_npu.inference import export
from llm_npu.inference.mesh import Mesh
from paddle_fused import command_line


def main(argv: list[str]) -> int:
    arguments = parse(argv)
    degree = arguments.tensor_parallel_degree
    mesh = Mesh(degree, auto=degree > 1)
    ranks.check_processes(mesh, arguments.nproc)
    export.check_target(arguments.folder, arguments.backend)
    if arguments.shape is None and (degree > 1 or arguments.backend == "ascend"):
        reason = "several ranks need programs" if degree > 1 else "--backend ascend needs a program"
        raise UserError(f"{reason} of one shape; set --shape ROWS TOKENS")
    mesh.check(arguments.checkpoint)
    return ranks.run("export", argv, arguments.device, arguments.nproc, lambda on: write(arguments, mesh, on))


def write(arguments: argparse.Namespace, mesh: Mesh, chosen: device.Device) -> int:
    """Export on this rank; only rank 0 prints."""
    ranks.import_and_join(chosen, mesh)
    from llm_npu.inference.export_ranks import export_ranks

    options = {"dtype": arguments.dtype, "backend": arguments.backend}
    with caused_by_the_user():  # damaged or missing files
        if mesh.ranks > 1:
            export_ranks(arguments.checkpoint, arguments.folder, mesh, tuple(arguments.shape), **options)
        else:
            shape = arguments.shape and tuple(arguments.shape)
            export.export(arguments.checkpoint, arguments.folder, shape=shape, **options)
    console.say(f"written {arguments.folder}")
    return 0


def parse(argv: list[str]) -> argparse.Namespace:
    parser = command_line.of_document("llm-npu export", __doc__)
    parser.add_argument(
        "checkpoint", type=paths.expanded, help="folder with config.json and safetensors files"
    )
    parser.add_argument("folder", type=paths.path_argument, help="the new folder of the program")
    parser.add_argument("--dtype", help="float32, bfloat16 or float16 (default: as stored; on cpu float32)")
    parser.add_argument(
        "--backend",
        default="native",
        help="native: for the CPU and the virtual NPU (default); ascend: for a card and the virtual NPU",
    )
    parser.add_argument(
        "--shape",
        nargs=2,
        type=ranks.positive,
        metavar=("ROWS", "TOKENS"),
        help="fixed shape that batches are padded to (default: any)",
    )
    parser.add_argument("--device", default="npu", help=device.ACCEPTED)
    parser.add_argument(
        "--nproc", type=ranks.positive, default=1, help="number of ranks to split the model over"
    )
    parser.add_argument(
        "--tensor_parallel_degree", type=ranks.positive, default=1, help="ranks per layer; must equal --nproc"
    )
    return parser.parse_args(argv)
