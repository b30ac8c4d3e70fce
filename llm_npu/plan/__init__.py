"""Plans a run before any card is booked. Importing it imports no framework.

shape, layout         the sizes of a model, and how a run of it is shared by cards
operations            a step of training as a list of operations
"""
