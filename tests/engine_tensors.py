"""What of torch the examples' layouts touch, over NumPy: a stand-in for engines' tensors where torch is not there."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]


class Tensor:
    """A view of `array` with torch's words; strides count elements, as torch's do."""

    device = "cpu"

    def __init__(self, array: Array) -> None:
        self.array = array
        self.shape, self.ndim, self.dtype = array.shape, array.ndim, array.dtype

    def data_ptr(self) -> int:
        return self.array.ctypes.data

    def stride(self) -> tuple[int, ...]:
        return tuple(step // self.array.itemsize for step in self.array.strides)

    def element_size(self) -> int:
        return self.array.itemsize

    def numel(self) -> int:
        return self.array.size

    def __getitem__(self, index: Any) -> Tensor:
        return Tensor(self.array[index])

    def view(self, dtype: Any) -> Tensor:
        return Tensor(self.array.view(dtype))

    def narrow(self, dim: int, start: int, length: int) -> Tensor:
        return self[(slice(None),) * dim + (slice(start, start + length),)]

    def unflatten(self, dim: int, sizes: tuple[int, ...]) -> Tensor:
        return self._reshaped((*self.shape[:dim], *sizes, *self.shape[dim + 1 :]))

    def flatten(self, dim: int) -> Tensor:
        return self._reshaped((*self.shape[:dim], -1))

    def _reshaped(self, shape: tuple[int, ...]) -> Tensor:
        array = self.array.reshape(shape)
        assert np.shares_memory(array, self.array), "torch would copy here too, and describe other memory"
        return Tensor(array)
