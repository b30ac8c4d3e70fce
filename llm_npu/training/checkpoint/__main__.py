"""Merges the parts of a checkpoint from several machines' disks into one complete folder.

    llm-npu merge_checkpoint machine0/checkpoint-20 machine1/checkpoint-20 --output_dir merged

The result, merged/checkpoint-20, is identical to a checkpoint written on a shared disk. The source folders
are not changed. Exit codes: 0 merged; 2 bad input, with an error on stderr that lists missing or damaged
files.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from llm_npu.core import console, paths, program
from llm_npu.core.atomic import unfinished
from llm_npu.core.errors import UserError
from llm_npu.training.checkpoint import folder as folders
from llm_npu.training.checkpoint.write_plan import Assembly, contents, kind_of_part
from paddle_fused import command_line


def main(argv: list[str]) -> int:
    parser = command_line.Parser(prog="llm-npu merge_checkpoint", description=__doc__.split("\n")[0])
    parser.add_argument(
        "folders", type=paths.path_argument, nargs="+", metavar="FOLDER", help="a machine's checkpoint-<step>"
    )
    parser.add_argument(
        "--output_dir",
        type=paths.path_argument,
        required=True,
        help="the folder for the merged checkpoint-<step>",
    )
    arguments = parser.parse_args(argv)
    console.say(f"merged   {merge(arguments.folders, arguments.output_dir)}")
    return 0


def merge(sources: Sequence[Path], output_dir: Path) -> Path:
    """Merge the parts in ``sources`` into a complete checkpoint in ``output_dir``.

    Raises UserError unless the parts belong to one checkpoint and contain all its files undamaged.
    """
    step, files = _manifest(sources)
    final = folders.path_of(output_dir, step)
    if final.exists():
        raise UserError(f"{final} exists already; use another --output_dir")
    file_of = _undamaged(sources, files)
    part_files = {name: contents(file) for name, file in file_of.items() if kind_of_part(name)}
    with unfinished(final) as new:
        with Assembly(new, part_files) as assembly:
            for name, file in file_of.items():
                if name in part_files:
                    assembly.add(name, file)
                else:
                    shutil.copyfile(file, new / name)
        whole = {name: files[name] for name in files if name not in part_files}
        assembled = [name for name in folders.contents(new) if name not in whole]
        folders.commit(new, final, whole | folders.checksums(new, assembled))
    return final


def _manifest(sources: Sequence[Path]) -> tuple[int, dict[str, dict]]:
    """The step and files in the marks of all ``sources``. Raises UserError if the marks differ."""
    marks = {}
    for folder in sources:
        mark = folders.MARK if (folder / folders.MARK).is_file() else folders.PREPARED
        if not (folder / mark).is_file():
            raise UserError(f"{folder} has no {folders.MARK}; specify the checkpoint-<step> of each machine")
        marks[folder] = mark, *folders.manifest(folder, mark)
    first, (_, step, files) = next(iter(marks.items()))
    for folder, (_, other_step, other_files) in marks.items():
        if (other_step, other_files) != (step, files):
            raise UserError(
                f"{first} has step {step}, but {folder} has step {other_step}; use parts of one checkpoint"
                if other_step != step
                else f"{first} and {folder} were written by different runs; use parts of one checkpoint"
            )
    if all(mark == folders.PREPARED for mark, *_ in marks.values()):
        raise UserError(
            f"no folder has a {folders.MARK}; add the folder of the first machine, which contains it if all "
            "machines have completed the checkpoint"
        )
    return step, files


def _undamaged(sources: Sequence[Path], files: dict[str, dict]) -> dict[str, Path]:
    """An undamaged copy of each file in ``files``. Raises UserError that lists files without one."""
    copies, lines = {}, []
    for name in sorted(files):
        damage = {folder: folders.damage_of(folder / name, files[name]) for folder in sources}
        copies[name] = next((folder / name for folder in sources if damage[folder] is None), None)
        if copies[name] is None:
            damaged = [f"{why} in {folder}" for folder, why in damage.items() if why != folders.MISSING]
            reasons = "; ".join(damaged) or folders.MISSING
            lines.append(f"  {name}  {files[name].get('bytes')} bytes  {reasons}")
    if lines:
        raise UserError(
            "these folders are not a complete checkpoint; add the folder with these files:\n"
            + "\n".join(lines)
        )
    return copies


if __name__ == "__main__":
    sys.exit(program.run(main, sys.argv[1:]))
