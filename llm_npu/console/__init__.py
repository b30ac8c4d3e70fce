"""What a run prints: ``summary`` before it starts, ``why`` a backend is chosen, ``results`` at the end."""
