"""The planner's cost model against published runs, each predicted from others.

published.json  the runs, with their sources;  published.py  as shapes and layouts of the planner
fitting.py      efficiencies that explain runs best
validation.py   every run predicted from those that say nothing of it
page.py         the page of the documentation about them, and its picture
"""
