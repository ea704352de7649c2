#!/usr/bin/env python3
"""browser_test.py UNISHARD MAKE_EXAMPLE: opens pages of `unishard report` in a headless Chromium and looks at what they became.

With --bench it prints the size of the page of 20,000 tensors and the time until it can be used instead; with --screenshots FOLDER it
writes pictures of a page for people to look at. Skipped (exit 77) where there is no Chromium (Debian: chromium).
"""

import json
import math
import shutil
import struct
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

import chromium

HOSTILE = ("</script><script>window.hit=1</script>", "<img src=x onerror=window.hit=2>", "\"'><svg onload=window.hit=3>", "{{script}}",
           "javascript:window.hit=4", "\u202egnp.exe\u2066", "\u05e9\u05dc\u05d5\u05dd.weight", "\\u003cscript\\u003e", "h.0.a<b>\r\n\t\x7f\u009b",
           "l" + 4000 * "o" + "ng", "__proto__", "constructor", "h.1.toString")


def write_safetensors(path, tensors):
    """Writes float32 vectors by name."""
    header, body = {}, b""
    for name, values in tensors.items():
        header[name] = {"dtype": "F32", "shape": [len(values)], "data_offsets": [len(body), len(body) + 4 * len(values)]}
        body += struct.pack(f"<{len(values)}f", *values)
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + body)


