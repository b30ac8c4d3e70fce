"""What can be wrong with options, said before anything is measured."""

import shutil
from pathlib import Path

PICTURES = ("chart", "growth")


def check(parser, arguments) -> None:
    """Ends the script by ``parser.error`` if a result could not be written or torch's Python not started."""
    for name in ("json", *PICTURES):
        file = getattr(arguments, name, None)
        if not file:
            continue
        if not Path(file).absolute().parent.is_dir():
            parser.error(f"--{name} {file}: there is no folder {Path(file).parent}; make it first")
        if Path(file).is_dir():
            parser.error(f"--{name} {file} is a folder; accepted: the name of a file")
        if name in PICTURES and Path(file).suffix.lower() != ".png":
            parser.error(f"--{name} {file}: accepted is a name that ends with .png")
    if shutil.which(arguments.torch_python) is None:
        parser.error(
            f"--torch-python {arguments.torch_python} is no program; accepted: an interpreter that "
            "has torch; leave it out to use this one"
        )
