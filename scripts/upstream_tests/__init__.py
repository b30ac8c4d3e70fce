"""The parts of run_upstream_tests.py: execution and one_file run the tests, report tells what came of it."""
