"""Tokenize text once: a file or folder of .txt, .py, .md or .jsonl -> PREFIX.bin + PREFIX.idx.

    llm-npu prepare_data --input_dir texts/ --output_prefix data/texts
    llm-npu train --input_dir data/texts

The pair has the layout of Megatron-LM and PaddleNLP: one document per file (or line of a .jsonl), each
followed by an end-of-text token. Without --tokenizer_name_or_path, a byte-level BPE is trained on the text.
PREFIX-tokenizer is the tokenizer of the ids; the training script loads it from there. Files named after
splits, such as valid.txt or a folder test/, are written to PREFIX-valid and PREFIX-test, which the script
also loads. Output is written atomically. Exit codes: 0 done; 2 bad input, with an error on stderr; 130 after
Ctrl-C and 143 after SIGTERM.
"""

import shutil

from llm_npu.core import console, paths
from llm_npu.core.atomic import unfinished
from llm_npu.data.indexed import move_indexed, open_indexed, part_names, parts, with_suffix, write_indexed
from llm_npu.data.pipeline import documents
from llm_npu.data.text.corpus import corpus
from llm_npu.data.text.tokenizer import (
    copy_tokenizer,
    load_tokenizer,
    tokenizer_of_pair,
    trained_tokenizer,
    vocabulary_size,
)
from llm_npu.models import library
from paddle_fused import command_line


def prepare(args):
    source = corpus(args.input_dir)
    prefix = args.output_prefix
    folder = args.tokenizer_name_or_path or trained_tokenizer(source, args.vocab_size, args.data_cache)
    console.import_frameworks(library.installed())
    tokenizer = load_tokenizer(folder)
    with unfinished(prefix) as new:
        for pair, part in zip(part_names(new / "pair"), source.parts(), strict=True):
            if part is not None:
                write_indexed(pair, documents(part, tokenizer), vocabulary_size(tokenizer))
        copy_tokenizer(folder, new / "tokenizer")
        replace(prefix, new / "pair", new / "tokenizer")
    for note in (*source.notes, *tokenizer.notes):
        console.say(note)
    for pair in filter(None, reversed(parts(prefix))):
        written = open_indexed(pair)
        console.say(f"{len(written.ends)} documents, {written.tokens.size} tokens -> {pair}.bin, {pair}.idx")


def replace(prefix, pair, tokenizer):
    """Replace the pair and tokenizer of ``prefix``, and the pairs of its validation and test split.

    Readers reject a pair without .idx, so old files are removed first and new files moved last: ids are never
    next to another tokenizer, even if the process is killed.
    """
    for old in part_names(prefix):
        with_suffix(old, ".idx").unlink(missing_ok=True)
    folder = tokenizer_of_pair(prefix)
    if folder.is_dir():
        shutil.rmtree(folder)
    tokenizer.rename(folder)
    for old, new in reversed([*zip(part_names(prefix), parts(pair), strict=True)]):
        if new is not None:
            move_indexed(new, old)
        else:
            with_suffix(old, ".bin").unlink(missing_ok=True)


def main(argv):
    parser = command_line.of_document("llm-npu prepare_data", __doc__)
    parser.add_argument("--input_dir", type=paths.path_argument, required=True, help="file or folder of text")
    parser.add_argument(
        "--output_prefix",
        type=paths.path_argument,
        required=True,
        help="path of the pair without .bin and .idx",
    )
    parser.add_argument("--tokenizer_name_or_path", type=paths.expanded, help="local tokenizer directory")
    parser.add_argument(
        "--vocab_size", type=int, default=8192, help="vocabulary size of the trained tokenizer"
    )
    parser.add_argument("--data_cache", help="folder for trained tokenizers (default: $LLM_NPU_CACHE)")
    args = parser.parse_args(argv)
    prepare(args)
    return 0
