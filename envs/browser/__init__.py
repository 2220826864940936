"""A real browser whose page stands still while the agent thinks: Chromium over its debugging pipe.

with Browser.open((160, 210), files=folder) as browser:
    browser.navigate(page.as_uri())
    browser.act(Action("click", {"point": (20, 30)}))
    image, elements = browser.screenshot(), browser.elements()
"""

from envs.browser.browser import Browser
from envs.browser.errors import CrashedError, HungError, ScriptError
from envs.browser.find import find, missing
from envs.browser.launch import capabilities

__all__ = ["Browser", "CrashedError", "HungError", "ScriptError", "capabilities", "find", "missing"]
