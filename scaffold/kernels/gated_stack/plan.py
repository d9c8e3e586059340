"""x"""
from typing import Literal
Precision = Literal["ieee", "tf32x3"]
