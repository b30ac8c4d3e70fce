"""The API sweep: public Paddle APIs run on the CPU place and on npu, and compared bit by bit.

Reading order: ``inputs`` (what a case is fed), ``case`` (what a case is), ``families/`` (the cases, as
tables), ``run`` (one case on one place), ``comparison`` (two runs), ``differences`` (what does not agree, and
why), ``document`` and ``report`` (the documentation's page).
"""
