"""Builds the API reference from the docstrings, and drawings of plans beside it: a page for each public module.

    python docs/build.py OUTPUT

A warning of the builder (a reference into nothing, a docstring that cannot be read) is an error.
"""

from __future__ import annotations

import json
import sys
import tempfile
import warnings
from pathlib import Path

import pdoc

from nixldesc import Layout, Region, attention_sections
from nixldesc._cli.main import main as command

PUBLIC = ("nixldesc", "nixldesc.adapter", "nixldesc.testing")
#: The rooms behind the public names: what they offer is shown where it is offered.
ROOMS = r"!nixldesc\.(_.*|errors|kernels|memory|planning|request)", r"!nixldesc\.(adapter|testing)\..*"

#: Drawings: a title, and what a page of rank `tp_rank` of `tp_size` is made of on either side.
DRAWINGS = {
    "heads": ("Heads over ranks, [head][token]: one strided row a layer", {}),
    "tokens-first": ("Heads over ranks, [token][head]: a run for every token", {"order": "NHD"}),
    "keys-and-values": ("All K of a block, then all V: two runs", {"kv": "blocks_first"}),
}

_PAGE = """<!doctype html><html lang="en"><meta charset="utf-8"><title>nixldesc: plans, drawn</title>
<body style="font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem">
<p><a href="nixldesc.html">nixldesc</a> · <a href="nixldesc/adapter.html">adapter</a> ·
<a href="nixldesc/testing.html">testing</a></p>
<h1>Plans, drawn</h1>
<p>Each drawing is what <code>python -m nixldesc check dst.json 2=src.json --svg FILE</code> writes: rank 1 of 2 reads
from ranks 2 and 3 of 4.</p>
{figures}
</body></html>
"""
_INDEX = """<!doctype html><html lang="en"><meta charset="utf-8"><title>nixldesc</title>
<body style="font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem">
<h1>nixldesc</h1><ul>
<li><a href="nixldesc.html">nixldesc</a>: regions, layouts, plans, ids of a request</li>
<li><a href="nixldesc/adapter.html">nixldesc.adapter</a>: prepared NIXL handles</li>
<li><a href="nixldesc/testing.html">nixldesc.testing</a>: agents and memory to test a connector with</li>
<li><a href="drawings.html">Plans, drawn</a></li>
</ul></body></html>
"""
_FIGURE = (
    """<figure><figcaption>{title}</figcaption><img src="{name}.svg" alt="{title}" style="width: 100%"></figure>"""
)


def rank(tp_rank: int, tp_size: int, how: dict[str, str]) -> Layout:
    page = attention_sections(
        "layer0",
        num_kv_heads=4,
        tp_size=tp_size,
        tp_rank=tp_rank,
        block_tokens=4,
        token_head_bytes=8,
        **how,  # type: ignore[arg-type]
    )
    return Layout([Region("layer0", 0, page[-1].end, 100, sections=page)])


def draw(output: Path) -> None:
    with tempfile.TemporaryDirectory() as folder:
        for name, (_, how) in DRAWINGS.items():
            words = ["check"]
            for place, (tp_rank, tp_size) in {"dst": (1, 2), "2": (2, 4), "3": (3, 4)}.items():
                file = Path(folder) / f"{place}.json"
                file.write_text(json.dumps(rank(tp_rank, tp_size, how).to_dict()))
                words.append(str(file) if place == "dst" else f"{place}={file}")
            words += ["--dst-rank", "1", "--dst-size", "2", "--svg", str(output / f"{name}.svg")]
            if command(words):
                raise SystemExit(f"the drawing {name!r} was not made")
    figures = "\n".join(_FIGURE.format(name=name, title=title) for name, (title, _) in DRAWINGS.items())
    (output / "drawings.html").write_text(_PAGE.format(figures=figures))


def main(output: Path) -> None:
    warnings.simplefilter("error")
    pdoc.render.configure(docformat="restructuredtext", footer_text="nixldesc", show_source=False)
    pdoc.pdoc(*PUBLIC, *ROOMS, output_directory=output)
    for module in PUBLIC:
        page = output / (module.replace(".", "/") + ".html")
        if not page.exists():
            raise SystemExit(f"there is no page of {module}")
    draw(output)
    (output / "index.html").write_text(_INDEX)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
