"""Models by the library that has them. Importing it imports no framework."""
