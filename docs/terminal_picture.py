"""Draws the output of a command as a picture of a terminal, for the pages of docs/.

    python docs/terminal_picture.py docs/images/device_checks.png "$ llm-npu train ..." < output.txt

The output is standard input; the second argument is its first line.
"""

from __future__ import annotations

import sys
import textwrap
from pathlib import Path

from matplotlib.figure import Figure

COLUMNS = 112  # of the terminal
SIZE = 10  # points
PIXELS_PER_INCH = 144
BACKGROUND, TEXT, FINDING = "#1e1e2e", "#cdd6f4", "#f38ba8"


def draw(lines: list[str], file: Path) -> None:
    """Draw the lines, wrapped like in a terminal; those about a finding are red."""
    wrapped = []
    for line in lines:
        color = FINDING if "VIRTUAL_NPU_CHECK (" in line else TEXT
        wrapped += [(part, color) for part in textwrap.wrap(line, COLUMNS, drop_whitespace=False) or [""]]
    width, height = COLUMNS * SIZE * 0.605 / 72 + 0.4, len(wrapped) * SIZE * 1.4 / 72 + 0.4
    figure = Figure(figsize=(width, height), facecolor=BACKGROUND)
    for number, (text, color) in enumerate(wrapped):
        y = 1 - (0.2 + (number + 0.8) * SIZE * 1.4 / 72) / height
        figure.text(0.2 / width, y, text, color=color, family="DejaVu Sans Mono", size=SIZE, parse_math=False)
    figure.savefig(file, dpi=PIXELS_PER_INCH, metadata={"Software": None})


if __name__ == "__main__":
    picture, first_line = sys.argv[1:]
    draw([first_line, *sys.stdin.read().rstrip("\n").split("\n")], Path(picture))
