"""Models, one folder for each library of models. Importing it imports no framework."""
