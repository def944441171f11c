"""Names that SGLang and transformers import from ``torchvision.transforms``."""

from enum import Enum


class InterpolationMode(Enum):
    """The modes of the real package; transformers maps Pillow's onto them when it is imported."""

    NEAREST = "nearest"
    NEAREST_EXACT = "nearest-exact"
    BILINEAR = "bilinear"
    BICUBIC = "bicubic"
    BOX = "box"
    HAMMING = "hamming"
    LANCZOS = "lanczos"
