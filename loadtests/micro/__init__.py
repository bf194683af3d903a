"""What single steps of the gateway cost, in one process and without a network.

Only here do load tests look into the gateway: a client cannot see a step.
"""
