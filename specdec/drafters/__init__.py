"""Where drafts come from."""

from .draft import DraftBlock, Drafter, NoDrafter
from .lookup import LookupDrafter
from .model import ModelDrafter

__all__ = ["DraftBlock", "Drafter", "LookupDrafter", "ModelDrafter", "NoDrafter"]
