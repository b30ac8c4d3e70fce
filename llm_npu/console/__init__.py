"""What a run prints: ``summary`` before it starts, ``why`` a backend was chosen, and ``results`` at the end."""
