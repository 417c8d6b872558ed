from __future__ import annotations

from collections.abc import Iterator

import pytest


@pytest.fixture(scope="session", autouse=True)
def _matplotlib_writes_elsewhere(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Let matplotlib keep its settings and fonts in a temporary folder, not in the home folder."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MPLCONFIGDIR", str(tmp_path_factory.mktemp("matplotlib")))
        yield
