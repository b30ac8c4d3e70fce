"""The planner's cost model against published runs, each predicted from others.

programs        how other programs run a step
published.json  the runs, with their sources;  published.py  as shapes and layouts of the planner
fitting.py      efficiencies that explain the runs best
validation.py   every run predicted from unrelated runs
page.py         the page of the documentation about them, and its picture
"""
