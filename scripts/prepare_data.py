"""Tokenise text once: a file or folder of .txt, .py, .md or .jsonl -> PREFIX.bin + PREFIX.idx.

    python scripts/prepare_data.py --input_path texts/ --output_prefix data/texts
    python scripts/run_llama_npu.py --input_dir data/texts --tokenizer_name_or_path data/texts-tokenizer

The pair is in the layout that Megatron-LM and PaddleNLP read, one document per file (or line of a .jsonl),
each with an end-of-text token after it. Without --tokenizer_name_or_path, a byte-level BPE is trained on the
text and written to PREFIX-tokenizer. Output appears complete or not at all. Bad input is exit status 2.
"""

import argparse
import shutil
import signal
import sys
from pathlib import Path

from llm_npu.atomic import publish, unfinished
from llm_npu.corpus import corpus
from llm_npu.data import documents
from llm_npu.data.indexed import open_indexed, write_indexed
from llm_npu.tokenizer import load_tokenizer, trained_tokenizer


def prepare(args):
    source = corpus(args.input_path.expanduser())
    prefix = args.output_prefix.expanduser()
    trained = None
    if not args.tokenizer_name_or_path:
        trained = trained_tokenizer(source, args.vocab_size, args.data_cache)
    tokenizer = load_tokenizer(args.tokenizer_name_or_path or trained)
    # Not earlier: Paddle, which the tokenizer imports, takes the signal over. unfinished() cleans up on exit.
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    write_indexed(prefix, documents(source, tokenizer), len(tokenizer))
    if trained:
        copy(trained, prefix.parent / f"{prefix.name}-tokenizer")
    written = open_indexed(prefix)
    print(f"{len(written.ends)} documents, {written.tokens.size} tokens -> {prefix}.bin, {prefix}.idx")


def copy(folder, target):
    """Copy a folder, in place of what is there."""
    with unfinished(target) as unpublished:
        shutil.copytree(folder, unpublished, dirs_exist_ok=True)
        shutil.rmtree(target, ignore_errors=True)
        publish(unpublished, target)


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("--input_path", type=Path, required=True, help="file or folder of text")
    parser.add_argument("--output_prefix", type=Path, required=True, help="what stands before .bin and .idx")
    parser.add_argument("--tokenizer_name_or_path", help="local directory of a tokenizer")
    parser.add_argument(
        "--vocab_size", type=int, default=8192, help="tokens of the tokenizer trained without one"
    )
    parser.add_argument("--data_cache", help="folder for trained tokenizers (default: $LLM_NPU_CACHE)")
    args = parser.parse_args()
    try:
        prepare(args)
    except (ValueError, OSError) as error:
        print(f"prepare_data.py: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    return 0


if __name__ == "__main__":
    sys.exit(main())
