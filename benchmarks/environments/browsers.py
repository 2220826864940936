"""A step of MiniWoB's click-test: a click, a screenshot and the page's elements. Ours, the package's own, playwright."""

import contextlib
import json
import os
import shutil
import statistics
import time
from pathlib import Path
from typing import Any

import numpy as np

from envs import Action, make, make_vec
from envs.api import Obs, Point
from envs.browser.find import find
from envs.miniwob import SCREEN_WH, html_folder

from .common import Scale, last, megabytes, processes, rounded, verdict

TASK = "click-test"
STEPS = 20  # in an episode: the peers' pages end after ten seconds of real time
PROCESSES, EACH = (1, 2, 4), 50  # steps of each session: a page's ten seconds of virtual time are 66
TARGETS = {"selenium": 7.0, "playwright": 2.5}
CHROMIUM, DRIVER = "/usr/bin/chromium", "chromedriver"
CORNERS = ((4.0, 205.0), (155.0, 205.0), (4.0, 56.0), (155.0, 56.0))  # where a click ends nothing, unless the button is there


class Ours:
    """An environment of our own, in this process."""

    def __init__(self) -> None:
        self._env = make(f"miniwob/{TASK}", reset="page")

    def reset(self, seed: int, point: Any) -> Point:
        return free_corner(self._env.reset(seed=seed))

    def step(self, point: Point) -> None:
        result = self._env.step(Action("click", {"point": point}))
        assert not result.terminated
        assert result.obs.screenshot
        assert any(element.role == "button" for element in result.obs.elements)

    def close(self) -> None:
        self._env.close()


class Selenium:
    """The package's own environment: the driver of Chromium beside a whole browser."""

    def __init__(self) -> None:
        chromium, driver = Path(CHROMIUM), shutil.which(DRIVER)
        if not chromium.exists() or driver is None:
            raise RuntimeError("the package chromium-driver is not installed")
        os.environ["MINIWOB_CHROME_BINARY"], os.environ["MINIWOB_CHROMEDRIVER"] = str(chromium), driver
        from miniwob.action import ActionTypes
        from miniwob.environment import MiniWoBEnvironment

        self._kind = ActionTypes.CLICK_COORDS
        self._env = MiniWoBEnvironment(subdomain=TASK)

    def reset(self, seed: int, point: Point) -> Point:
        self._env.reset(seed=seed)
        return point

    def step(self, point: Point) -> None:
        action = self._env.create_action(self._kind, coords=np.array(point, np.float32))
        obs, _, terminated, _, _ = self._env.step(action)
        assert not terminated
        assert obs["screenshot"].any()
        assert any(part["tag"].lower() == "button" for part in obs["dom_elements"])

    def close(self) -> None:
        self._env.close()


class Playwright:
    """The same page in the same browser, by playwright's synchronous calls."""

    def __init__(self) -> None:
        from playwright.sync_api import sync_playwright

        self._playwright = sync_playwright().start()
        try:
            self._browser = self._playwright.chromium.launch(executable_path=str(find()), args=["--no-sandbox"])
            self._page = self._browser.new_page(viewport={"width": SCREEN_WH[0], "height": SCREEN_WH[1]})
            self._page.goto((html_folder() / "miniwob" / f"{TASK}.html").as_uri())
        except BaseException:
            self._playwright.stop()
            raise

    def reset(self, seed: int, point: Point) -> Point:
        self._page.evaluate(f"() => {{ core.endEpisode(0); Math.seedrandom({seed}); core.startEpisodeReal(); }}")
        return point

    def step(self, point: Point) -> None:
        self._page.mouse.click(*point)
        screenshot = self._page.screenshot()
        done, _, root = self._page.evaluate("() => [WOB_DONE_GLOBAL, WOB_RAW_REWARD_GLOBAL, core.getDOMInfo()]")
        assert not done
        assert screenshot
        assert '"BUTTON"' in json.dumps(root)

    def close(self) -> None:
        self._browser.close()
        self._playwright.stop()


def free_corner(obs: Obs) -> Point:
    """A point of the page where a click does nothing: the button is elsewhere."""
    buttons = [element.box for element in obs.elements if element.role == "button"]
    return next((x, y) for x, y in CORNERS if not any(x1 <= x <= x2 and y1 <= y <= y2 for x1, y1, x2, y2 in buttons))


