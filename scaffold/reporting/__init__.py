"""Figures of merit, tables and figures, from the files that training leaves. No torch."""
