"""The report of a run, for people: one HTML file with pictures, tables and the result, which needs no other file.

Only what is asked for is loaded: matplotlib draws, and is imported when there is something to draw.
"""
