"""The apps that Flower's own processes run are no modules of these tests."""

collect_ignore = ["app"]
