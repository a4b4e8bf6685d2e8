"""Deploying a federation: the files of its server and sites, a site's check, and the run."""
