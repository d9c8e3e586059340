"""The 3-D U-Net."""
