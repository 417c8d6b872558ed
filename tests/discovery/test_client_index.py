from __future__ import annotations

import re
import socket

import pytest

from evenly.discovery.client_index import client_index
from evenly.errors import ConfigError


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        pytest.param({}, None, id="nobody says"),
        pytest.param({"HOSTNAME": "search-3"}, None, id="a hostname that nobody named"),
        pytest.param({"EVENLY_CLIENT_INDEX": ""}, None, id="empty is not set"),
        pytest.param({"EVENLY_CLIENT_INDEX": "0"}, 0, id="zero is an index"),
        pytest.param({"EVENLY_CLIENT_INDEX": "2147483647"}, 2**31 - 1, id="the largest"),
        pytest.param({"JOB_COMPLETION_INDEX": "5"}, 5, id="an indexed job"),
        pytest.param(
            {"EVENLY_CLIENT_INDEX": "7", "JOB_COMPLETION_INDEX": "5"}, 7, id="our own comes first"
        ),
        pytest.param(
            {"EVENLY_CLIENT_INDEX": "hostname", "HOSTNAME": "search-3"}, 3, id="a StatefulSet"
        ),
        pytest.param(
            {"EVENLY_CLIENT_INDEX": "hostname", "HOSTNAME": "search-3.search.prod-9"},
            3,
            id="the first label counts",
        ),
        pytest.param(
            {"EVENLY_CLIENT_INDEX": "3", "EVENLY_WORKERS": "4", "EVENLY_WORKER": "2"},
            3 * 4 + 2,
            id="the workers of a task",
        ),
        pytest.param({"EVENLY_WORKERS": "4", "EVENLY_WORKER": "2"}, None, id="workers alone"),
    ],
)
def test_client_index(environ: dict[str, str], expected: int | None) -> None:
    assert client_index(environ) == expected


def test_workers_of_all_tasks_have_indices_without_gaps() -> None:
    indices = [
        client_index(
            {"JOB_COMPLETION_INDEX": f"{task}", "EVENLY_WORKERS": "3", "EVENLY_WORKER": f"{worker}"}
        )
        for task in range(4)
        for worker in range(3)
    ]

    assert indices == list(range(12))


def test_without_the_variable_the_system_says_the_hostname(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "gethostname", lambda: "indexer-12")

    assert client_index({"EVENLY_CLIENT_INDEX": "hostname"}) == 12


@pytest.mark.parametrize(
    ("environ", "message"),
    [
        (
            {"EVENLY_CLIENT_INDEX": "Hostname"},
            "EVENLY_CLIENT_INDEX must be a whole number in [0, 2147483647] or the word hostname",
        ),
        ({"EVENLY_CLIENT_INDEX": "-1"}, "not '-1'"),
        ({"EVENLY_CLIENT_INDEX": "2147483648"}, "not '2147483648'"),
        ({"EVENLY_CLIENT_INDEX": "1_0"}, "not '1_0'"),
        ({"EVENLY_CLIENT_INDEX": " 1"}, "not ' 1'"),
        ({"EVENLY_CLIENT_INDEX": "٣"}, r"not '\u0663'"),
        (
            {"JOB_COMPLETION_INDEX": "x"},
            "JOB_COMPLETION_INDEX must be a whole number in [0, 2147483647], not 'x'",
        ),
        (
            {"EVENLY_CLIENT_INDEX": "hostname", "HOSTNAME": "search"},
            "as in search-3, and it is 'search'",
        ),
        (
            {"EVENLY_CLIENT_INDEX": "hostname", "HOSTNAME": "a-2147483648"},
            "in [0, 2147483647], as in search-3, and it is 'a-2147483648'",
        ),
        (
            {"EVENLY_CLIENT_INDEX": "1", "EVENLY_WORKERS": "4"},
            "set together, and only EVENLY_WORKERS is: '4'",
        ),
        ({"EVENLY_WORKER": "0"}, "set together, and only EVENLY_WORKER is: '0'"),
        (
            {"EVENLY_WORKERS": "0", "EVENLY_WORKER": "0"},
            "EVENLY_WORKERS must be a whole number in [1, 10000], not '0'",
        ),
        (
            {"EVENLY_WORKERS": "4", "EVENLY_WORKER": "4"},
            "EVENLY_WORKER must be a whole number in [0, 3], not '4'",
        ),
        (
            # 1,073,741,824 × 2 + 0 = 2³¹, one too many
            {"EVENLY_CLIENT_INDEX": "1073741824", "EVENLY_WORKERS": "2", "EVENLY_WORKER": "0"},
            "1073741824 × EVENLY_WORKERS 2 + EVENLY_WORKER 0, must be in [0, 2147483647]",
        ),
    ],
)
def test_a_misspelt_variable_is_refused_with_its_value(
    environ: dict[str, str], message: str
) -> None:
    with pytest.raises(ConfigError, match=re.escape(message)):
        client_index(environ)