class Page(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = Path(tempfile.mkdtemp(prefix="unishard-report-"))
        cls.run_folder = cls.folder / "run"
        subprocess.run([MAKE_EXAMPLE, cls.run_folder, "-w", "5", "--layers", "48", "--changed", "h.3.attn.weight"], check=True, stdout=subprocess.DEVNULL)
        cls.browser = chromium.Browser()

    @classmethod
    def tearDownClass(cls):
        cls.browser.__exit__()
        shutil.rmtree(cls.folder)

    def open(self, *words, status=0):
        """Opens the page of `unishard report WORDS`, which must draw itself without a word on the console."""
        page = self.folder / "page.html"
        done = subprocess.run([UNISHARD, "report", *map(str, words), "-o", page, "--quiet"], capture_output=True, text=True)
        self.assertEqual(done.returncode, status, done.stderr)
        self.browser.open(page)
        self.assertEqual(self.browser.problems(), [])
        return self.browser.value

    def rows(self, value):
        return value("[...document.querySelectorAll('#tensors-table tbody th')].map((cell) => cell.querySelector('.name').textContent)")

    def filter(self, value, text):
        value(f"(() => {{ const field = document.getElementById('filter'); field.value = {json.dumps(text)}; field.dispatchEvent(new Event('input')); }})()")

    def test_layers_are_one_row_and_open(self):
        value = self.open(self.run_folder)
        rows = self.rows(value)
        self.assertEqual(rows.count("h.{0..47}.attn.weight"), 3)
        self.assertEqual(len(rows), 2 * 3 + 3 * 3 + 4)
        value("document.querySelector('.expand').focus()")
        self.browser.press("Enter")
        self.assertEqual(len(self.rows(value)), len(rows) + 48)
        self.assertEqual(value("document.activeElement.getAttribute('aria-expanded')"), "true")
        self.browser.press(" ")
        self.assertEqual(len(self.rows(value)), len(rows))
        value("document.getElementById('collapse').click()")
        self.assertEqual(len(self.rows(value)), 100)
        self.assertIn("Rows 1 to 100 of 442", value("document.getElementById('tensor-status').textContent"))
        value("[...document.querySelectorAll('.pages button')].pop().click()")
        self.assertIn("Rows 101 to 200", value("document.getElementById('tensor-status').textContent"))

    def test_filter_and_sort(self):
        value = self.open(self.run_folder)
        self.filter(value, "h.4?.attn.w*")
        self.assertEqual(self.rows(value), 3 * ["h.{40..47}.attn.weight"])
        self.filter(value, "SCALE")
        self.assertEqual(self.rows(value), 3 * ["h.{0..47}.scale"])
        for text in ("nothing like it", "attn.w*", "h.4?"):
            self.filter(value, text)
            self.assertEqual(self.rows(value), [], text)
        self.filter(value, "")
        value("document.getElementById('collapse').click()")
        norms = ("[...document.querySelectorAll('#tensors-table tbody tr')].map((row) => "
                 "Number(row.cells[[...document.querySelectorAll('#tensors-table thead th')].findIndex((head) => head.textContent === 'Norm')].textContent))")
        head = "[...document.querySelectorAll('.sort')].find((one) => one.textContent === 'Norm')"
        for order, wanted in (("ascending", False), ("descending", True)):
            value(head + ".click()")
            self.assertEqual(value(head + ".closest('th').getAttribute('aria-sort')"), order)
            shown = [one for one in value(norms) if one is not None and not math.isnan(one)]
            self.assertEqual(shown, sorted(shown, reverse=wanted))
        value(head + ".click()")
        self.assertEqual(value("document.querySelectorAll('[aria-sort]:not([aria-sort=none])').length"), 0)

    def test_the_keyboard_reaches_everything_in_order(self):
        value = self.open(self.run_folder)
        names, seen = [], "(() => { const one = document.activeElement; return (one.id || one.textContent || one.getAttribute('aria-label') || one.tagName).slice(0, 30); })()"
        for _ in range(60):
            self.browser.press("Tab")
            names.append(value(seen))
            if names[-1] == "filter":
                break
        self.assertEqual(names[0], "Skip to the content")
        self.assertIn("theme", names)
        self.assertEqual(names[-1], "filter")
        self.assertNotEqual(value("getComputedStyle(document.activeElement).outlineStyle"), "none")
        top = value("[...document.querySelectorAll('a, button, input, select, summary, [tabindex]')].map((one) => one.tabIndex)")
        self.assertLessEqual(max(top), 0)

    def test_a_screen_reader_finds_structure_and_text_for_every_picture(self):
        value = self.open(self.run_folder, "--all")
        self.assertEqual(value("[...document.querySelectorAll('h1, h2')].map((one) => one.tagName).join(' ')"), "H1 " + " ".join(7 * ["H2"]))
        for landmark in ("header", "nav", "main", "footer"):
            self.assertEqual(value(f"document.querySelectorAll('{landmark}').length"), 1)
        unnamed = "[...document.querySelectorAll('svg')].filter((one) => one.getAttribute('aria-hidden') !== 'true' && !(one.getAttribute('role') === 'img' && one.getAttribute('aria-label'))).length"
        self.assertEqual(value(unnamed), 0)
        self.assertEqual(value("document.querySelectorAll('table:not(:has(caption))').length"), 0)
        self.assertEqual(value("[...document.querySelectorAll('input, select')].filter((one) => one.labels.length === 0).length"), 0)
        figures = value("document.querySelectorAll('figure').length")
        value("document.querySelectorAll('details').forEach((one) => { one.open = true; })")
        self.assertGreaterEqual(value("new Promise((done) => setTimeout(() => done(document.querySelectorAll('figure table').length), 100))"), figures - 1)

    def test_every_text_has_contrast_in_both_themes(self):
        value = self.open(self.run_folder, "--all")
        ratio = """(() => {
          const light = (text) => { const [r, g, b] = text.match(/[\\d.]+/g).map((one) => { const c = one / 255; return c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4; }); return 0.2126 * r + 0.7152 * g + 0.0722 * b; };
          const paper = (one) => { while (one) { const c = getComputedStyle(one).backgroundColor; if (/^rgb\\(/.test(c)) return c; one = one.parentElement; } return 'rgb(255, 255, 255)'; };
          let least = 99;
          for (const one of document.querySelectorAll('body *')) {
            if (one.disabled || one.closest('svg') || ![...one.childNodes].some((child) => child.nodeType === 3 && child.data.trim())) continue;
            const a = light(getComputedStyle(one).color), b = light(paper(one));
            least = Math.min(least, (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05));
          }
          return least; })()"""
        for theme in ("light", "dark"):
            value(f"setTheme('{theme}')")
            self.assertGreaterEqual(value(ratio), 4.5, theme)

    def test_what_differs_is_drawn(self):
        value = self.open(self.run_folder, "--all")
        signs = value("[...document.querySelectorAll('#comparison svg.matrix .sign')].map((one) => one.textContent)")
        self.assertEqual(signs.count("≠"), 3)
        self.assertGreater(signs.count("·"), 400)
        self.assertEqual(value("[...document.querySelectorAll('#steps .legend li')].length"), 13)

    def test_differences_that_were_read_have_sizes(self):
        value = self.open(self.run_folder, "--all", "--deep")
        rows = value("[...document.querySelectorAll('#comparison > .scroll tbody tr')].map((row) => [...row.cells].map((cell) => cell.textContent))")
        self.assertEqual([row[:3] for row in sorted(rows)], [["h.3.attn.weight", state, "3,072"] for state in ("exp_avg", "exp_avg_sq", "fp32")])
        self.assertTrue(all(0 < float(row[4]) <= 2 for row in rows), rows)
        self.assertIn("different, at most by", value("document.querySelector('#comparison .cell.differs title').textContent"))

    def test_damage_is_listed_with_what_to_do(self):
        damaged = self.folder / "damaged"
        shutil.copytree(self.run_folder, damaged)
        next((damaged / "global_step8").glob("shard-00002-*")).unlink()
        value = self.open(damaged, status=1)
        text = value("document.getElementById('findings').textContent")
        for words in ("shard-missing", "error", "restore the file from a copy", "Lost:"):
            self.assertIn(words, text)
        self.assertGreater(len(self.rows(value)), 10)  # the manifest still describes the tensors

    def test_a_checkpoint_that_cannot_be_opened_is_not_called_sound(self):
        mixed = self.folder / "mixed"
        shutil.copytree(self.run_folder, mixed)
        (mixed / "global_step7" / "manifest.json").write_text("not a manifest")
        value = self.open(mixed, "--all", status=1)
        text = value("document.getElementById('findings').textContent")
        self.assertIn("It cannot be opened", text)
        self.assertEqual(text.count("sound"), 1)

    def test_outliers_are_named_and_marked(self):
        write_safetensors(self.folder / "odd.safetensors", {
            **{f"h.{layer}.w": 64 * [0.5] for layer in range(8)}, "h.3.w": 64 * [50.0], "h.5.w": 63 * [0.5] + [math.nan], "h.6.w": 63 * [0.5] + [math.inf]})
        value = self.open(self.folder / "odd.safetensors", "--stats")
        text = value("document.getElementById('layers').textContent")
        for words in ("1 of 64 elements are NaN", "1 of 64 elements are infinite", "the median of the same parameter in 8 layers is 0.5"):
            self.assertIn(words, text)
        self.assertEqual(value("document.querySelectorAll('#layers .sign.bad').length"), 2)
        value("document.getElementById('only-outliers').click()")
        self.assertEqual(self.rows(value), ["h.{3, 5..6}.w"])

    def test_a_format_without_statistics_says_so(self):
        write_safetensors(self.folder / "plain.safetensors", {"w": [1.0, 2.0]})
        value = self.open(self.folder / "plain.safetensors")
        self.assertIn("records no statistics", value("document.getElementById('layers').textContent"))
        self.assertIn("not sharded", value("document.getElementById('ranks').textContent"))

    def test_files_without_steps_are_counted(self):
        for name in "ab":
            write_safetensors(self.folder / f"{name}.safetensors", {"w": [1.0, 2.0]})
        value = self.open(self.folder / "a.safetensors", self.folder / "b.safetensors", "--stats")
        self.assertEqual(value("document.querySelector('#steps figcaption').textContent"), "L2 norm of weights over checkpoints, by group of layers")
        titles = value("[...document.querySelectorAll('#steps circle title')].map((one) => one.textContent)")
        self.assertEqual([title.split(":")[0][-12:] for title in titles], ["checkpoint 1", "checkpoint 2"])

    def test_no_name_runs_or_hides(self):
        path = self.folder / f"{200 * 'x'}<b>.safetensors"
        write_safetensors(path, {name: [1.0] for name in HOSTILE})
        value = self.open(path, path, "--stats")
        self.assertIsNone(value("window.hit"))
        self.assertEqual(value("document.scripts.length"), 2)
        self.assertEqual(value("document.querySelectorAll('img, iframe, object, embed, link').length"), 0)
        text = value("document.body.innerText")
        self.assertIsNone(value("document.body.innerText.match(/[\\u202a-\\u202e\\u2066-\\u2069\\u0080-\\u009f]/)"))
        self.assertIn("\\u202egnp.exe\\u2066", text)
        self.assertIn("</script><script>window.hit=1</script>", text)
        self.assertEqual(len(self.rows(value)), len(HOSTILE))
        self.assertLessEqual(value("document.documentElement.scrollWidth"), 1280)
        # Even a script that a name had made could not run: the policy forbids it.
        value("document.body.append(Object.assign(document.createElement('script'), { textContent: 'window.hit = 5' }))")
        self.assertIsNone(value("window.hit"))

    def test_a_narrow_screen_scrolls_tables_and_not_the_page(self):
        self.browser.resize(380, 800)
        try:
            value = self.open(self.run_folder, "--all")
            self.assertLessEqual(value("document.documentElement.scrollWidth"), 380)
        finally:
            self.browser.resize(1280, 900)

    def test_the_theme_follows_the_system_and_the_button(self):
        with chromium.Browser(dark=True) as dark:
            self.open(self.run_folder)
            dark.open(self.folder / "page.html")
            paper = "getComputedStyle(document.body).backgroundColor"
            self.assertEqual(dark.value(paper), "rgb(21, 24, 28)")
            self.assertEqual(self.browser.value(paper), "rgb(255, 255, 255)")
            dark.value("document.getElementById('theme').click()")
            self.assertEqual(dark.value(paper), "rgb(255, 255, 255)")


def bench():
    """Prints the size of the page of 20,000 tensors, and the median time from the request until it is drawn and a filter has been applied."""
    folder = Path(tempfile.mkdtemp(prefix="unishard-report-"))
    try:
        subprocess.run([MAKE_EXAMPLE, folder / "run", "-w", "64", "-s", "3", "--layers", "2222"], check=True, stdout=subprocess.DEVNULL)
        page = folder / "page.html"
        subprocess.run([UNISHARD, "report", folder / "run", "-o", page], check=True, stdout=subprocess.DEVNULL)
        opened, filtered = [], []
        with chromium.Browser() as browser:
            for _ in range(9):
                opened.append(browser.open(page))
                filtered.append(browser.value("(() => { const begin = performance.now(), field = document.getElementById('filter'); field.value = 'attn.b'; "
                                              "field.dispatchEvent(new Event('input')); document.body.offsetHeight; return performance.now() - begin; })()"))
            print(f"{page.stat().st_size:,} bytes, {browser.value('tensors.length'):,} tensors: opened in {sorted(opened)[4]:.2f} s, filtered in {sorted(filtered)[4]:.0f} ms")
    finally:
        shutil.rmtree(folder)


def screenshots(pictures):
    """Writes what a reader sees of each section, in the light and the dark theme and on a narrow screen."""
    folder = Path(tempfile.mkdtemp(prefix="unishard-report-"))
    try:
        subprocess.run([MAKE_EXAMPLE, folder / "run", "-w", "16", "-s", "3", "--layers", "48", "--changed", "h.3.attn.weight"], check=True, stdout=subprocess.DEVNULL)
        page = folder / "page.html"
        subprocess.run([UNISHARD, "report", folder / "run", "--all", "-o", page], check=True, stdout=subprocess.DEVNULL)
        for name, width, is_dark in (("light", 1280, False), ("dark", 1280, True), ("narrow", 420, False)):
            with chromium.Browser(width, 1000, is_dark) as browser:
                browser.open(page)
                for section in browser.value("[...document.querySelectorAll('section')].map((one) => one.id)"):
                    browser.value(f"document.getElementById('{section}').scrollIntoView()")
                    browser.screenshot(pictures / f"{name}-{section}.png")
    finally:
        shutil.rmtree(folder)


if __name__ == "__main__":
    if chromium.find() is None:
        print("SKIP: no Chromium (Debian: chromium)")
        sys.exit(77)
    UNISHARD, MAKE_EXAMPLE = (str(Path(path).resolve()) for path in sys.argv[1:3])
    if "--bench" in sys.argv:
        bench()
    elif "--screenshots" in sys.argv:
        screenshots(Path(sys.argv[-1]))
    else:
        unittest.main(argv=sys.argv[:1])
