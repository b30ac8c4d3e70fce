"""What a run prints: ``summary`` before it starts, ``backend_report``, ``results`` at the end."""
