"""What a stranger's objects do of their own when they are looked at is a GeometryError, never their exception."""

from __future__ import annotations

from collections import OrderedDict, UserDict
from typing import Any

import pytest

from nixldesc import GeometryError, Layout, Region
from nixldesc._memory import forget

GOOD = Layout([Region("k", 4096, 16, 4), Region("v", 8192, 16, 3, groups=(0, 1))]).to_dict()


class Explodes:
    """Nothing can be asked of it."""

    def __getattr__(self, name: str) -> Any:
        raise ZeroDivisionError(name)

    def __eq__(self, other: object) -> bool:
        raise ZeroDivisionError("eq")

    __hash__ = object.__hash__

    def __index__(self) -> int:
        raise ZeroDivisionError("index")

    def __repr__(self) -> str:
        raise ZeroDivisionError("repr")

    def __len__(self) -> int:
        raise ZeroDivisionError("len")

    def __iter__(self) -> Any:
        raise ZeroDivisionError("iter")


class ListOfLies(list[Any]):
    def __len__(self) -> int:
        return 10**6

    def __iter__(self) -> Any:
        raise ZeroDivisionError("iter")

    def __getitem__(self, index: Any) -> Any:
        raise ZeroDivisionError("getitem")


class DictOfLies(dict[Any, Any]):
    def __contains__(self, key: object) -> bool:
        raise ZeroDivisionError("contains")

    def __getitem__(self, key: Any) -> Any:
        raise ZeroDivisionError("getitem")

    def get(self, key: Any, default: Any = None) -> Any:
        raise ZeroDivisionError("get")


class TextOfLies(str):
    def __eq__(self, other: object) -> bool:
        raise ZeroDivisionError("eq")

    __hash__ = str.__hash__

    def __len__(self) -> int:
        raise ZeroDivisionError("len")


class NumberOfLies(int):
    def __lt__(self, other: object) -> bool:
        raise ZeroDivisionError("lt")

    def __index__(self) -> int:
        raise ZeroDivisionError("index")


OBJECTS = [Explodes(), ListOfLies([1, 2]), DictOfLies(GOOD), TextOfLies("k"), NumberOfLies(16), UserDict(GOOD)]


def read(told: Any) -> str:
    try:
        return repr(Layout.from_dict(told))
    except GeometryError as error:
        return str(error)


@pytest.mark.parametrize("thing", OBJECTS, ids=lambda thing: type(thing).__name__)
@pytest.mark.parametrize("version", [1, 2])
def test_any_object_anywhere(thing: Any, version: int) -> None:
    region = {"name": "k", "base_addr": 0, "block_len": 16, "num_blocks": 1, "groups": [0]}
    section = {"name": "s", "axes": [["a", 0, 2]], "itemsize": 8}
    page = {"axes": [["a", 0, 2]], "itemsize": 8}
    olds = [{"version": 1, "regions": thing}, {"version": 1, "regions": [thing]}]
    olds += [{"version": 1, "regions": [{**region, key: thing}]} for key in (*region, "sections", "device_id")]
    olds += [{"version": 1, "regions": [{**region, "sections": [{**section, key: thing}]}]} for key in section]
    news = [{**GOOD, key: thing} for key in (*GOOD, "cp", "segments", "section_names", "sub_blocks", "pages")]
    news += [{**GOOD, "pages": [[{**page, key: thing}]], "page_of": 0} for key in page]
    news += [{**GOOD, "segments": {"0": columns}} for columns in ([thing, 1, 0], [[0, 64], thing, 0])]
    news += [{**GOOD, "names": ["k", thing]}, {**GOOD, "names": [["k", thing, 2, ""]]}]
    strange: dict[Any, Any] = {thing: 1} if isinstance(thing, (Explodes, str, int)) else {}
    news += [{**GOOD, **strange}]
    for told in (thing, *(olds if version == 1 else news)):
        assert read(told)


def test_dicts_and_lists_of_other_classes_are_read_by_what_they_hold() -> None:
    whole = Layout.from_dict(GOOD)
    assert Layout.from_dict(OrderedDict(GOOD)) == whole
    assert Layout.from_dict({**GOOD, "base_addrs": ListOfLies(GOOD["base_addrs"])}) == whole
    assert Layout.from_dict(DictOfLies(GOOD)) == whole


def test_a_fault_of_our_own_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """What catches strangers' objects does not hide what plain data could do to us."""

    def broken(d: Any) -> Any:
        raise ZeroDivisionError("ours")

    monkeypatch.setattr("nixldesc.memory.layout.wire_reading.layout_from_dict", broken)
    forget()
    with pytest.raises(ZeroDivisionError, match="ours"):
        Layout.from_dict(GOOD)
    with pytest.raises(GeometryError, match=r"^layout: it holds objects that are no plain data \(ZeroDivisionError\)$"):
        Layout.from_dict({**GOOD, "pages": [object()]})
