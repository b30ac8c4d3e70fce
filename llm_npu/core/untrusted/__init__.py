"""Readers of files that somebody else may have written: they run no code, and take no memory that the file
does not pay for.

    plain_json      JSON, however deep and long
    plain_pickle    what ``paddle.save`` wrote, if it is plain data
    memory          a limit for computations that somebody else has thought up

Each gives a result or raises ValueError with a sentence; OSError is the file system's. Nothing here imports a
framework when it is imported, or another part of this project.
"""
