"""Where requests are sent, compared: the same arrivals through each strategy to replicas on which the choice matters.

``python -m loadtests.routing --help`` teaches its use; ``loadtests/README.md`` says how to read the figures.
"""
