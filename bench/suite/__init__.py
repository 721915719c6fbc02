"""Parts of bench/gpu_suite.py: what a machine with a GPU is asked."""
