from loadtests.overload.engines import FLEET
from loadtests.overload.scenarios import ENGINE, REPLICAS


def test_all_engines_are_equal() -> None:
    assert FLEET.replicas == (ENGINE,) * REPLICAS
