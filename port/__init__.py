"""DeepSeek-V4.1-Flash for AWS Trainium2 in pure PyTorch: checkpoint, text model, cache, generation, verification.

Names are loaded when they are first used; importing this touches no device.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from port.checkpoint.index import Checkpoint as Checkpoint
    from port.checkpoint.index import open_checkpoint as open_checkpoint
    from port.config import ModelConfig as ModelConfig
    from port.errors import PortError as PortError
    from port.model.transformer import Transformer as Transformer
    from port.numerics import NumericProfile as NumericProfile
    from port.platform import PLATFORM as PLATFORM
    from port.runtime.generate import generate as generate
    from port.runtime.text_model import TextModel as TextModel
    from port.runtime.text_model import open_text_model as open_text_model

_WHERE: dict[str, str] = {
    "PLATFORM": "port.platform",
    "Checkpoint": "port.checkpoint.index",
    "ModelConfig": "port.config",
    "NumericProfile": "port.numerics",
    "PortError": "port.errors",
    "TextModel": "port.runtime.text_model",
    "Transformer": "port.model.transformer",
    "generate": "port.runtime.generate",
    "open_checkpoint": "port.checkpoint.index",
    "open_text_model": "port.runtime.text_model",
}

__all__ = [
    "PLATFORM",
    "Checkpoint",
    "ModelConfig",
    "NumericProfile",
    "PortError",
    "TextModel",
    "Transformer",
    "generate",
    "open_checkpoint",
    "open_text_model",
]


def __getattr__(name: str) -> object:
    if name not in _WHERE:
        raise AttributeError(f"module 'port' has no attribute {name!r}; there are {', '.join(__all__)}")
    return getattr(import_module(_WHERE[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
