"""Readers of files, which the loader of `cudnn_ct` and the doctor share."""
