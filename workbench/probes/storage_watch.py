"""Sees every operation of a run and enters each storage it makes, changes or loses into a ledger.

A dispatch mode above everything else. A storage is known by its address while it lives; a weak reference on it tells
of its death. Views and results that share a known storage never count. An unknown storage that comes in as an argument,
or as the alias of one, was alive before the run. Numbers that torch wraps for one operation (`x[0] = 5`) are no tensors
here; the allocator sees them (see `allocator_run`).
"""

from __future__ import annotations

import dis
import functools
import sys
import time
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, _compile
from torch._C import DispatchKey
from torch._dynamo import eval_frame
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import TorchDispatchMode, is_traceable_wrapper_subclass_type

from workbench.probes.owners import Owners, Place
from workbench.probes.storage_ledger import Block, Ledger
from workbench.probes.tensor_storages import Storage, storage_of, tensors_in
from workbench.probes.workspace_rules import workspaces
from workbench.records.memory import Role
from workbench.user_lines import UserLine, running_line

Progress = Callable[[str], None]

_PROGRESS_S = 2.0
_OPERATIONS_A_LOOK = 256


@dataclass(frozen=True, slots=True)
class _Operation:
    """What of an operation's schema matters here.

    Attributes:
        name: as in `aten::addmm`.
        writes: it changes an argument.
        aliases: some result may share the storage of an argument.
        composite: it is made of other operations, which are to be seen instead.
        brings: it is how torch shows a tensor it has just made from data.
        role: of everything it makes, None where its life decides.
    """

    name: str
    writes: bool
    aliases: bool
    composite: bool
    brings: bool
    role: Role | None


