"""Console output of a run: ``results`` (before and after training) and ``backend_report``."""
