"""Open a page in the browser without showing its address to others.

An address with a token must not be an argument of a process: everybody on the machine can list
those.  So the browser is given a file that only its user can read, and that leads on to the page.
"""

from __future__ import annotations

import html
import os
import tempfile
import threading
import webbrowser
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

__all__ = ["opened"]

# A browser that is not there yet takes some seconds to read it.
_READ_SECONDS: Final = 60.0
_PAGE: Final = """\
<!doctype html>
<meta charset="utf-8">
<meta http-equiv="refresh" content="0; url={url}">
<title>evenly</title>
<a href="{url}">The page is here.</a>
"""


@contextmanager
def opened(url: str) -> Iterator[None]:
    """Open a page; the file is removed after a minute or at the end of the block."""
    handle, name = tempfile.mkstemp(prefix="evenly-", suffix=".html")  # For its owner only.
    path = Path(name)
    forgetting = threading.Timer(_READ_SECONDS, path.unlink, kwargs={"missing_ok": True})
    forgetting.daemon = True
    try:
        with os.fdopen(handle, "w") as file:
            file.write(_PAGE.format(url=html.escape(url)))
        # Some browsers return when they are closed: nobody waits for that.
        threading.Thread(target=webbrowser.open, args=(path.as_uri(),), daemon=True).start()
        forgetting.start()
        yield
    finally:
        forgetting.cancel()
        path.unlink(missing_ok=True)