SIDES: dict[str, Any] = {"ours": Ours, "playwright": Playwright, "selenium": Selenium}


def run(scale: Scale) -> dict[str, Any]:
    """One of each side by side, then ours in several processes."""
    steps = max(2, int(STEPS * scale.size))
    print(f"miniwob: {TASK}, {steps} steps an episode: click, screenshot, elements")
    seconds, resets, memory, notes = measure(steps, scale.rounds)
    medians = {name: statistics.median(each) for name, each in seconds.items()}
    ratios: dict[str, float] = {}
    for name, each in seconds.items():
        ratio = medians[name] / medians["ours"]
        told = "" if name == "ours" else f"   {ratio:.2f} x ours"
        if name != "ours":
            ratios[name] = ratio
        print(
            f"  {name:12} {medians[name] * 1e3:7.1f} ms a step ({min(each) * 1e3:.1f} to {max(each) * 1e3:.1f}), "
            f"{statistics.median(resets[name]) * 1e3:6.1f} ms a reset, {memory[name]:5.0f} MB{told}",
            flush=True,
        )
    met = verdict(ratios, TARGETS)
    total = several(max(2, int(EACH * scale.size)))
    return {
        "ms_per_step": rounded({name: 1e3 * value for name, value in medians.items()}),
        "ms_per_reset": rounded({name: 1e3 * statistics.median(each) for name, each in resets.items()}),
        "megabytes": rounded(memory, 0),
        "ratios": rounded(ratios),
        "targets": TARGETS,
        "met": met,
        "processes": total,
        "notes": notes,
    }


def measure(steps: int, rounds: int) -> tuple[dict[str, list[float]], dict[str, list[float]], dict[str, float], list[str]]:
    """Seconds a step and a reset of each side, round by round; their memory in MB; which could not be had, and why."""
    opened: dict[str, Any] = {}
    memory: dict[str, float] = {}
    notes = []
    point: Point = CORNERS[0]
    try:
        for name, kind in SIDES.items():
            before = processes([os.getpid()])
            try:
                side = kind()
                point = side.reset(0, point)
            except Exception as error:
                if name == "ours":
                    raise
                notes.append(f"no {name}: {last(error)}")
                print(f"  {notes[-1]}", flush=True)
                continue
            opened[name] = side
            memory[name] = megabytes(processes([os.getpid()]) - before)
        seconds: dict[str, list[float]] = {name: [] for name in opened}
        resets: dict[str, list[float]] = {name: [] for name in opened}
        for number in range(rounds + 1):
            for name, side in opened.items():
                begun = time.perf_counter()
                point = side.reset(number, point)  # ours comes first: the same seed draws the same problem for all
                ready = time.perf_counter()
                for _ in range(steps):
                    side.step(point)
                if number:
                    resets[name].append(ready - begun)
                    seconds[name].append((time.perf_counter() - ready) / steps)
        return seconds, resets, memory, notes
    finally:
        for side in opened.values():
            with contextlib.suppress(Exception):
                side.close()


def several(steps: int) -> dict[str, dict[str, float]]:
    """Steps/s of all sessions and MB of all processes, for some numbers of sessions behind a step server."""
    found = {}
    for N in PROCESSES:
        with make_vec(f"miniwob/{TASK}", N, 1, options={"reset": "page"}) as vector:
            clicks = [Action("click", {"point": free_corner(obs)}) for obs in vector.reset().obs]
            vector.step(clicks)
            begun = time.perf_counter()
            vector.send(clicks)
            left = [steps - 1] * N
            for _ in range(N * steps):
                batch = vector.recv()
                assert batch.status == ["OK"]
                session = int(batch.ids[0])
                if left[session]:
                    left[session] -= 1
                    vector.send([clicks[session]], [session])
            rate = N * steps / (time.perf_counter() - begun)
            memory = megabytes(processes(vector.stats()[0]["pids"]))
        found[str(N)] = {"steps_per_second": round(rate, 1), "megabytes": round(memory)}
        print(f"  {N} processes: {rate:6.1f} steps/s, {memory:5.0f} MB ({memory / N:.0f} each)", flush=True)
    return found
