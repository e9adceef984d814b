"""What the analyses of the paper measure (appendix B), as functions; ``examples/analyses`` has the scripts."""
