"""What kernels check before they run: shape, dtype and contiguity, never a value."""

import torch
from torch import Tensor

Dtype = torch.dtype | str
Shape = tuple[int | str, ...]
CODES: tuple[torch.dtype, ...] = (torch.uint8, torch.int8, torch.float8_e4m3fn)
"""Dtypes in which FP8 and FP4 codes may travel."""


class Arguments:
    """The checks of one call of one kernel; sizes given by letter must agree between its tensors.

    Args:
        kernel: name of the factory, for messages.
    """

    def __init__(self, kernel: str) -> None:
        self.kernel = kernel
        self.sizes: dict[str, int] = {}

    def check(
        self,
        name: str,
        tensor: Tensor,
        dtype: torch.dtype | tuple[torch.dtype, ...],
        shape: Shape,
        *,
        row_stride: int | None = None,
        strided: bool = False,
    ) -> None:
        """Check one tensor.

        Args:
            name: its name in the contract.
            tensor: the argument.
            dtype: the dtype, or those allowed.
            shape: a number, or a letter whose size the first tensor with it sets.
            row_stride: elements from one row to the next, where the kernel was made for one; 0 and None mean
                contiguous.
            strided: rows may lie apart by any number of elements.

        Raises:
            ValueError: anything else; one message with what was expected and what came.
        """
        dtypes = dtype if isinstance(dtype, tuple) else (dtype,)
        if not isinstance(tensor, Tensor):
            raise ValueError(f"{self.kernel}: {name}: expected a tensor; found {type(tensor).__name__}.")
        if tensor.dtype in dtypes and len(shape) == tensor.ndim:
            found = list(zip(shape, tensor.shape, strict=True))
            known = [self.sizes.get(size, at) if isinstance(size, str) else size for size, at in found]
            if known == list(tensor.shape) and self._lies_well(tensor, row_stride, strided):
                self.sizes |= {letter: size for letter, size in found if isinstance(letter, str)}
                return
        layout = "rows contiguous" if strided else f"row stride {row_stride}" if row_stride else "contiguous"
        sizes = ", ".join(_spell(size, self.sizes) for size in shape)
        names = " or ".join(str(found).removeprefix("torch.") for found in dtypes)
        raise ValueError(
            f"{self.kernel}: {name}: expected {names} [{sizes}], {layout}; found "
            f"{str(tensor.dtype).removeprefix('torch.')} {list(tensor.shape)} with strides {tuple(tensor.stride())}."
        )

    def present(self, name: str, tensor: Tensor | None, wanted: bool, why: str) -> None:
        """Check that an optional tensor is there exactly where the kernel was made for it.

        Raises:
            ValueError: it is missing, or there although nothing reads or writes it.
        """
        if (tensor is not None) != wanted:
            expected = "a tensor" if wanted else "None"
            found = "None" if tensor is None else "a tensor"
            raise ValueError(f"{self.kernel}: {name}: expected {expected}, because {why}; found {found}.")

    @staticmethod
    def _lies_well(tensor: Tensor, row_stride: int | None, strided: bool) -> bool:
        if tensor.numel() == 0:
            return True
        if not strided and not row_stride:
            return tensor.is_contiguous()
        inner = tensor.shape[-1] == 1 or tensor.stride(-1) == 1
        return inner and (strided or tensor.shape[-2] == 1 or tensor.stride(-2) == row_stride)


def as_dtype(kernel: str, name: str, dtype: Dtype) -> torch.dtype:
    """Return a dtype given as such or by its name, such as "bfloat16".

    Raises:
        ValueError: no dtype of this name.
    """
    found = getattr(torch, dtype, None) if isinstance(dtype, str) else dtype
    if not isinstance(found, torch.dtype):
        raise ValueError(f"{kernel}: {name}: expected a torch dtype or its name; found {dtype!r}.")
    return found


def at_least(kernel: str, smallest: int, **numbers: int) -> None:
    """Check compile-time numbers.

    Raises:
        ValueError: one that is not an int or below `smallest`.
    """
    for name, number in numbers.items():
        if not isinstance(number, int) or number < smallest:
            raise ValueError(f"{kernel}: {name}: expected an int of at least {smallest}; found {number!r}.")


def _spell(size: int | str, sizes: dict[str, int]) -> str:
    if isinstance(size, int):
        return str(size)
    return f"{size} = {sizes[size]}" if size in sizes else size
