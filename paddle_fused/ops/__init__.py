"""The fused operators, a folder each, and what they share: checks of arguments, and what a case is.

Importing this package and its folders imports no Paddle: the build reads the registrations and contracts.
"""
