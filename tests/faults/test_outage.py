"""A thousand client tasks in front of a service that is dead."""

from __future__ import annotations

import pytest

from tests.core.test_client_task_outage import storm

pytestmark = pytest.mark.faults


@pytest.mark.parametrize("backends", [1, 20])
def test_a_thousand_client_tasks_do_not_storm_a_dead_service(backends: int) -> None:
    storm(backends, clients=1_000)
