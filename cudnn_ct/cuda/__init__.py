"""The CUDA interface layer: the only folder that calls the CUDA driver."""
