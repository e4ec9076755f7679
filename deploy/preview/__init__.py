"""The dashboards without Grafana: the same panels, from the same queries, drawn on one page."""
