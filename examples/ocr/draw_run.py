"""Draws the losses of the run in FOLDER, and three held-out images with what its model reads in them.

llm-npu formers examples/ocr/draw_run.py FOLDER PICTURE.png
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import matplotlib.pyplot as plt
from PIL import Image
from read_words import Reader
from visualdl import LogReader

READINGS = 3


def losses(reader: LogReader, name: str) -> tuple[list[int], list[float]]:
    """(steps, values) of one series."""
    points = reader.get_data("scalar", name)
    return [point.id for point in points], [point.value for point in points]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("picture", type=Path)
    arguments = parser.parse_args()
    *_, newest = sorted((arguments.folder / "vdl_log").glob("*.log"))
    logged = LogReader(file_path=str(newest))
    reader = Reader(arguments.folder / "checkpoint", longest=16)
    figure = plt.figure(figsize=(9, 3.6), layout="constrained")
    grid = figure.add_gridspec(READINGS, 2, width_ratios=(2, 1))
    axes = figure.add_subplot(grid[:, 0])
    axes.plot(*losses(logged, "train/loss"), label="training")
    axes.plot(*losses(logged, "eval/loss"), "o-", label="held-out words")
    axes.set(xlabel="step", ylabel="cross-entropy per token (nats)", ylim=(0, None))
    axes.grid(alpha=0.3)
    axes.legend()
    lines = (arguments.folder / "eval.jsonl").read_text().splitlines()[:READINGS]
    for row, line in enumerate(lines):
        with Image.open(arguments.folder / json.loads(line)["images"][0]) as image:
            word = image.convert("RGB")
        cell = figure.add_subplot(grid[row, 1])
        cell.imshow(word)
        cell.set(xticks=[], yticks=[], title=f"read: {reader.read(word)}")
    figure.savefig(arguments.picture, dpi=120)


if __name__ == "__main__":
    main()
