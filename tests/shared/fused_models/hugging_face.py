"""The logits of checkpoints in Hugging Face's transformers: a program for an interpreter with torch.

    python hugging_face.py FOLDER

FOLDER/ids.npy holds token ids [B, T]. For every FOLDER/<name>/fields.json, the fields of a config.json, it
writes a checkpoint of random weights to FOLDER/<name>/theirs, and the logits of that and of the checkpoint in
FOLDER/<name>/ours to theirs.npy and ours.npy beside them, in float32.
"""

import json
import sys
from pathlib import Path

import numpy as np
import torch
from transformers import AutoConfig, AutoModelForCausalLM


def main(folder: Path) -> None:
    torch.set_num_threads(1)
    ids = torch.from_numpy(np.load(folder / "ids.npy"))
    for file in sorted(folder.glob("*/fields.json")):
        fields = json.loads(file.read_text())
        random_model(fields).save_pretrained(file.parent / "theirs")
        for name in ("theirs", "ours"):
            np.save(file.parent / f"{name}.npy", logits_of(file.parent / name, ids))


def random_model(fields: dict):
    """With random norms and biases: ones and zeros would hide what is left out."""
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(**fields))
    for name, parameter in model.named_parameters():
        if "norm" in name:
            torch.nn.init.uniform_(parameter, 0.5, 1.5)
        elif name.endswith("bias"):
            torch.nn.init.normal_(parameter, std=0.3)
    return model


def logits_of(folder: Path, ids: torch.Tensor) -> np.ndarray:
    model, loading_info = AutoModelForCausalLM.from_pretrained(
        folder, torch_dtype=torch.float32, attn_implementation="eager", output_loading_info=True
    )
    wrong = {kind: sorted(names) for kind, names in loading_info.items() if names}
    if wrong:
        raise SystemExit(f"{folder}: {wrong}")
    with torch.no_grad():
        return model.eval()(input_ids=ids).logits.float().numpy()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
