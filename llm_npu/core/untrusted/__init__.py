"""Readers of untrusted files: they run no code, and their use of memory is bounded by the size of the file.

    plain_json      JSON, however deep and long
    pickles         names of pickles, which are refused
    plain_text      text for a terminal or a page: printable characters only
    git_lfs         pointers of git-LFS in place of files
    tokenizer_process
                    a tokenizer.json, in a process with limits
    memory          a memory limit for untrusted computations

Each returns a result or raises UserError with a sentence; OSError comes from the file system. Importing these
modules imports no framework.
"""
