"""Contracts of simulators, policies and algorithms, for the tests of those who write their own."""
