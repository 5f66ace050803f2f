"""Where stacks are trained: in this process, or on a Ray cluster. One file per engine."""
