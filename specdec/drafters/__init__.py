"""Where drafts come from."""

from .cascade import CascadeDrafter
from .draft import DraftBlock, Drafter, NoDrafter, Reader
from .lookup import LookupDrafter
from .model import ModelDrafter
from .suffix import SuffixDrafter
from .translated import TranslatedDrafter

__all__ = [
    "CascadeDrafter",
    "DraftBlock",
    "Drafter",
    "LookupDrafter",
    "ModelDrafter",
    "NoDrafter",
    "Reader",
    "SuffixDrafter",
    "TranslatedDrafter",
]
