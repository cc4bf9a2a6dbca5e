"""``python -m nixldesc demo``: a hybrid model's cache moves from a prefill to a decode engine, every byte verified.

::

    watch                   starts both engines, shows what they do, ends them whatever happens
    prefill     decode      the two engines: register, exchange, plan, prepare, move, verify
    rank        wire        one TP rank of either; how the engines talk: layouts and metadata as bytes
    model       truth       what the engines keep, and what each byte must be: no word of the planner in it
    report                  the result as tables
"""

from nixldesc._cli.demo.run import demo

__all__ = ["demo"]
