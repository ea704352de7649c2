"""Drives a headless Chromium through its debugging pipe, with Python's standard library alone."""

import base64
import json
import os
import shutil
import subprocess
import tempfile
import time

PROGRAMS = ("chromium", "chromium-browser", "google-chrome", "chrome")


def find():
    """Returns the path of a Chromium, or None."""
    return os.environ.get("CHROMIUM") or next((path for path in map(shutil.which, PROGRAMS) if path), None)


class Browser:
    """One page in a Chromium of its own profile; a context manager."""

    def __init__(self, width=1280, height=900, dark=False):
        self.profile = tempfile.mkdtemp(prefix="unishard-chromium-")
        self.number, self.messages = 0, []
        to_child, self.to_browser = os.pipe()
        self.from_browser, from_child = os.pipe()

        def connect():  # the pipe's ends are descriptors 3 and 4; they may have these numbers already
            read, write = os.dup(to_child), os.dup(from_child)
            os.dup2(read, 3)
            os.dup2(write, 4)

        self.process = subprocess.Popen(
            [find(), "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--remote-debugging-pipe",
             "--no-first-run", f"--user-data-dir={self.profile}", "about:blank"],
            preexec_fn=connect, close_fds=False, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        os.close(to_child)
        os.close(from_child)
        self.left = b""
        targets = self.call("Target.getTargets")["targetInfos"]
        page = next(one for one in targets if one["type"] == "page")
        self.session = self.call("Target.attachToTarget", targetId=page["targetId"], flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log"):
            self.call(f"{domain}.enable")
        self.resize(width, height)
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}])

    session = None

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        os.close(self.to_browser)
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        os.close(self.from_browser)
        shutil.rmtree(self.profile, ignore_errors=True)

    def call(self, method, **parameters):
        """Calls a method of the protocol and returns its result; events that arrive meanwhile are kept in `messages`."""
        self.number += 1
        request = {"id": self.number, "method": method, "params": parameters}
        if self.session:
            request["sessionId"] = self.session
        text = json.dumps(request).encode() + b"\0"
        while text:
            text = text[os.write(self.to_browser, text):]
        while True:
            message = self._next()
            if message.get("id") == self.number:
                if "error" in message:
                    raise RuntimeError(f"{method}: {message['error']}")
                return message["result"]
            self.messages.append(message)

    def _next(self):
        while b"\0" not in self.left:
            got = os.read(self.from_browser, 1 << 16)
            if not got:
                raise RuntimeError("Chromium ended")
            self.left += got
        text, self.left = self.left.split(b"\0", 1)
        return json.loads(text)

    def resize(self, width, height):
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)

    def open(self, path):
        """Opens a file and returns the seconds until its script has drawn it."""
        self.messages.clear()
        begin = time.monotonic()
        self.call("Page.navigate", url="file://" + os.path.abspath(path))
        while not any(message.get("method") == "Page.loadEventFired" for message in self.messages):
            self.messages.append(self._next())
        self.value("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")
        return time.monotonic() - begin

    def value(self, expression):
        """Returns the value of a JavaScript expression; waits for a promise."""
        result = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in result:
            raise RuntimeError(f"{expression}: {result['exceptionDetails']}")
        return result["result"].get("value")

    def problems(self):
        """Returns what was written to the console, uncaught errors, and refusals of the content security policy."""
        kinds = ("Runtime.exceptionThrown", "Runtime.consoleAPICalled", "Log.entryAdded")
        return [message for message in self.messages if message.get("method") in kinds]

    def press(self, key):
        code = {"Tab": 9, "Enter": 13, " ": 32}[key]
        text = {"Enter": "\r", " ": " "}.get(key, "")
        for kind in ("keyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", type=kind, key=key, code="Space" if key == " " else key, windowsVirtualKeyCode=code,
                      **({"text": text} if text and kind == "keyDown" else {}))

    def screenshot(self, path):
        with open(path, "wb") as file:
            file.write(base64.b64decode(self.call("Page.captureScreenshot", format="png")["data"]))
