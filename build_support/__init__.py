"""What building the package needs and the package itself does not: Node, the page, the hooks."""
