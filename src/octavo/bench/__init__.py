"""Measuring: load generators and reports."""
