"""Names that SGLang and transformers import from ``torchvision.transforms.functional``."""

from torchvision import refuse
from torchvision.transforms import InterpolationMode

__all__ = ["InterpolationMode", "pil_to_tensor"]

pil_to_tensor = refuse
