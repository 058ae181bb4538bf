"""What can be narrowed: the lines of a graph file, and captured graphs by layer, by module and by node."""
