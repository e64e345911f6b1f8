"""Normalisations: batch, instance, and of rows (layer, RMS, adaptive layer)."""
