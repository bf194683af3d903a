"""A process of simulated engines, as that of the routing scenarios: ``python -m loadtests.overload.engines``."""

from __future__ import annotations

import uvloop

from loadtests.overload.scenarios import ENGINE, REPLICAS, USUAL
from loadtests.routing.engines import serve
from loadtests.routing.scenarios import Scenario
from loadtests.routing.traffic import Unshared

FLEET = Scenario("overload", "equal replicas", Unshared(1.0, USUAL, USUAL), (ENGINE,) * REPLICAS)
"""Its traffic is nobody's: requests are made in another process."""

if __name__ == "__main__":
    uvloop.run(serve(FLEET))
