"""Tests of the methods; a package, so that they can share a driver and the references."""
