"""Names that transformers imports from ``torchvision.io``."""

from enum import Enum

from torchvision import refuse

ImageReadMode = Enum("ImageReadMode", ["UNCHANGED", "GRAY", "GRAY_ALPHA", "RGB", "RGB_ALPHA"])
decode_image = refuse
