"""The planner's cost model compared with published runs, each predicted from other runs.

programs        how other programs run a step
published.json  the runs, with their sources;  published.py  as shapes and layouts of the planner
fitting.py      efficiencies that explain the runs best
validation.py   every run predicted from unrelated runs
page.py         the page of the documentation about them, and its picture
"""
