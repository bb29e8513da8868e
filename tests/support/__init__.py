"""Tiny random models and scripted drafters for the tests."""
