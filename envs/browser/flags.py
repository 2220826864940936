"""The browser's command line."""

from pathlib import Path

from envs.browser.find import is_headless_shell

_ALWAYS = (
    "--allow-file-access-from-files",  # pages of one folder may read each other; nothing outside the folder can be reached
    "--block-new-web-contents",  # no second window; the driver opens what it would have shown in the page itself
    "--disable-backgrounding-occluded-windows",
    "--disable-background-networking",
    "--disable-background-timer-throttling",
    "--disable-breakpad",
    "--disable-component-update",
    "--disable-default-apps",
    "--disable-dev-shm-usage",
    "--disable-extensions",
    # One renderer for a page with all its frames, so that one clock and one session govern them.
    "--disable-features=Translate,OptimizationHints,MediaRouter,PaintHolding,IsolateOrigins,site-per-process,BackForwardCache",
    "--disable-gpu",
    "--disable-renderer-backgrounding",
    "--disable-site-isolation-trials",
    "--disable-smooth-scrolling",
    "--disable-sync",
    "--font-render-hinting=none",
    "--force-color-profile=srgb",
    "--force-device-scale-factor=1",
    "--force-webrtc-ip-handling-policy=disable_non_proxied_udp",
    "--hide-scrollbars",
    "--js-flags=--random-seed=1",  # Math.random gives the same numbers in every run
    "--lang=en-US",
    "--mute-audio",
    "--no-default-browser-check",
    "--no-first-run",
    "--password-store=basic",
    # Whatever does not pass through the driver's own check of requests ends at a port where nobody listens.
    "--proxy-bypass-list=<-loopback>",
    "--proxy-server=http://127.0.0.1:9",
    "--remote-debugging-pipe",
    "--renderer-process-limit=1",  # pages of another site stay in the same process, whose clock goes on
    "--use-mock-keychain",
)
_BEGIN_FRAME = (
    "--disable-checker-imaging",
    "--disable-new-content-rendering-timeout",
    "--disable-threaded-animation",
    "--disable-threaded-scrolling",
    "--enable-begin-frame-control",
    "--run-all-compositor-stages-before-draw",
)


def flags(executable: Path, profile: Path, size_wh: tuple[int, int], begin_frame: bool, no_sandbox: bool) -> list[str]:
    """The arguments for a fresh profile folder and a window of this size.

    ``begin_frame``: frames come only when asked for. ``no_sandbox``: without Chromium's own sandbox, which root and a process
    inside our sandbox can't have.
    """
    return [
        *_ALWAYS,
        *(_BEGIN_FRAME if begin_frame else ()),
        *(("--no-sandbox",) if no_sandbox else ()),
        *(() if is_headless_shell(executable) else ("--headless=new",)),
        f"--user-data-dir={profile}",
        f"--window-size={size_wh[0]},{size_wh[1]}",
        "about:blank",
    ]
