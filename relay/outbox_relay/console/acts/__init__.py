"""What an operator can do in the console: each act is an operation of a command, with the line that does the same.

An act is chosen by parameters, which come from a link. `tell` reads what it is about when its form is shown, and what
the form has to bring back, so that only what was shown is acted upon: what somebody else did meanwhile is left alone by
the operations, each of which compares before it sets.
"""
