"""The parts of run_upstream_tests.py: execution and one_file run the tests, report formats the results."""
