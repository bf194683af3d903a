"""Too many requests at once, and who of them is served: goodput under overload, and fairness in a queue.

``python -m loadtests.overload --help`` teaches its use; ``loadtests/README.md`` says how to read the figures.
"""
