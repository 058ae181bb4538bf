"""The text model as modules in checkpoint spelling; arithmetic lives in `port/kernels`."""
