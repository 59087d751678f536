"""What is done to a group of regions and measured, the same on Meridian, Apache Pulsar and mixed pairs.

A scenario takes a started `Group` with the regions `west` and `east` (some want `north` too) and sizes, and returns numbers.
It asserts nothing of the system under test: tests and readers judge.
"""
