"""Tests of the deployment on Flower; a package, so that they share `driver` and `fake_grid`."""
