"""Names and values as a user writes them, on the command line or in a file.

argument_file   the YAML or JSON file of arguments
values          the text of a value -> the value of its flag
aliases         names of other launchers: translated, or refused with what to give instead
nearest         the known name that a misspelt one is meant to be
"""
