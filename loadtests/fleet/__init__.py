"""The fleet under load: what users notice when replicas are added, and what looking after many replicas costs.

``python -m loadtests.fleet --help`` teaches its use; ``loadtests/README.md`` says how to read the figures.
"""
