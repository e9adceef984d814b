"""Pages in a real browser, where there is one."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")
BROWSER = next(filter(None, map(shutil.which, NAMES)), None)
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--hide-scrollbars",
    "--disable-dev-shm-usage",
    "--no-first-run",
)


def browse(page: Path, *flags: str, query: str = "") -> str:
    """Open a file, and return what the browser writes.

    Args:
        page: the file.
        flags: of the browser, beside those that every test needs.
        query: behind the address, with its question mark.
    """
    profile = f"--user-data-dir={page.parent / 'profile'}"
    command = [str(BROWSER), *FLAGS, profile, *flags, page.as_uri() + query]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=True).stdout
