"""What the gateway costs: CPU, latency and memory next to a direct run and next to peers, measured in the same run.

``python -m loadtests.bench --help`` teaches its use; ``loadtests/README.md`` says how to read the figures.
"""
