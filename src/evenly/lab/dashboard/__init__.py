"""The dashboard: a page that shows a fleet as it runs, and lets whoever has the link act on it.

It knows nothing of the fleet but `evenly.lab.dashboard.source.Source`.

    async with Dashboard(source) as dashboard:       # of evenly.lab.dashboard.server
        print(dashboard.url)                         # http://127.0.0.1:41234/#token=…

`evenly.lab.dashboard.server` needs an extra, and so is imported by its own name.
"""
