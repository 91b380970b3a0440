"""What the harness costs, measured against the plainest thing that could do the same work. Run `python -m benchmarks`; see README.md."""
