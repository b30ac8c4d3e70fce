"""Merges the parts of a checkpoint, from the disks of several machines, into one complete folder.

    llm-npu merge_checkpoint machine0/checkpoint-20 machine1/checkpoint-20 --output_dir merged

The result, merged/checkpoint-20, is the checkpoint that a run on a shared disk would have written. The given
folders stay as they are. Exit codes: 0 merged; 2 bad input, with one sentence on stderr and a list of what is
missing or damaged.
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
from llm_npu.training.checkpoint.parts import Assembly, contents
from llm_npu.training.checkpoint.write_plan import kind_of_part
from paddle_fused import command_line


def main(argv: list[str]) -> int:
    parser = command_line.Parser(prog="llm-npu merge_checkpoint", description=__doc__.split("\n")[0])
    parser.add_argument(
        "folders", type=paths.given, nargs="+", metavar="FOLDER", help="a machine's checkpoint-<step>"
    )
    parser.add_argument(
        "--output_dir", type=paths.given, required=True, help="where checkpoint-<step> is to appear"
    )
    arguments = parser.parse_args(argv)
    console.say(f"merged   {merge(arguments.folders, arguments.output_dir)}")
    return 0


def merge(sources: Sequence[Path], output_dir: Path) -> Path:
    """The complete checkpoint in ``output_dir`` of the parts in ``sources``.

    UserError unless these are parts of one checkpoint, and together have all of its files, undamaged.
    """
    step, files = _manifest(sources)
    final = folders.path_of(output_dir, step)
    if final.exists():
        raise UserError(f"{final} exists already; give another --output_dir.")
    of_file = _places(sources, files)
    of_files = {name: contents(file) for name, file in of_file.items() if kind_of_part(name)}
    with unfinished(final) as new:
        with Assembly(new, of_files) as assembly:
            for name, file in of_file.items():
                if name in of_files:
                    assembly.add(name, file)
                else:
                    shutil.copyfile(file, new / name)
        whole = {name: files[name] for name in files if name not in of_files}
        made = folders.checksums(new, [name for name in folders.contents(new) if name not in whole])
        folders.commit(new, final, whole | made)
    return final


def _manifest(sources: Sequence[Path]) -> tuple[int, dict[str, dict]]:
    """The step and the files that all ``sources`` name."""
    found = {}
    for folder in sources:
        mark = folders.MARK if (folder / folders.MARK).is_file() else folders.PREPARED
        if not (folder / mark).is_file():
            raise UserError(f"{folder} has no {folders.MARK}; give the checkpoint-<step> of each machine.")
        found[folder] = mark, *folders.manifest(folder, mark)
    first, (_, step, files) = next(iter(found.items()))
    for folder, (_, other, of_other) in found.items():
        if (other, of_other) != (step, files):
            raise UserError(
                f"{first} is of step {step} and {folder} of step {other}; give parts of one checkpoint."
                if other != step
                else f"{first} and {folder} were written by different runs; give parts of one checkpoint."
            )
    if all(mark == folders.PREPARED for mark, *_ in found.values()):
        raise UserError(
            f"no folder has a {folders.MARK}; add that of the first machine, which has one if all machines "
            "have written the checkpoint to its end."
        )
    return step, files


def _places(sources: Sequence[Path], files: dict[str, dict]) -> dict[str, Path]:
    """Where each of the ``files`` is undamaged. UserError with all that are not."""
    found, lines = {}, []
    for name in sorted(files):
        damage = {folder: folders.damage_of(folder / name, files[name]) for folder in sources}
        found[name] = next((folder / name for folder in sources if damage[folder] is None), None)
        if found[name] is None:
            others = [f"{why} in {folder}" for folder, why in damage.items() if why != folders.MISSING]
            lines.append(
                f"  {name}  {files[name].get('bytes')} bytes  {'; '.join(others) or folders.MISSING}"
            )
    if lines:
        raise UserError(
            "these folders are not a complete checkpoint; add the one that has these files:\n"
            + "\n".join(lines)
        )
    return found


if __name__ == "__main__":
    sys.exit(program.run(main, sys.argv[1:]))