class StorageWatch(TorchDispatchMode):
    """Enter it around the run; the ledger is complete when it is left.

    Args:
        ledger: filled.
        owners: says where an operation belongs; entered by the caller.
        progress: told every two seconds how far the run is.
    """

    def __init__(self, ledger: Ledger, owners: Owners | None = None, *, progress: Progress | None = None) -> None:
        super().__init__()
        self.ledger = ledger
        self._owners = owners or Owners(None, crossing=self.crossed, leaving=self.left)
        self._alive: dict[int, tuple[Block, weakref.ref[Storage]]] = {}
        self._of_scope: dict[int, list[Block]] = {}
        self._progress = progress
        self._operations = 0
        self._told = time.monotonic()

    def follow(self, owners: Owners) -> None:
        """Take who runs from `owners`."""
        self._owners = owners

    def found(
        self, tensor: Tensor, *, role: Role | None, owner: str = "", key: str | None = None, kept: bool = False
    ) -> None:
        """Enter the storage of a tensor that was there before the run; the first who names it decides what it is.

        Args:
            tensor: any tensor.
            role: what it is, None when that is not known.
            owner: path of the module it belongs to.
            key: its name in the checkpoint.
            kept: it is state a run may write; when the run does, it is a cache.
        """
        for part in tensors_in(tensor):
            storage = storage_of(part)
            if storage is None:
                continue
            known = self._alive.get(storage._cdata)
            if known is None:
                self._found(part, storage, role=role, owner=owner, key=key, kept=kept)

    def crossed(self, value: object) -> None:
        """Note that what `value` holds went into or out of a module call."""
        for tensor in tensors_in(value):
            storage = storage_of(tensor)
            known = None if storage is None else self._alive.get(storage._cdata)
            if known is not None:
                known[0].crossed = True

    def left(self, scope: int) -> None:
        """Note that a module call ended: what it made and what is still there has outlived it."""
        for block in self._of_scope.pop(scope, ()):
            block.outlived_scope = block.died is None

    def finish(self) -> None:
        """Look once more at every storage that is alive, for changes of size that no operation showed."""
        for block, reference in list(self._alive.values()):
            storage = reference()
            if storage is not None and block.changed_size(storage.nbytes()):
                self._resized(storage, block, op="")

    def forget(self) -> None:
        """Let go of every weak reference: deaths after the run are no part of it."""
        self._alive.clear()

    def __torch_dispatch__(
        self,
        func: Any,
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Run one operation between two looks at the storages it touches."""
        if any(_is_wrapper(one) for one in types):
            return NotImplemented  # it is unwrapped, and its parts come by here
        keywords = kwargs or {}
        if func.namespace == "prim":
            return func(*args, **keywords)  # a question about a tensor, such as its device
        operation = _operation(func)
        if operation.composite:
            with self:
                # torch's own kernel: `decompose` would prefer rewritings in Python, which allocate otherwise.
                return func._op_dk(DispatchKey.CompositeImplicitAutograd, *args, **keywords)
        line = self._before(operation, args, keywords)
        hidden = [self._workspace(operation, one, line) for one in workspaces(func, args, keywords)]
        result = func(*args, **keywords)
        self._results(operation, result, line)
        if operation.writes:
            for tensor in _flat((args, keywords)):
                self._written(operation, tensor)
        for block in hidden:
            self.ledger.death(block)
        self._tell()
        return result

    def _before(self, operation: _Operation, args: Sequence[Any], keywords: Mapping[str, Any]) -> UserLine | None:
        """Enter arguments that have not been seen; return the line, where it had to be looked for already."""
        line = None
        for tensor in _flat((args, keywords)):
            storage = tensor if isinstance(tensor, Storage) else storage_of(tensor)
            if storage is None:
                continue
            known = self._alive.get(storage._cdata)
            if known is not None:
                if known[0].changed_size(storage.nbytes()):
                    self._resized(storage, known[0], op=operation.name)
            elif isinstance(tensor, Tensor) and operation.brings:
                if _is_wrapping():
                    self._ignored(tensor, storage)
                else:
                    self._made(operation, tensor, storage, running_line(depth=3))
            else:
                self._found(tensor if isinstance(tensor, Tensor) else None, storage)
        if torch.is_grad_enabled():
            line = running_line(depth=3)
            self._owners.remember(line)
        return line

    def _results(self, operation: _Operation, result: Any, line: UserLine | None) -> None:
        for tensor in _flat(result):
            storage = tensor if isinstance(tensor, Storage) else storage_of(tensor)
            if storage is None or storage._cdata in self._alive or not isinstance(tensor, Tensor):
                continue
            if operation.aliases or operation.brings:
                if not operation.brings:
                    self._found(tensor, storage)
            else:
                self._made(operation, tensor, storage, line or running_line(depth=3))

    def _written(self, operation: _Operation, value: Tensor | Storage) -> None:
        storage = value if isinstance(value, Storage) else storage_of(value)
        known = None if storage is None else self._alive.get(storage._cdata)
        if storage is None or known is None:
            return
        known[0].written = True
        if known[0].changed_size(storage.nbytes()):
            self._resized(storage, known[0], op=operation.name)

    def _made(self, operation: _Operation, tensor: Tensor, storage: Storage, line: UserLine | None) -> None:
        place, line = self._place(line)
        block = self._block(tensor, storage.nbytes(), op=operation.name, place=place, line=line)
        block.given_role = operation.role
        self._keep(storage, block)
        # A storage of no bytes becomes an allocation when it grows.
        if block.nbytes:
            self.ledger.birth(block)
            if place.scope:
                self._of_scope.setdefault(place.scope, []).append(block)

    def _found(
        self,
        tensor: Tensor | None,
        storage: Storage,
        *,
        role: Role | None = None,
        owner: str = "",
        key: str | None = None,
        kept: bool = False,
    ) -> None:
        place = Place(owner, 0)
        block = self._block(tensor, storage.nbytes(), op="", place=place, line=None, device=str(storage.device))
        block.baseline, block.given_role, block.key, block.kept = True, role, key, kept
        self._keep(storage, block)
        if block.nbytes:
            self.ledger.found(block)

    def _ignored(self, tensor: Tensor, storage: Storage) -> None:
        """Know a storage again without counting it."""
        block = self._block(tensor, 0, op="", place=Place("", 0), line=None)
        block.ignored = True
        self._keep(storage, block)

    def _resized(self, storage: Storage, block: Block, *, op: str) -> None:
        """Enter a storage that became another size: the new memory is there before the old is given back."""
        place, line = self._place(running_line(depth=4))
        grown = self._block(None, storage.nbytes(), op=op, place=place, line=line, device=block.device)
        grown.dtype, grown.shape, grown.given_role = block.dtype, block.shape, block.given_role
        grown.crossed, grown.written, grown.computed = block.crossed, True, block.computed
        self._keep(storage, grown)
        if grown.nbytes:
            self.ledger.birth(grown)
            if place.scope:
                self._of_scope.setdefault(place.scope, []).append(grown)
        if block.nbytes:
            self.ledger.death(block)

    def _workspace(self, operation: _Operation, workspace: Any, line: UserLine | None) -> Block:
        place, line = self._place(line or running_line(depth=4))
        block = self._block(None, workspace.nbytes, op=workspace.rule, place=place, line=line, device=workspace.device)
        block.counts, block.given_role, block.computed = "allocator", "workspace", True
        self.ledger.birth(block)
        return block

    def _place(self, line: UserLine | None) -> tuple[Place, UserLine | None]:
        backward = self._owners.of_backward()
        if backward is None:
            return self._owners.now(), line
        return backward[0], backward[1] or line

    def _block(
        self,
        tensor: Tensor | None,
        nbytes: int,
        *,
        op: str,
        place: Place,
        line: UserLine | None,
        device: str = "",
    ) -> Block:
        return Block(
            nbytes=nbytes,
            device=device if tensor is None else _device_of(tensor),
            dtype="" if tensor is None else _dtype_name(tensor.dtype),
            shape=() if tensor is None else tuple(tensor.shape),
            baseline=False,
            owner=place.owner,
            op=op,
            line=line,
            scope=place.scope,
            computed=isinstance(tensor, FakeTensor),
        )

    def _keep(self, storage: Storage, block: Block) -> None:
        address = storage._cdata
        self._alive[address] = (block, weakref.ref(storage, functools.partial(self._died, address, block)))

    def _died(self, address: int, block: Block, _: object) -> None:
        known = self._alive.get(address)
        if known is not None and known[0] is block:
            del self._alive[address]
            if block.nbytes:
                self.ledger.death(block)

    def _tell(self) -> None:
        self._operations += 1
        if self._progress is None or self._operations % _OPERATIONS_A_LOOK:
            return
        now = time.monotonic()
        if now - self._told >= _PROGRESS_S:
            self._told = now
            self._progress(f"memory: {self._operations:,} operations, in {self._owners.now().owner or 'the root'}")


def _flat(value: Any) -> Iterable[Any]:
    """Return the tensors and storages of an operation's arguments or results, parts of sparse ones in their place."""
    if isinstance(value, Tensor):
        return (value,) if value.layout is torch.strided else tensors_in(value)
    if isinstance(value, Storage):
        return (value,)
    if isinstance(value, torch.TypedStorage):
        return (value._untyped_storage,)
    if isinstance(value, (tuple, list)):
        return [one for item in value for one in _flat(item)]
    if isinstance(value, dict):
        return [one for item in value.values() for one in _flat(item)]
    return ()


_is_wrapper = functools.cache(is_traceable_wrapper_subclass_type)


@functools.cache
def _dtype_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _device_of(tensor: Tensor) -> str:
    # The attribute itself: asking a fake tensor for its device is an operation.
    return str(tensor.fake_device if isinstance(tensor, FakeTensor) else tensor.device)


@functools.cache
def _operation(func: Any) -> _Operation:
    schema = func._schema
    composite = torch._C._dispatch_has_kernel_for_dispatch_key(func.name(), "CompositeImplicitAutograd")
    return _Operation(
        name="aten::tensor" if schema.name == "aten::lift_fresh" else schema.name,
        writes=any(argument.alias_info is not None and argument.alias_info.is_write for argument in schema.arguments),
        aliases=any(one.alias_info is not None and not one.alias_info.is_write for one in schema.returns),
        composite=composite and not torch._C._dispatch_has_kernel_for_dispatch_key(func.name(), "CPU"),
        brings=schema.name == "aten::lift_fresh",
        role="collective" if schema.name.startswith(("c10d::", "_c10d_functional::")) else None,
    )


_BETWEEN = (__file__, eval_frame.__file__, _compile.__file__)


def _is_wrapping() -> bool:
    """Say whether torch makes a tensor of the number in `x[...] = number`, which no one will ever hold."""
    frame = sys._getframe(1)
    # Dynamo wraps the handler of a dispatch mode, so frames of its own may stand between ours and the caller's.
    while frame.f_back is not None and frame.f_code.co_filename in _BETWEEN:
        frame = frame.f_back
    return dis.opname[frame.f_code.co_code[frame.f_lasti]] in ("STORE_SUBSCR", "STORE_SLICE")
