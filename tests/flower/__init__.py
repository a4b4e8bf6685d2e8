"""Tests of the deployment; a package, so that they can share a grid in this process."""
