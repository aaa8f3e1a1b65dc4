"""Benchmarks: workloads x engines x metrics, with guards against results that are not what they seem.

`python -m benchmarks --help` says how to run them; benchmarks/README.md says what is measured and how.
"""
