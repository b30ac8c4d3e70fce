"""Readers of untrusted files: they run no code from a file, and bound memory by the file's size.

    plain_json      JSON, however deep and long
    pickles         finds pickles, which are rejected
    plain_text      text for a terminal or a page: printable characters only
    git_lfs         git-LFS pointers in place of files
    tokenizer_process
                    a tokenizer.json, in a subprocess with limits
    memory          a memory limit for untrusted computations

Each reader returns a result or raises UserError; OSError comes from the file system. Importing these modules
imports no framework.
"""
