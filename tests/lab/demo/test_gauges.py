from __future__ import annotations

from prometheus_client.parser import text_string_to_metric_families

from evenly.lab.demo.gauges import GAUGES, metrics_page


def test_prometheus_reads_the_gauges() -> None:
    page = metrics_page({"load": 0.7, "capacity": 200, "odd": 1.0})

    families = list(text_string_to_metric_families(page))
    assert [(one.name, one.type, one.documentation) for one in families] == [
        ("evenly_demo_capacity", "gauge", GAUGES["capacity"]),
        ("evenly_demo_load", "gauge", GAUGES["load"]),
    ]
    assert [sample.value for one in families for sample in one.samples] == [200.0, 0.7]
