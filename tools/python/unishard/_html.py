"""A checkpoint as a small HTML table, for notebooks."""

from __future__ import annotations

import html
import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ._checkpoint import Checkpoint

# Characters that are not seen, or that change the order of others.
_HIDDEN = re.compile("[\x00-\x1f\x7f-\x9f\xad\u061c\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff\ud800-\udfff]")


def checkpoint_html(checkpoint: Checkpoint) -> str:
    """Returns format, step and identity, and the number and bytes of the tensors of each state and dtype."""
    facts = [checkpoint.format, f"step {checkpoint.step:,}", f"world size {checkpoint.world_size}", f"ZeRO stage {checkpoint.stage}"]
    if checkpoint.identity:
        facts.append(f"identity {checkpoint.identity}")
    states: dict[tuple[str, str, bool], list[int]] = {}
    for tensor in checkpoint.tensors.values():
        total = states.setdefault((tensor.state, tensor.dtype, tensor.derived), [0, 0, 0])
        for place, count in enumerate((1, tensor.size, tensor.nbytes)):
            total[place] += count
    rows = [(state, dtype, f"{tensors:,}", f"{elements:,}", "rebuilt from fp32" if derived else _bytes_text(size))
            for (state, dtype, derived), (tensors, elements, size) in states.items()]
    name = checkpoint.path if checkpoint.tag is None else f"{checkpoint.path} ({checkpoint.tag})"
    titles = "".join(f'<th scope="col">{title}</th>' for title in ("state", "dtype", "tensors", "elements", "bytes"))
    body = "".join("<tr>" + "".join(f"<td>{_text(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    return (f"<table><caption><strong>{_text(name)}</strong><br>{_text(', '.join(facts))}</caption>"
            f"<thead><tr>{titles}</tr></thead><tbody>{body}</tbody></table>")


def _text(text: str) -> str:
    return html.escape(_HIDDEN.sub(lambda found: f"\\u{ord(found[0]):04x}", text))


def _bytes_text(size: float) -> str:
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if size < 1024:
            return f"{size:.0f} B" if unit == "B" else f"{size:.2f} {unit}"
        size /= 1024
    return f"{size:.2f} PiB"
